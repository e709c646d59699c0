package relay

import (
	"maps"
	"sync"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/publisher"
)

// retries is what is on its way of parked events. It outlives links, as the lanes do.
type retries struct {
	// wake is a hint to the retrier.
	wake chan struct{}

	// mu covers the rest.
	mu sync.Mutex
	// asked: commands may have changed rows.
	asked bool
	// following are units that are being worked off; what joins them is taken up too.
	following map[parking.Unit]*retryUnit
	// flights are claimed events by row.
	flights  map[int64]*retryFlight
	acked    []int64
	returned []parking.Return
	// late counts events by unit before others that are durable, and that are not so yet:
	// the store does not show what may go.
	late map[parking.Unit]int
	// ahead are units with events that the stream has to pass first, and the first one's
	// position.
	ahead map[parking.Unit]event.LSN
}

// retryUnit is a unit that is being worked off.
type retryUnit struct {
	unit parking.Unit
	// flying events of it are claimed and not settled; claiming: some may be claimed now.
	flying   int
	claiming bool
	// overtaken: a lane gave back an event of it that was in the lane before them. Its
	// key is held back from retries too, until Readmit.
	overtaken *retryPlace
	// due: there may be something to claim.
	due bool
	// guilty: one of its flights was refused. refused: one is parked again. back: one came back.
	guilty, refused, back bool
	// laps counts how often all that was on its way came down and more had joined.
	laps int
	// yield: arrivals give way to it, since they join faster than it is worked off: after
	// giveWayAfter more laps there were no fewer outstanding than before, which is in before.
	yield  bool
	before int
	// landed is closed when all that is on its way has come down; nil where nobody waits.
	landed chan struct{}
}

// retryPlace is where a unit's events go.
type retryPlace struct {
	topic string
	key   []byte
}

// retryFlight is a claimed event. unit is nil where it holds nothing.
type retryFlight struct {
	unit  *retryUnit
	topic string
	key   []byte
	// toTopic and toKey are where it was routed anew.
	toTopic string
	toKey   []byte
}

func newRetries() *retries {
	return &retries{wake: make(chan struct{}, 1), following: map[parking.Unit]*retryUnit{}, flights: map[int64]*retryFlight{}, late: map[parking.Unit]int{}, ahead: map[parking.Unit]event.LSN{}}
}

// land wakes those who give way.
func (u *retryUnit) land() {
	if u.landed != nil {
		close(u.landed)
		u.landed = nil
	}
}

// giveWayAfter laps an arrival waits for its unit's last claim instead of joining.
const giveWayAfter = 3

// lap counts one, after which so many are outstanding.
func (u *retryUnit) lap(outstanding int) {
	if u.laps++; u.laps%giveWayAfter == 0 {
		u.yield = u.yield || u.before > 0 && outstanding >= u.before
		u.before = outstanding
	}
}

// giveWay gives what an arrival waits for where others have joined the unit lap after lap,
// and its outstanding events are all on their way; or whatever is to come down next, where
// it has to yield. Else nil, and where the unit waits for the stream.
func (r *retries) giveWay(u parking.Unit, outstanding int) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.following[u]
	if _, ahead := r.ahead[u]; ahead || f == nil || f.laps < giveWayAfter {
		return nil
	}
	if last := f.flying > 0 && f.flying >= outstanding; !last && !f.yield || f.flying == 0 && !f.claiming && !f.due {
		return nil
	}
	if f.landed == nil {
		f.landed = make(chan struct{})
	}
	return f.landed
}

// impatient says that an arrival has waited too long: others do not, for some laps.
func (r *retries) impatient(u parking.Unit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.following[u]; f != nil {
		f.yield, f.laps, f.before = false, 0, 0
	}
}

// ask says that a command may have asked for something.
func (r *retries) ask() {
	r.mu.Lock()
	r.asked = true
	r.mu.Unlock()
	hint(r.wake)
}

// follow takes a unit up.
func (r *retries) follow(u parking.Unit) {
	r.mu.Lock()
	if f := r.following[u]; f != nil {
		f.due = true
	} else {
		r.following[u] = &retryUnit{unit: u, due: true}
	}
	r.mu.Unlock()
	hint(r.wake)
}

// joined says that an event of the unit became durable behind others.
func (r *retries) joined(u parking.Unit) {
	r.mu.Lock()
	f := r.following[u]
	if f != nil {
		f.due = true
	}
	r.mu.Unlock()
	if f != nil {
		hint(r.wake)
	}
}

// cameLate says that a lane gave an event of the unit back. overtakes: what is claimed
// of the unit went into the lane behind it, and must not pass it.
func (r *retries) cameLate(u parking.Unit, topic string, key []byte) (overtakes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late[u]++
	f := r.following[u]
	if f == nil || f.flying == 0 && !f.claiming {
		return false
	}
	f.overtaken = &retryPlace{topic, key}
	return true
}

// awaitDurable says that the stream parks an event of the unit behind which others of it
// are durable. Nothing that is claimed stands behind it: the stream has not passed it.
func (r *retries) awaitDurable(u parking.Unit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late[u]++
}

