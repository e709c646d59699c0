package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/publisher"
)

// parkState is what a generation knows of parked events. It outlives links.
type parkState struct {
	held  *parking.Held
	queue *parkQueue
	// known are the events with a row that the stream has still to pass; it belongs to
	// the stream's goroutine.
	known []parking.Known
	// lastKnown is the last one's position: until the stream has passed it, an event that
	// comes again may stand before one of its unit that is parked.
	lastKnown event.Position
	retries   *retries
	// copies has a hint for each dead-letter topic: there is something to copy.
	copies map[string]chan struct{}

	// mu covers behind: durable events whose row a promotion could still undo (rule 6).
	mu     sync.Mutex
	behind []parkedBehind
}

// parkedBehind are events that count when the stream has passed a position.
type parkedBehind struct {
	lsn   event.LSN
	items []parkItem
}

func newParkState(limits parking.Limits, deadLetters []string) *parkState {
	p := &parkState{held: parking.NewHeld(limits), queue: newParkQueue(), retries: newRetries(), copies: map[string]chan struct{}{}}
	for _, topic := range deadLetters {
		p.copies[topic] = make(chan struct{}, 1)
	}
	return p
}

// seen says that an event has a row from before. Positions are asked in rising order;
// the last one may be asked again, by the next link. Where the row has another event's
// id, the position has come to mean something else, and the event is a new one.
func (p *parkState) seen(at event.Position, id []byte) bool {
	for len(p.known) > 0 && p.known[0].Before(at) {
		p.known = p.known[1:]
	}
	if len(p.known) == 0 {
		p.known = nil
		return false
	}
	first := &p.known[0]
	return !at.Before(first.Position) && first.MayBe(id)
}

// count takes a refused event into the accounts, before anything behind it can pass.
func (p *parkState) count(f parking.Fate, e *parking.Event) parking.Verdict {
	if f == parking.FateSingle {
		return p.held.Single()
	}
	u := parking.UnitOf(e.Message.Topic, e.Message.Key)
	e.Unit = &u
	return p.held.Begin(u, e.Message.Position)
}

// uncount takes it out again: it could not be handed over.
func (p *parkState) uncount(e *parking.Event) {
	if e.Unit == nil {
		p.held.LeaveSingle(1)
		return
	}
	p.held.Leave(*e.Unit, 1, func() {})
}

// errFull words a limit.
func (g *generation) fullRefusal(r *event.Refusal) *event.Refusal {
	units, events := g.park.held.Size()
	full := *r
	full.Detail = fmt.Sprintf("%s; it is not parked, since %d events of %d keys are, which is the limit", r.Detail, events, units)
	return &full
}

// parkRefused parks an event that the publisher gave back, or halts at it. It may block
// while the store cannot be written.
func (g *generation) parkRefused(r *publisher.Refused) publisher.Disposal {
	if r.Txn >= publisher.Injected {
		return g.park.retries.refused(r)
	}
	e := &parking.Event{Message: r.Message, Reason: r.Refusal.Reason, Error: r.Refusal.Detail, Attempts: 1}
	f := parking.FateOf(r.Refusal, r.Message.Key)
	if r.Refusal.Reason == event.ReasonHeld {
		f, e.Attempts = parking.FateUnit, 0
	}
	if f == parking.FateHalt {
		g.halt(r.Refusal)
		return publisher.Stop
	}
	if g.park.count(f, e) == parking.Full {
		g.halt(g.fullRefusal(r.Refusal))
		return publisher.Stop
	}
	item := parkItem{event: e, txn: r.Txn, late: f == parking.FateUnit, follow: e.Reason == event.ReasonHeld}
	if !item.follow {
		g.metrics.refused(e.Reason)
	}
	disposal := publisher.Taken
	if item.late {
		disposal = publisher.TakenWithKey
		if g.park.retries.cameLate(*e.Unit, r.Message.Topic, r.Message.Key) {
			disposal = publisher.TakenWithAll
		}
	}
	if g.park.queue.put(g.closing, item) != nil {
		g.park.uncount(e)
		return publisher.Stop
	}
	return disposal
}

