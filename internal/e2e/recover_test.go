package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/recovery"
	"github.com/postrider/postrider/internal/testkit"
)

// TestRecoverRestoredBackup: the database is restored from a base backup from before the
// last events, and Kafka is newer. `run` refuses and says why; recover brings them
// together, under the ids that there are, and lists what only the topic has (traps 10 and
// 28, case C31c).
func TestRecoverRestoredBackup(t *testing.T) {
	t.Parallel()
	lost := pick(500, 5000)
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
	f.createTopic("order", 3, nil)
	f.batch("order", "a", 1, 200, 0)
	f.batch("order", "b", 1, 200, 0)
	f.quietRelay()
	f.batch("order", "a", 201, 220, 0) // in the backup, and published after it
	dir := backup(t, server, false)
	f.batch("order", "b", 201, 200+lost, 0)
	f.quietRelay()
	must(t, server.Halt(devstack.Fast))

	r, _ := f.restored(dir, nil)
	r.refusedRun("does not exist", "may be missing")
	r.batch("order", "c", 1, 30, 0) // the shop goes on
	only := filepath.Join(t.TempDir(), "only.jsonl")
	began := time.Now()
	_, done := r.mustRecover(recovery.CaseNoSlot, "--topic-only", only)
	took(t, fmt.Sprintf("recovery over %d records", 650+lost), began)
	if c := done.Comparison; c.InTopic < 20 || c.ToPublish != 30 || done.Published != 30 || c.TopicOnly != int64(lost) || c.Conflicts != 0 {
		t.Errorf("comparison: %+v, published %d", *c, done.Published)
	}
	if n := len(lines(t, only)); n != lost {
		t.Errorf("%d events are listed that only the topic has, want %d", n, lost)
	}
	if done.Diagnosis.Scope != recovery.Uncovered || done.Diagnosis.Method != recovery.NewSlot {
		t.Errorf("diagnosis: %+v", done.Diagnosis)
	}
	r.batch("order", "c", 31, 40, 0)
	r.ran()
	copies, marked := r.requireWhole(r.topic("order"), map[string]int{"a": 220, "b": 200 + lost, "c": 40})
	if copies != 0 || marked != 30 {
		t.Errorf("%d copies, %d records marked as recovered, want 0 and 30", copies, marked)
	}
	r.requireIDs(r.topic("order"))
	if again := r.recover(); again.code != 0 || again.Diagnosis.Case != recovery.CaseHealthy {
		t.Errorf("afterwards: %d, %+v", again.code, again.Diagnosis)
	}
}

// TestRecoverUsedIDs: a sequence goes back with its database. New events under used ids are
// no copies of the events that only the topic has: a person decides, and they are published.
func TestRecoverUsedIDs(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
	f := newFixtureWith(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t),
		strings.Replace(sharedTable, "id uuid PRIMARY KEY DEFAULT gen_random_uuid()", "id bigserial PRIMARY KEY", 1))
	f.createTopic("order", 1, nil)
	f.batch("order", "a", 1, 10, 0)
	f.quietRelay()
	dir := backup(t, server, false)
	// Past the values that a sequence keeps ready over a crash.
	f.batch("order", "a", 11, 60, 0)
	f.quietRelay()
	must(t, server.Halt(devstack.Fast))

	r, _ := f.restored(dir, nil)
	r.db.Exec(t, "SELECT setval('outbox_id_seq', 10)")
	r.batch("order", "b", 1, 5, 0)
	if dry := r.recover(); dry.code != 0 || dry.Comparison.Conflicts != 5 || dry.Comparison.ToPublish != 0 {
		t.Fatalf("dry run: %d, %+v", dry.code, dry.Comparison)
	}
	stopped := r.recover("--yes")
	if stopped.code != 5 || !strings.Contains(stopped.stderr, "5 rows have the event id of a record with another key or value") || !strings.Contains(stopped.stderr, "--conflicts") {
		t.Fatalf("without a decision: %d, %s", stopped.code, stopped.stderr)
	}
	r.refusedRun("recover")
	if done := r.recover("--resume", "--conflicts", "publish"); done.code != 0 || done.Published != 5 {
		t.Fatalf("%d, %d published", done.code, done.Published)
	}
	r.ran()
	var b []string
	for _, rec := range r.broker.ReadAll(t, r.topic("order")) {
		if string(rec.Key) == "b" {
			b = append(b, string(rec.Value))
		}
	}
	if strings.Join(b, " ") != "1 2 3 4 5" {
		t.Errorf("the new events are %v", b)
	}
}

