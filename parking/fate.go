package parking

import "github.com/postrider/postrider/event"

// Fate is what the policy makes of a refused event.
type Fate int

const (
	// FateHalt stops the pipeline at it.
	FateHalt Fate = iota
	// FateSingle parks it alone.
	FateSingle
	// FateUnit parks it, and every later event of its unit behind it.
	FateUnit
)

// FateOf applies a route's policy. Where an event has an order that nobody can tell,
// parking it would let later ones of its key pass unnoticed: under park_aggregate that
// halts.
func FateOf(r *event.Refusal, key []byte) Fate {
	switch {
	case r.Policy == event.Halt:
		return FateHalt
	case r.Policy == event.ParkEvent, r.Order == event.OrderNone:
		return FateSingle
	case r.Order == event.OrderUnknown || key == nil:
		return FateHalt
	}
	return FateUnit
}
