package checkpoint_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
)

func (s *server) desk() *checkpoint.Desk { return s.deskOn(s.conn) }

func (s *server) deskOn(conn *pgx.Conn) *checkpoint.Desk {
	return checkpoint.NewDesk(conn, checkpoint.DeskConfig{Publisher: "orders", Slot: s.db.Slot, Actor: "alice@desk"})
}

// standing is what a command would decide by.
func (s *server) standing(t *testing.T) (checkpoint.State, checkpoint.Start, error) {
	t.Helper()
	st, err := s.desk().Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	start, refusal := checkpoint.Decide(st.Row, st.Slot, st.System, nil)
	return st, start, refusal
}

// left stores a row as a relay leaves it behind, and gives the slot back.
func (s *server) left(t *testing.T) {
	t.Helper()
	w := s.stream(t)
	s.claimed(t, s.store("host-a/1"), w)
	w.stop()
	s.freed(t)
}

// events commits some, and gives the end of the WAL.
func (s *server) events(t *testing.T, from, to int) event.LSN {
	t.Helper()
	s.exec(t, "INSERT INTO outbox SELECT generate_series($1::int, $2::int)", from, to)
	return s.lsn(t, "SELECT pg_current_wal_flush_lsn()")
}

// case C40, trap 8: a target in the future, behind, or under a holder is refused, with the
// right words and class; where the position is there already there is nothing to do.
func TestCheckAdvance(t *testing.T) {
	t.Parallel()
	state := checkpoint.State{Slot: checkpoint.SlotState{Name: "s", Exists: true, Confirmed: 0x180}, WALEnd: 0x300}
	held := state
	held.Holder = &checkpoint.Holder{PID: 42, Application: "postrider s", Client: "10.0.0.1:5000"}
	start := checkpoint.Start{Skip: 0x200}
	for _, tt := range []struct {
		name  string
		state checkpoint.State
		to    event.LSN
		due   bool
		class operr.Class
		parts []string
	}{
		{name: "forward", state: state, to: 0x201, due: true},
		{name: "to the end", state: state, to: 0x300, due: true},
		{name: "the slot is behind", state: state, to: 0x200, due: true},
		{name: "one past the end", state: state, to: 0x301, class: operr.Config, parts: []string{"future", "0/300", "--now"}},
		{name: "mistyped", state: state, to: 0xFF00000000, class: operr.Config, parts: []string{"FF/0", "future"}},
		{name: "back", state: state, to: 0x1ff, class: operr.Config, parts: []string{"a slot cannot go back", "0/200", "postrider replay"}},
		{name: "back to the slot", state: state, to: 0x180, class: operr.Config, parts: []string{"cannot go back"}},
		{name: "held", state: held, to: 0x250, class: operr.Slot, parts: []string{"pid 42", "postrider s", "10.0.0.1:5000"}},
		{name: "held, future", state: held, to: 0x301, class: operr.Config, parts: []string{"future"}},
		{name: "held, back", state: held, to: 0x100, class: operr.Config, parts: []string{"cannot go back"}},
	} {
		due, err := checkpoint.CheckAdvance(tt.state, start, tt.to)
		if tt.class == 0 {
			if err != nil || due != tt.due {
				t.Errorf("%s: due %t, %v", tt.name, due, err)
			}
			continue
		}
		if operr.ClassOf(err) != tt.class || due {
			t.Errorf("%s: due %t, %v of class %v", tt.name, due, err, operr.ClassOf(err))
		}
		contains(t, tt.name, err.Error()+operr.HintOf(err), tt.parts)
	}
	// Under the latch: not to between row and slot, where the row would stay behind.
	latched := state
	latched.Slot.Confirmed = 0x280
	if _, err := checkpoint.CheckAdvance(latched, checkpoint.Start{Skip: 0x200, Doubtful: true}, 0x250); !errors.Is(err, checkpoint.ErrBackwards) {
		t.Errorf("between row and slot: %v", err)
	}
	state.Slot.Confirmed = 0x200
	if due, err := checkpoint.CheckAdvance(state, start, 0x200); due || err != nil {
		t.Errorf("there already: due %t, %v", due, err)
	}
}