// TestRecoverSlot: whatever happened to the slot, `run` refuses and names recover, and
// after it nothing is missing, nothing is twice and each key is in order. A transaction is
// open over the last tick-off and commits before the slot is touched: neither its id nor
// its time would find its event (rules 3 and 4, traps 8, 10 and 28, case C31d).
func TestRecoverSlot(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		spoil  string // SQL; SLOT is the slot
		says   string
		want   recovery.Case
		method recovery.Method
		// missing of the events that were written before the slot was spoilt and after
		missing int64
	}{
		{"dropped", "SELECT pg_drop_replication_slot('SLOT')", "does not exist", recovery.CaseNoSlot, recovery.NewSlot, 45},
		{
			"recreated", "SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')",
			"moved or created anew", recovery.CaseMoved, recovery.KeepSlot, 25,
		},
		{"advanced", "SELECT pg_replication_slot_advance('SLOT', pg_current_wal_lsn())", "moved or created anew", recovery.CaseMoved, recovery.KeepSlot, 25},
		{
			"another plugin", "SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'test_decoding')",
			"output plugin", recovery.CaseForeign, recovery.NewSlot, 45,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// An open transaction holds up the making of every slot on its server.
			server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
			f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
			f.createTopic("order", 3, nil)
			f.batch("order", "a", 1, 50, 0)
			f.db.Exec(t, "CREATE TABLE other ()")
			run := spawn(t, "run", "--config", f.yaml(""))
			f.awaitConfirmed(f.walEnd())
			late := f.db.Conn(t)
			_, err := late.Exec(context.Background(), "BEGIN; INSERT INTO outbox(aggregate_type, aggregate_id, payload) SELECT 'order', 'late', to_jsonb(i) FROM generate_series(1, 5) i")
			must(t, err)
			f.batch("order", "a", 51, 60, 0)
			f.awaitConfirmed(f.walEnd())
			if code := run.terminate(); code != 0 {
				t.Fatalf("exit code %d: %s", code, run.said())
			}
			f.db.Exec(t, "UPDATE postrider.checkpoint SET idle = false") // under the latch see TestDoubtfulStart
			_, err = late.Exec(context.Background(), "COMMIT")
			must(t, err)
			f.batch("order", "b", 1, 20, 0)
			for _, sql := range strings.Split(strings.ReplaceAll(c.spoil, "SLOT", f.db.Slot), "; ") {
				f.db.Exec(t, sql)
			}
			f.batch("order", "b", 21, 40, 0)
			f.refusedRun(f.db.Slot, c.says)
			_, done := f.mustRecover(c.want)
			if done.Diagnosis.Method != c.method || done.Diagnosis.Scope != recovery.Uncovered || done.Published != c.missing {
				t.Errorf("%+v, %d published, want %d by %s", done.Diagnosis, done.Published, c.missing, c.method)
			}
			f.batch("order", "b", 41, 50, 0)
			f.ran()
			copies, marked := f.requireWhole(f.topic("order"), map[string]int{"a": 60, "b": 50, "late": 5})
			if copies != 0 || int64(marked) != c.missing {
				t.Errorf("%d copies, %d marked, want 0 and %d", copies, marked, c.missing)
			}
			f.requireIDs(f.topic("order"))
		})
	}
}

// TestRecoverKeepsDeletedRows: a slot that somebody advanced is kept, since its WAL has
// events whose rows are gone: an outbox that deletes at once lives by it.
func TestRecoverKeepsDeletedRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "k", 1, 3)
	f.quietRelay()
	f.db.Exec(t, "UPDATE postrider.checkpoint SET idle = false")
	f.series("order", "k", 4, 5)
	f.db.Exec(t, fmt.Sprintf("SELECT pg_replication_slot_advance('%s', pg_current_wal_lsn())", f.db.Slot))
	f.db.Exec(t, "BEGIN; INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES ('order', 'k', '6'); DELETE FROM outbox WHERE payload = '6'; COMMIT")
	f.refusedRun("moved or created anew")
	f.mustRecover(recovery.CaseMoved)
	f.ran()
	if copies := f.requireSeries(f.topic("order"), 1, 6); copies != 0 {
		t.Errorf("%d copies", copies)
	}
}

