package reissue_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
)

type office struct {
	db   *testkit.DB
	conn *pgx.Conn
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{db: testkit.Postgres(t)}
	if _, err := migrations.Apply(t.Context(), o.db.DSN); err != nil {
		t.Fatal(err)
	}
	o.conn = o.db.Conn(t)
	return o
}

func (o *office) desk(actor string) *reissue.Desk { return reissue.NewDesk(o.conn, "orders", actor) }

// planned is a task of three items.
func (o *office) planned(t *testing.T, needsApproval bool) int64 {
	t.Helper()
	anna := o.desk("anna@one")
	id, err := anna.Create(t.Context(), reissue.NewTask{Kind: reissue.Replay, Params: map[string]any{"type": "OrderPaid"}, Reason: "consumer lost them"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.conn.Exec(t.Context(), `INSERT INTO postrider.task_item SELECT $1, n, 'public.outbox', 'e-' || n FROM generate_series(1, 3) n`, id); err != nil {
		t.Fatal(err)
	}
	if err := anna.Listed(t.Context(), id, 3, "commit time", needsApproval); err != nil {
		t.Fatal(err)
	}
	return id
}

func (o *office) get(t *testing.T, id int64) reissue.Task {
	t.Helper()
	task, err := o.desk("anna@one").Get(t.Context(), id, reissue.Replay)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

// A task from its plan to its end, with all that it notes on the way, and the audit.
func TestTaskLife(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.planned(t, false)
	desk := o.desk("anna@one")
	task, err := desk.Begin(t.Context(), id)
	if err != nil || task.State != reissue.Running || task.Total != 3 || task.Reason != "consumer lost them" || task.Detail.Order != "commit time" {
		t.Fatalf("%+v, %v", task, err)
	}
	if !o.get(t, id).Active {
		t.Error("nobody seems to work on it")
	}
	if _, err := reissue.NewDesk(o.db.Conn(t), "orders", "ben@one").Begin(t.Context(), id); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second process begins: %v", err)
	}
	unit := reissue.UnitOf("t", []byte("k"))
	save := desk.Saver(id)
	for _, s := range []reissue.Saved{
		{Done: 1},
		{Done: 2, Refused: 1, Notes: []reissue.Note{{N: 2, Outcome: "refused: too_large"}}, Withheld: []reissue.Unit{unit}},
		{Done: 3, Refused: 2, Notes: []reissue.Note{{N: 3, Outcome: "withheld"}}, Withheld: []reissue.Unit{reissue.UnitOf("t", nil)}},
	} {
		if err := save(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := desk.Finish(t.Context(), id, reissue.Done, reissue.Result{Published: 1}); err != nil {
		t.Fatal(err)
	}
	task = o.get(t, id)
	if task.State != reissue.Done || task.Done != 3 || task.Refused != 2 || task.FinishedAt == nil || len(task.Detail.Withheld) != 2 || task.Detail.Withheld[0] != unit {
		t.Errorf("%+v", task)
	}
	items, err := desk.Items(t.Context(), id, 0)
	if err != nil || len(items) != 2 || items[0] != (reissue.Item{N: 2, Table: "public.outbox", EventID: "e-2", Outcome: "refused: too_large"}) {
		t.Errorf("%+v, %v", items, err)
	}
	if _, err := desk.Begin(t.Context(), id); err == nil {
		t.Error("a task that is done begins again")
	}
	rows, err := o.conn.Query(t.Context(), `SELECT actor || ' ' || action FROM postrider.audit WHERE (detail ->> 'task')::bigint = $1 ORDER BY id`, id)
	if err != nil {
		t.Fatal(err)
	}
	audit, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if got := strings.Join(audit, ", "); err != nil || got != "anna@one replay.plan, anna@one replay.listed, anna@one replay.begin, anna@one replay.done" {
		t.Errorf("audit: %s, %v", got, err)
	}
	if open, err := desk.List(t.Context(), true, 0, reissue.Replay); err != nil || len(open) != 0 {
		t.Errorf("open: %+v, %v", open, err)
	}
	if all, err := desk.List(t.Context(), false, 5, reissue.Replay); err != nil || len(all) != 1 {
		t.Errorf("all: %+v, %v", all, err)
	}
	if _, err := desk.Get(t.Context(), id+1); !errors.Is(err, reissue.ErrNoTask) {
		t.Errorf("unknown task: %v", err)
	}
}

// A task that needs approval does not begin without, and who planned it cannot give it: not from another host either.
func TestSecondPersonApproves(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.planned(t, true)
	if _, err := o.desk("anna@one").Begin(t.Context(), id); err == nil || !strings.Contains(operr.HintOf(err), "approve") {
		t.Errorf("it begins: %v", err)
	}
	for _, same := range []string{"anna@one", "anna@two"} {
		if err := o.desk(same).Approve(t.Context(), id); !errors.Is(err, reissue.ErrSamePerson) {
			t.Errorf("%s: %v", same, err)
		}
	}
	if o.get(t, id).State != reissue.Planned {
		t.Error("it is approved")
	}
	if err := o.desk("ben@one").Approve(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	task := o.get(t, id)
	if task.State != reissue.Approved || *task.ApprovedBy != "ben@one" || task.Detail.ApprovedDBUser == "" || task.Detail.DBUser == "" {
		t.Errorf("%+v", task)
	}
	if _, err := o.desk("anna@one").Begin(t.Context(), id); err != nil {
		t.Error(err)
	}

	// Another user of the database is another person as well.
	second := o.planned(t, true)
	o.db.Exec(t, `CREATE ROLE `+o.db.Slot+`_ben LOGIN PASSWORD 'p' SUPERUSER`)
	t.Cleanup(func() { o.db.Exec(t, `DROP ROLE `+o.db.Slot+`_ben`) })
	ben, err := pgx.Connect(t.Context(), o.db.As(o.db.Slot+"_ben", "p"))
	if err != nil {
		t.Fatal(err)
	}
	defer ben.Close(t.Context())
	if err := reissue.NewDesk(ben, "orders", "anna@one").Approve(t.Context(), second); err != nil {
		t.Error(err)
	}
}

// Who works on a task that somebody cancels is stopped by its next Save.
func TestCancelStopsTheWorker(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.planned(t, false)
	if _, err := o.desk("anna@one").Begin(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	other := reissue.NewDesk(o.db.Conn(t), "orders", "ben@one")
	if err := other.Cancel(t.Context(), id, "wrong events"); err != nil {
		t.Fatal(err)
	}
	if err := o.desk("anna@one").Saver(id)(t.Context(), reissue.Saved{Done: 1}); err == nil || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("it goes on: %v", err)
	}
	if task := o.get(t, id); task.State != reissue.Cancelled || task.Done != 0 {
		t.Errorf("%+v", task)
	}

	// A plan that was cut off can only be cancelled.
	cut, err := other.Create(t.Context(), reissue.NewTask{Kind: reissue.Replay, Params: struct{}{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Begin(t.Context(), cut); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("a plan that was cut off begins: %v", err)
	}
	if err := other.Cancel(t.Context(), cut, "cut off"); err != nil {
		t.Error(err)
	}
}
