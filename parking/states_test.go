package parking_test

import (
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
)

const hour = time.Hour

// case C20, decision 4: whatever a command or the relay does to a row in whatever state,
// it changes it only along an arrow of the table of states, leaves it otherwise, and
// writes each change into the audit.
func TestOnlyKnownTransitions(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.park(t, parkedEvent("k", 1, event.ReasonTooLarge))
	id := s.ids(t)[0]
	unit := parking.UnitOf("t", []byte("k"))
	ctx := t.Context()
	one := parking.Filter{IDs: []int64{id}}
	ops := map[string]struct {
		by parking.Actor
		do func() error
	}{
		"retry":   {parking.Command, func() error { _, err := s.desk().Retry(ctx, one, false); return err }},
		"cancel":  {parking.Command, func() error { _, err := s.desk().Cancel(ctx, one.IDs); return err }},
		"discard": {parking.Command, func() error { _, err := s.desk().Discard(ctx, one, "a reason", false); return err }},
		"assign":  {parking.Command, func() error { _, err := s.desk().Assign(ctx, one, "bert", false); return err }},
		"erase":   {parking.Command, func() error { _, err := s.desk().Erase(ctx, one, "a reason", false); return err }},
		"dry":     {parking.Command, func() error { _, err := s.desk().Discard(ctx, one, "a reason", true); return err }},
		"repair":  {parking.Command, func() error { _ = s.desk().Repair(ctx, id, []byte("new"), "a reason"); return nil }},
		"claim":   {parking.Relay, func() error { _, err := s.store().ClaimUnits(ctx, []parking.Unit{unit}, 9, everything); return err }},
		"publish": {parking.Relay, func() error { return s.store().Published(ctx, one.IDs) }},
		"return":  {parking.Relay, func() error { return s.store().Returned(ctx, []parking.Return{{ID: id, Reason: event.ReasonTooLarge}}) }},
		"unsent":  {parking.Relay, func() error { return s.store().Returned(ctx, []parking.Return{{ID: id}}) }},
		"again":   {parking.Relay, func() error { return s.store().Returned(ctx, []parking.Return{{ID: id, Again: true}}) }},
		"park":    {parking.Relay, func() error { return s.store().Park(ctx, []*parking.Event{parkedEvent("k", 1, event.ReasonTooLarge)}) }},
		"load":    {parking.Relay, func() error { _, err := s.store().Load(ctx, 0); return err }},
	}
	all := []parking.State{parking.Parked, parking.Retry, parking.Publishing, parking.Published, parking.Discarded}
	seen := map[[2]parking.State]bool{}
	for name, op := range ops {
		for _, from := range all {
			for _, reason := range []string{"too_large", "held"} {
				s.exec(t, "UPDATE postrider.parked SET state = $1, reason = $2, erased_at = NULL, finished_at = NULL", from, reason)
				audits := s.text(t, "SELECT count(*) FROM postrider.audit")
				if err := op.do(); err != nil {
					t.Fatalf("%s of a row that is %s: %v", name, from, err)
				}
				to := parking.State(s.states(t))
				if to == from {
					continue
				}
				seen[[2]parking.State{from, to}] = true
				if !parking.May(op.by, from, to) {
					t.Errorf("%s changes %s to %s, which no arrow allows", name, from, to)
				}
				if s.text(t, "SELECT count(*) FROM postrider.audit") == audits {
					t.Errorf("%s from %s to %s is not in the audit", name, from, to)
				}
			}
		}
	}
	// Nor is there an arrow that nothing takes.
	for _, from := range all {
		for _, to := range all {
			relay, command := parking.May(parking.Relay, from, to), parking.May(parking.Command, from, to)
			if (relay || command) != seen[[2]parking.State{from, to}] {
				t.Errorf("%s to %s: relay %v, command %v, taken %v", from, to, relay, command, seen[[2]parking.State{from, to}])
			}
		}
	}
}

// Outstanding is what still keeps a unit.
func TestOutstanding(t *testing.T) {
	t.Parallel()
	for state, want := range map[parking.State]bool{
		parking.Parked: true, parking.Retry: true, parking.Publishing: true, parking.Published: false, parking.Discarded: false,
	} {
		if state.Outstanding() != want {
			t.Errorf("%s: %v", state, !want)
		}
	}
}
