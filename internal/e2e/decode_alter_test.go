package e2e

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// alterTable is the shared table with ids that the test decides.
const alterTable = `CREATE TABLE outbox(id text PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload jsonb)`

// newAlterFixture has one topic, of one partition, for all rows.
func newAlterFixture(t *testing.T) *fixture {
	f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), alterTable)
	f.cfg.Router.Sources[0].Routes = []router.Route{{Topic: f.topic("all")}}
	f.createTopic("all", 1, nil)
	return f
}

// put inserts a row whose payload is in the named column.
func (f *fixture) put(id, column string) {
	f.t.Helper()
	f.db.Exec(f.t, putSQL(id, column))
}

func putSQL(id, column string) string {
	return "INSERT INTO outbox(id, aggregate_type, aggregate_id, event_type, " + column + ") VALUES ('" + id + "', 'order', 'k', 'X', '\"" + id + "\"');"
}

// put's record as spell has it.
func putRecord(id string) string {
	return `key "k" value "\"` + id + `\"" id="` + id + `" event_type="X"`
}

// requirePuts says which of put's rows the topic holds, once each.
func (f *fixture) requirePuts(ids ...string) {
	f.t.Helper()
	var want []string
	for _, id := range ids {
		want = append(want, putRecord(id))
	}
	f.requireRecords(f.topic("all"), want...)
}

// withPayload is the fixture with the payload mapped to another column.
func (f *fixture) withPayload(column string) *fixture {
	f.mapping().Payload = column
	return f
}

// TestRenameHalts: a row that was written before the rename is published as it was
// described then. The first one after it halts the relay, which names table and column,
// and is not confirmed. With the column's new name it goes out, and with the old one
// what follows the renaming back (case C07, trap 25).
func TestRenameHalts(t *testing.T) {
	t.Parallel()
	for name, whileStopped := range map[string]bool{"while running": false, "while stopped": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newAlterFixture(t)
			var r *running
			if !whileStopped {
				r = f.start()
				r.awaitPhase("streaming")
			}
			low := f.walEnd()
			f.put("before", "payload")
			f.db.Exec(t, "ALTER TABLE outbox RENAME payload TO body")
			f.put("after", "body")
			high := f.walEnd()
			f.db.Exec(t, "ALTER TABLE outbox RENAME body TO payload")
			f.db.Exec(t, "BEGIN;"+putSQL("in1", "payload")+"ALTER TABLE outbox ADD COLUMN extra int DEFAULT 7;"+
				putSQL("in2", "payload")+"ALTER TABLE outbox DROP COLUMN extra; COMMIT")
			if whileStopped {
				r = f.start()
			}
			err := r.wait(patience)
			requireRefusal(t, err, event.ReasonMissingColumn, "public.outbox", "payload", `"body"`, "after")
			f.requirePuts("before")
			if at := f.confirmed(); at <= low || at > high {
				t.Errorf("confirmed %s, want between %s and %s", at, low, high)
			}
			// The same again: a restart does not pass it.
			requireRefusal(t, f.drain(), event.ReasonMissingColumn)
			f.requirePuts("before")
			requireRefusal(t, f.withPayload("body").drain(), event.ReasonMissingColumn, `"payload"`, "in1")
			f.requirePuts("before", "after")
			must(t, f.withPayload("payload").drain())
			f.requirePuts("before", "after", "in1", "in2")
		})
	}
}

// TestRenamedTable: rows from before the table was renamed come under its old name, which
// is no source's any more. They are the same table's and go out; where publications go by
// the root, nothing else would tell that they were passed over (trap 25).
func TestRenamedTable(t *testing.T) {
	t.Parallel()
	f := newAlterFixture(t)
	f.db.Exec(t, "ALTER PUBLICATION "+quoted(f.db.Publication)+" SET (publish_via_partition_root = true)")
	f.put("before", "payload")
	f.db.Exec(t, "ALTER TABLE outbox RENAME TO letters; "+strings.Replace(putSQL("after", "payload"), "outbox", "letters", 1))
	f.cfg.Router.Sources[0].Table = "letters"
	f.mustDrain()
	f.requirePuts("before", "after")
}

