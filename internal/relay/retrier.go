package relay

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/router"
)

const (
	// retryFlights bounds the claimed events that are on their way; each is a duplicate
	// if the process is killed now.
	retryFlights = 2000
	// retryUnits are claimed from together, up to retryPerUnit events of each.
	retryUnits   = 200
	retryPerUnit = 500
	// aheadLook is how often it is looked whether the stream has passed an event.
	aheadLook = 100 * time.Millisecond
)

// retrier publishes parked events that somebody asked for. It is the one place that
// does: commands only change the state of rows.
type retrier struct {
	link *link
	gen  *generation
	r    *retries
	// router routes rows again that the stream's router refused.
	router  *router.Router
	singles []int64
	census  census
	// claiming says that events may be claimed this moment; see busy.
	claiming atomic.Bool

	// sending ends when no more is to be handed over: at stop, and with the link.
	sending context.Context
	halt    context.CancelFunc
	done    chan struct{} // closed when run has returned
}

func newRetrier(l *link) (*retrier, error) {
	rt, err := router.New(l.gen.cfg.Router)
	if err != nil {
		return nil, configError(err)
	}
	t := &retrier{link: l, gen: l.gen, census: census{link: l}, r: l.gen.park.retries, router: rt, done: make(chan struct{})}
	t.sending, t.halt = context.WithCancel(l.ctx)
	return t, nil
}

// stop ends run after its current round; what is on its way goes on.
func (t *retrier) stop() {
	t.halt()
	<-t.done
}

func (t *retrier) run(ctx context.Context) error {
	defer close(t.done)
	poll := time.NewTicker(t.gen.cfg.Timers.Watch) // notifications may be lost
	defer poll.Stop()
	pause := backoff{lo: t.gen.cfg.Timers.BackoffMin, hi: t.gen.cfg.Timers.BackoffMax}
	var ahead <-chan time.Time // running while a unit waits for the stream, whatever else wakes this
	for failures := 0; ; {
		look := false
		if ahead == nil && t.r.waitsForStream() {
			ahead = time.After(aheadLook)
		}
		select {
		case <-ahead:
			ahead = nil
			t.r.streamWentOn(event.LSN(t.gen.passed.Load()))
		case <-t.sending.Done():
			return nil
		case <-poll.C:
			t.r.ask()
			look = true
		case <-t.r.wake:
		}
		err := t.round(ctx)
		if err == nil && look {
			err = t.census.round(ctx)
		}
		if t.sending.Err() != nil {
			return nil // what was not handed over has come back
		}
		if err == nil {
			failures = 0
			pause.reset()
			continue
		}
		if err := t.link.tolerateStore(ctx, err, &failures, "parked events cannot be retried now"); err != nil {
			return err
		}
		if pause.wait(ctx) != nil {
			return nil
		}
		hint(t.r.wake)
	}
}

