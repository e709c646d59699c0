package outbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/router"
)

// patience bounds every single wait.
const patience = 30 * time.Second

const plainTable = `CREATE TABLE outbox(id text PRIMARY KEY, kind text, key text, type text, version int, at timestamptz, payload jsonb);`

func plainSource() router.Source {
	return router.Source{
		Schema: "public", Table: "outbox",
		Mapping: router.Mapping{EventID: "id", Key: "key", Payload: "payload", AggregateType: "kind", EventType: "type"},
	}
}

// newDB makes a database with our schema and the test's own.
func newDB(t *testing.T, ddl string) *testkit.DB {
	t.Helper()
	db := testkit.Postgres(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := migrations.Apply(ctx, db.DSN); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, ddl)
	return db
}

func open(t *testing.T, db *testkit.DB, sources ...router.Source) *Reader {
	t.Helper()
	return openAs(t, db, db.DSN, sources...)
}

func openAs(t *testing.T, db *testkit.DB, dsn string, sources ...router.Source) *Reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := Open(ctx, Config{ConnString: dsn, AppName: "test", Publications: []string{db.Publication}, Router: router.Config{Sources: sources}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(context.Background()) })
	return r
}

// newTask makes a task's row.
func newTask(t *testing.T, db *testkit.DB) (id int64) {
	t.Helper()
	must(t, db.Conn(t).QueryRow(t.Context(), `INSERT INTO postrider.task (publisher, kind, created_by) VALUES ('test', 'backfill', 'test') RETURNING id`).Scan(&id))
	return id
}

// plan plans a new task.
func plan(t *testing.T, db *testkit.DB, r *Reader, sel Selection) (task int64, planned Planned) {
	t.Helper()
	task = newTask(t, db)
	planned, err := r.Plan(t.Context(), task, sel)
	must(t, err)
	return task, planned
}

// items reads a task's items, as "n id" each, or what is wrong with them.
func items(t *testing.T, r *Reader, task, from int64) (all []string) {
	t.Helper()
	must(t, r.Items(t.Context(), task, from, func(n int64, msg *event.Message, refusal *event.Refusal) error {
		switch {
		case refusal != nil:
			all = append(all, fmt.Sprintf("%d refused %s %s", n, refusal.EventID, refusal.Reason))
		case msg == nil:
			all = append(all, fmt.Sprintf("%d gone", n))
		default:
			all = append(all, fmt.Sprintf("%d %s", n, msg.EventID))
		}
		return nil
	}))
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// session opens a session for statements of the test.
func session(t *testing.T, db *testkit.DB) func(sql string, args ...any) {
	t.Helper()
	conn := db.Conn(t)
	return func(sql string, args ...any) {
		t.Helper()
		if len(args) == 0 {
			args = []any{pgx.QueryExecModeSimpleProtocol}
		}
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%v\nin %s", err, sql)
		}
	}
}

// countRows is a Yield that looks at no row.
func countRows(each func() error) Yield {
	return func(int64, *event.Message, *event.Refusal) error { return each() }
}