// TestRecoverUnderARunningRelay: the slot is dropped under a running relay, which ends and
// names recover; while a relay holds the slot recover refuses and names it (trap 24).
func TestRecoverUnderARunningRelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	run := spawn(t, "run", "--config", f.yaml(""))
	run.awaitLine("holding the slot")
	f.series("order", "k", 1, 3)
	f.awaitConfirmed(f.walEnd())
	pid := f.awaitHolder()
	for _, args := range [][]string{{"--anyway"}, {"--yes", "--anyway"}} {
		if held := f.recover(args...); held.code != 5 || !strings.Contains(held.stderr, "pid "+pid) || !strings.Contains(held.stderr, "application postrider") {
			t.Errorf("recover %v while the slot is held: %d, %s", args, held.code, held.stderr)
		}
	}
	f.series("order", "k", 4, 5)
	f.awaitConfirmed(f.walEnd())
	testkit.Eventually(t, patience, func() error {
		_, err := f.session(context.Background()).Exec(context.Background(), `SELECT pg_terminate_backend(active_pid), pg_sleep(0.01) FROM pg_replication_slots WHERE slot_name = $1 AND active_pid IS NOT NULL`, f.db.Slot)
		if err == nil {
			_, err = f.session(context.Background()).Exec(context.Background(), `SELECT pg_drop_replication_slot($1)`, f.db.Slot)
		}
		return err
	})
	f.series("order", "k", 6, 9)
	said := requireExit(t, run, 5, f.db.Slot, "does not exist")
	if !strings.Contains(said, "postrider recover") {
		t.Errorf("the remedy does not name recover: %s", said)
	}
	f.mustRecover(recovery.CaseNoSlot)
	f.series("order", "k", 10, 12)
	f.ran()
	if copies := f.requireSeries(f.topic("order"), 1, 12); copies != 0 {
		t.Errorf("%d copies", copies)
	}
}

// TestRecoverLostSlot is case C32 to its end: PostgreSQL has given up WAL that the slot
// needs; recover makes a new one and publishes what is missing, and nothing else.
func TestRecoverLostSlot(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.NewDB(t, testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: keepsLittleWAL}).DSN()), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "k", 1, 3)
	f.quietRelay()
	f.series("order", "k", 4, 20)
	f.segments(6)
	f.setting("max_wal_size", "32MB")
	f.setting("max_slot_wal_keep_size", "1MB")
	f.db.Exec(t, "CHECKPOINT")
	f.refusedRun("wal_status=lost", "may be missing")
	_, done := f.mustRecover(recovery.CaseLost)
	if done.Published != 17 || done.Diagnosis.Method != recovery.NewSlot {
		t.Errorf("%d published, %+v", done.Published, done.Diagnosis)
	}
	f.series("order", "k", 21, 22)
	f.ran()
	if copies := f.requireSeries(f.topic("order"), 1, 22); copies != 0 {
		t.Errorf("%d copies", copies)
	}
}

// standbySettings make a server follow another one.
func standbySettings(primary *devstack.Postgres) map[string]string {
	return map[string]string{"primary_conninfo": fmt.Sprintf("host=%s port=%d user=%s sslmode=disable", primary.Host, primary.Port, devstack.Superuser)}
}

// promoted makes a standby, lets it follow up to now, cuts it off, runs what happens on
// the primary meanwhile, and promotes it.
func (f *fixture) promoted(primary *devstack.Postgres, meanwhile func()) *fixture {
	f.t.Helper()
	dir := backup(f.t, primary, true)
	s, server := f.restored(dir, standbySettings(primary))
	at := f.walEnd()
	testkit.EventuallyTrue(f.t, patience, "the standby does not follow", func() bool {
		return s.scalar("SELECT (pg_last_wal_replay_lsn() >= '"+at.String()+"')::text") == "true"
	})
	must(f.t, server.Halt(devstack.Fast))
	meanwhile()
	must(f.t, primary.Halt(devstack.Fast))
	server.Set("primary_conninfo", "")
	must(f.t, server.Start(context.Background()))
	s.db.Exec(f.t, "SELECT pg_promote()")
	testkit.EventuallyTrue(f.t, patience, "the standby is not promoted", func() bool {
		return s.scalar("SELECT pg_is_in_recovery()::text") == "false"
	})
	return s
}

