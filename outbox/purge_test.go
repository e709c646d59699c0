package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/router"
)

// timedSource is plainSource with a timestamp.
func timedSource() router.Source {
	s := plainSource()
	s.Mapping.Timestamp = router.Timestamp{Column: "at"}
	return s
}

// nextTransaction is an id that no transaction has had.
func nextTransaction(t *testing.T, db *testkit.DB) (n uint64) {
	t.Helper()
	must(t, db.Conn(t).QueryRow(t.Context(), "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&n))
	return n
}

// tick stores a checkpoint whose snapshot proves all transactions below xmin, as if none
// of them were open: other tests have some on the same server.
func tick(t *testing.T, db *testkit.DB, publisher string, xmin uint64) {
	t.Helper()
	db.Exec(t, fmt.Sprintf(`INSERT INTO postrider.checkpoint (publisher, slot, system_id, timeline, confirmed_lsn, snapshot)
		SELECT '%[1]s', '%[1]s', system_identifier::text, 1, pg_current_wal_insert_lsn(), '%[2]d:%[2]d:' FROM pg_control_system()
		ON CONFLICT (publisher) DO UPDATE SET snapshot = excluded.snapshot`, publisher, xmin))
}

func tickNow(t *testing.T, db *testkit.DB) {
	t.Helper()
	tick(t, db, "test", nextTransaction(t, db))
}

// purgeOf is a configuration with one rule for each source, and no pauses.
func purgeOf(db *testkit.DB, rule PurgeRule, sources ...router.Source) PurgeConfig {
	cfg := PurgeConfig{
		Config:    Config{ConnString: db.DSN, AppName: "test", Publications: []string{db.Publication}, Router: router.Config{Sources: sources}},
		Publisher: "test", Actor: "ana", Pause: -1, LockTimeout: 100 * time.Millisecond,
	}
	for range sources {
		cfg.Rules = append(cfg.Rules, rule)
	}
	return cfg
}

func applied(_ []migrations.Applied, err error) error { return err }

func openPurge(t *testing.T, cfg PurgeConfig) *Purge {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := OpenPurge(ctx, cfg)
	must(t, err)
	t.Cleanup(func() { p.Close(context.Background()) })
	return p
}

// idsLeft gives the ids that are left.
func idsLeft(t *testing.T, db *testkit.DB) (s string) {
	t.Helper()
	must(t, db.Conn(t).QueryRow(t.Context(), "SELECT coalesce(string_agg(id, ' ' ORDER BY id), '') FROM outbox").Scan(&s))
	return s
}

// hour is the usual rule.
var hour = PurgeRule{Retention: time.Hour}

const insertRows = `INSERT INTO outbox (id, key, at) SELECT v.id, 'k', now() - v.age::interval FROM (VALUES %s) v(id, age)`

// parkedRow is an event in the parked store.
func parkedRow(id, state string, n int) string {
	return fmt.Sprintf(`INSERT INTO postrider.parked (publisher, slot, system_id, timeline, commit_lsn, event_index, state, reason, event_id)
		VALUES ('test', 's', '1', 1, '0/1', %d, '%s', 'too_large', '%s');`, n, state, id)
}

// rule 4, trap 28, trap 30: only what is proved to be published goes, whatever the ids and
// times of rows say; what is outstanding elsewhere stays. The dry run counts the same.
func TestPurgeKeepsWhatIsNotProved(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable)
	exec := session(t, db)
	exec(fmt.Sprintf(insertRows, "('before-slot', '1 day')"))
	birth := nextTransaction(t, db)
	exec(fmt.Sprintf(insertRows, `('old', '2 hours'), ('old-too', '61 minutes'), ('young', '59 minutes'), ('timeless', NULL), ('', '1 day'),
		('parked', '1 day'), ('retried', '1 day'), ('unparked', '1 day'), ('discarded', '1 day'),
		('task-1', '1 day'), ('task-2', '1 day'), ('refused', '1 day'), ('replayed', '1 day'), ('cancelled', '1 day'), ('elsewhere', '1 day'), ('touched', '1 day')`))
	exec(parkedRow("parked", "parked", 1) + parkedRow("retried", "retry", 2) + parkedRow("unparked", "published", 3) + parkedRow("discarded", "discarded", 4))
	exec(`INSERT INTO postrider.task (id, publisher, kind, state, total, done, refused, created_by) OVERRIDING SYSTEM VALUE VALUES
			(1, 'other', 'recover', 'failed', 2, 1, 0, 'x'), (2, 'test', 'backfill', 'done', 1, 1, 1, 'x'),
			(3, 'test', 'replay', 'done', 1, 1, 1, 'x'), (4, 'test', 'backfill', 'cancelled', 1, 0, 0, 'x'), (5, 'test', 'replay', 'planned', 1, 0, 0, 'x');
		INSERT INTO postrider.task_item VALUES (1, 1, 'public.outbox', 'task-1', NULL), (1, 2, 'public.outbox', 'task-2', NULL), (2, 1, 'public.outbox', 'refused', 'refused: x'),
			(3, 1, 'public.outbox', 'replayed', 'refused: x'), (4, 1, 'public.outbox', 'cancelled', NULL), (5, 1, 'public.other', 'elsewhere', NULL)`)
	// Late: begun before the snapshot, old by its own word, committed after.
	late := session(t, db)
	late("BEGIN; SAVEPOINT s")
	late(fmt.Sprintf(insertRows, "('late', '1 day')"))
	var xid uint64
	must(t, db.Conn(t).QueryRow(t.Context(), "SELECT max(backend_xid::text::bigint) FROM pg_stat_activity WHERE datname = current_database()").Scan(&xid))
	tick(t, db, "test", xid)
	db.Exec(t, fmt.Sprintf("UPDATE postrider.checkpoint SET birth_snapshot = '%[1]d:%[1]d:'", birth))
	exec("UPDATE outbox SET type = 'sent' WHERE id = 'touched'")
	exec(fmt.Sprintf(insertRows, "('after', '1 day')"))
	late("COMMIT")

	all := idsLeft(t, db)
	dry, err := openPurge(t, purgeOf(db, hour, timedSource())).DryRun(t.Context())
	must(t, err)
	got := dry.Tables[0]
	want := map[string]int64{
		keptUnproved: 3, keptBefore: 1, keptAgeless: 1, keptYoung: 1, keptWithoutID: 1, keptParked: 2, keptTask: 2,
	}
	if fmt.Sprint(got.Kept) != fmt.Sprint(want) || got.Deleted != 8 || !dry.DryRun || dry.UpTo != xid || dry.HeldBy != "test" || got.AgeBy != "column at" {
		t.Errorf("dry run: %+v, want %v", dry, want)
	}
	if after := idsLeft(t, db); after != all {
		t.Errorf("the dry run left %s of %s", after, all)
	}
}

// The same, deleted.
func TestPurgeDeletesWhatTheDryRunCounts(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable)
	exec := session(t, db)
	exec(fmt.Sprintf(insertRows, `('old', '2 hours'), ('young', '59 minutes'), ('timeless', NULL), ('', '1 day'), ('parked', '1 day'), ('unparked', '1 day'), ('task', '1 day'), ('done', '1 day')`))
	exec(parkedRow("parked", "publishing", 1) + parkedRow("unparked", "published", 2))
	exec(`INSERT INTO postrider.task (id, publisher, kind, state, total, done, created_by) OVERRIDING SYSTEM VALUE VALUES (1, 'test', 'replay', 'running', 2, 1, 'x');
		INSERT INTO postrider.task_item VALUES (1, 1, 'public.outbox', 'done'), (1, 2, 'public.outbox', 'task')`)
	tickNow(t, db)
	exec(fmt.Sprintf(insertRows, "('after', '1 day')"))
	p := openPurge(t, purgeOf(db, hour, timedSource()))
	result, err := p.Run(t.Context())
	must(t, err)
	if left := idsLeft(t, db); left != " after parked task timeless young" || result.Tables[0].Deleted != 3 || result.Deleted() != 3 {
		t.Errorf("left %q, %+v", left, result)
	}
	var audit string
	must(t, db.Conn(t).QueryRow(t.Context(), `SELECT string_agg(concat_ws(' ', actor, action, detail->>'table', detail->>'rows', detail->>'age_by'), ', ') FROM postrider.audit`).Scan(&audit))
	if audit != "ana purge public.outbox 3 column at" {
		t.Errorf("audit: %s", audit)
	}
	if again, err := p.Run(t.Context()); err != nil || again.Deleted() != 0 {
		t.Errorf("again: %+v, %v", again, err)
	}
	// What was kept for a time goes when that is over; of any age, where that is asked for.
	exec(`UPDATE postrider.parked SET state = 'published'; UPDATE postrider.task SET state = 'done', done = 2`)
	tickNow(t, db)
	if _, err := p.Run(t.Context()); err != nil || idsLeft(t, db) != " timeless young" {
		t.Errorf("left %q, %v", idsLeft(t, db), err)
	}
	p.cfg.Rules[0].Retention = 0
	if _, err := p.Run(t.Context()); err != nil || idsLeft(t, db) != "" {
		t.Errorf("left %q, %v", idsLeft(t, db), err) // the one without an id
	}
}