// Row and slot stand where they were told to, the audit says who, why, from and to, and
// the next run begins there.
func TestAdvance(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.left(t)
	st, start, _ := s.standing(t)
	to := s.events(t, 1, 3)
	moved, err := s.desk().Advance(t.Context(), st, start, to, map[string]any{"reason": "poison"})
	if err != nil || moved.To != to || moved.SlotTo != to || moved.From != start.Skip {
		t.Fatalf("%+v, %v", moved, err)
	}
	st, start, refusal := s.standing(t)
	if refusal != nil || start.Skip != to || st.Slot.Confirmed != to || st.Row.Idle || st.Row.WalsenderPID != 0 {
		t.Errorf("stands at %+v, %+v (%v)", st.Row, st.Slot, refusal)
	}
	var got checkpoint.Entry
	err = checkpoint.History(t.Context(), s.conn, checkpoint.HistoryFilter{Publisher: "orders", Actions: []string{"advance"}}, func(e checkpoint.Entry) error {
		got = e
		return nil
	})
	if err != nil || got.Actor != "alice@desk" || got.DBUser == "" {
		t.Fatalf("%+v, %v", got, err)
	}
	contains(t, "audit", string(got.Detail), []string{`"reason": "poison"`, `"to_lsn": "` + to.String() + `"`, `"from_lsn": "` + moved.From.String() + `"`})
}

// The slot alone, without a row, is advanced with a row that says so.
func TestAdvanceBeforeTheFirstRun(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	to := s.events(t, 1, 1)
	st, start, _ := s.standing(t)
	if _, err := s.desk().Advance(t.Context(), st, start, to, nil); err != nil {
		t.Fatal(err)
	}
	if st, start, refusal := s.standing(t); refusal != nil || st.Row == nil || start.Skip != to {
		t.Errorf("%+v, %+v, %v", st.Row, start, refusal)
	}
}

// rule 5 for operators: what has changed since it was looked at is not overwritten, be it
// by a relay that claimed the row, or by one that only holds the slot.
func TestDeskChangesNothingThatHasChanged(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"claimed", "held", "slot moved"} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.left(t)
			to := s.events(t, 1, 3)
			if change == "slot moved" {
				s.exec(t, "SELECT pg_replication_slot_advance($1, $2::text::pg_lsn)", s.db.Slot, to.String())
			}
			st, start, _ := s.standing(t)
			want := "pid "
			switch change {
			case "claimed":
				w := s.stream(t)
				s.claimed(t, s.store("host-b/2"), w)
				w.stop()
				s.freed(t)
				want = "has changed"
			case "held":
				s.stream(t)
			case "slot moved":
				s.events(t, 4, 5)
				s.exec(t, "SELECT pg_replication_slot_advance($1, pg_current_wal_flush_lsn())", s.db.Slot)
				want = "has changed"
			}
			before := s.text(t, "SELECT row(c.*) FROM postrider.checkpoint c")
			if change != "slot moved" { // an advance asks the row only: the slot follows it
				_, err := s.desk().Advance(t.Context(), st, start, to, nil)
				if operr.ClassOf(err) != operr.Slot || !strings.Contains(err.Error(), want) {
					t.Errorf("advance: %v", err)
				}
			}
			st.Holder = nil // as it was when the command looked
			_, err := s.desk().Accept(t.Context(), st, nil, nil)
			if operr.ClassOf(err) != operr.Slot || !strings.Contains(err.Error(), want) {
				t.Errorf("accept: %v", err)
			}
			if after := s.text(t, "SELECT row(c.*) FROM postrider.checkpoint c"); after != before {
				t.Errorf("the row was %s and is %s", before, after)
			}
			if n := s.text(t, "SELECT count(*) FROM postrider.audit WHERE action IN ('advance', 'accept')"); n != "0" {
				t.Errorf("%s lines in the audit", n)
			}
		})
	}
}

