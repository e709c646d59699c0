package parking_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/parking"
)

// rule 20, case C20: what a claim gives is what was parked, byte for byte, null and
// empty told apart, also the raw row of an event that the router refused.
func TestStoreKeepsTheEvent(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	whole := parkedEvent("k", 1, event.ReasonTooLarge)
	whole.Message.Value = []byte{0, 0xff, 'x'}
	whole.Message.Key = []byte{0xfe, 0}
	u := parking.UnitOf("t", whole.Message.Key)
	whole.Unit = &u
	tombstone := parkedEvent("k2", 2, event.ReasonInvalidRecord)
	tombstone.Message.Value, tombstone.Message.Partition = nil, 0
	empty := parkedEvent("k3", 3, event.ReasonTimestamp)
	empty.Message.Value, empty.Message.Key = []byte{}, []byte{}
	ue := parking.UnitOf("t", nil)
	empty.Unit = &ue
	raw := parkedEvent("k4", 4, event.ReasonNullPayload)
	raw.Row = &parking.Row{
		Shape: parking.Shape{
			Schema: "public", Table: "outbox_p1", AsSchema: "public", AsTable: "outbox",
			Columns: []parking.Column{{Name: "id", Type: 2950, Mod: -1}, {Name: "payload", Type: 3802, Mod: 4}, {Name: "empty", Type: 25, Mod: -1}},
			Types:   map[uint32]parking.Type{99999: {Schema: "s", Name: "d"}},
		},
		Values: []event.Value{{Kind: event.Text, Data: []byte("a\x01")}, {Kind: event.Null}, {Kind: event.Text}},
	}
	want := []*parking.Event{whole, tombstone, empty, raw}
	s.park(t, want...)
	raw.Row.Values[2].Data = []byte{} // a text without bytes is empty, not NULL
	s.exec(t, "UPDATE postrider.parked SET state = 'retry'")
	var units []parking.Unit
	for _, e := range want {
		units = append(units, *e.Unit)
	}
	got, err := s.store().ClaimUnits(t.Context(), units, 10, everything)
	if err != nil || len(got.Events) != len(want) || len(got.Blocked) != 0 {
		t.Fatalf("%d events, blocked %v, error %v", len(got.Events), got.Blocked, err)
	}
	for i, e := range got.Events {
		w := *want[i]
		w.ID = e.ID
		w.CommitTime, e.CommitTime = w.CommitTime.UTC(), e.CommitTime.UTC()
		if !reflect.DeepEqual(e, &w) {
			t.Errorf("event %d:\n%+v, want\n%+v", i, e, &w)
		}
	}
}

// rule 20, case C38: one row a position, over repeats, other batches, another process
// and an event that was done with meanwhile; another system is another position.
func TestOneRowAPosition(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := parkedEvent("k", 1, event.ReasonTooLarge), parkedEvent("k", 2, event.ReasonHeld)
	s.park(t, a, b)
	s.park(t, a)
	s.exec(t, "UPDATE postrider.parked SET state = 'discarded' WHERE event_id = 'k-1'")
	again := parkedEvent("k", 1, event.ReasonInvalidRecord)
	again.Message.Value = []byte("other")
	c := parkedEvent("k", 3, event.ReasonHeld)
	s.park(t, again, b, c)
	if got := s.states(t); got != "discarded parked parked" {
		t.Fatalf("states %s", got)
	}
	if got := s.text(t, "SELECT reason || convert_from(value, 'UTF8') FROM postrider.parked WHERE event_id = 'k-1'"); got != "too_large1" {
		t.Errorf("the row of before is %s now", got)
	}
	other := s.store(func(c *parking.Config) { c.SystemID = "8" })
	if err := other.Park(t.Context(), []*parking.Event{a}); err != nil {
		t.Fatal(err)
	}
	if got := s.text(t, "SELECT count(*) FROM postrider.parked"); got != "4" {
		t.Errorf("%s rows, want 4", got)
	}
}