// TestRecoverPromotedStandby: the slot was not on the standby (before 17 it never is). The
// row of the checkpoint is, and its snapshot counts up to the fork (rule 2, trap 29).
func TestRecoverPromotedStandby(t *testing.T) {
	t.Parallel()
	primary := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
	f := newFixture(t, testkit.NewDB(t, primary.DSN()), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "k", 1, 10)
	f.quietRelay()
	f.series("order", "k", 11, 15)
	s := f.promoted(primary, func() {})
	s.series("order", "k", 16, 20)
	s.refusedRun("does not exist")
	_, done := s.mustRecover(recovery.CaseNoSlot)
	if done.Diagnosis.Scope != recovery.Uncovered || done.Published != 10 || done.Evidence.Server.Timeline != 2 {
		t.Errorf("%+v, %d published, %+v", done.Diagnosis, done.Published, done.Evidence.Server)
	}
	s.series("order", "k", 21, 22)
	s.ran()
	if copies := s.requireSeries(s.topic("order"), 1, 22); copies != 0 {
		t.Errorf("%d copies", copies)
	}
}

// TestRecoverPastTheFork: the promoted standby lacked what the old primary had published,
// and the row of the checkpoint was saved from the old primary: it lies past the fork. Its
// LSNs and its snapshot are of transactions that this server does not know, and whose ids
// it gives to others: trusted, it would cover rows that nobody published (rules 2 and 4).
// With the slot missing, and with one made by hand.
func TestRecoverPastTheFork(t *testing.T) {
	t.Parallel()
	for name, byHand := range map[string]bool{"without a slot": false, "with a slot made by hand": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
			f := newFixture(t, testkit.NewDB(t, primary.DSN()), testkit.Kafka(t))
			f.createTopic("order", 1, nil)
			f.series("order", "k", 1, 10)
			f.quietRelay()
			var saved string
			s := f.promoted(primary, func() {
				f.series("order", "gone", 1, 100) // published, and unknown to the standby
				f.quietRelay()
				saved = f.scalar("SELECT format('UPDATE postrider.checkpoint SET confirmed_lsn = %L, snapshot = %L, idle = false', confirmed_lsn, snapshot) FROM postrider.checkpoint")
			})
			s.db.Exec(t, saved)
			s.series("order", "k", 11, 20) // under the ids of the old primary's transactions
			if covered := s.scalar("SELECT bool_or(xmin::text::bigint < pg_snapshot_xmin((SELECT snapshot FROM postrider.checkpoint))::text::bigint)::text FROM outbox WHERE payload::text::int > 10"); covered != "true" {
				t.Fatal("the saved snapshot covers nothing of the new rows: the test shows nothing")
			}
			want, says := recovery.CaseOtherHistory, "does not exist"
			missing := int64(10)
			if byHand {
				s.db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", s.db.Slot))
				s.series("order", "k", 21, 25)
				says = "may be missing"
			}
			s.refusedRun(says)
			only := filepath.Join(t.TempDir(), "only.jsonl")
			_, done := s.mustRecover(want, "--topic-only", only)
			if done.Diagnosis.Scope != recovery.AllRows || done.Published != missing || done.Comparison.TopicOnly != 100 || len(lines(t, only)) != 100 {
				t.Errorf("%+v, %d published, %+v", done.Diagnosis, done.Published, *done.Comparison)
			}
			last := 20
			if byHand {
				last = 25
			}
			s.series("order", "k", last+1, last+3)
			s.ran()
			copies, _ := s.requireWhole(s.topic("order"), map[string]int{"k": last + 3, "gone": 100})
			if copies != 0 {
				t.Errorf("%d copies", copies)
			}
		})
	}
}

