package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// newAllTablesFixture publishes all operations of all tables, the relay's own among them.
func newAllTablesFixture(t *testing.T, ddl string) *fixture {
	f := newFixtureOf(t, testkit.Postgres(t), ddl+"; CREATE PUBLICATION %s FOR ALL TABLES", func(f *fixture) []router.Source {
		return f.config().Router.Sources
	})
	f.cfg.Router.Sources[0].Routes = []router.Route{{Topic: f.topic("all")}}
	f.cfg.Replication.StatusInterval = statusEvery
	f.createTopic("all", 1, nil)
	return f
}

// TestOnlyInsertsPublish: updates, unchanged TOAST among them, deletes, truncates and
// messages publish nothing and are counted; a transaction of nothing else is confirmed
// (case C08, traps 26 and 27).
func TestOnlyInsertsPublish(t *testing.T) {
	t.Parallel()
	for _, identity := range []string{"DEFAULT", "FULL", "USING INDEX outbox_n"} {
		t.Run(identity, func(t *testing.T) {
			t.Parallel()
			f := newAllTablesFixture(t, `CREATE TABLE outbox(id text PRIMARY KEY, n int NOT NULL, aggregate_type text, aggregate_id text, event_type text,
				payload text, CONSTRAINT outbox_n UNIQUE(n)); ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL, REPLICA IDENTITY `+identity)
			r := f.start()
			long := strings.Repeat("x", 9000)
			for _, sql := range []string{
				"INSERT INTO outbox VALUES ('1', 1, 'order', 'k', 'X', repeat('x', 9000))",
				"UPDATE outbox SET event_type = 'x' WHERE id = '1'",
				"UPDATE outbox SET id = '1a', n = 11 WHERE id = '1'",
				"UPDATE outbox SET payload = 'short'",
				"INSERT INTO outbox VALUES ('1a', 12, 'order', 'k', 'X', 'conflict') ON CONFLICT (id) DO UPDATE SET payload = 'updated'",
				"INSERT INTO outbox VALUES ('1a', 12, 'order', 'k', 'X', 'conflict') ON CONFLICT (id) DO NOTHING",
				"INSERT INTO outbox VALUES ('2', 2, 'order', 'k', 'X', 'upserted') ON CONFLICT (id) DO UPDATE SET payload = 'updated'",
				"DELETE FROM outbox WHERE id = '1a'",
				"MERGE INTO outbox o USING (VALUES ('2', 'merged', 20), ('3', 'merged', 3)) v(id, p, n) ON o.id = v.id WHEN MATCHED THEN UPDATE SET payload = v.p WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.n, 'order', 'k', 'X', v.p)",
				"SELECT pg_logical_emit_message(true, 'datastream', 'hb'), pg_logical_emit_message(false, 'hb', 'x')",
				"BEGIN; SELECT pg_logical_emit_message(false, 'outbox', '{}'), pg_logical_emit_message(true, 'outbox', '{}'); ROLLBACK",
				"TRUNCATE outbox",
				"SELECT pg_logical_emit_message(true, 'hb', 'last')",
			} {
				if strings.HasPrefix(sql, "MERGE") && f.db.VersionNum(t) < 150000 {
					sql = "INSERT INTO outbox VALUES ('3', 3, 'order', 'k', 'X', 'merged')"
				}
				f.db.Exec(t, sql)
			}
			f.awaitConfirmed(f.walEnd())
			record := func(id, payload string) string {
				return fmt.Sprintf("key \"k\" value %q id=%q event_type=\"X\"", payload, id)
			}
			f.requireRecords(f.topic("all"), record("1", long), record("2", "upserted"), record("3", "merged"))
			for op, least := range map[string]float64{"update": 4, "delete": 1, "truncate": 1} {
				if n := r.metric(fmt.Sprintf("postrider_ignored_total{op=%q}", op)); n < least {
					t.Errorf("%g changes of kind %s are counted, want at least %g", n, op, least)
				}
			}
			f.requireNoOwnWAL()
			r.mustStop()
		})
	}
}

// TestOwnTablesMakeNoEvents: under FOR ALL TABLES the checkpoint row's own changes, and
// rows of tables that are no source, count as free of events (rule 20).
func TestOwnTablesMakeNoEvents(t *testing.T) {
	t.Parallel()
	f := newAllTablesFixture(t, alterTable+"; CREATE TABLE other(n int, payload text)")
	r := f.start()
	f.put("1", "payload")
	f.db.Exec(t, "BEGIN; INSERT INTO other SELECT 1, 'not an event' FROM generate_series(1, 100); "+putSQL("2", "payload")+"INSERT INTO other VALUES (2); COMMIT")
	f.db.Exec(t, "CREATE TABLE later(payload text); INSERT INTO later VALUES ('not an event'); DROP TABLE later; ANALYZE")
	f.db.Exec(t, "CREATE MATERIALIZED VIEW seen AS SELECT * FROM other; REFRESH MATERIALIZED VIEW seen")
	f.requirePuts("1", "2")
	f.requireNoOwnWAL()
	r.mustStop()
	f.mustDrain()
	f.requirePuts("1", "2")
}