// parked is called when events are durable, and the positions after them were read
// where a promotion could undo them; 0 where none can.
func (g *generation) parked(items []parkItem, after event.LSN) {
	if after > 0 {
		g.park.mu.Lock()
		g.park.behind = append(g.park.behind, parkedBehind{after, append([]parkItem(nil), items...)})
		g.park.mu.Unlock()
		g.passedParked(event.LSN(g.handedOn.Load()))
	} else {
		g.resolveParked(items)
	}
	for _, item := range items {
		g.metrics.parked.WithLabelValues(string(item.event.Reason)).Inc()
		if item.late {
			g.park.retries.noLonger(*item.event.Unit)
		}
		switch u := item.event.Unit; {
		case u != nil && item.follow:
			g.park.retries.follow(*u)
		case u != nil:
			g.park.retries.joined(*u)
		}
		if wake := g.park.copies[item.event.Message.DeadLetter]; wake != nil {
			hint(wake)
		}
	}
}

// passedParked resolves what the stream has now passed.
func (g *generation) passedParked(lsn event.LSN) {
	g.park.mu.Lock()
	n := 0
	for n < len(g.park.behind) && g.park.behind[n].lsn <= lsn {
		n++
	}
	passed := g.park.behind[:n]
	g.park.behind = g.park.behind[n:]
	g.park.mu.Unlock()
	for _, b := range passed {
		g.resolveParked(b.items)
	}
}

func (g *generation) resolveParked(items []parkItem) {
	for _, item := range items {
		g.ledger.Resolve(item.txn, 1)
	}
	hint(g.acked)
}

// parkRow parks a row that the router refused. done says that the event was dealt
// with; else the pipeline is to halt at the refusal that comes back.
func (h *handler) parkRow(row *event.Row, refusal *event.Refusal) (halt *event.Refusal, err error) {
	f := parking.FateOf(refusal, h.msg.Key)
	if f == parking.FateHalt {
		return refusal, nil
	}
	e := &parking.Event{
		Message: parking.CopyMessage(&h.msg), Row: h.keepRow(row), CommitTime: row.CommitTime,
		Reason: refusal.Reason, Error: refusal.Detail, Attempts: 1, SourceTable: refusal.Table,
	}
	if refusal.Column != "" {
		e.Error = fmt.Sprintf("column %s: %s", refusal.Column, refusal.Detail)
	}
	if h.gen.park.count(f, e) == parking.Full {
		return h.gen.fullRefusal(refusal), nil
	}
	h.gen.metrics.refused(refusal.Reason)
	h.gen.log.Error().Str("event_id", refusal.EventID).Str("reason", string(refusal.Reason)).Stringer("position", refusal.Position).
		Str("table", refusal.Table).Str("column", refusal.Column).Str("detail", refusal.Detail).Stringer("on_refusal", refusal.Policy).Msg("event refused; parking it")
	return nil, h.parkEvent(e)
}

// keepRow copies a row with all that is needed to route it again.
func (h *handler) keepRow(row *event.Row) *parking.Row {
	kept := parking.CopyRow(row)
	kept.AsSchema, kept.AsTable, _ = h.roots.Source(row.Relation)
	for _, c := range kept.Columns {
		if t, ok := h.gen.router.TypeName(c.Type); ok {
			kept.Types[c.Type] = parking.Type{Schema: t.Schema, Name: t.Name}
		}
	}
	return kept
}

