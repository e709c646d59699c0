package reissue

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"

	"github.com/postrider/postrider/event"
)

// Unit names a topic and a key together, which is what has an order. It is a digest:
// the task's row holds no keys.
type Unit [16]byte

// UnitOf gives the unit of a record with a key.
func UnitOf(topic string, key []byte) Unit {
	h := sha256.New()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(topic)))
	h.Write(n[:])
	h.Write([]byte(topic))
	h.Write(key)
	var sum [sha256.Size]byte
	return Unit(h.Sum(sum[:0]))
}

// MarshalText is hexadecimal.
func (u Unit) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(u[:])), nil }

// UnmarshalText reads MarshalText's form.
func (u *Unit) UnmarshalText(text []byte) error {
	if n, err := hex.Decode(u[:], text); err != nil || n != len(u) {
		return fmt.Errorf("%q is not a unit: want %d hexadecimal digits", text, 2*len(u))
	}
	return nil
}

// unitOf is nil where a refused event has no order, or none that is known.
func unitOf(msg *event.Message, r *event.Refusal) *Unit {
	if msg == nil || msg.Key == nil || msg.Topic == "" || r.Order != event.OrderKnown {
		return nil
	}
	u := UnitOf(msg.Topic, msg.Key)
	return &u
}

// held are the units of which an event was refused.
type held struct {
	mu    sync.Mutex
	units map[Unit]struct{}
	newer []heldSince // not saved yet
}

// heldSince is a unit and the number of its refused event.
type heldSince struct {
	n    int64
	unit Unit
}

func newHeld(units []Unit) *held {
	h := &held{units: map[Unit]struct{}{}}
	for _, u := range units {
		h.units[u] = struct{}{}
	}
	return h
}

// add holds a unit from event n on, and gives the number of held ones.
func (h *held) add(n int64, u Unit) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.units[u]; !known {
		h.units[u] = struct{}{}
		h.newer = append(h.newer, heldSince{n, u})
	}
	return len(h.units)
}

func (h *held) holds(msg *event.Message) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.units) == 0 || msg.Key == nil {
		return false
	}
	_, yes := h.units[UnitOf(msg.Topic, msg.Key)]
	return yes
}

// fresh are the units to be saved with a prefix. Those that were refused behind it are left: the
// next run begins there, and events of theirs before the refused one may still have to go.
func (h *held) fresh(done int64) (units []Unit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.newer {
		if f.n <= done {
			units = append(units, f.unit)
		}
	}
	return units
}

// saved takes what fresh gave away.
func (h *held) saved(done int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.newer = slices.DeleteFunc(h.newer, func(f heldSince) bool { return f.n <= done })
}

const (
	goneText     = "gone: the row is not in the table any more"
	withheldText = "withheld: an event of its key before it was refused"
)

func refusedText(r *event.Refusal) string {
	s := "refused: " + string(r.Reason)
	if r.Column != "" {
		s += ", column " + r.Column
	}
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	return s
}
