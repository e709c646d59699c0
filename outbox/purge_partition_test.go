package outbox

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// monthly is a table of which the partitions are months of long ago, this year and later.
const monthly = `CREATE TABLE outbox(id text, kind text, key text, type text, at timestamptz, payload jsonb) PARTITION BY RANGE (at);
	CREATE TABLE "Jan" PARTITION OF outbox FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
	CREATE TABLE feb PARTITION OF outbox FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
	CREATE TABLE mar PARTITION OF outbox FOR VALUES FROM ('2024-03-01') TO ('2024-04-01');
	CREATE TABLE later PARTITION OF outbox FOR VALUES FROM ('2099-01-01') TO ('2099-02-01');
	CREATE TABLE open_end PARTITION OF outbox FOR VALUES FROM ('2199-01-01') TO (MAXVALUE);
	INSERT INTO outbox (id, at) SELECT 'jan-' || i, '2024-01-05' FROM generate_series(1, 3) i;
	INSERT INTO outbox (id, at) SELECT 'mar-' || i, '2024-03-05' FROM generate_series(1, 2) i;`

// tables lists the partitions, and with a star those that are none any more.
func parts(t *testing.T, db *testkit.DB) (s string) {
	t.Helper()
	must(t, db.Conn(t).QueryRow(t.Context(), `SELECT coalesce(string_agg(relname || CASE WHEN relispartition THEN '' ELSE '*' END, ' ' ORDER BY relname COLLATE "C"), '')
		FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace`).Scan(&s))
	return s
}

func actions(t *testing.T, db *testkit.DB) (s string) {
	t.Helper()
	must(t, db.Conn(t).QueryRow(t.Context(), `SELECT coalesce(string_agg(concat_ws(' ', action, detail->>'partition', detail->>'rows'), ', ' ORDER BY id), '') FROM postrider.audit`).Scan(&s))
	return s
}

// Whole partitions go where they end before the retention and every row may go; empty
// ones too; those of later times stay, and one of which a row must stay, with the reason.
func TestPurgePartitions(t *testing.T) {
	t.Parallel()
	db := newDB(t, monthly)
	tickNow(t, db)
	db.Exec(t, "INSERT INTO outbox (id, at) VALUES ('mar-late', '2024-03-06')")
	cfg := purgeOf(db, hour, timedSource())
	p := openPurge(t, cfg)
	before := parts(t, db)
	dry, err := p.DryRunPartitions(t.Context())
	must(t, err)
	want := "[{public.Jan 3 true } {public.feb 0 true } {public.mar 2 false not_confirmed: 1}]"
	if got := fmt.Sprint(dry.Tables[0].Partitions); got != want || dry.Deleted() != 3 || parts(t, db) != before || actions(t, db) != "" {
		t.Errorf("dry run: %s of %+v; %s", got, dry, parts(t, db))
	}
	result, err := p.RunPartitions(t.Context())
	must(t, err)
	if got := fmt.Sprint(result.Tables[0].Partitions); got != want || result.Deleted() != 3 {
		t.Errorf("%+v", result)
	}
	if got := parts(t, db); got != "later mar open_end" {
		t.Errorf("tables: %s", got)
	}
	if got := actions(t, db); got != "purge.detach public.Jan 0, purge.drop public.Jan 3, purge.detach public.feb 0, purge.drop public.feb 0" {
		t.Errorf("audit: %s", got)
	}
	tickNow(t, db)
	if result, err := p.RunPartitions(t.Context()); err != nil || result.Deleted() != 3 || parts(t, db) != "later open_end" {
		t.Errorf("%+v, %v; %s", result, err, parts(t, db))
	}
}