// TestRecoverLoadedElsewhere: the database is dumped and loaded into another cluster, where
// transaction ids and LSNs mean nothing. Table and topic are compared by event id; a slot
// that was made before the loading would stream every row again, and is not trusted.
func TestRecoverLoadedElsewhere(t *testing.T) {
	t.Parallel()
	for name, slotFirst := range map[string]bool{"without a slot": false, "with a slot from before the loading": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
			dump := pgDump(t, old)
			f := newFixture(t, testkit.NewDB(t, old.DSN()), testkit.Kafka(t))
			f.createTopic("order", 1, nil)
			f.series("order", "k", 1, 30)
			f.quietRelay()
			f.series("order", "k", 31, 40)
			sql, err := exec.Command(dump, "--dbname", f.db.DSN).Output()
			must(t, err)
			must(t, old.Halt(devstack.Fast))

			server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
			n := f.on(server)
			n.db.DSN = server.DSN()
			n.db.Exec(t, "CREATE DATABASE "+f.db.Name)
			n.db.DSN = server.DatabaseDSN(f.db.Name)
			if slotFirst {
				n.db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", n.db.Slot))
			}
			load := exec.Command(filepath.Join(old.BinDir, "psql"), "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", n.db.DSN)
			load.Stdin = strings.NewReader(string(sql))
			if out, err := load.CombinedOutput(); err != nil {
				t.Fatalf("load the dump: %v\n%s", err, out)
			}
			n.series("order", "k", 41, 45)
			says := "does not exist"
			if slotFirst {
				says = "system identifier"
			}
			n.refusedRun(says)
			_, done := n.mustRecover(recovery.CaseOtherSystem)
			if done.Diagnosis.Scope != recovery.AllRows || done.Diagnosis.Method != recovery.NewSlot || done.Published != 15 || done.Comparison.InTopic != 30 {
				t.Errorf("%+v, %d published, %+v", done.Diagnosis, done.Published, *done.Comparison)
			}
			n.series("order", "k", 46, 47)
			n.ran()
			if copies := n.requireSeries(n.topic("order"), 1, 47); copies != 0 {
				t.Errorf("%d copies", copies)
			}
			n.requireIDs(n.topic("order"))
		})
	}
}

// TestPromotedFailoverSlot: since 17 a standby keeps a copy of the slot, and after a promotion
// `run` starts from it: recover has nothing to do, and says so. Where the row of the
// checkpoint came back older than the slot's copy, the start is in doubt, and recover, asked
// for it, ticks the events off that the topic has (rules 3, 4 and 6, trap 29).
func TestPromotedFailoverSlot(t *testing.T) {
	t.Parallel()
	for _, version := range pick([]string{"18"}, []string{"17", "18"}) {
		for name, old := range map[string]bool{"with its row": false, "with an older row": true} {
			t.Run(version+" "+name, func(t *testing.T) {
				t.Parallel()
				requirePromotedSlot(t, version, old)
			})
		}
	}
}

