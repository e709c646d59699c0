package e2e

import (
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// partitionedTable has leaves whose columns stand in another order than the root's, one
// in another schema, one below another partition, and one with a dropped column.
const partitionedTable = `CREATE SCHEMA old;
	CREATE TABLE outbox(id text NOT NULL, aggregate_type text, aggregate_id text, event_type text, payload jsonb) PARTITION BY LIST (id);
	CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN ('1', '1a');
	CREATE TABLE old."Outbox 2"(payload jsonb, gone int, event_type text, id text NOT NULL, aggregate_id text, aggregate_type text);
	ALTER TABLE old."Outbox 2" DROP COLUMN gone; ALTER TABLE outbox ATTACH PARTITION old."Outbox 2" FOR VALUES IN ('2');
	CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES IN ('3', '4') PARTITION BY LIST (id);
	CREATE TABLE outbox_33 PARTITION OF outbox_3 FOR VALUES IN ('3'); CREATE TABLE outbox_34 PARTITION OF outbox_3 FOR VALUES IN ('4');
	CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT`

func newPartitionedFixture(t *testing.T, publication string) *fixture {
	f := newFixtureOf(t, testkit.Postgres(t), partitionedTable+"; CREATE PUBLICATION %s "+publication, func(f *fixture) []router.Source {
		return f.config().Router.Sources
	})
	f.cfg.Router.Sources[0].Routes = []router.Route{{Topic: f.topic("all")}}
	f.createTopic("all", 1, nil)
	return f
}

// TestPartitionedOutbox: however a partitioned outbox is published, rows of every leaf
// arrive under their root's mapping, also of leaves that come while the relay runs
// (trap 25).
func TestPartitionedOutbox(t *testing.T) {
	t.Parallel()
	for name, publication := range map[string]string{
		"by leaves":             "FOR TABLE outbox WITH (publish = 'insert')",
		"by root":               "FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)",
		"all tables by root":    "FOR ALL TABLES WITH (publish_via_partition_root = true)",
		"every leaf by name":    `FOR TABLE outbox_1, old."Outbox 2", outbox_33, outbox_34, outbox_rest`,
		"a leaf and everything": "FOR TABLE outbox, outbox_1 WITH (publish_via_partition_root = true)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newPartitionedFixture(t, publication)
			r := f.start()
			r.awaitPhase("streaming")
			for _, id := range []string{"1", "2", "3", "4", "5"} {
				f.put(id, "payload")
			}
			ids := []string{"1", "2", "3", "4", "5"}
			if name != "every leaf by name" {
				f.db.Exec(t, "CREATE TABLE outbox_6 PARTITION OF outbox FOR VALUES IN ('6')")
				f.put("6", "payload")
				f.db.Exec(t, "CREATE TABLE outbox_7(n int, LIKE outbox); ALTER TABLE outbox_7 DROP COLUMN n; ALTER TABLE outbox ATTACH PARTITION outbox_7 FOR VALUES IN ('7')")
				f.put("7", "payload")
				ids = append(ids, "6", "7")
			}
			// Rows that are written into a leaf by its own name.
			f.db.Exec(t, "INSERT INTO outbox_34 VALUES ('4', 'order', 'k', 'X', '\"4\"')")
			f.requirePuts(append(ids, "4")...)
			// A column is renamed in the root, and so in every leaf.
			f.db.Exec(t, "ALTER TABLE outbox ADD COLUMN extra int; ALTER TABLE outbox RENAME event_type TO kind")
			f.db.Exec(t, "INSERT INTO outbox(id, aggregate_id) VALUES ('2', 'k')")
			requireClass(t, r.wait(patience), operr.Halted, `"kind"`)
			f.requirePuts(append(ids, "4")...)
		})
	}
}

// TestMoveBetweenPartitions: PostgreSQL writes an UPDATE that moves a row to another
// leaf as DELETE and INSERT, and says no more to a client. The event is published again,
// under its id (docs/event-router.md). Through the root the same.
func TestMoveBetweenPartitions(t *testing.T) {
	t.Parallel()
	for name, publication := range map[string]string{
		"by leaves": "FOR TABLE outbox WITH (publish = 'insert')",
		"by root":   "FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newPartitionedFixture(t, publication)
			f.put("1", "payload")
			f.db.Exec(t, "UPDATE outbox SET id = '1a'")
			f.db.Exec(t, "UPDATE outbox SET id = '2'")
			f.put("3", "payload")
			f.mustDrain()
			f.requireRecords(f.topic("all"), putRecord("1"), `key "k" value "\"1\"" id="2" event_type="X"`, putRecord("3"))
		})
	}
}