// detached is a purge that has detached the first of the partitions.
func detached(t *testing.T) (*testkit.DB, *Purge, []*rule, []partition) {
	t.Helper()
	db := newDB(t, monthly)
	tickNow(t, db)
	p := openPurge(t, purgeOf(db, hour, timedSource()))
	rules, err := p.prepare(t.Context(), false)
	must(t, err)
	list, err := p.partitions(t.Context(), rules[0])
	must(t, err)
	must(t, p.detach(t.Context(), rules[0].table, &list[0]))
	return db, p, rules, list
}

// What was written to a partition after it was detached is seen under the lock: it is
// attached again, with its rows, and takes new ones.
func TestPurgePartitionIsAttachedAgain(t *testing.T) {
	t.Parallel()
	db, p, rules, list := detached(t)
	db.Exec(t, `INSERT INTO "Jan" (id, at) VALUES ('late', '2024-01-07')`)
	done, err := p.dropOrAttach(t.Context(), rules[0], &list[0], PurgedPartition{})
	if err != nil || done.Dropped || done.Kept != "not_confirmed: 1" {
		t.Errorf("%+v, %v", done, err)
	}
	db.Exec(t, "INSERT INTO outbox (id, at) VALUES ('jan-4', '2024-01-08')")
	if got := idsLeft(t, db); got != "jan-1 jan-2 jan-3 jan-4 late mar-1 mar-2" {
		t.Errorf("rows: %s", got)
	}
	if got := actions(t, db); got != "purge.detach public.Jan 0, purge.attach public.Jan 0" {
		t.Errorf("audit: %s", got)
	}
}

// Somebody who holds the detached table locked keeps it from being dropped: it is attached again.
func TestPurgePartitionInUse(t *testing.T) {
	t.Parallel()
	db, p, rules, list := detached(t)
	holder := session(t, db)
	holder(`BEGIN; LOCK TABLE "Jan" IN ROW SHARE MODE`)
	var done PurgedPartition
	kept, err := p.drop(t.Context(), rules[0], &list[0], &done)
	if err == nil || kept != "" {
		t.Errorf("dropped, or kept %q: %v", kept, err)
	}
	holder("ROLLBACK")
	must(t, p.attach(t.Context(), rules[0].table, &list[0]))
	if got := parts(t, db); !strings.HasPrefix(got, "Jan feb") {
		t.Errorf("tables: %s", got)
	}
}

// Cut off behind the detaching, or in the middle of it, the next purge goes on.
func TestPurgePartitionsGoOn(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*testing.T, *testkit.DB, *Purge, *rule, *partition){
		"detached": func(t *testing.T, _ *testkit.DB, p *Purge, r *rule, part *partition) {
			must(t, p.detach(t.Context(), r.table, part))
		},
		"pending": func(t *testing.T, db *testkit.DB, p *Purge, r *rule, part *partition) {
			reader := session(t, db)
			reader("BEGIN; SELECT FROM outbox") // whom the detaching waits for
			_, err := p.conn.Exec(t.Context(), "SET lock_timeout = '200ms'")
			must(t, err)
			if err := p.detach(t.Context(), r.table, part); err == nil {
				t.Fatal("it was detached")
			}
			reader("ROLLBACK")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t, monthly)
			tickNow(t, db)
			cfg := purgeOf(db, hour, timedSource())
			first := openPurge(t, cfg)
			rules, err := first.prepare(t.Context(), false)
			must(t, err)
			list, err := first.partitions(t.Context(), rules[0])
			must(t, err)
			cut(t, db, first, rules[0], &list[0])
			if got := parts(t, db); name == "detached" && !strings.HasPrefix(got, "Jan* ") {
				t.Fatalf("tables: %s", got)
			}
			first.Close(context.Background())
			var result PurgeResult
			testkit.Eventually(t, patience, func() error {
				p, err := OpenPurge(t.Context(), cfg)
				if err != nil {
					return err
				}
				defer p.Close(context.Background())
				result, err = p.RunPartitions(t.Context())
				return err
			})
			if got := parts(t, db); got != "later open_end" || result.Deleted() != 5 {
				t.Errorf("tables: %s, %+v", got, result)
			}
		})
	}
}

