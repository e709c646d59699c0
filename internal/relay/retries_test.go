package relay

import (
	"testing"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
)

// case C20: an arrival gives way only to the last claim of a unit, when others have
// joined it lap after lap, and is woken when all of the claim has come down.
func TestArrivalsGiveWayToTheLastClaim(t *testing.T) {
	t.Parallel()
	r := newRetries()
	u := parking.UnitOf("t", []byte("k"))
	if r.lastClaim(u, 1) != nil {
		t.Fatal("nobody follows the unit")
	}
	r.follow(u)
	claim := []*parking.Event{{ID: 1, Unit: &u, Message: event.Message{Topic: "t", Key: []byte("k")}}, {ID: 2, Unit: &u}}
	r.launch(claim)
	f := r.following[u]
	for f.laps = 0; f.laps < giveWayAfter; f.laps++ {
		if r.lastClaim(u, 2) != nil {
			t.Fatalf("gives way after %d laps", f.laps)
		}
	}
	if r.lastClaim(u, 3) != nil {
		t.Fatal("gives way to a claim that is not the last")
	}
	landed := r.lastClaim(u, 2)
	if landed == nil || r.lastClaim(u, 2) != landed {
		t.Fatal("does not give way")
	}
	select {
	case <-landed:
		t.Fatal("woken while the claim is on its way")
	default:
	}
	f.land()
	<-landed
	f.flying = 0
	if r.lastClaim(u, 0) != nil {
		t.Fatal("gives way where nothing is on its way")
	}
}