// TestInsertAndDelete: an event that is deleted in its own transaction is published in
// full; the relay never looks at the table (case C10, trap 27).
func TestInsertAndDelete(t *testing.T) {
	t.Parallel()
	for name, operations := range map[string]string{"all operations": "", "inserts": " WITH (publish = 'insert')"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixtureOf(t, testkit.Postgres(t), alterTable+"; CREATE PUBLICATION %s FOR TABLE outbox"+operations, func(f *fixture) []router.Source {
				return f.config().Router.Sources
			})
			f.cfg.Router.Sources[0].Routes = []router.Route{{Topic: f.topic("all")}}
			f.createTopic("all", 12, nil)
			r := f.start()
			r.awaitPhase("streaming")
			writePairs(f, "outbox")
			f.requireFirsts(t, 102)
			if left := f.scalar("SELECT string_agg(id, ' ' ORDER BY id) FROM outbox"); left != "100 101" {
				t.Errorf("the table holds %s, want 100 and 101", left)
			}
			r.mustStop()
			// The same statements on a table that nobody publishes, and the same look at it.
			f.db.Exec(t, strings.Replace(alterTable, "outbox", "control", 1))
			writePairs(f, "control")
			f.scalar("SELECT string_agg(id, ' ' ORDER BY id) FROM control")
			const scans = "SELECT string_agg((coalesce(seq_scan, 0) + coalesce(idx_scan, 0))::text, ' ') FROM pg_stat_user_tables WHERE relname IN ('outbox', 'control')"
			testkit.Eventually(t, patience, func() error { // statistics come late
				var outbox, control int
				if _, err := fmt.Sscan(f.scalar(scans), &outbox, &control); err != nil || outbox != control || outbox < 101 {
					return errors.Join(err, fmt.Errorf("%d and %d scans of the outbox and of a table without a relay", outbox, control))
				}
				return nil
			})
		})
	}
}

// writePairs writes events 0 to 101, most of which are deleted in their transaction.
func writePairs(f *fixture, table string) {
	f.t.Helper()
	insert := "INSERT INTO " + table + " VALUES ('%d', 'order', 'k%d', 'X', '%d');"
	for n := range 100 {
		f.db.Exec(f.t, fmt.Sprintf("BEGIN;"+insert+"DELETE FROM "+table+" WHERE id = '%d'; COMMIT", n, n%10, n, n))
	}
	f.db.Exec(f.t, fmt.Sprintf(insert, 100, 0, 100)+"INSERT INTO "+table+" VALUES ('100', 'order', 'k0', 'X', '0') ON CONFLICT DO NOTHING")
	// The DELETE of this statement cannot see the new row: one event, and the row stays.
	f.db.Exec(f.t, "WITH new AS (INSERT INTO "+table+" VALUES ('101', 'order', 'k1', 'X', '101') RETURNING id) DELETE FROM "+table+" USING new WHERE "+table+".id = new.id")
}

// requireFirsts: events 0 to n-1 are there once, with payloads, in the order of each key.
func (f *fixture) requireFirsts(t *testing.T, n int) {
	t.Helper()
	last := map[string]int{}
	records := f.awaitRecords(f.topic("all"), n)
	if len(records) != n {
		t.Errorf("%d records, want %d", len(records), n)
	}
	for _, r := range records {
		var value int
		if _, err := fmt.Sscan(string(r.Value), &value); err != nil || string(r.Key) != fmt.Sprintf("k%d", value%10) {
			t.Errorf("record %s: %v", spell(r), err)
		}
		if before, seen := last[string(r.Key)]; seen && value <= before {
			t.Errorf("key %s: %d comes after %d", r.Key, value, before)
		}
		last[string(r.Key)] = value
	}
}

// TestLargeTransactionOfUpdates: a large transaction of nothing but updates passes in one piece and
// holds nothing up (case C08).
func TestLargeTransactionOfUpdates(t *testing.T) {
	t.Parallel()
	f := newAllTablesFixture(t, alterTable)
	f.db.Exec(t, "INSERT INTO outbox SELECT i::text, 'order', 'k', 'X', to_jsonb(i) FROM generate_series(1, 10) i")
	f.db.Exec(t, "CREATE TABLE other(n int PRIMARY KEY, p text); INSERT INTO other SELECT i, 'x' FROM generate_series(1, 5000) i; UPDATE other SET p = 'y'; DELETE FROM other")
	f.mustDrain()
	if n := len(f.broker.ReadAll(t, f.topic("all"))); n != 10 {
		t.Errorf("%d records, want 10", n)
	}
}