// TestAlteredTable: whatever happens to columns that are not mapped, and to the order of
// those that are, in the middle of the stream and of a transaction, each value stays in
// its place. The same when the relay sees all of it only afterwards (case C07, trap 25).
func TestAlteredTable(t *testing.T) {
	t.Parallel()
	steps := []string{
		putSQL("1", "payload"),
		"ALTER TABLE outbox ADD COLUMN extra int DEFAULT 7;" + putSQL("2", "payload"),
		"ALTER TABLE outbox RENAME extra TO other;" + putSQL("3", "payload"),
		"BEGIN;" + putSQL("4", "payload") + "ALTER TABLE outbox DROP COLUMN other;" + putSQL("5", "payload") + "COMMIT;",
		// The same name again moves to the end, and changes its type.
		"ALTER TABLE outbox DROP COLUMN payload; ALTER TABLE outbox ADD COLUMN payload text;" + putSQL("6", "payload"),
		"BEGIN;" + putSQL("7", "payload") + "ALTER TABLE outbox DROP COLUMN event_type, ADD COLUMN event_type varchar(10);" + putSQL("8", "payload") + "COMMIT;",
		"ALTER TABLE outbox ALTER COLUMN payload TYPE json USING payload::json;" + putSQL("9", "payload"),
		"BEGIN; ALTER TABLE outbox ADD COLUMN undone int; " + putSQL("undone", "payload") + "ROLLBACK;" + putSQL("10", "payload"),
		"BEGIN; SAVEPOINT s; ALTER TABLE outbox RENAME payload TO gone; ROLLBACK TO s;" + putSQL("11", "payload") + "COMMIT;",
		// Two names swapped, back to back.
		"ALTER TABLE outbox RENAME event_type TO x; ALTER TABLE outbox RENAME aggregate_type TO event_type; ALTER TABLE outbox RENAME x TO aggregate_type;" + putSQL("12", "payload"),
		"ALTER TABLE outbox RENAME TO elsewhere; ALTER TABLE elsewhere RENAME TO outbox;" + putSQL("13", "payload"),
		"ALTER TABLE outbox SET (fillfactor = 50); VACUUM FULL outbox;" + putSQL("14", "payload"),
	}
	ids := []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14"}
	for name, whileStopped := range map[string]bool{"while running": false, "while stopped": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newAlterFixture(t)
			if whileStopped {
				f.alter(steps)
				f.mustDrain()
				f.requirePuts(ids...)
				return
			}
			r := f.start()
			r.awaitPhase("streaming")
			f.alter(steps)
			f.requirePuts(ids...)
			r.mustStop()
		})
	}
}

func (f *fixture) alter(steps []string) {
	f.t.Helper()
	conn := f.db.Conn(f.t)
	for _, step := range steps {
		for _, sql := range splitSteps(step) {
			if _, err := conn.Exec(f.t.Context(), sql); err != nil {
				f.t.Fatalf("%v\nin %s", err, sql)
			}
		}
	}
}

// splitSteps keeps VACUUM, which allows no company, apart.
func splitSteps(step string) []string {
	const vacuum = "VACUUM FULL outbox;"
	for i := range step {
		if len(step)-i >= len(vacuum) && step[i:i+len(vacuum)] == vacuum {
			return []string{step[:i], vacuum, step[i+len(vacuum):]}
		}
	}
	return []string{step}
}

// TestEveryMappedColumnHalts: a column of any part of the mapping that goes away halts
// the relay at the next row, which is never published with what is left (case C07, trap 17).
func TestEveryMappedColumnHalts(t *testing.T) {
	t.Parallel()
	types := map[string]string{
		"id": "text", "aggregate_id": "text", "aggregate_type": "text", "event_type": "text", "payload": "jsonb",
		"h": "text", "e": "text", "p": "int", "ts": "timestamptz", "tomb": "bool", "hj": "jsonb",
	}
	for column, typ := range types {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), `CREATE TABLE outbox(id text DEFAULT '2', aggregate_type text DEFAULT 'order', aggregate_id text DEFAULT 'k',
				event_type text, payload jsonb, h text, e text, p int, ts timestamptz, tomb bool, hj jsonb, n int)`)
			m := f.mapping()
			m.Headers, m.Envelope = columns("h"), &router.Envelope{Fields: columns("e")}
			m.Partition, m.Timestamp.Column, m.Tombstone, m.HeadersColumn = "p", "ts", "tomb", "hj"
			f.createTopic("order", 1, nil)
			f.db.Exec(t, "INSERT INTO outbox VALUES ('1', 'order', 'k', 'X', '1'); ALTER TABLE outbox DROP COLUMN "+column+"; INSERT INTO outbox(n) VALUES (2)")
			// Nothing was published yet, and the table as it is now does not fit: said at the start.
			requireClass(t, f.drain(), operr.Config, `"`+column+`"`, "public.outbox")
			f.db.Exec(t, "ALTER TABLE outbox ADD COLUMN "+column+" "+typ)
			requireRefusal(t, f.drain(), event.ReasonMissingColumn, column)
			if n := len(f.broker.ReadAll(t, f.topic("order"))); n != 1 {
				t.Errorf("%d records, want the one from before", n)
			}
		})
	}
}