// Rows from before the slot go where somebody says that they are published.
func TestPurgeBeforeTheSlot(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable)
	db.Exec(t, fmt.Sprintf(insertRows, "('before', '2 hours')"))
	birth := nextTransaction(t, db)
	db.Exec(t, fmt.Sprintf(insertRows, "('later', '2 hours')"))
	tickNow(t, db)
	db.Exec(t, fmt.Sprintf("UPDATE postrider.checkpoint SET birth_snapshot = '%[1]d:%[1]d:'", birth))
	cfg := purgeOf(db, hour, timedSource())
	p := openPurge(t, cfg)
	if _, err := p.Run(t.Context()); err != nil || idsLeft(t, db) != "before" {
		t.Fatalf("left %q, %v", idsLeft(t, db), err)
	}
	p.cfg.BeforeSlot = true
	if _, err := p.Run(t.Context()); err != nil || idsLeft(t, db) != "" {
		t.Errorf("left %q, %v", idsLeft(t, db), err)
	}
}

// What tells the age of a row.
func TestPurgeAge(t *testing.T) {
	t.Parallel()
	db := newDB(t, `SET timezone = 'Asia/Tokyo';
		CREATE DOMAIN moment AS timestamptz;
		CREATE TABLE outbox(id text, kind text, key text, type text, payload jsonb,
			tz timestamptz, dom moment, ts timestamp, day date, s bigint, ms bigint, us bigint, small int, word text);
		INSERT INTO outbox SELECT id, NULL, 'k', NULL, NULL, at, at, at AT TIME ZONE 'UTC', (at AT TIME ZONE 'UTC')::date,
			extract(epoch FROM at), extract(epoch FROM at) * 1000, extract(epoch FROM at) * 1000000, extract(epoch FROM at), 'x'
		  FROM (VALUES ('old', now() - interval '73 hours'), ('young', now() - interval '23 hours')) v(id, at)`)
	tickNow(t, db)
	for _, c := range []struct {
		age  router.Timestamp
		want string // "": one goes, one stays
	}{
		{router.Timestamp{Column: "tz"}, ""},
		{router.Timestamp{Column: "dom"}, ""},
		{router.Timestamp{Column: "ts"}, ""},
		{router.Timestamp{Column: "day"}, ""},
		{router.Timestamp{Column: "s", Unit: "s"}, ""},
		{router.Timestamp{Column: "ms", Unit: "ms"}, ""},
		{router.Timestamp{Column: "us", Unit: "us"}, ""},
		{router.Timestamp{Column: "small", Unit: "s"}, ""},
		{router.Timestamp{Column: "ms"}, "the unit is not said"},
		{router.Timestamp{Column: "word"}, "of type text"},
		{router.Timestamp{Column: "Tz"}, "no such column"},
		{router.Timestamp{}, "does not keep the times of commits"},
	} {
		t.Run(c.age.Column+string(c.age.Unit), func(t *testing.T) {
			t.Parallel()
			cfg := purgeOf(db, PurgeRule{Retention: 48 * time.Hour, Age: c.age}, plainSource())
			cfg.Publisher = "test"
			r, err := Open(t.Context(), cfg.Config) // without the lock: they run at once
			must(t, err)
			defer r.Close(context.Background())
			r.commitTimes = false
			result, err := (&Purge{Reader: r, cfg: cfg}).DryRun(t.Context())
			if c.want != "" {
				if operr.ClassOf(err) != operr.Config || !strings.Contains(err.Error(), c.want) || !strings.Contains(operr.HintOf(err), "purge.age_column") {
					t.Errorf("error %v, hint %q", err, operr.HintOf(err))
				}
				return
			}
			must(t, err)
			if got := result.Tables[0]; got.Deleted != 1 || got.Kept[keptYoung] != 1 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// Where the server keeps the times of commits, they tell; rows from before it did so have
// no age, and stay.
func TestPurgeByTimeOfCommit(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"track_commit_timestamp": "off"}})
	db := testkit.NewDB(t, server.DSN())
	must(t, applied(migrations.Apply(t.Context(), db.DSN)))
	db.Exec(t, plainTable)
	db.Exec(t, "INSERT INTO outbox (id) VALUES ('ageless')")
	server.Set("track_commit_timestamp", "on")
	must(t, server.Restart(t.Context(), devstack.Fast))
	db.Exec(t, "INSERT INTO outbox (id) VALUES ('new')")
	tickNow(t, db)
	p := openPurge(t, purgeOf(db, hour, plainSource()))
	dry, err := p.DryRun(t.Context())
	must(t, err)
	if got := dry.Tables[0]; got.AgeBy != "time of commit" || got.Kept[keptAgeless] != 1 || got.Kept[keptYoung] != 1 {
		t.Errorf("%+v", got)
	}
	p.cfg.Rules[0].Retention = time.Microsecond
	if _, err := p.Run(t.Context()); err != nil || idsLeft(t, db) != "ageless" {
		t.Errorf("left %q, %v", idsLeft(t, db), err)
	}
}

// trap 30: batches are small, each is a transaction of its own, and between two the
// purge rests.
func TestPurgeInBatches(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable+`
		CREATE TABLE batches(n bigint, xid bigint DEFAULT pg_current_xact_id()::text::bigint);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.batches(n) SELECT count(*) FROM gone; RETURN NULL; END $$;
		CREATE TRIGGER note AFTER DELETE ON outbox REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION note();
		INSERT INTO outbox (id, at, payload) SELECT i::text, now() - interval '2 hours', to_jsonb(repeat('x', 300)) FROM generate_series(1, 2550) i;`)
	tickNow(t, db)
	cfg := purgeOf(db, hour, timedSource())
	cfg.Batch, cfg.Pause = 100, time.Millisecond
	var seen []PurgeProgress
	cfg.Progress = func(p PurgeProgress) { seen = append(seen, p) }
	result, err := openPurge(t, cfg).Run(t.Context())
	must(t, err)
	var most, sum, batches, transactions int64
	must(t, db.Conn(t).QueryRow(t.Context(), "SELECT max(n), sum(n), count(*), count(DISTINCT xid) FROM batches WHERE n > 0").Scan(&most, &sum, &batches, &transactions))
	if most > 100 || sum != 2550 || result.Deleted() != 2550 || batches != transactions || batches < 26 {
		t.Errorf("%d rows in %d batches of %d transactions, the largest of %d; %+v", sum, batches, transactions, most, result)
	}
	if last := seen[len(seen)-1]; last.Looked != 100 || last.Deleted != 2550 {
		t.Errorf("progress: %+v", last)
	}
}

