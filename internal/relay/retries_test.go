package relay

import (
	"testing"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/publisher"
)

// case C20: an arrival gives way only to the last claim of a unit, when others have
// joined it lap after lap, and is woken when all of the claim has come down.
func TestArrivalsGiveWayToTheLastClaim(t *testing.T) {
	t.Parallel()
	r := newRetries()
	u := parking.UnitOf("t", []byte("k"))
	if r.giveWay(u, 1) != nil {
		t.Fatal("nobody follows the unit")
	}
	r.follow(u)
	claim := []*parking.Event{{ID: 1, Unit: &u, Message: event.Message{Topic: "t", Key: []byte("k")}}, {ID: 2, Unit: &u}}
	r.launch(claim)
	f := r.following[u]
	for f.laps = 0; f.laps < giveWayAfter; f.laps++ {
		if r.giveWay(u, 2) != nil {
			t.Fatalf("gives way after %d laps", f.laps)
		}
	}
	if r.giveWay(u, 3) != nil {
		t.Fatal("gives way to a claim that is not the last")
	}
	landed := r.giveWay(u, 2)
	if landed == nil || r.giveWay(u, 2) != landed {
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
	if r.giveWay(u, 0) != nil {
		t.Fatal("gives way where nothing is on its way")
	}
}

// case C20: while an event that a lane gave back is not durable, nothing of its unit is
// claimed; where something is claimed or may be, it overtakes, and what was claimed comes
// back to go again, unless one of it was refused for its own sake.
func TestWhatComesLateOvertakesTheClaim(t *testing.T) {
	t.Parallel()
	r := newRetries()
	u := parking.UnitOf("t", []byte("k"))
	r.follow(u)
	if r.cameLate(u, "t", []byte("k")) {
		t.Fatal("overtakes where nothing is claimed")
	}
	if len(r.due(9)) != 0 {
		t.Fatal("claimed while an event is not durable")
	}
	r.noLonger(u)
	if len(r.due(9)) != 1 {
		t.Fatal("not claimed")
	}
	if !r.cameLate(u, "t", []byte("k")) {
		t.Fatal("does not overtake while a claim is made")
	}
	if again := r.claimed([]parking.Unit{u}, false); len(again) != 1 || again[0].topic != "t" || string(again[0].key) != "k" {
		t.Fatalf("readmitted %v after a claim that found nothing", again)
	}
	r.noLonger(u)
	if len(r.due(9)) != 1 {
		t.Fatal("not claimed again")
	}
	r.launch([]*parking.Event{{ID: 1, Unit: &u}, {ID: 2, Unit: &u}})
	if again := r.claimed([]parking.Unit{u}, false); len(again) != 0 {
		t.Fatalf("readmitted %v", again)
	}
	if !r.cameLate(u, "t", []byte("k")) {
		t.Fatal("does not overtake what is on its way")
	}
	refused := func(id uint64, reason event.Reason) parking.Return {
		r.refused(&publisher.Refused{Txn: publisher.Injected | id, Refusal: &event.Refusal{Reason: reason}})
		return r.returned[len(r.returned)-1]
	}
	if ret := refused(1, event.ReasonHeld); !ret.Again || ret.Reason != "" {
		t.Errorf("held for another's sake: %+v", ret)
	}
	if ret := refused(1, event.ReasonTooLarge); ret.Again || ret.Reason == "" {
		t.Errorf("refused: %+v", ret)
	}
	if ret := refused(2, event.ReasonHeld); ret.Again {
		t.Errorf("behind a refused one: %+v", ret)
	}
}

// What the stream has not passed is not asked for again before it went on.
func TestUnitsWaitForTheStream(t *testing.T) {
	t.Parallel()
	r := newRetries()
	u, other := parking.UnitOf("t", []byte("k")), parking.UnitOf("t", []byte("j"))
	r.follow(u)
	if r.waitsForStream() || len(r.due(9)) != 1 {
		t.Fatal("not claimed")
	}
	r.claimed([]parking.Unit{u}, false)
	r.waitForStream(map[parking.Unit]event.LSN{u: 8})
	r.follow(u)
	r.follow(other)
	if due := r.due(9); len(due) != 1 || due[0] != other || !r.waitsForStream() {
		t.Fatalf("due %v, waits %v", due, r.waitsForStream())
	}
	r.streamWentOn(8)
	if due := r.due(9); len(due) != 0 || !r.waitsForStream() {
		t.Fatalf("before it: due %v, waits %v", due, r.waitsForStream())
	}
	r.streamWentOn(9)
	if due := r.due(9); len(due) != 1 || due[0] != u || r.waitsForStream() {
		t.Fatalf("due %v, waits %v", due, r.waitsForStream())
	}
}

// Nothing of a unit goes while the stream parks an event before others that are durable,
// and what is on its way, which stands before it, is not called back.
func TestUnitsWaitForWhatTheStreamParks(t *testing.T) {
	t.Parallel()
	r := newRetries()
	u := parking.UnitOf("t", []byte("k"))
	r.follow(u)
	r.due(9)
	r.awaitDurable(u)
	if r.claimed([]parking.Unit{u}, true) != nil || r.following[u].overtaken != nil {
		t.Error("the claim is called back")
	}
	if due := r.due(9); len(due) != 0 {
		t.Errorf("due %v", due)
	}
	r.noLonger(u)
	if due := r.due(9); len(due) != 1 {
		t.Errorf("due %v", due)
	}
}

// Once a unit grows though it is worked off, each arrival waits for what comes down next,
// also while it is being claimed; not where it waits for the stream, nor for ever.
func TestArrivalsYieldToAUnitThatGrows(t *testing.T) {
	t.Parallel()
	r := newRetries()
	u := parking.UnitOf("t", []byte("k"))
	r.follow(u)
	f := r.following[u]
	laps := func(outstanding ...int) {
		for _, n := range outstanding {
			for range giveWayAfter {
				f.lap(n)
			}
		}
	}
	laps(900, 800, 700)
	if r.giveWay(u, 700) != nil {
		t.Error("waits for a unit that shrinks")
	}
	laps(700)
	landed := r.giveWay(u, 700)
	if landed == nil {
		t.Fatal("joins a unit that does not shrink")
	}
	r.waitForStream(map[parking.Unit]event.LSN{u: 8})
	select {
	case <-landed:
	default:
		t.Error("waits for a unit that waits for the stream")
	}
	if r.giveWay(u, 700) != nil {
		t.Error("waits for a unit that waits for the stream")
	}
	r.streamWentOn(9)
	if r.giveWay(u, 700) == nil {
		t.Error("joins the unit before it is released")
	}
	r.impatient(u)
	if r.giveWay(u, 700) != nil {
		t.Error("waits again at once")
	}
	laps(700, 700)
	if landed = r.giveWay(u, 700); landed == nil {
		t.Error("joins it for ever")
	}
	r.due(9)
	r.blocked(map[parking.Unit]bool{u: true})
	select {
	case <-landed:
	default:
		t.Error("waits for a unit at which somebody has to look")
	}
}
