package parking

import (
	"sync"
	"sync/atomic"

	"github.com/postrider/postrider/event"
)

// Limits bound what may be parked before the relay halts.
type Limits struct {
	// Units is how many units may be held. Default DefaultMaxUnits.
	Units int
	// Events is how many parked events may be outstanding. Default DefaultMaxEvents.
	Events int
}

// The defaults of Limits. A held unit takes some 100 bytes of memory, an event none.
const (
	DefaultMaxUnits  = 100_000
	DefaultMaxEvents = 1_000_000
)

// Verdict says what becomes of an event that comes by.
type Verdict int

const (
	// Flow means that nothing before it is parked.
	Flow Verdict = iota
	// Park means that it is counted as parked from now on.
	Park
	// Full means that it would have to be parked, and a limit is reached.
	Full
)

// Held is the set of units with parked events. An event that arrives is parked where
// its unit is in the set and its position lies behind the unit's first one: what is
// before that is streamed again after a crash, and goes the way of any replay.
//
// It may be used by any goroutine.
type Held struct {
	limits Limits
	// size is len(units), for a look without the lock.
	size atomic.Int64

	// mu covers the rest. Under it only what Leave's caller has to release is locked.
	mu     sync.Mutex
	units  map[Unit]*unit
	events int
}

type unit struct {
	first  event.Position
	events int
}

// NewHeld makes an empty set.
func NewHeld(limits Limits) *Held {
	if limits.Units <= 0 {
		limits.Units = DefaultMaxUnits
	}
	if limits.Events <= 0 {
		limits.Events = DefaultMaxEvents
	}
	return &Held{limits: limits, units: map[Unit]*unit{}}
}

// HeldUnit is what a start finds in the table. Limits are not asked.
type HeldUnit struct {
	Unit   Unit
	First  event.Position
	Events int
}

// Load adds what is parked already. singles are events that hold nothing.
func (h *Held) Load(units []HeldUnit, singles int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range units {
		h.units[u.Unit] = &unit{first: u.First, events: u.Events}
		h.events += u.Events
	}
	h.events += singles
	h.size.Store(int64(len(h.units)))
}

// Empty says that no unit is held.
func (h *Held) Empty() bool { return h.size.Load() == 0 }

// Arrive asks for an event that could be published.
func (h *Held) Arrive(u Unit, at event.Position) Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.units[u]
	switch {
	case held == nil || !held.first.Before(at):
		return Flow
	case h.events >= h.limits.Events:
		return Full
	}
	held.events++
	h.events++
	return Park
}

// Begin counts an event that cannot be published: from now on later ones of its unit wait.
func (h *Held) Begin(u Unit, at event.Position) Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.units[u]
	if h.events >= h.limits.Events || held == nil && len(h.units) >= h.limits.Units {
		return Full
	}
	if held == nil {
		held = &unit{first: at}
		h.units[u] = held
		h.size.Store(int64(len(h.units)))
	}
	if at.Before(held.first) {
		held.first = at
	}
	held.events++
	h.events++
	return Park
}

// Single counts an event that holds nothing.
func (h *Held) Single() Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.events >= h.limits.Events {
		return Full
	}
	h.events++
	return Park
}

// Leave says that n events of a unit are published or discarded, for good. With its
// last one the unit is released: released is called under the lock, before the next
// arrival can flow. It must not call back.
func (h *Held) Leave(u Unit, n int, released func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.units[u]
	if held == nil {
		return
	}
	held.events -= n
	h.events -= n
	if held.events > 0 {
		return
	}
	delete(h.units, u)
	h.size.Store(int64(len(h.units)))
	released()
}

// LeaveSingle says that n events that hold nothing are published or discarded.
func (h *Held) LeaveSingle(n int) {
	h.mu.Lock()
	h.events -= n
	h.mu.Unlock()
}

// Of is the number of a unit's parked events; 0 where it is not held.
func (h *Held) Of(u Unit) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held := h.units[u]; held != nil {
		return held.events
	}
	return 0
}

// Size is the number of held units and of outstanding parked events.
func (h *Held) Size() (units, events int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.units), h.events
}