// An end that is asked for comes behind the batch at hand; what was deleted is said and audited.
func TestPurgeEndsEarly(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable+`INSERT INTO outbox (id, at, payload) SELECT i::text, now() - interval '2 hours', to_jsonb(repeat('x', 300)) FROM generate_series(1, 5000) i;`)
	tickNow(t, db)
	cfg := purgeOf(db, hour, timedSource())
	graceful, stop := context.WithCancel(t.Context())
	defer stop()
	cfg.Graceful, cfg.Progress, cfg.Batch = graceful, func(PurgeProgress) { stop() }, 100
	result, err := openPurge(t, cfg).Run(t.Context())
	if operr.ClassOf(err) != operr.DrainIncomplete || result.Deleted() == 0 || result.Deleted() == 5000 {
		t.Errorf("%d deleted, %v", result.Deleted(), err)
	}
	var left, audited int64
	must(t, db.Conn(t).QueryRow(t.Context(), "SELECT (SELECT count(*) FROM outbox), (SELECT (detail->>'rows')::bigint FROM postrider.audit)").Scan(&left, &audited))
	if left+result.Deleted() != 5000 || audited != result.Deleted() {
		t.Errorf("%d left, %d deleted, %d audited", left, result.Deleted(), audited)
	}
}

// A role that may only read is told the exact right that it lacks, and which suffices;
// rights on a partitioned table suffice for its partitions.
func TestPurgeWithoutTheRight(t *testing.T) {
	t.Parallel()
	db := newDB(t, `CREATE TABLE outbox(id text, kind text, key text, type text, at timestamptz, payload jsonb) PARTITION BY HASH (id);
		CREATE TABLE part_0 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 0);
		CREATE TABLE part_1 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 1);
		INSERT INTO outbox (id, at) SELECT i::text, now() - interval '2 hours' FROM generate_series(1, 200) i;`)
	role := testkit.Unique(t) + "_Role"
	quoted := pgx.Identifier{role}.Sanitize()
	db.Exec(t, fmt.Sprintf(`CREATE ROLE %[1]s LOGIN PASSWORD 'pw'; GRANT SELECT ON outbox TO %[1]s; GRANT USAGE ON SCHEMA postrider TO %[1]s;
		GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA postrider TO %[1]s; GRANT EXECUTE ON FUNCTION pg_control_system TO %[1]s`, quoted))
	t.Cleanup(func() { db.Exec(t, "DROP OWNED BY "+quoted+"; DROP ROLE "+quoted) })
	tickNow(t, db)
	cfg := purgeOf(db, hour, timedSource())
	cfg.ConnString = db.As(role, "pw")
	p := openPurge(t, cfg)
	if _, err := p.DryRun(t.Context()); err != nil {
		t.Errorf("a dry run needs no right to delete: %v", err)
	}
	_, err := p.Run(t.Context())
	want := fmt.Sprintf(`GRANT DELETE ON "public"."outbox" TO %s`, quoted)
	if operr.ClassOf(err) != operr.Postgres || !strings.HasPrefix(operr.HintOf(err), want) {
		t.Fatalf("error %v, hint %q", err, operr.HintOf(err))
	}
	db.Exec(t, want)
	if result, err := p.Run(t.Context()); err != nil || result.Deleted() != 200 {
		t.Errorf("%+v, %v", result, err)
	}
}