// TestDetachedPartition: rows of a leaf that was detached, or dropped, before they were
// read cannot be told from another table's by its name. That is an error, never a row
// that is passed over; with the leaf back in its place they are published (trap 25).
func TestDetachedPartition(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string]struct{ away, back string }{
		"detached": {"ALTER TABLE outbox DETACH PARTITION outbox_1", "ALTER TABLE outbox ATTACH PARTITION outbox_1 FOR VALUES IN ('1', '1a')"},
		"dropped":  {"DROP TABLE outbox_1", "CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN ('1', '1a')"},
		"below":    {"ALTER TABLE outbox DETACH PARTITION outbox_3", "ALTER TABLE outbox ATTACH PARTITION outbox_3 FOR VALUES IN ('3', '4')"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newPartitionedFixture(t, "FOR TABLE outbox WITH (publish = 'insert')")
			id, leaf := "1", "outbox_1"
			if name == "below" {
				id, leaf = "3", "outbox_33"
			}
			f.put("2", "payload")
			f.put(id, "payload")
			f.put("5", "payload")
			before := f.confirmed()
			f.db.Exec(t, steps.away)
			requireClass(t, f.drain(), operr.Postgres, "public."+leaf, "detached or dropped")
			if got := f.confirmed(); got < before {
				t.Errorf("confirmed %s, before %s", got, before)
			}
			f.db.Exec(t, steps.back)
			f.mustDrain()
			seen := map[string]int{}
			for _, r := range f.broker.ReadAll(t, f.topic("all")) {
				h, _ := r.Header("id")
				seen[string(h)]++
			}
			if seen[id] != 1 || seen["5"] != 1 || seen["2"] < 1 || len(seen) != 3 {
				t.Errorf("published %v", seen)
			}
		})
	}
}

// TestPartitionDetachedInFlight: a leaf that leaves while its rows are still to be read
// is known from before (trap 25).
func TestPartitionDetachedInFlight(t *testing.T) {
	t.Parallel()
	for name, publication := range map[string]string{
		"outbox":  "FOR TABLE outbox WITH (publish = 'insert')",
		"leaves":  `FOR TABLE outbox_1, old."Outbox 2", outbox_33, outbox_34, outbox_rest`,
		"by root": "FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newPartitionedFixture(t, publication)
			r := f.start()
			r.awaitPhase("streaming")
			f.db.Exec(t, "BEGIN;"+putSQL("1", "payload")+"ALTER TABLE outbox DETACH PARTITION outbox_1; COMMIT")
			f.db.Exec(t, "BEGIN;"+putSQL("3", "payload")+"DROP TABLE outbox_3; COMMIT")
			f.db.Exec(t, "BEGIN;"+putSQL("2", "payload")+`ALTER TABLE outbox DETACH PARTITION old."Outbox 2"; ALTER TABLE old."Outbox 2" RENAME TO archive; COMMIT`)
			f.requirePuts("1", "3", "2")
			r.mustStop()
		})
	}
}

// TestPartitionsAmongAllTables: where all tables are published, by their leaves, one that
// was detached could never be told: refused at the start (trap 25).
func TestPartitionsAmongAllTables(t *testing.T) {
	t.Parallel()
	f := newPartitionedFixture(t, "FOR ALL TABLES")
	f.put("1", "payload")
	requireClass(t, f.drain(), operr.Postgres, "public.outbox", "names of its partitions")
	f.db.Exec(t, "ALTER PUBLICATION "+quoted(f.db.Publication)+" SET (publish_via_partition_root = true)")
	f.mustDrain()
	f.requirePuts("1")
}

// TestInheritedOutbox: children by plain inheritance are published under their own
// names, and are the parent's events (trap 25).
func TestInheritedOutbox(t *testing.T) {
	t.Parallel()
	f := newFixtureOf(t, testkit.Postgres(t), alterTable+`; CREATE TABLE child(more int) INHERITS (outbox); CREATE TABLE "Grand.Child"() INHERITS (child);
		CREATE TABLE stranger(LIKE outbox); CREATE PUBLICATION %s FOR TABLE outbox, stranger WITH (publish = 'insert')`,
		func(f *fixture) []router.Source { return f.config().Router.Sources })
	f.cfg.Router.Sources[0].Routes = []router.Route{{Topic: f.topic("all")}}
	f.createTopic("all", 1, nil)
	f.put("1", "payload")
	f.db.Exec(t, `INSERT INTO child VALUES ('2', 'order', 'k', 'X', '"2"', 7); INSERT INTO "Grand.Child" VALUES ('3', 'order', 'k', 'X', '"3"');
		INSERT INTO stranger VALUES ('4', 'order', 'k', 'X', '"4"')`)
	f.mustDrain()
	f.requirePuts("1", "2", "3")
}

// TestLeafAsSource: a leaf may be the source, with a mapping of its own, beside its root.
func TestLeafAsSource(t *testing.T) {
	t.Parallel()
	f := newPartitionedFixture(t, "FOR TABLE outbox WITH (publish = 'insert')")
	leaf := f.cfg.Router.Sources[0]
	leaf.Table, leaf.Routes = "outbox_3", []router.Route{{Topic: f.topic("third")}}
	f.cfg.Router.Sources = append(f.cfg.Router.Sources, leaf)
	for _, id := range []string{"1", "3", "4", "5"} {
		f.put(id, "payload")
	}
	f.mustDrain()
	f.requirePuts("1", "5")
	f.requireRecords(f.topic("third"), putRecord("3"), putRecord("4"))
	// Published through the root it would never be seen: said at the start.
	f.db.Exec(t, "ALTER PUBLICATION "+quoted(f.db.Publication)+" SET (publish_via_partition_root = true)")
	requireClass(t, f.drain(), operr.Postgres, "public.outbox_3")
}