// rule 5, case C38, trap 20: nothing is written for a walsender that does not hold the
// slot, by any of the relay's changes, and nothing is left of the attempt.
func TestStoreIsFenced(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.park(t, parkedEvent("k", 1, event.ReasonTooLarge), parkedEvent("", 2, event.ReasonNullKey))
	s.exec(t, "UPDATE postrider.parked SET state = 'retry'")
	before := s.text(t, "SELECT string_agg(p::text, ' ' ORDER BY id) FROM postrider.parked p")
	audits := s.text(t, "SELECT count(*) FROM postrider.audit")
	ids := s.ids(t)
	closeConn(s.sender)
	testkit.EventuallyTrue(t, patience, "the slot is free", func() bool {
		return s.text(t, "SELECT NOT active FROM pg_replication_slots WHERE slot_name = $1", s.db.Slot) == "true"
	})
	for _, who := range []string{"gone", "taken over"} {
		store := s.store()
		for what, err := range map[string]error{
			"park": store.Park(t.Context(), []*parking.Event{parkedEvent("k", 9, event.ReasonTooLarge)}),
			"claim": func() error {
				_, err := store.ClaimUnits(t.Context(), []parking.Unit{parking.UnitOf("t", []byte("k"))}, 9, everything)
				return err
			}(),
			"singles":  func() error { _, err := store.ClaimSingles(t.Context(), ids); return err }(),
			"publish":  store.Published(t.Context(), ids),
			"return":   store.Returned(t.Context(), []parking.Return{{ID: ids[0], Reason: event.ReasonTooLarge}}),
			"requests": func() error { _, err := store.Asked(t.Context()); return err }(),
			"load":     func() error { _, err := store.Load(t.Context(), 0); return err }(),
			"prune":    func() error { _, err := store.Prune(t.Context(), 0); return err }(),
			"copies":   func() error { _, err := store.Copies(t.Context(), "dead", 9, 9); return err }(),
			"copied":   store.Copied(t.Context(), ids, nil),
			"forget":   func() error { _, err := store.KeepCopies(t.Context(), nil); return err }(),
		} {
			if !errors.Is(err, parking.ErrFenced) || operr.ClassOf(err) != operr.Slot || !operr.IsTransient(err) {
				t.Errorf("%s, %s: error %v", who, what, err)
			}
		}
		if who == "gone" {
			s.stream(t) // another instance; ours is the pid of before
		}
	}
	if after := s.text(t, "SELECT string_agg(p::text, ' ' ORDER BY id) FROM postrider.parked p"); after != before {
		t.Errorf("rows are\n%s, were\n%s", after, before)
	}
	if n := s.text(t, "SELECT count(*) FROM postrider.audit"); n != audits {
		t.Errorf("%s lines of audit, were %s", n, audits)
	}
}