// Rows that somebody holds locked are left for the next time.
func TestPurgeLeavesLockedRows(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable+`INSERT INTO outbox (id, at) SELECT i::text, now() - interval '2 hours' FROM generate_series(1, 30) i;`)
	tickNow(t, db)
	cfg := purgeOf(db, hour, timedSource())
	cfg.Batch = 10
	p := openPurge(t, cfg)
	holder := session(t, db)
	holder("BEGIN; SELECT FROM outbox WHERE id = '5' FOR UPDATE")
	result, err := p.Run(t.Context())
	must(t, err)
	if got := result.Tables[0]; got.Skipped != 10 || got.Deleted != 20 {
		t.Errorf("%+v", got)
	}
	holder("ROLLBACK")
	if result, err := p.Run(t.Context()); err != nil || result.Deleted() != 10 {
		t.Errorf("%+v, %v", result, err)
	}
}

// A row is deleted as it was looked at: one that was updated since stays, and so does one
// that has taken the place of another.
func TestPurgeDeletesTheVersionItSaw(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable+`ALTER TABLE outbox SET (autovacuum_enabled = off);
		INSERT INTO outbox (id, at) VALUES ('updated', now() - interval '2 hours'), ('gone', now() - interval '2 hours'), ('same', now() - interval '2 hours');`)
	tickNow(t, db)
	p := openPurge(t, purgeOf(db, hour, timedSource()))
	rules, err := p.prepare(t.Context(), false)
	must(t, err)
	into := &PurgedTable{}
	w := &walk{purge: p, rule: rules[0], into: into, pages: 1}
	rows, err := w.pick(t.Context(), 0, 1)
	must(t, err)
	if len(rows) != 3 {
		t.Fatalf("picked %v", rows)
	}
	db.Exec(t, "UPDATE outbox SET type = 'x' WHERE id = 'updated'; DELETE FROM outbox WHERE id = 'gone'")
	db.Exec(t, "VACUUM outbox")
	db.Exec(t, "INSERT INTO outbox (id, at) SELECT 'new-' || i, now() - interval '2 hours' FROM generate_series(1, 5) i")
	var taken string
	must(t, db.Conn(t).QueryRow(t.Context(), "SELECT count(*)::text FROM outbox WHERE ctid::text = ANY($1) AND id LIKE 'new-%'", []string{rows[0].ctid, rows[1].ctid}).Scan(&taken))
	if taken == "0" {
		t.Fatal("no new row has taken an old place: the test shows nothing")
	}
	must(t, w.delete(t.Context(), rows))
	if left := idsLeft(t, db); left != "new-1 new-2 new-3 new-4 new-5 updated" || into.Deleted != 1 {
		t.Errorf("left %s, %+v", left, into)
	}
}