func requirePromotedSlot(t *testing.T, version string, old bool) {
	t.Helper()
	primary := versionedPostgres(t, version)
	f := newFixture(t, testkit.NewDB(t, primary.DSN()), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s'); SELECT pg_create_physical_replication_slot('standby', true)", f.db.Slot))
	requireDone(t, spawn(t, "setup", "--failover", "--config", f.yaml("")))
	f.series("order", "k", 1, 5)
	f.quietRelay()
	saved := f.scalar("SELECT format('UPDATE postrider.checkpoint SET confirmed_lsn = %L, snapshot = %L, idle = false', confirmed_lsn, snapshot) FROM postrider.checkpoint")
	f.series("order", "k", 6, 10)
	f.quietRelay()

	settings := standbySettings(primary)
	settings["primary_conninfo"] += " dbname=postgres"
	settings["primary_slot_name"], settings["hot_standby_feedback"], settings["sync_replication_slots"] = "standby", "on", "on"
	s, _ := f.restoredOn(version, backup(t, primary, true), settings)
	// A copy is kept when the slot on the primary has moved past what the standby still has.
	tenth := f.stored()
	run := spawn(t, "run", "--config", f.yaml(""))
	testkit.Eventually(t, 3*patience, func() error {
		f.db.Exec(t, "SELECT pg_log_standby_snapshot()")
		synced := s.scalar("SELECT coalesce((SELECT concat_ws(' ', synced, temporary, confirmed_flush_lsn >= '" + tenth.String() + "', confirmed_flush_lsn) FROM pg_replication_slots WHERE slot_name = '" + f.db.Slot + "'), 'none')")
		if !strings.HasPrefix(synced, "t f t ") {
			return fmt.Errorf("the standby's copy of the slot is %q", synced)
		}
		return nil
	})
	if code := run.terminate(); code != 0 {
		t.Fatalf("exit code %d: %s", code, run.said())
	}
	f.series("order", "k", 11, 15)
	at := f.walEnd()
	testkit.EventuallyTrue(t, patience, "the standby does not follow", func() bool {
		return s.scalar("SELECT (pg_last_wal_replay_lsn() >= '"+at.String()+"')::text") == "true"
	})
	must(t, primary.Halt(devstack.Fast))
	s.db.Exec(t, "SELECT pg_promote()")
	testkit.EventuallyTrue(t, patience, "the standby is not promoted", func() bool { return s.scalar("SELECT pg_is_in_recovery()::text") == "false" })

	if old {
		s.db.Exec(t, saved)
		// run would settle it by the topics; who wants to see it first asks recover.
		if dry := s.recover(); dry.code != 0 || dry.Diagnosis.Case != recovery.CaseDoubtful || dry.Comparison.ToPublish != 0 || dry.Comparison.InTopic != 5 || dry.Comparison.OnStream != 5 {
			t.Errorf("%d, %+v, %+v", dry.code, dry.Diagnosis, dry.Comparison)
		}
		if done := s.recover("--yes"); done.code != 0 || done.Published != 0 || done.Diagnosis.Method != recovery.KeepSlot {
			t.Errorf("%d, %d published, %+v", done.code, done.Published, done.Diagnosis)
		}
	} else if dry := s.recover(); dry.code != 0 || dry.Diagnosis.Needed {
		t.Errorf("%d, %+v", dry.code, dry.Diagnosis)
	}
	s.series("order", "k", 16, 17)
	s.ran()
	if copies := s.requireSeries(s.topic("order"), 1, 17); copies != 0 {
		t.Errorf("%d copies", copies)
	}
	s.agreed()
}

// TestRecoverTwoTables: ids of two tables are nobody's but their own: an event that comes
// on the stream, or stands in a topic, does not settle that of another table. One table is
// partitioned and published by its leaves (trap 25).
func TestRecoverTwoTables(t *testing.T) {
	t.Parallel()
	const second = `CREATE TABLE second (id bigserial, aggregate_id text, payload jsonb) PARTITION BY RANGE (id);
		CREATE TABLE second_low PARTITION OF second FOR VALUES FROM (1) TO (16);
		CREATE TABLE second_high PARTITION OF second FOR VALUES FROM (16) TO (1000);`
	f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t),
		strings.Replace(sharedTable, "id uuid PRIMARY KEY DEFAULT gen_random_uuid()", "id bigserial PRIMARY KEY", 1)+";"+second)
	f.db.Exec(t, "ALTER PUBLICATION "+quoted(f.db.Publication)+" ADD TABLE second")
	f.extra = fmt.Sprintf(`  - table: public.second
    mapping: {event_id: id, key: aggregate_id, payload: payload}
    routes: [{topic: %s.second}]
    on_refusal: halt
`, f.prefix)
	f.createTopic("order", 1, nil)
	f.createTopic("second", 1, nil)
	both := func(from, to int) {
		f.batch("order", "k", from, to, 0)
		f.db.Exec(t, fmt.Sprintf("INSERT INTO second(aggregate_id, payload) SELECT 'k', to_jsonb(i) FROM generate_series(%d, %d) i", from, to))
	}
	both(1, 10)
	f.quietRelay()
	f.db.Exec(t, "UPDATE postrider.checkpoint SET idle = false")
	f.db.Exec(t, "DELETE FROM outbox WHERE id IN (3, 4)") // the topic has them, and the second table has others of these ids
	f.batch("order", "k", 11, 20, 0)                      // 11 to 20 of the first table go missing
	f.db.Exec(t, fmt.Sprintf("SELECT pg_replication_slot_advance('%s', pg_current_wal_lsn())", f.db.Slot))
	// and those of the second come on the stream
	f.db.Exec(t, "INSERT INTO second(aggregate_id, payload) SELECT 'k', to_jsonb(i) FROM generate_series(11, 20) i")
	_, done := f.mustRecover(recovery.CaseMoved)
	if c := done.Comparison; done.Published != 10 || c.OnStream != 10 || c.TopicOnly != 2 {
		t.Errorf("%d published, %+v", done.Published, *c)
	}
	f.ran()
	for _, topic := range []string{"order", "second"} {
		if copies := f.requireSeries(f.topic(topic), 1, 20); copies != 0 {
			t.Errorf("%s: %d copies", topic, copies)
		}
	}
}

