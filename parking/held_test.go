package parking_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
)

func at(n int) event.Position { return event.Position{Commit: event.LSN(n / 3), Index: uint64(n % 3)} }

func unitOf(key int) parking.Unit { return parking.UnitOf("t", []byte(fmt.Sprint(key))) }

// case C20, rule 20: over all interleavings of arrivals, of events that turn out guilty
// behind others that wait in a lane, of departures and of restarts, the set says what a
// list per key says: an event flows only where nothing before it is parked, a key is
// released with its last event and never before, and the limits hold.
func TestHeldAgreesWithModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &heldWorld{
			limits: parking.Limits{Units: rapid.IntRange(1, 4).Draw(t, "units"), Events: rapid.IntRange(1, 12).Draw(t, "events")},
			parked: map[int][]int{}, first: map[int]int{}, laned: map[int][]int{},
		}
		w.held = parking.NewHeld(w.limits)
		t.Repeat(map[string]func(*rapid.T){
			"arrive":        w.arrive,
			"arrive again":  w.arriveAgain,
			"router guilty": w.routerGuilty,
			"lane guilty":   w.laneGuilty,
			"lane done":     w.laneDone,
			"single":        w.single,
			"single leaves": w.singleLeaves,
			"leave":         w.leave,
			"restart":       w.restart,
			"":              w.check,
		})
	})
}

// heldWorld is the model: numbers of parked events by key, in order.
type heldWorld struct {
	held   *parking.Held
	limits parking.Limits
	next   int
	parked map[int][]int
	// first is the lowest position that was parked of a key since it is held.
	first map[int]int
	// laned flowed and are not acknowledged: each may be found guilty.
	laned   map[int][]int
	singles int
}

const heldKeys = 5

func (w *heldWorld) key(t *rapid.T) int { return rapid.IntRange(0, heldKeys-1).Draw(t, "key") }

func (w *heldWorld) events() int {
	n := w.singles
	for _, list := range w.parked {
		n += len(list)
	}
	return n
}

func (w *heldWorld) arrive(t *rapid.T) {
	key := w.key(t)
	w.next++
	want := parking.Flow
	switch {
	case len(w.parked[key]) == 0:
		w.laned[key] = append(w.laned[key], w.next)
	case w.events() >= w.limits.Events:
		want = parking.Full
	default:
		want = parking.Park
		w.parked[key] = append(w.parked[key], w.next)
	}
	if got := w.held.Arrive(unitOf(key), at(w.next)); got != want {
		t.Fatalf("arrival %d of key %d: %v, want %v", w.next, key, got, want)
	}
}

// arriveAgain is an event from before the first parked one, streamed again after a crash.
func (w *heldWorld) arriveAgain(t *rapid.T) {
	key := w.key(t)
	if len(w.parked[key]) == 0 || w.first[key] == 0 {
		return
	}
	n := rapid.IntRange(0, w.first[key]-1).Draw(t, "position")
	if got := w.held.Arrive(unitOf(key), at(n)); got != parking.Flow {
		t.Fatalf("arrival %d of key %d, before its first parked one %d: %v", n, key, w.first[key], got)
	}
}

func (w *heldWorld) routerGuilty(t *rapid.T) {
	w.next++
	w.begin(t, w.key(t), w.next)
}

// laneGuilty finds a laned event guilty, and takes those behind it out of the lane.
func (w *heldWorld) laneGuilty(t *rapid.T) {
	key := w.key(t)
	if len(w.laned[key]) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.laned[key])-1).Draw(t, "which")
	behind := w.laned[key][i:]
	w.laned[key] = w.laned[key][:i:i]
	for _, n := range behind {
		w.begin(t, key, n)
	}
}

func (w *heldWorld) laneDone(t *rapid.T) {
	key := w.key(t)
	if len(w.laned[key]) > 0 {
		w.laned[key] = w.laned[key][1:]
	}
}

func (w *heldWorld) units() (n int) {
	for _, list := range w.parked {
		if len(list) > 0 {
			n++
		}
	}
	return n
}

func (w *heldWorld) begin(t *rapid.T, key, n int) {
	want := parking.Park
	if w.events() >= w.limits.Events || len(w.parked[key]) == 0 && w.units() >= w.limits.Units {
		want = parking.Full
	}
	if got := w.held.Begin(unitOf(key), at(n)); got != want {
		t.Fatalf("event %d of key %d is guilty: %v, want %v", n, key, got, want)
	}
	if want == parking.Full {
		return
	}
	if len(w.parked[key]) == 0 || n < w.first[key] {
		w.first[key] = n
	}
	w.parked[key] = append(w.parked[key], n)
}

func (w *heldWorld) single(t *rapid.T) {
	want := parking.Park
	if w.events() >= w.limits.Events {
		want = parking.Full
	} else {
		w.singles++
	}
	if got := w.held.Single(); got != want {
		t.Fatalf("single: %v, want %v", got, want)
	}
}

func (w *heldWorld) singleLeaves(*rapid.T) {
	if w.singles > 0 {
		w.singles--
		w.held.LeaveSingle(1)
	}
}

func (w *heldWorld) leave(t *rapid.T) {
	key := w.key(t)
	if len(w.parked[key]) == 0 {
		w.held.Leave(unitOf(key), 1, func() { t.Fatalf("key %d was released, and it was not held", key) })
		return
	}
	n := rapid.IntRange(1, len(w.parked[key])).Draw(t, "n")
	w.parked[key] = w.parked[key][n:]
	released := 0
	w.held.Leave(unitOf(key), n, func() { released++ })
	if want := map[bool]int{true: 1}[len(w.parked[key]) == 0]; released != want {
		t.Fatalf("key %d with %d events left was released %d times", key, len(w.parked[key]), released)
	}
	if len(w.parked[key]) == 0 {
		delete(w.first, key)
	}
}

// restart makes the set anew of what the table has; what was in a lane comes again.
func (w *heldWorld) restart(*rapid.T) {
	var units []parking.HeldUnit
	for key, list := range w.parked {
		if len(list) == 0 {
			continue
		}
		w.first[key] = list[0]
		for _, n := range list {
			w.first[key] = min(w.first[key], n)
		}
		units = append(units, parking.HeldUnit{Unit: unitOf(key), First: at(w.first[key]), Events: len(list)})
	}
	w.held = parking.NewHeld(w.limits)
	w.held.Load(units, w.singles)
	w.laned = map[int][]int{}
}

func (w *heldWorld) check(t *rapid.T) {
	for key := range heldKeys {
		if got := w.held.Of(unitOf(key)); got != len(w.parked[key]) {
			t.Fatalf("key %d: %d events, want %d", key, got, len(w.parked[key]))
		}
	}
	units, events := w.held.Size()
	if units != w.units() || events != w.events() || w.held.Empty() != (units == 0) {
		t.Fatalf("%d units, %d events, empty %v; want %d and %d", units, events, w.held.Empty(), w.units(), w.events())
	}
}

// Topic and key are told apart wherever the border lies between them.
func TestUnitsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[parking.Unit]string{}
	for _, c := range [][2]string{{"a", "bc"}, {"ab", "c"}, {"abc", ""}, {"", "abc"}, {"a", "b"}, {"b", "a"}} {
		u := parking.UnitOf(c[0], []byte(c[1]))
		if other, ok := seen[u]; ok {
			t.Errorf("%q and %s are one unit", c, other)
		}
		seen[u] = fmt.Sprintf("%q", c)
	}
}