// Tables that are not partitioned by time, and roles that do not own them, are refused
// with what helps, before anything is touched.
func TestPurgePartitionsRefused(t *testing.T) {
	t.Parallel()
	const columns = `(id text, kind text, key text, type text, at timestamptz, payload jsonb)`
	for name, c := range map[string]struct{ ddl, problem string }{
		"plain":   {`CREATE TABLE outbox` + columns, "not partitioned"},
		"hash":    {`CREATE TABLE outbox` + columns + ` PARTITION BY HASH (id)`, "by range of one column"},
		"by id":   {`CREATE TABLE outbox` + columns + ` PARTITION BY RANGE (id)`, "by range of one column"},
		"two":     {`CREATE TABLE outbox` + columns + ` PARTITION BY RANGE (at, id)`, "by range of one column"},
		"default": {monthly + `CREATE TABLE rest PARTITION OF outbox DEFAULT`, "default partition"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t, c.ddl)
			tickNow(t, db)
			before := parts(t, db)
			_, err := openPurge(t, purgeOf(db, hour, timedSource())).RunPartitions(t.Context())
			if operr.ClassOf(err) != operr.Config || !strings.Contains(err.Error(), c.problem) || operr.HintOf(err) == "" {
				t.Errorf("error %v", err)
			}
			if got := parts(t, db); got != before {
				t.Errorf("tables: %s, were %s", got, before)
			}
		})
	}
	t.Run("not the owner", func(t *testing.T) {
		t.Parallel()
		db := newDB(t, monthly)
		role := testkit.Unique(t)
		db.Exec(t, fmt.Sprintf(`CREATE ROLE %[1]s LOGIN PASSWORD 'pw'; GRANT SELECT, DELETE ON ALL TABLES IN SCHEMA public TO %[1]s; GRANT USAGE ON SCHEMA postrider TO %[1]s;
			GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA postrider TO %[1]s; GRANT EXECUTE ON FUNCTION pg_control_system TO %[1]s`, role))
		t.Cleanup(func() { db.Exec(t, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
		tickNow(t, db)
		cfg := purgeOf(db, hour, timedSource())
		cfg.ConnString = db.As(role, "pw")
		_, err := openPurge(t, cfg).RunPartitions(t.Context())
		if operr.ClassOf(err) != operr.Postgres || !strings.Contains(err.Error(), "does not own") || actions(t, db) != "" {
			t.Errorf("error %v; %s", err, actions(t, db))
		}
	})
}

// The lock comes before the look: what a writer commits while the purge waits for it is seen.
func TestPurgePartitionLooksUnderItsLock(t *testing.T) {
	t.Parallel()
	db := newDB(t, monthly)
	tickNow(t, db)
	cfg := purgeOf(db, hour, timedSource())
	cfg.LockTimeout = patience
	p := openPurge(t, cfg)
	rules, err := p.prepare(t.Context(), false)
	must(t, err)
	list, err := p.partitions(t.Context(), rules[0])
	must(t, err)
	must(t, p.detach(t.Context(), rules[0].table, &list[0]))
	writer := session(t, db)
	writer(`BEGIN; INSERT INTO "Jan" (id, at) VALUES ('late', '2024-01-07')`)
	type end struct {
		kept string
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		kept, err := p.drop(context.Background(), rules[0], &list[0], &PurgedPartition{})
		ended <- end{kept, err}
	}()
	watch := db.Conn(t)
	testkit.EventuallyTrue(t, patience, "the purge does not wait for the lock", func() bool {
		var waits bool
		must(t, watch.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = '"Jan"'::regclass AND NOT granted)`).Scan(&waits))
		return waits
	})
	writer("COMMIT")
	if got := <-ended; got.err != nil || got.kept != "not_confirmed: 1" {
		t.Errorf("%+v", got)
	}
}