// case C20: a claim takes a unit's events in order, up to the first guilty one that
// nobody asked for; held ones follow, and none is taken while one is on its way.
func TestClaimStopsAtTheFirstGuiltyOne(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.park(t, parkedEvent("k", 5, event.ReasonHeld), parkedEvent("k", 4, event.ReasonTooLarge), parkedEvent("k", 3, event.ReasonHeld),
		parkedEvent("k", 2, event.ReasonTooLarge), parkedEvent("k", 6, event.ReasonHeld), parkedEvent("j", 1, event.ReasonTooLarge))
	k, j := parking.UnitOf("t", []byte("k")), parking.UnitOf("t", []byte("j"))
	claim := func(want string, blocked int, most int) []int64 {
		t.Helper()
		c, err := s.store().ClaimUnits(t.Context(), []parking.Unit{k, j}, most, everything)
		if err != nil {
			t.Fatal(err)
		}
		var ids []int64
		var got bytes.Buffer
		for _, e := range c.Events {
			ids = append(ids, e.ID)
			fmt.Fprintf(&got, "%s ", e.Message.EventID)
		}
		if got.String() != want || len(c.Blocked) != blocked {
			t.Fatalf("claimed %q, blocked %v, want %q", got.String(), c.Blocked, want)
		}
		return ids
	}
	claim("", 2, 9)
	s.exec(t, "UPDATE postrider.parked SET state = 'retry' WHERE event_id = 'k-2'")
	// What was asked for behind a guilty one that nobody asked for is given up: a unit fails together.
	s.exec(t, "UPDATE postrider.parked SET state = 'retry' WHERE event_id = 'k-6'")
	first := claim("k-2 ", 1, 1) // j; of k there is more
	claim("", 2, 9)              // k-2 is on its way
	if got := s.states(t); got != "parked publishing parked parked parked parked" {
		t.Fatalf("states %s", got)
	}
	if err := s.store().Published(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	claim("k-3 ", 2, 9)
	if got := s.states(t); got != "parked published publishing parked parked parked" {
		t.Errorf("states %s", got)
	}
	if got := s.text(t, "SELECT count(value) FROM postrider.parked WHERE state = 'published'"); got != "0" {
		t.Error("a published event keeps its value")
	}
}

// rule 20: a start takes up what was on its way, counts what is outstanding, knows the
// positions that may come again, and adopts what another system parked, in its order.
func TestLoad(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	old := s.store(func(c *parking.Config) { c.SystemID = "6" })
	if err := old.Park(t.Context(), []*parking.Event{parkedEvent("old", 0x700, event.ReasonTooLarge), parkedEvent("old", 0x701, event.ReasonHeld)}); err != nil {
		t.Fatal(err)
	}
	s.park(t, parkedEvent("k", 1, event.ReasonTooLarge), parkedEvent("k", 2, event.ReasonHeld), parkedEvent("j", 3, event.ReasonTooLarge),
		parkedEvent("", 4, event.ReasonNullKey), parkedEvent("i", 5, event.ReasonTooLarge), parkedEvent("i", 6, event.ReasonHeld))
	s.exec(t, "UPDATE postrider.parked SET state = 'publishing' WHERE event_id = 'j-3'")
	s.exec(t, "UPDATE postrider.parked SET state = 'discarded' WHERE event_id = 'i-5'")
	l, err := s.store().Load(t.Context(), 0x1002)
	if err != nil {
		t.Fatal(err)
	}
	held := map[parking.Unit]parking.HeldUnit{}
	for _, u := range l.Units {
		held[u.Unit] = u
	}
	for key, want := range map[string]parking.HeldUnit{
		"k":   {First: event.Position{Commit: 0x1001, Index: 3}, Events: 2},
		"j":   {First: event.Position{Commit: 0x1003, Index: 3}, Events: 1},
		"i":   {First: event.Position{Commit: 0x1006, Index: 3}, Events: 1},
		"old": {First: event.Position{Commit: 0, Index: 1}, Events: 2},
	} {
		want.Unit = parking.UnitOf("t", []byte(key))
		if held[want.Unit] != want {
			t.Errorf("%s: %+v, want %+v", key, held[want.Unit], want)
		}
	}
	free := map[parking.Unit]bool{}
	for _, u := range l.Unblocked {
		free[u] = true
	}
	if len(l.Units) != 4 || l.Singles != 1 || len(free) != 2 || !free[parking.UnitOf("t", []byte("j"))] || !free[parking.UnitOf("t", []byte("i"))] {
		t.Errorf("%d units, %d singles, unblocked %v", len(l.Units), l.Singles, l.Unblocked)
	}
	if len(l.Known) != 5 || l.Known[0].Commit != 0x1002 || l.Known[4].Commit != 0x1006 {
		t.Errorf("known %v", l.Known)
	}
	if got := s.text(t, "SELECT state || noted FROM postrider.parked WHERE event_id = 'i-5'"); got != "discardedtrue" {
		t.Errorf("the discarded one is %s", got)
	}
	if got := s.text(t, "SELECT string_agg(action, ' ' ORDER BY id) FROM postrider.audit"); got != "parked.park parked.park parked.take_back parked.adopt" {
		t.Errorf("audit %s", got)
	}
}

// rule 20: a database that was loaded from a sibling brings rows of which the position is
// not written yet. They go before all others in their order, whatever their key's rows
// were parked first, and no event that will get such a position is taken for one of them.
func TestLoadAdoptsASiblings(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	sibling := func(key string, n int, reason event.Reason) *parking.Event {
		e := parkedEvent(key, n, reason)
		e.Message.Position.Commit += 1 << 50
		return e
	}
	s.park(t, sibling("k", 3, event.ReasonHeld), parkedEvent("k", 9, event.ReasonHeld), sibling("j", 2, event.ReasonTooLarge), sibling("k", 1, event.ReasonTooLarge))
	s.exec(t, "UPDATE postrider.parked SET state = 'discarded', noted = true WHERE event_id = 'j-2'")
	other := s.store(func(c *parking.Config) { c.SystemID = "6" })
	if err := other.Park(t.Context(), []*parking.Event{sibling("i", 5, event.ReasonHeld), sibling("i", 4, event.ReasonTooLarge)}); err != nil {
		t.Fatal(err)
	}
	l, err := s.store().Load(t.Context(), 0x1000)
	if err != nil || l.Adopted != 5 || len(l.Known) != 1 || l.Known[0].Position != parkedEvent("k", 9, "").Message.Position {
		t.Fatalf("%d adopted, known %v, error %v", l.Adopted, l.Known, err)
	}
	if got := s.text(t, "SELECT string_agg(event_id, ' ' ORDER BY commit_lsn, event_index) FROM postrider.parked"); got != "k-1 j-2 k-3 i-4 i-5 k-9" {
		t.Errorf("in order: %s", got)
	}
	if l, err := s.store().Load(t.Context(), 0x1000); err != nil || l.Adopted != 0 {
		t.Errorf("a second time: %d adopted, error %v", l.Adopted, err)
	}
}

// A position that has come to be another event's does not cost that event its row, and
// leaves the old ones in their order before it. One that is parked again has one row.
func TestAnotherEventsRowMakesWay(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	in := func(index uint64, id string) *parking.Event {
		e := parkedEvent("k", 1, event.ReasonTooLarge)
		e.Message.Position.Index, e.Message.EventID = index, []byte(id)
		return e
	}
	nameless := in(3, "")
	s.park(t, in(0, "a"), in(1, "b"), in(2, "c"), nameless)
	for range 2 { // the answer to a commit was lost
		s.park(t, in(0, "A"), in(1, "B"), in(2, "c"), in(3, "D"), in(5, "f"))
	}
	s.park(t, in(2, "C"))
	got := s.text(t, "SELECT string_agg(coalesce(event_id, '-'), ' ' ORDER BY commit_lsn, event_index) FROM postrider.parked")
	if got != "a b A B c C - f" {
		t.Errorf("in order: %s", got)
	}
	if got := s.text(t, "SELECT string_agg(detail->>'events', ' ' ORDER BY id) FROM postrider.audit WHERE action = 'parked.make_way'"); got != "2 1" {
		t.Errorf("audit: %s", got)
	}
}

// Rows stay until confirmed has passed them and their time is over; what is outstanding,
// or not yet noted by the relay, stays for ever (rule 20).
func TestPrune(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	far := parkedEvent("far", 1, event.ReasonTooLarge)
	far.Message.Position.Commit = 1 << 40 // confirmed has not passed it
	s.park(t, parkedEvent("a", 1, event.ReasonTooLarge), parkedEvent("b", 2, event.ReasonTooLarge), parkedEvent("c", 3, event.ReasonTooLarge),
		parkedEvent("d", 4, event.ReasonTooLarge), parkedEvent("e", 5, event.ReasonTooLarge), far)
	s.exec(t, `UPDATE postrider.parked SET finished_at = now() - interval '2 hours', noted = event_id <> 'd-4',
		state = CASE event_id WHEN 'b-2' THEN 'published' WHEN 'c-3' THEN 'discarded' WHEN 'd-4' THEN 'discarded' WHEN 'e-5' THEN 'published' WHEN 'far-1' THEN 'published' ELSE 'parked' END`)
	s.exec(t, "UPDATE postrider.parked SET finished_at = now() WHERE event_id = 'e-5'")
	other := s.store(func(c *parking.Config) { c.SystemID = "6" })
	if err := other.Park(t.Context(), []*parking.Event{far, parkedEvent("f", 6, event.ReasonTooLarge)}); err != nil {
		t.Fatal(err)
	}
	s.exec(t, "UPDATE postrider.parked SET state = 'published', finished_at = now() - interval '2 hours' WHERE system_id = '6' AND event_id = 'far-1'")
	n, err := s.store().Prune(t.Context(), hour)
	if err != nil || n != 3 {
		t.Fatalf("%d pruned, error %v", n, err)
	}
	if got := s.text(t, "SELECT string_agg(event_id, ' ' ORDER BY commit_lsn) FROM postrider.parked"); got != "a-1 d-4 e-5 f-6 far-1" {
		t.Errorf("left: %s", got)
	}
	if got := s.text(t, "SELECT detail->>'events' FROM postrider.audit WHERE action = 'parked.prune'"); got != "3" {
		t.Errorf("audit %s", got)
	}
	if n, err := s.store().Prune(t.Context(), hour); err != nil || n != 0 || s.text(t, "SELECT count(*) FROM postrider.audit WHERE action = 'parked.prune'") != "1" {
		t.Errorf("a second time: %d, error %v", n, err)
	}
}

// everything lies behind the stream.
const everything = event.LSN(1) << 60

// case C20: what the stream has not passed is not claimed: events before it in its key
// may come again. It does not count as blocked.
func TestClaimStopsWhereTheStreamIs(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.park(t, parkedEvent("k", 1, event.ReasonTooLarge), parkedEvent("k", 2, event.ReasonHeld), parkedEvent("k", 3, event.ReasonHeld), parkedEvent("k", 4, event.ReasonTooLarge))
	s.exec(t, "UPDATE postrider.parked SET state = 'retry' WHERE event_id = 'k-1'")
	k := []parking.Unit{parking.UnitOf("t", []byte("k"))}
	for _, c := range []struct {
		passed  event.LSN
		want    string
		ahead   event.LSN
		blocked int
	}{
		{0x1001, "", 0x1001, 0}, {0x1003, "k-1 k-2", 0x1003, 0}, {0x1004, "k-3", 0x1004, 0}, {0x1005, "", 0, 1},
	} {
		got, err := s.store().ClaimUnits(t.Context(), k, 9, c.passed)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		var ids []int64
		for _, e := range got.Events {
			names, ids = append(names, string(e.Message.EventID)), append(ids, e.ID)
		}
		if strings.Join(names, " ") != c.want || got.Ahead[k[0]] != c.ahead || len(got.Blocked) != c.blocked {
			t.Errorf("up to %s: %v, ahead %v, blocked %v", c.passed, names, got.Ahead, got.Blocked)
		}
		if err := s.store().Published(t.Context(), ids); err != nil {
			t.Fatal(err)
		}
	}
}

// A claim of large events reads no more than it may hold, and at least one of each unit.
func TestClaimIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	large := func(key string, n, bytes int) *parking.Event {
		e := parkedEvent(key, n, event.ReasonHeld)
		e.Message.Value = make([]byte, bytes)
		return e
	}
	s.park(t, large("k", 1, 9<<20), large("k", 2, 9<<20), large("k", 3, 1), large("j", 4, 17<<20), large("j", 5, 1))
	got, err := s.store().ClaimUnits(t.Context(), []parking.Unit{parking.UnitOf("t", []byte("k")), parking.UnitOf("t", []byte("j"))}, 9, everything)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range got.Events {
		names = append(names, string(e.Message.EventID))
	}
	if strings.Join(names, " ") != "k-1 k-2 j-4" {
		t.Errorf("claimed %v", names)
	}
}

