package checkpoint_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

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
		return s.text(t, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 7 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == "1"
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
