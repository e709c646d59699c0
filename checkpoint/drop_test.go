package checkpoint_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/migrations"
)

// Drop leaves the audit, and nothing else of the publisher; of others it touches nothing.
func TestDrop(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.left(t)
	s.exec(t, `INSERT INTO postrider.parked (publisher, slot, system_id, timeline, commit_lsn, event_index, reason) VALUES
		('orders', 's', '1', 1, '0/1', 0, 'null_payload'), ('other', 's', '1', 1, '0/1', 0, 'null_payload');
		INSERT INTO postrider.task (publisher, kind, created_by) VALUES ('orders', 'replay', 'x'), ('other', 'replay', 'x');
		INSERT INTO postrider.task_item (task, n, source_table, event_id) SELECT id, 1, 'outbox', 'e' FROM postrider.task;
		INSERT INTO postrider.receipt SELECT p, n, 't', 0, n, now() FROM unnest('{orders,other}'::text[]) p, generate_series(1, 20001) n;
		INSERT INTO postrider.command (publisher, verb, asked_by) VALUES ('orders', 'pause', 'x'), ('other', 'pause', 'x')`)
	belongings, err := s.desk().Belongings(t.Context())
	if err != nil || !belongings.Row || belongings.Parked != 1 || belongings.Tasks != 1 || belongings.TasksOpen != 1 || belongings.Commands != 1 || !belongings.Receipts {
		t.Errorf("%+v, %v", belongings, err)
	}
	var steps []string
	step := func(what string) error { steps = append(steps, what); return nil }
	w := s.stream(t)
	err = s.desk().Drop(t.Context(), checkpoint.DropPlan{Slot: true, Publication: s.db.Publication}, nil, step)
	if operr.ClassOf(err) != operr.Slot || !strings.Contains(err.Error(), "held by pid") || len(steps) > 0 {
		t.Fatalf("under a holder: %v, %v", steps, err)
	}
	w.stop()
	s.freed(t)
	if err := s.desk().Drop(t.Context(), checkpoint.DropPlan{Slot: true, Publication: s.db.Publication}, map[string]any{"reason": "moved"}, step); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(steps, "; "); !strings.HasPrefix(got, "slot "+s.db.Slot+"; receipts: 20001 rows; publication "+s.db.Publication) {
		t.Errorf("steps: %s", got)
	}
	left := s.text(t, `SELECT concat_ws(' ', (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1), (SELECT count(*) FROM pg_publication),
		(SELECT count(*) FROM postrider.checkpoint), (SELECT string_agg(publisher, ',') FROM postrider.parked), (SELECT string_agg(publisher, ',') FROM postrider.task),
		(SELECT count(*) FROM postrider.task_item), (SELECT string_agg(publisher, ',') FROM postrider.command),
		(SELECT string_agg(DISTINCT publisher, ',') FROM postrider.receipt))`, s.db.Slot)
	if left != "0 0 0 other other 1 other other" {
		t.Errorf("left: %s", left)
	}
	if got := s.text(t, "SELECT string_agg(action, ' ' ORDER BY id) FROM postrider.audit WHERE actor = 'alice@desk'"); got != "drop.begin drop.begin drop" {
		t.Errorf("audit: %s", got)
	}
	// Once more, as after a crash: what is gone already is no error.
	if err := s.desk().Drop(t.Context(), checkpoint.DropPlan{Publication: s.db.Publication}, nil, step); err != nil {
		t.Error(err)
	}
}

// The role that runs the relay may not remove it; the error says who may, and what was done
// is not done again.
func TestDropByTheRunningRole(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.left(t)
	role := s.db.Name + "_relay"
	s.exec(t, migrations.GrantsSQL(migrations.Grants{Role: role, Database: s.db.Name}))
	s.exec(t, "ALTER ROLE "+role+" PASSWORD 'x'")
	t.Cleanup(func() { s.db.Exec(t, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	conn, err := pgx.Connect(t.Context(), s.db.As(role, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	err = s.deskOn(conn).Drop(t.Context(), checkpoint.DropPlan{Slot: true}, nil, func(string) error { return nil })
	if operr.ClassOf(err) != operr.Postgres || !strings.Contains(operr.HintOf(err), "owns the schema postrider") {
		t.Errorf("%v, hint %q", err, operr.HintOf(err))
	}
	if _, _, refusal := s.standing(t); refusal == nil || !strings.Contains(refusal.Error(), "does not exist") {
		t.Errorf("half dropped, a run begins: %v", refusal)
	}
	if err := s.desk().Drop(t.Context(), checkpoint.DropPlan{}, nil, func(string) error { return nil }); err != nil {
		t.Error(err)
	}
}