// A checkpoint that proves nothing here deletes nothing, and one that cannot be trusted is
// an error; of several the one furthest behind decides.
func TestPurgeTrustsTheCheckpoint(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql, problem string
		left         string
	}{
		"no checkpoint":     {"DELETE FROM postrider.checkpoint", "there is none", "a b"},
		"no snapshot yet":   {"UPDATE postrider.checkpoint SET snapshot = NULL", "", "a b"},
		"another system":    {"UPDATE postrider.checkpoint SET system_id = '7'", "system identifier 7", "a b"},
		"another timeline":  {"UPDATE postrider.checkpoint SET timeline = 3", "timeline 3", "a b"},
		"a newer copy":      {"UPDATE postrider.checkpoint SET confirmed_lsn = 'FF/0'", "past the end", "a b"},
		"as it should be":   {"SELECT", "", ""},
		"another publisher": {"INSERT INTO postrider.checkpoint SELECT 'p2', 'p2', system_id, timeline, NULL, confirmed_lsn FROM postrider.checkpoint", "", "a b"},
		"another, behind": {`INSERT INTO postrider.checkpoint (publisher, slot, system_id, timeline, confirmed_lsn, snapshot)
			SELECT 'p2', 'p2', system_id, timeline, confirmed_lsn, ((SELECT xmin::text FROM outbox WHERE id = 'b') || ':' || (SELECT xmin::text FROM outbox WHERE id = 'b') || ':')::pg_snapshot FROM postrider.checkpoint`, "", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t, plainTable)
			db.Exec(t, fmt.Sprintf(insertRows, "('a', '2 hours')"))
			db.Exec(t, fmt.Sprintf(insertRows, "('b', '2 hours')"))
			tickNow(t, db)
			db.Exec(t, c.sql)
			_, err := openPurge(t, purgeOf(db, hour, timedSource())).Run(t.Context())
			if (c.problem == "") != (err == nil) || err != nil && (operr.ClassOf(err) != operr.Slot || !strings.Contains(err.Error(), c.problem) || operr.HintOf(err) == "") {
				t.Errorf("error %v", err)
			}
			if left := idsLeft(t, db); left != c.left {
				t.Errorf("left %q, want %q", left, c.left)
			}
		})
	}
}

// Two purges of a publisher do not run at once.
func TestOnePurgeAtATime(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable)
	cfg := purgeOf(db, hour, timedSource())
	first := openPurge(t, cfg)
	if _, err := OpenPurge(t.Context(), cfg); !errors.Is(err, ErrPurging) {
		t.Errorf("error %v", err)
	}
	first.Close(t.Context())
	testkit.Eventually(t, patience, func() error {
		p, err := OpenPurge(t.Context(), cfg)
		if err == nil {
			p.Close(t.Context())
		}
		return err
	})
}