// TestRecoverAsks: where the topic does not reach back to a row's time, that it is not
// found there proves nothing. The recovery asks, and goes on with the answer. --since
// leaves old rows out from the start.
func TestRecoverAsks(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string][]string{
		"settle": {"--resume", "--expired", "settle"}, "publish": {"--resume", "--expired", "publish"}, "since": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.KafkaReal(t))
			f.createTopic("order", 1, nil)
			f.series("order", "k", 1, 10)
			f.quietRelay()
			f.broker.Trim(t, f.topic("order"), 6)
			since := f.scalar("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
			f.series("order", "k", 11, 13)
			// Nothing says which rows are published: all are compared.
			f.db.Exec(t, "UPDATE postrider.checkpoint SET snapshot = NULL, idle = false")
			f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
			var done recovered
			if answer == nil {
				done = f.recover("--yes", "--since", since)
			} else {
				if asked := f.recover("--yes"); asked.code != 5 || !strings.Contains(asked.stderr, "--expired") || asked.Comparison.Expired == 0 {
					t.Fatalf("%d, %+v: %s", asked.code, asked.Comparison, asked.stderr)
				}
				done = f.recover(answer...)
			}
			if done.code != 0 {
				t.Fatalf("%d: %s", done.code, done.stderr)
			}
			f.ran()
			got, _ := firsts(t, f.broker.ReadAll(t, f.topic("order")))
			want := "7 8 9 10 11 12 13"
			if name == "publish" {
				want = "7 8 9 10 1 2 3 4 5 6 11 12 13"
			}
			if strings.Join(got, " ") != want {
				t.Errorf("the topic has %v, want %s", got, want)
			}
		})
	}
}

// TestRecoverLeastRights: the rights that setup gives the running role are enough, in a
// database where nobody else may do more.
func TestRecoverLeastRights(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]string{
		"new slot":  "SELECT pg_drop_replication_slot('%s')",
		"kept slot": "SELECT pg_replication_slot_advance('%s', pg_current_wal_lsn())",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.createTopic("order", 1, nil)
			f.series("order", "k", 1, 3)
			f.quietRelay()
			f.db.Exec(t, "UPDATE postrider.checkpoint SET idle = false; REVOKE TEMPORARY ON DATABASE "+f.db.Name+" FROM PUBLIC")
			f.series("order", "k", 4, 6)
			f.db.Exec(t, fmt.Sprintf(spoil, f.db.Slot))
			db := *f.db
			db.DSN = f.db.As(f.role(""), "right")
			least := *f
			least.db = &db
			if dry := least.recover(); dry.code != 0 || dry.Comparison == nil || dry.Comparison.ToPublish != 3 {
				t.Fatalf("%d, %+v", dry.code, dry.Comparison)
			}
			if done := least.recover("--yes"); done.code != 0 || done.Published != 3 {
				t.Fatalf("%d, %d published", done.code, done.Published)
			}
			least.ran()
			if copies := f.requireSeries(f.topic("order"), 1, 6); copies != 0 {
				t.Errorf("%d copies", copies)
			}
		})
	}
}

// TestRecoverEmptiedPartition: a topic has lost all records of its partitions, as those of a
// quiet one do. Retention took none that was younger than it allows, so that the rows
// since the checkpoint can not have been there: nobody has to decide.
func TestRecoverEmptiedPartition(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "k", 1, 3)
	f.quietRelay()
	f.broker.Trim(t, f.topic("order"), 3)
	f.series("order", "k", 4, 6)
	f.db.Exec(t, "SELECT pg_drop_replication_slot('"+f.db.Slot+"')")
	_, done := f.mustRecover(recovery.CaseNoSlot)
	if c := done.Comparison; done.Published != 3 || c.Expired != 0 {
		t.Errorf("%d published, %+v", done.Published, *c)
	}
	f.ran()
}