// A relay that takes the slot between the two steps makes the second fail: the row stands,
// the error says so, and done again it goes on.
func TestAdvanceWithTheSlotTaken(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.left(t)
	st, start, _ := s.standing(t)
	to := s.events(t, 1, 3)
	// Taken in the very transaction that moves the row, and seen by nobody before.
	s.exec(t, `CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(7); PERFORM pg_advisory_unlock(7); RETURN NEW; END $$;
		CREATE TRIGGER pause AFTER INSERT ON postrider.audit FOR EACH ROW EXECUTE FUNCTION pause()`)
	gate := s.db.Conn(t)
	if _, err := gate.Exec(t.Context(), "SELECT pg_advisory_lock(7)"); err != nil {
		t.Fatal(err)
	}
	type result struct {
		moved checkpoint.Advanced
		err   error
	}
	done := make(chan result, 1)
	desk := s.deskOn(s.db.Conn(t))
	go func() {
		moved, err := desk.Advance(t.Context(), st, start, to, nil)
		done <- result{moved, err}
	}()
	testkit.EventuallyTrue(t, 10*time.Second, "the audit is being written", func() bool {
		return s.text(t, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 7") == "1"
	})
	w := s.stream(t)
	if _, err := gate.Exec(t.Context(), "SELECT pg_advisory_unlock(7)"); err != nil {
		t.Fatal(err)
	}
	got := <-done
	if operr.ClassOf(got.err) != operr.Slot || !strings.Contains(got.err.Error(), "the stored position is "+to.String()) || got.moved.To != to {
		t.Fatalf("%+v", got)
	}
	w.stop()
	s.freed(t)
	st, start, refusal := s.standing(t)
	if refusal != nil || start.Skip != to {
		t.Fatalf("%+v, %v", start, refusal)
	}
	if moved, err := desk.Advance(t.Context(), st, start, to, nil); err != nil || moved.SlotTo != to {
		t.Errorf("again: %+v, %v", moved, err)
	}
	if n := s.text(t, "SELECT count(*) FROM postrider.audit WHERE action = 'advance'"); n != "1" {
		t.Errorf("%s lines in the audit", n)
	}
}

// trap 10: each state in which a run refuses to start is accepted as it stands, and only as
// it was shown; the snapshot stays where it still means the same transactions.
func TestAccept(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil string
		keeps bool
	}{
		"slot moved":     {"SELECT pg_replication_slot_advance('SLOT', pg_current_wal_flush_lsn())", true},
		"slot recreated": {"SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')", true},
		"other slot":     {"UPDATE postrider.checkpoint SET slot = 'another'", true},
		"older slot":     {"UPDATE postrider.checkpoint SET slot_birth_lsn = pg_current_wal_insert_lsn()", true},
		"other system":   {"UPDATE postrider.checkpoint SET system_id = '7'", false},
		"other history":  {"UPDATE postrider.checkpoint SET timeline = 9", false},
		"older copy":     {"UPDATE postrider.checkpoint SET confirmed_lsn = 'F/0'", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.left(t)
			s.exec(t, "UPDATE postrider.checkpoint SET snapshot = pg_current_snapshot(), birth_snapshot = pg_current_snapshot()")
			s.events(t, 1, 3)
			for _, sql := range strings.Split(strings.ReplaceAll(tt.spoil, "SLOT", s.db.Slot), "; ") {
				s.exec(t, sql)
			}
			st, _, refusal := s.standing(t)
			if refusal == nil {
				t.Fatal("a run would start")
			}
			contains(t, "hint", operr.HintOf(refusal), []string{"postrider recover", "postrider checkpoint accept"})
			accepted, err := s.desk().Accept(t.Context(), st, nil, map[string]any{"reason": "looked at"})
			if err != nil || accepted.SnapshotKept != tt.keeps || accepted.To != st.Slot.Confirmed {
				t.Fatalf("%+v, %v", accepted, err)
			}
			after, start, refusal := s.standing(t)
			if refusal != nil || start.Doubtful || start.Skip != st.Slot.Confirmed || after.Row.Slot != s.db.Slot {
				t.Errorf("a run begins at %+v (%v)", start, refusal)
			}
			if kept := after.Row.Snapshot != "" && after.Row.BirthSnapshot != ""; kept != tt.keeps {
				t.Errorf("the snapshots are %q and %q", after.Row.Snapshot, after.Row.BirthSnapshot)
			}
			if _, err := s.desk().Accept(t.Context(), st, nil, nil); !errors.Is(err, checkpoint.ErrChanged) {
				t.Errorf("accepted twice on the same evidence: %v", err)
			}
		})
	}
}

