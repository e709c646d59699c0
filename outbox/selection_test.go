package outbox

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/router"
)

// chosen plans a selection and joins its events.
func chosen(t *testing.T, r *Reader, task int64, sel Selection) string {
	t.Helper()
	_, err := r.conn.Exec(t.Context(), "DELETE FROM postrider.task_item WHERE task = $1", task)
	must(t, err)
	planned, err := r.Plan(t.Context(), task, sel)
	must(t, err)
	n, err := r.Number(t.Context(), sel)
	must(t, err)
	counts, err := r.Count(t.Context(), sel)
	must(t, err)
	if n != planned.Items || counts.Events != planned.Items {
		t.Errorf("%+v: %d planned, %d by number, %d counted", sel, planned.Items, n, counts.Events)
	}
	return ids(t, r, task)
}

func TestSelection(t *testing.T) {
	t.Parallel()
	db := newDB(t, `CREATE TABLE outbox(id uuid PRIMARY KEY, kind text, key char(4), type text, at timestamptz, payload jsonb)`)
	id := func(i string) string { return "00000000-0000-0000-0000-00000000000" + i }
	for i, row := range []string{"'x', 'a', 'X', '2024-01-01Z'", "'x', 'b', 'Y', '2024-01-02Z'", "'y', 'a', 'X', '2024-01-03Z'", "'y', 'b', NULL, NULL"} {
		db.Exec(t, "INSERT INTO outbox VALUES ('"+id(string(rune('1'+i)))+"', "+row+", '1')")
	}
	src := plainSource()
	src.Mapping.Timestamp = router.Timestamp{Column: "at"}
	r := open(t, db, src)
	r.commitTimes = false
	task := newTask(t, db)
	day := func(d int) time.Time { return time.Date(2024, 1, d, 0, 0, 0, 0, time.UTC) }
	_, err := r.Keep(t.Context(), "some", slices.Values([]string{id("2"), id("3"), "no uuid", id("9"), id("9")}))
	must(t, err)
	for name, c := range map[string]struct {
		sel  Selection
		want string
	}{
		"all":         {Selection{}, "1 2 3 4"},
		"ids":         {Selection{EventIDs: []string{id("3"), "no uuid", id("1"), strings.ToUpper(id("2") + "x")}}, "1 3"},
		"no ids":      {Selection{EventIDs: []string{}}, ""},
		"key":         {Selection{Aggregate: "a   "}, "1 3"},
		"key, cut":    {Selection{Aggregate: "a"}, ""},
		"kind":        {Selection{AggregateType: "y"}, "3 4"},
		"type":        {Selection{EventType: "X", AggregateType: "x"}, "1"},
		"since":       {Selection{Since: day(2)}, "2 3"},
		"until":       {Selection{Until: day(2)}, "1"},
		"only":        {Selection{Only: "some"}, "2 3"},
		"except":      {Selection{Except: "some"}, "1 4"},
		"only, until": {Selection{Only: "some", Until: day(3)}, "2"},
	} {
		var want []string
		for _, n := range strings.Fields(c.want) {
			want = append(want, id(n))
		}
		if got := chosen(t, r, task, c.sel); got != strings.Join(want, " ") {
			t.Errorf("%s: %s", name, got)
		}
	}
	var missing []string
	must(t, r.Missing(t.Context(), "some", func(id string) error {
		missing = append(missing, id)
		return nil
	}))
	if !slices.Equal(missing, []string{id("9"), "no uuid"}) {
		t.Errorf("missing: %q", missing)
	}

	src.Mapping.Timestamp.Column = ""
	r = open(t, db, src)
	r.commitTimes = false
	_, err = r.Count(t.Context(), Selection{Since: day(1)})
	if operr.ClassOf(err) != operr.Config || operr.HintOf(err) == "" {
		t.Errorf("a time that nothing knows of: %v", err)
	}
}

// trap 28, rule 4: a row of a transaction that was open when the snapshot was taken has
// an older id, time and transaction than rows that the snapshot sees. It is not visible
// in it, so that backfill leaves it to the stream; and it is not covered by it, so that
// recover finds it, under a savepoint too. A row that was updated looks new.
func TestLateCommitIsNotSkipped(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable+"INSERT INTO outbox(id, key) VALUES ('1', 'k'), ('2', 'k')")
	late := session(t, db)
	late("BEGIN; INSERT INTO outbox(id, key) VALUES ('3', 'k'); SAVEPOINT s; INSERT INTO outbox(id, key) VALUES ('4', 'k'); RELEASE s")
	db.Exec(t, "INSERT INTO outbox(id, key) VALUES ('5', 'k')")
	var snapshot string
	must(t, db.Conn(t).QueryRow(t.Context(), "SELECT pg_current_snapshot()::text").Scan(&snapshot))
	late("COMMIT")
	db.Exec(t, "INSERT INTO outbox(id, key) VALUES ('6', 'k'); UPDATE outbox SET at = now() WHERE id = '1'")

	src := plainSource()
	src.Mapping.NullPayload, src.Routes = router.NullPayloadTombstone, []router.Route{{Topic: "t"}}
	r := open(t, db, src)
	r.commitTimes = false // the transaction's id is the order here
	task := newTask(t, db)
	// Where another database's transaction is older still, 2 is a suspect too.
	if got := chosen(t, r, task, Selection{NotCovered: snapshot}); !strings.HasSuffix(got, "3 4 5 6 1") {
		t.Errorf("not covered: %s", got)
	}
	// A snapshot of a slot's birth names subtransactions, too; this one does not know of 4.
	if got := chosen(t, r, task, Selection{VisibleIn: snapshot}); got != "2 4 5" {
		t.Errorf("visible: %s", got)
	}
	if got := chosen(t, r, task, Selection{NotVisibleIn: snapshot}); got != "3 6 1" {
		t.Errorf("not visible: %s", got)
	}
}