// round settles what came back, hears what was asked, and sends what may go.
func (t *retrier) round(ctx context.Context) error {
	if err := t.settle(ctx); err != nil {
		return err
	}
	for t.sending.Err() == nil {
		more, err := t.claim(ctx)
		if err != nil || !more {
			return err
		}
		if err := t.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// settle writes down what became of events that were on their way, and then lets go
// of them, in this order: a unit is released when its last event is noted.
func (t *retrier) settle(ctx context.Context) error {
	acked, returned, asked := t.r.take()
	if len(acked)+len(returned) == 0 && !asked {
		return nil
	}
	var requests parking.Asked
	err := t.link.parking.do(ctx, func(store *parking.Store) (err error) {
		if len(acked) > 0 {
			err = store.Published(ctx, acked)
		}
		if err == nil && len(returned) > 0 {
			err = store.Returned(ctx, returned)
		}
		if err == nil && asked {
			requests, err = store.Asked(ctx)
		}
		return err
	})
	if err != nil {
		// Each of the three does no harm twice.
		t.r.putBack(acked, returned, asked)
		return err
	}
	t.landed(t.r.land(acked...), outcomePublished)
	for _, r := range returned {
		outcome := outcomeBack
		if r.Again {
			outcome = outcomeAgain
		}
		t.landed(t.r.land(r.ID), outcome)
	}
	t.requested(requests)
	return nil
}

// flightOutcome is what became of a claimed event.
type flightOutcome int

const (
	outcomePublished flightOutcome = iota
	// outcomeBack: it is parked again, and its unit waits for somebody.
	outcomeBack
	// outcomeAgain: it came back through no fault of its own, and goes on.
	outcomeAgain
)

func (t *retrier) landed(flights []*retryFlight, outcome flightOutcome) {
	held := t.gen.park.held
	for _, f := range flights {
		switch {
		case f.unit == nil && outcome == outcomePublished:
			held.LeaveSingle(1)
			continue
		case f.unit == nil:
			continue
		case outcome == outcomePublished:
			held.Leave(f.unit.unit, 1, func() { t.gen.publisher.Release(f.topic, f.key) })
		}
		t.unitLanded(f, outcome)
	}
}

// unitLanded goes on with a unit when all that was on its way has come down.
func (t *retrier) unitLanded(f *retryFlight, outcome flightOutcome) {
	t.r.mu.Lock()
	u := f.unit
	u.flying--
	u.refused = u.refused || outcome == outcomeBack
	u.back = u.back || outcome != outcomePublished
	over, outstanding := u.flying == 0, t.gen.park.held.Of(u.unit)
	refused, readmit := u.refused, u.back || u.overtaken != nil
	if over {
		u.guilty, u.refused, u.back, u.overtaken, u.due = false, false, false, nil, true
		u.lap(outstanding)
		u.land()
	}
	if over && (refused || outstanding == 0) {
		delete(t.r.following, u.unit)
	}
	t.r.mu.Unlock()
	if over && readmit {
		t.readmit(f)
	}
}

// readmit lets a key's retries pass again after one was refused, or overtaken.
func (t *retrier) readmit(f *retryFlight) {
	t.gen.publisher.Readmit(f.topic, f.key)
	if f.toTopic != "" && parking.UnitOf(f.toTopic, f.toKey) != f.unit.unit {
		// It was routed elsewhere by the present mapping: there nothing is parked of it.
		t.gen.publisher.Release(f.toTopic, f.toKey)
	}
}

// requested takes up what commands have asked for.
func (t *retrier) requested(a parking.Asked) {
	for u, left := range a.Left {
		t.gen.park.held.Leave(u, left.Events, func() { t.gen.publisher.Release(left.Topic, left.Key) })
		if t.gen.park.held.Of(u) > 0 {
			t.r.follow(u)
		}
	}
	t.gen.park.held.LeaveSingle(a.LeftSingles)
	for _, u := range a.Units {
		t.r.follow(u)
	}
	t.singles = append(t.singles, a.Singles...)
}

// busy says that it may hand something over. Where it says no after a pause has begun,
// nothing is until the pause ends: each of the two sets its flag before it reads the other's.
func (t *retrier) busy() bool { return t.claiming.Load() }

// claim takes events that may go and hands them to the lanes. more says that there may
// be others.
func (t *retrier) claim(ctx context.Context) (more bool, err error) {
	t.claiming.Store(true)
	defer t.claiming.Store(false)
	if t.link.attend.paused.Load() {
		return false, nil // woken again when that ends
	}
	room := retryFlights - t.r.flying()
	if room <= 0 {
		return false, nil
	}
	// Before it is asked what is due: what the stream parked until here keeps its unit from
	// being due until it is durable.
	passed := event.LSN(t.gen.passed.Load())
	units := t.r.due(min(retryUnits, room))
	singles := t.singles[:min(len(t.singles), room)]
	if len(units)+len(singles) == 0 {
		return false, nil
	}
	var claimed parking.Claimed
	err = t.link.parking.do(ctx, func(store *parking.Store) (err error) {
		if len(units) > 0 {
			claimed, err = store.ClaimUnits(ctx, units, min(retryPerUnit, 1+room/len(units)), passed)
			return err
		}
		claimed, err = store.ClaimSingles(ctx, singles)
		return err
	})
	if err == nil {
		t.r.launch(claimed.Events)
	}
	for _, place := range t.r.claimed(units, err != nil) {
		t.gen.publisher.Readmit(place.topic, place.key)
	}
	if err != nil {
		return false, err
	}
	if len(units) == 0 {
		t.singles = t.singles[len(singles):]
	}
	t.r.blocked(claimed.Blocked)
	t.r.waitForStream(claimed.Ahead)
	return true, t.inject(claimed.Events)
}

// inject hands claimed events over, in order. Behind one that cannot be routed still,
// the others of its unit go back unsent.
func (t *retrier) inject(events []*parking.Event) error {
	stopped := map[parking.Unit]bool{}
	for i, e := range events {
		if e.Unit != nil && stopped[*e.Unit] {
			t.r.comeBack(parking.Return{ID: e.ID})
			continue
		}
		if refusal := t.reroute(e); refusal != nil {
			if e.Unit != nil {
				stopped[*e.Unit] = true
			}
			t.r.comeBack(parking.Return{ID: e.ID, Reason: refusal.Reason, Error: refusal.Detail})
			continue
		}
		if err := t.gen.publisher.Inject(t.sending, &e.Message, publisher.Injected|uint64(e.ID)); err != nil {
			for _, left := range events[i:] {
				t.r.comeBack(parking.Return{ID: left.ID, Again: true})
			}
			return err
		}
	}
	return nil
}

// reroute makes a record of a row that the router refused, by the mapping as it is now.
func (t *retrier) reroute(e *parking.Event) *event.Refusal {
	if e.Row == nil {
		return nil
	}
	rel := e.Row.Relation()
	for oid, typ := range e.Row.Types {
		t.router.DefineType(oid, typ.Schema, typ.Name)
	}
	_ = t.router.BindAs(rel, e.Row.AsSchema, e.Row.AsTable) // the row's refusal says it
	var msg event.Message
	routed, refusal := t.router.Route(&event.Row{
		Relation: rel, Values: e.Row.Values, Position: e.Message.Position, CommitTime: e.CommitTime,
	}, &msg)
	if refusal == nil && !routed {
		refusal = &event.Refusal{Reason: event.ReasonNoRoute, Detail: "its table " + e.Row.AsSchema + "." + e.Row.AsTable + " is no source any more"}
	}
	if refusal == nil {
		e.Message = parking.CopyMessage(&msg)
		t.r.routedTo(e.ID, e.Message.Topic, e.Message.Key)
	}
	return refusal
}