// parkHeld parks the routed event if an event of its unit is parked before it.
func (h *handler) parkHeld() (held bool, halt *event.Refusal, err error) {
	p := h.gen.park
	if p.held.Empty() || h.msg.Key == nil {
		return false, nil, nil
	}
	u := parking.UnitOf(h.msg.Topic, h.msg.Key)
	if err := h.giveWay(u); err != nil {
		return false, nil, err
	}
	switch p.held.Arrive(u, h.msg.Position) {
	case parking.Flow:
		return false, nil, nil
	case parking.Full:
		return true, h.gen.fullRefusal(&event.Refusal{
			Reason: event.ReasonHeld, Topic: h.msg.Topic, EventID: string(h.msg.EventID), Position: h.msg.Position,
			Detail: "it stands behind a parked event of its key",
		}), nil
	}
	return true, nil, h.parkEvent(&parking.Event{Message: parking.CopyMessage(&h.msg), Unit: &u, Reason: event.ReasonHeld})
}

// giveWayMost bounds how long an arrival waits for the last claim of its unit.
const giveWayMost = 2 * time.Second

// giveWay lets a unit be released whose arrivals never pause: when all that is parked of
// it is on its way, lap after lap, the next arrival waits for it instead of joining. Where
// they come faster than they are parked, retried and noted, that moment does not come: so
// once the unit grows while it is worked off, each arrival waits for a lap.
func (h *handler) giveWay(u parking.Unit) error {
	p := h.gen.park
	outstanding := p.held.Of(u)
	if outstanding == 0 {
		return nil
	}
	landed := p.retries.giveWay(u, outstanding)
	if landed == nil {
		return nil
	}
	h.gen.publisher.Flush()
	patience := time.NewTimer(giveWayMost)
	defer patience.Stop()
	select {
	case <-landed:
	case <-patience.C:
		p.retries.impatient(u)
	case <-h.ctx.Done():
		return context.Cause(h.ctx)
	}
	return nil
}

// parkEvent hands an event that is counted to the writer. While the store cannot be
// written the queue fills, and this waits.
func (h *handler) parkEvent(e *parking.Event) error {
	h.gen.ledger.Add()
	item := parkItem{event: e, txn: h.gate.Txn()}
	if e.Unit != nil && e.Message.Position.Before(h.gen.park.lastKnown) {
		item.late = true
		h.gen.park.retries.awaitDurable(*e.Unit)
	}
	if err := h.gen.park.queue.put(h.ctx, item); err != nil {
		if item.late {
			h.gen.park.retries.noLonger(*e.Unit)
		}
		h.gen.ledger.Retract()
		h.gen.park.uncount(e)
		return fmt.Errorf("park the event at %s: %w", e.Message.Position, err)
	}
	return nil
}

// loadParked reads what is parked, before the first event is routed.
func (l *link) loadParked(ctx context.Context, from event.LSN) error {
	ctx, cancel := context.WithTimeout(ctx, parkLoadTimeout)
	defer cancel()
	var (
		loaded    parking.Loaded
		forgotten int64
	)
	err := l.parking.do(ctx, func(store *parking.Store) (err error) {
		if loaded, err = store.Load(ctx, from); err != nil {
			return err
		}
		forgotten, err = store.KeepCopies(ctx, slices.Collect(maps.Keys(l.gen.park.copies)))
		return err
	})
	if err != nil {
		return err
	}
	if forgotten > 0 {
		l.gen.log.Warn().Int64("copies", forgotten).Msg("copies of parked events are given up: their dead_letter_topic is configured no more")
	}
	if loaded.Adopted > 0 {
		l.gen.log.Warn().Int64("events", loaded.Adopted).Msg("events were parked before the database was moved here; they go before all others of their keys")
	}
	p := l.gen.park
	p.held.Load(loaded.Units, loaded.Singles)
	p.known = loaded.Known
	if n := len(loaded.Known); n > 0 {
		p.lastKnown = loaded.Known[n-1].Position
	}
	for _, u := range loaded.Unblocked {
		p.retries.follow(u)
	}
	p.retries.ask()
	if units, events := p.held.Size(); events > 0 {
		l.gen.log.Warn().Int("held_keys", units).Int("parked_events", events).Msg("events are parked; later ones of their keys wait behind them")
	}
	return nil
}

// parkLoadTimeout bounds the reading of a million rows.
const parkLoadTimeout = 2 * time.Minute