// A missing or lost slot is not accepted, and neither is one that somebody holds.
func TestCheckAccept(t *testing.T) {
	t.Parallel()
	row := &checkpoint.Row{Slot: "s", Confirmed: 0x100}
	for name, tt := range map[string]struct {
		state checkpoint.State
		hint  string
	}{
		"no row":  {checkpoint.State{Slot: checkpoint.SlotState{Name: "s", Exists: true}}, "postrider setup"},
		"no slot": {checkpoint.State{Row: row, Slot: checkpoint.SlotState{Name: "s"}}, "postrider recover"},
		"lost":    {checkpoint.State{Row: row, Slot: checkpoint.SlotState{Name: "s", Exists: true, WALStatus: "lost"}}, "postrider recover"},
		"held":    {checkpoint.State{Row: row, Slot: checkpoint.SlotState{Name: "s", Exists: true}, Holder: &checkpoint.Holder{PID: 1}}, "stop that relay"},
	} {
		err := checkpoint.CheckAccept(tt.state)
		if err == nil || !strings.Contains(operr.HintOf(err), tt.hint) {
			t.Errorf("%s: %v, hint %q", name, err, operr.HintOf(err))
		}
	}
}

// Drop leaves the audit, and nothing else of the publisher; of others it touches nothing.
func TestDrop(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.left(t)
	s.exec(t, `INSERT INTO postrider.parked (publisher, slot, system_id, timeline, commit_lsn, event_index, reason) VALUES
		('orders', 's', '1', 1, '0/1', 0, 'null_payload'), ('other', 's', '1', 1, '0/1', 0, 'null_payload');
		INSERT INTO postrider.task (publisher, kind, created_by) VALUES ('orders', 'replay', 'x'), ('other', 'replay', 'x');
		INSERT INTO postrider.task_item (task, n, source_table, event_id) SELECT id, 1, 'outbox', 'e' FROM postrider.task;
		INSERT INTO postrider.command (publisher, verb, asked_by) VALUES ('orders', 'pause', 'x'), ('other', 'pause', 'x')`)
	belongings, err := s.desk().Belongings(t.Context())
	if err != nil || !belongings.Row || belongings.Parked != 1 || belongings.Tasks != 1 || belongings.TasksOpen != 1 || belongings.Commands != 1 {
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
	if got := strings.Join(steps, "; "); !strings.HasPrefix(got, "slot "+s.db.Slot+"; publication "+s.db.Publication) {
		t.Errorf("steps: %s", got)
	}
	left := s.text(t, `SELECT concat_ws(' ', (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1), (SELECT count(*) FROM pg_publication),
		(SELECT count(*) FROM postrider.checkpoint), (SELECT string_agg(publisher, ',') FROM postrider.parked), (SELECT string_agg(publisher, ',') FROM postrider.task),
		(SELECT count(*) FROM postrider.task_item), (SELECT string_agg(publisher, ',') FROM postrider.command))`, s.db.Slot)
	if left != "0 0 0 other other 1 other" {
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

// The lock that commands share says who has it.
func TestLockPublisher(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	if err := checkpoint.LockPublisher(t.Context(), s.conn, "orders"); err != nil {
		t.Fatal(err)
	}
	other := s.db.Conn(t)
	err := checkpoint.LockPublisher(t.Context(), other, "orders")
	if operr.ClassOf(err) != operr.Slot || !strings.Contains(err.Error(), "pid "+s.text(t, "SELECT pg_backend_pid()")) {
		t.Errorf("%v", err)
	}
	if err := checkpoint.LockPublisher(t.Context(), other, "another"); err != nil {
		t.Error(err)
	}
}

// List has every publisher, with or without its slot; History is filtered, and in order.
func TestListAndHistory(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.left(t)
	s.exec(t, `INSERT INTO postrider.checkpoint (publisher, slot, system_id, timeline, confirmed_lsn, paused_at) VALUES ('billing', 'no_such_slot', '1', 1, '0/10', now());
		INSERT INTO postrider.parked (publisher, slot, system_id, timeline, commit_lsn, event_index, reason, state) VALUES
		('orders', 's', '1', 1, '0/1', 0, 'r', 'parked'), ('orders', 's', '1', 1, '0/1', 1, 'r', 'published')`)
	list, err := checkpoint.List(t.Context(), s.conn)
	if err != nil || len(list.Publishers) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	billing, orders := list.Publishers[0], list.Publishers[1]
	if billing.Publisher != "billing" || billing.SlotExists || billing.PausedAt == nil || orders.Publisher != "orders" || !orders.SlotExists || orders.Parked != 1 || orders.PausedAt != nil {
		t.Errorf("%+v", list)
	}

	s.exec(t, `INSERT INTO postrider.audit (at, publisher, actor, action) VALUES
		(now() - interval '3 days', 'orders', 'alice', 'parked.retry'), (now() - interval '2 days', 'orders', 'bob', 'parked.discard'),
		(now() - interval '1 day', 'orders', 'alice', 'advance'), (now(), 'billing', 'alice', 'drop')`)
	for name, tt := range map[string]struct {
		filter checkpoint.HistoryFilter
		want   string
	}{
		"publisher": {checkpoint.HistoryFilter{Publisher: "billing"}, "drop"},
		"group":     {checkpoint.HistoryFilter{Actions: []string{"parked."}}, "parked.retry parked.discard"},
		"one":       {checkpoint.HistoryFilter{Actions: []string{"parked.retry", "adv"}}, "parked.retry"},
		"actor":     {checkpoint.HistoryFilter{Actor: "lic"}, "parked.retry advance drop"},
		"since":     {checkpoint.HistoryFilter{Actor: "alice", Since: time.Now().Add(-36 * time.Hour)}, "advance drop"},
		"until":     {checkpoint.HistoryFilter{Until: time.Now().Add(-36 * time.Hour)}, "parked.retry parked.discard"},
		"latest":    {checkpoint.HistoryFilter{Actor: "alice", Most: 2}, "advance drop"},
	} {
		var got []string
		err := checkpoint.History(t.Context(), s.conn, tt.filter, func(e checkpoint.Entry) error {
			got = append(got, e.Action)
			return nil
		})
		if err != nil || strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v (%v), want %s", name, got, err, tt.want)
		}
	}
}

// The end of the WAL comes to disk also where nobody commits: the last records of an open
// transaction stay in memory on a quiet server.
func TestAwaitFlush(t *testing.T) {
	t.Parallel()
	s := &server{db: testkit.NewDB(t, testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"autovacuum": "off"}}).DSN())}
	s.conn = s.db.Conn(t)
	s.exec(t, "CREATE TABLE foreign_work (id int)")
	open := s.db.Conn(t)
	if _, err := open.Exec(t.Context(), "BEGIN; INSERT INTO foreign_work VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	end := s.lsn(t, "SELECT pg_current_wal_insert_lsn()")
	if flushed := s.lsn(t, "SELECT pg_current_wal_flush_lsn()"); flushed >= end {
		t.Fatalf("flushed up to %s, the WAL ends at %s: the test shows nothing", flushed, end)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.desk().AwaitFlush(ctx, end); err != nil {
		t.Fatal(err)
	}
}
