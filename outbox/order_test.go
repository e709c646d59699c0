package outbox

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/router"
)

// ids joins a plan's events in order.
func ids(t *testing.T, r *Reader, task int64) string {
	t.Helper()
	var all []string
	for _, line := range items(t, r, task, 0) {
		_, id, _ := strings.Cut(line, " ")
		all = append(all, id)
	}
	return strings.Join(all, " ")
}

// Without times of commit the mapped timestamp decides, then the transaction, then the
// command in it; with them they do.
func TestOrder(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable)
	late := session(t, db)
	late("BEGIN; INSERT INTO outbox(id, key, at) VALUES ('late1', 'a', '2024-01-01 00:00:03Z')") // its transaction id is the lowest
	early := session(t, db)
	// What is written under a savepoint has a later id than the transaction itself.
	early(`BEGIN; SAVEPOINT s; INSERT INTO outbox(id, key, at) VALUES ('a', 'a', '2024-01-01 00:00:01Z'); RELEASE s;
		INSERT INTO outbox(id, key, at) VALUES ('b', 'a', '2024-01-01 00:00:01Z'); COMMIT`)
	late("INSERT INTO outbox(id, key, at) VALUES ('late0', 'a', '2024-01-01 00:00:03Z'); COMMIT")
	db.Exec(t, "INSERT INTO outbox(id, key, at) SELECT 'm' || i, 'a', NULL FROM generate_series(3, 1, -1) i")

	src := plainSource()
	src.Routes = []router.Route{{Topic: "t"}}
	src.Mapping.NullPayload = router.NullPayloadTombstone
	r := open(t, db, src)
	task, _ := plan(t, db, r, Selection{})
	if got := ids(t, r, task); got != "a b late1 late0 m3 m2 m1" || !r.commitTimes {
		t.Errorf("by time of commit: %s", got)
	}
	r.commitTimes = false
	task, planned := plan(t, db, r, Selection{})
	if got := ids(t, r, task); got != "late1 late0 b a m3 m2 m1" || !strings.HasPrefix(planned.Order, "transaction id (track_commit_timestamp is off") {
		t.Errorf("by transaction id: %s; %s", got, planned.Order)
	}
	src.Mapping.Timestamp.Column = "at"
	r = open(t, db, src)
	r.commitTimes = false
	task, planned = plan(t, db, r, Selection{})
	if got := ids(t, r, task); got != "b a late1 late0 m3 m2 m1" || !strings.HasPrefix(planned.Order, "mapped timestamp, then transaction id") {
		t.Errorf("by timestamp: %s; %s", got, planned.Order)
	}
}

// Inside a key, versions decide, where all its events have one; the places of the key in the
// whole order stay.
func TestOrderByVersion(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable)
	for i, row := range []struct{ id, kind, key, version string }{
		{"a3", "x", "a", "3"},
		{"b2", "x", "b", "2"},
		{"a10", "x", "a", "10"},
		{"c", "x", "c", "NULL"},
		{"a1", "x", "a", "1"},
		{"b1", "x", "b", "1"},
		{"other1", "y", "a", "1"},
		{"c5", "x", "c", "5"},
		{"c1", "x", "c", "1"},
		{"b10", "x", "b", "10"},
	} {
		db.Exec(t, fmt.Sprintf("INSERT INTO outbox(id, kind, key, version, payload) VALUES ('%s', '%s', '%s', %s, '%d')", row.id, row.kind, row.key, row.version, i))
	}
	src := plainSource()
	src.Mapping.AggregateVersion = "version"
	r := open(t, db, src)
	task, planned := plan(t, db, r, Selection{})
	if got := ids(t, r, task); got != "a1 b1 a3 c a10 b2 other1 c5 c1 b10" || !strings.Contains(planned.Order, "within a key by aggregate_version") {
		t.Errorf("order %s; %s", got, planned.Order)
	}
}

// Rows that share an event id are one event; rows of several tables are ordered together.
func TestSharedIDsAndSeveralTables(t *testing.T) {
	t.Parallel()
	db := newDB(t, `CREATE TABLE one(id text, key text, payload text); CREATE TABLE two(id int PRIMARY KEY, key text, payload bytea)`)
	for _, sql := range []string{
		"INSERT INTO one VALUES ('1', 'k', 'first')", `INSERT INTO two VALUES (1, 'k', '\xff')`, "INSERT INTO one VALUES ('1', 'k', 'second')",
		"INSERT INTO one VALUES (NULL, 'k', 'third')", "INSERT INTO one VALUES ('2', 'k', 'fourth')",
	} {
		db.Exec(t, sql)
	}
	source := func(table string) router.Source {
		return router.Source{Schema: "public", Table: table, Mapping: router.Mapping{EventID: "id", Key: "key", Payload: "payload"}, Routes: []router.Route{{Topic: table}}}
	}
	r := open(t, db, source("one"), source("two"))
	task, planned := plan(t, db, r, Selection{})
	if planned.Items != 3 || planned.Shared != 1 || planned.WithoutID != 1 {
		t.Errorf("planned %+v", planned)
	}
	if got := ids(t, r, task); got != "1 1 2" {
		t.Errorf("items %s", got)
	}
	found, err := r.Find(t.Context(), "1")
	must(t, err)
	if found.Rows != 3 || string(found.Message.Value) != "first" {
		t.Errorf("found %+v", found)
	}
}

// rule 4: the 64-bit id in SQL is what checkpoint.Covered reckons with, and past its
// reach still that of a row from before now.
func TestXIDAgreesWithCovered(t *testing.T) {
	t.Parallel()
	conn := newDB(t, "").Conn(t)
	rapid.Check(t, func(rt *rapid.T) {
		next := rapid.Int64Range(3, 1<<40).Draw(rt, "next")
		oldest := min(next-3, 1<<32-1) + 1
		age := rapid.OneOf(rapid.Int64Range(1, oldest), rapid.SampledFrom([]int64{1, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 1})).Draw(rt, "age")
		if age > oldest {
			return
		}
		full := next - age
		if full < 3 || uint32(full) < 3 {
			return // no transaction has such an id
		}
		var got int64
		err := conn.QueryRow(t.Context(), "SELECT "+xidSQL(next)+" FROM (SELECT $1::text AS xmin) t", fmt.Sprint(uint32(full))).Scan(&got)
		if err != nil || got != full {
			rt.Fatalf("xmin %d before %d: %d, want %d (%v)", uint32(full), next, got, full, err)
		}
		snapshot := checkpoint.Snapshot{Xmin: uint64(max(3, next-rapid.Int64Range(0, 1<<30).Draw(rt, "behind"))), Xmax: uint64(next)}
		if age < 1<<31 && checkpoint.Covered(snapshot, uint32(full)) != (uint64(got) < snapshot.Xmin) {
			rt.Fatalf("xmin %d: Covered by %+v disagrees with %d", uint32(full), snapshot, got)
		}
	})
}