// The figures behind the gauges.
func TestCensus(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	if c, err := s.store().Census(t.Context()); err != nil || c.Events != 0 || !c.Oldest.IsZero() || len(c.Reasons) != 0 {
		t.Fatalf("%+v, error %v", c, err)
	}
	s.park(t, parkedEvent("a", 1, event.ReasonTooLarge), parkedEvent("a", 2, event.ReasonHeld), parkedEvent("a", 3, event.ReasonHeld), parkedEvent("b", 4, event.ReasonTooLarge))
	s.exec(t, "UPDATE postrider.parked SET state = 'published', parked_at = '2000-01-01' WHERE event_id = 'b-4'")
	s.exec(t, "UPDATE postrider.parked SET parked_at = '2001-01-01', owner = 'bert' WHERE event_id = 'a-1'")
	c, err := s.store().Census(t.Context())
	if err != nil || c.Events != 3 || c.Ownerless != 2 || c.Oldest.UTC().Format("2006") > "2001" ||
		c.Reasons["too_large"] != 1 || c.Reasons["held"] != 2 || len(c.Reasons) != 2 {
		t.Errorf("%+v, error %v", c, err)
	}
}

// case C41: keys are held by what is outstanding, whatever else is listed.
func TestListCountsHeldKeys(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.park(t, parkedEvent("a", 1, event.ReasonTooLarge), parkedEvent("b", 2, event.ReasonTooLarge))
	s.exec(t, "UPDATE postrider.parked SET state = 'published' WHERE event_id = 'b-2'")
	list, err := s.desk().List(t.Context(), parking.Filter{States: []parking.State{parking.Parked, parking.Published}}, 0)
	if err != nil || list.Total != 2 || list.Keys != 1 {
		t.Errorf("%d events, %d held keys, error %v", list.Total, list.Keys, err)
	}
}