// Rows that a policy hides from the role are an error, and no rows that are left out.
func TestRowSecurityIsAnError(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable)
	role := strings.TrimPrefix(db.Name, "t_")
	db.Exec(t, "CREATE ROLE "+role+" LOGIN PASSWORD 'p'; GRANT USAGE ON SCHEMA postrider TO "+role+`; GRANT SELECT ON outbox, postrider.task, postrider.task_item TO `+role+`;
		ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; CREATE POLICY seen ON outbox USING (id = '1'); INSERT INTO outbox(id) VALUES ('1'), ('2')`)
	t.Cleanup(func() { db.Exec(t, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	r := openAs(t, db, db.As(role, "p"), plainSource())
	_, err := r.Count(t.Context(), Selection{})
	if operr.ClassOf(err) != operr.Postgres || !strings.Contains(operr.HintOf(err), "BYPASSRLS") {
		t.Errorf("count: %v", err)
	}
}

// While rows are handed on, the server holds no snapshot for us: a broker that is away
// for hours must not keep the database from being cleaned up.
func TestNoSnapshotIsHeldWhileYielding(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable+"INSERT INTO outbox(id, kind, key, payload) SELECT i, 'k', 'k', '1' FROM generate_series(1, 300) i")
	r := open(t, db, plainSource())
	task, _ := plan(t, db, r, Selection{})
	conn := db.Conn(t)
	n := 0
	err := r.Items(t.Context(), task, 0, countRows(func() error {
		n++
		var xmin, state *string
		if err := conn.QueryRow(t.Context(), "SELECT backend_xmin::text, state FROM pg_stat_activity WHERE pid = $1", int32(r.conn.PgConn().PID())).Scan(&xmin, &state); err != nil {
			return err
		}
		if xmin != nil || *state != "idle" {
			return errors.New("a snapshot is held: " + *state)
		}
		return nil
	}))
	if err != nil || n != 300 {
		t.Errorf("%d rows, %v", n, err)
	}
}

// The transaction of Hold sees what was committed before it, in all that follows.
func TestHold(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable+"INSERT INTO outbox(id, key) VALUES ('1', 'k')")
	src := plainSource()
	src.Routes, src.Mapping.NullPayload = []router.Route{{Topic: "t"}}, router.NullPayloadTombstone
	r := open(t, db, src)
	task := newTask(t, db)
	upTo, err := r.Hold(t.Context())
	must(t, err)
	db.Exec(t, "INSERT INTO outbox(id, key) VALUES ('2', 'k')")
	_, err = r.Keep(t.Context(), "none", slices.Values([]string{}))
	must(t, err)
	n, err := r.Number(t.Context(), Selection{Except: "none"})
	must(t, err)
	planned, err := r.Plan(t.Context(), task, Selection{})
	must(t, err)
	must(t, r.Release(t.Context(), true))
	if n != 1 || planned.Items != 1 || upTo == 0 || ids(t, r, task) != "1" {
		t.Errorf("number %d, planned %+v up to %s: %s", n, planned, upTo, ids(t, r, task))
	}
	must(t, r.Release(t.Context(), true))
	_, err = r.Hold(t.Context())
	must(t, err)
	must(t, r.Release(context.WithoutCancel(t.Context()), false))
	_, err = r.conn.Exec(t.Context(), "BEGIN; ROLLBACK", pgx.QueryExecModeSimpleProtocol)
	must(t, err)
}

// Rows that do not fit the memory of one chunk, of two tables that take turns: each comes
// once, in order, and whole.
func TestChunks(t *testing.T) {
	t.Parallel()
	db := newDB(t, `CREATE TABLE one(id int PRIMARY KEY, key text, payload text); CREATE TABLE two(id int, key text, payload text)`)
	db.Exec(t, `DO $$ BEGIN FOR i IN 1..150 LOOP
			IF i % 3 = 0 THEN INSERT INTO two VALUES (i, 'k', repeat(chr(65 + i % 26), 300000 - i)); ELSE INSERT INTO one VALUES (i, 'k', repeat(chr(65 + i % 26), 200000 - i)); END IF;
			COMMIT; END LOOP; END $$`)
	source := func(table string) router.Source {
		return router.Source{Schema: "public", Table: table, Mapping: router.Mapping{EventID: "id", Key: "key", Payload: "payload"}, Routes: []router.Route{{Topic: table}}}
	}
	r := open(t, db, source("one"), source("two"))
	task, _ := plan(t, db, r, Selection{})
	var i int64
	must(t, r.Items(t.Context(), task, 0, func(n int64, msg *event.Message, _ *event.Refusal) error {
		i++
		table, size := "one", 200000-int(i)
		if i%3 == 0 {
			table, size = "two", 300000-int(i)
		}
		if n != i || msg == nil || msg.Topic != table || string(msg.EventID) != strconv.FormatInt(i, 10) || len(msg.Value) != size || msg.Value[size-1] != byte(65+i%26) {
			t.Fatalf("item %d is not number %d whole: %.60v", n, i, msg)
		}
		return nil
	}))
	if i != 150 {
		t.Errorf("%d items", i)
	}
}