// noLonger says that such an event is durable, or was not taken.
func (r *retries) noLonger(u parking.Unit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.late[u]--; r.late[u] == 0 {
		delete(r.late, u)
	}
}

// acknowledged takes runs of injected events.
func (r *retries) acknowledged(txn uint64) {
	r.mu.Lock()
	r.acked = append(r.acked, int64(txn&^publisher.Injected))
	r.mu.Unlock()
	hint(r.wake)
}

// refused takes an injected event that came back.
func (r *retries) refused(back *publisher.Refused) publisher.Disposal {
	id := int64(back.Txn &^ publisher.Injected)
	ret := parking.Return{ID: id, Reason: back.Refusal.Reason, Error: back.Refusal.Detail}
	r.mu.Lock()
	flight := r.flights[id]
	if ret.Reason == event.ReasonHeld {
		ret = parking.Return{ID: id, Again: true}
	}
	if flight != nil && flight.unit != nil {
		// A hold without a guilty one before it is for the sake of an event that came late.
		flight.unit.guilty = flight.unit.guilty || ret.Reason != ""
		ret.Again = !flight.unit.guilty
	}
	r.returned = append(r.returned, ret)
	r.mu.Unlock()
	hint(r.wake)
	if flight != nil && flight.unit != nil {
		return publisher.TakenWithKey
	}
	return publisher.Taken
}

// comeBack takes claimed events that were not handed over.
func (r *retries) comeBack(rets ...parking.Return) {
	r.mu.Lock()
	r.returned = append(r.returned, rets...)
	r.mu.Unlock()
	hint(r.wake)
}

// take gives what has come back, and whether to look for requests.
func (r *retries) take() (acked []int64, returned []parking.Return, asked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	acked, returned, asked = r.acked, r.returned, r.asked
	r.acked, r.returned, r.asked = nil, nil, false
	return acked, returned, asked
}

// putBack is take undone: the store could not be written.
func (r *retries) putBack(acked []int64, returned []parking.Return, asked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acked, r.returned, r.asked = append(acked, r.acked...), append(returned, r.returned...), r.asked || asked
}

// flying is the number of events on their way.
func (r *retries) flying() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.flights)
}

// due gives up to n units with something to claim, nothing on its way, and nothing that
// is yet to become durable. They are being claimed until claimed is called.
func (r *retries) due(n int) []parking.Unit {
	r.mu.Lock()
	defer r.mu.Unlock()
	var units []parking.Unit
	for u, f := range r.following {
		if len(units) == n {
			break
		}
		if _, ahead := r.ahead[u]; f.due && f.flying == 0 && r.late[u] == 0 && !ahead {
			f.due, f.claiming = false, true
			units = append(units, u)
		}
	}
	return units
}

// claimed ends the claim of units, of which what was found is launched; failed makes
// them due again. It gives the places of those that were overtaken and have nothing on its way.
func (r *retries) claimed(units []parking.Unit, failed bool) (readmit []retryPlace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range units {
		f := r.following[u]
		if f == nil {
			continue
		}
		f.claiming = false
		f.due = f.due || failed
		if f.flying == 0 && f.overtaken != nil {
			readmit = append(readmit, *f.overtaken)
			f.overtaken, f.due = nil, true
		}
	}
	return readmit
}

// launch notes claimed events, before the first is handed over.
func (r *retries) launch(events []*parking.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		flight := &retryFlight{topic: e.Message.Topic, key: e.Message.Key}
		if e.Unit != nil {
			u := r.following[*e.Unit]
			if u == nil {
				u = &retryUnit{unit: *e.Unit}
				r.following[*e.Unit] = u
			}
			u.flying++
			flight.unit = u
		}
		r.flights[e.ID] = flight
	}
}

// waitForStream notes units that the stream has to get on for, and how far, until
// streamWentOn.
func (r *retries) waitForStream(units map[parking.Unit]event.LSN) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.ahead, units)
	for u := range units {
		if f := r.following[u]; f != nil {
			f.land() // whoever waits is the stream
		}
	}
}

// waitsForStream says that there are such units.
func (r *retries) waitsForStream() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ahead) > 0
}

// streamWentOn lets those be looked at again of which the stream has passed the first one.
func (r *retries) streamWentOn(passed event.LSN) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for u, at := range r.ahead {
		if at >= passed {
			continue
		}
		delete(r.ahead, u)
		if f := r.following[u]; f != nil {
			f.due = true
		}
	}
}

// blocked stops following units at which somebody has to look.
func (r *retries) blocked(units map[parking.Unit]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for u := range units {
		if f := r.following[u]; f != nil && f.flying == 0 {
			f.land()
			delete(r.following, u)
		}
	}
}

// land takes flights away that were noted in the store.
func (r *retries) land(ids ...int64) []*retryFlight {
	r.mu.Lock()
	defer r.mu.Unlock()
	var flights []*retryFlight
	for _, id := range ids {
		if f := r.flights[id]; f != nil {
			delete(r.flights, id)
			flights = append(flights, f)
		}
	}
	return flights
}

// routedTo notes where a flight was routed anew.
func (r *retries) routedTo(id int64, topic string, key []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.flights[id]; f != nil {
		f.toTopic, f.toKey = topic, key
	}
}
