package publisher

import (
	"slices"

	"github.com/segmentio/kafka-go"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// Refused is an event that the publisher gives back.
type Refused struct {
	Refusal *event.Refusal
	// Txn is what was given to Append or Inject.
	Txn uint64
	// Message is the event as it was appended. The callee may keep it.
	Message event.Message
}

// Disposal says what becomes of a refused event.
type Disposal int

const (
	// Stop means that the partition stops at it.
	Stop Disposal = iota
	// Taken means that the caller has it. The partition goes on without it.
	Taken
	// TakenWithKey is Taken, and every record of its topic and key behind it is given
	// back too, with the reason held, until Release.
	TakenWithKey
	// TakenWithAll is TakenWithKey, and records of Inject are given back too, until
	// Readmit: they went into the partition behind this one and must not pass it. It is
	// what TakenWithKey means for a record of Inject.
	TakenWithAll
)

// refuse gives a record back that can never be published as it is, or that is held.
func (p *Publisher) refuse(t *topic, r *event.Refusal, msg event.Message, txn uint64) Disposal {
	if r.Reason != event.ReasonHeld {
		p.metrics.refusals.WithLabelValues(string(r.Reason)).Inc()
		p.log.Error().Str(keyEventID, r.EventID).Str(keyTopic, r.Topic).Str("reason", string(r.Reason)).
			Stringer("position", r.Position).Str("detail", r.Detail).Msg("event refused")
	}
	d := p.cfg.OnRefused(&Refused{Refusal: r, Txn: txn, Message: msg})
	switch d {
	case Stop:
		p.alarmed.raise(alarmRefusal, "")
	case TakenWithKey, TakenWithAll:
		t.holdKey(msg.Key, txn >= Injected || d == TakenWithAll)
	}
	p.progressed()
	return d
}

// refuseUnplaced gives a record back that has no lane.
func (p *Publisher) refuseUnplaced(t *topic, r *event.Refusal, msg *event.Message, txn uint64) {
	if p.refuse(t, r, copyMessage(msg), txn) == Stop {
		p.stuck.Add(1)
	} else {
		p.pending.Add(-1)
	}
	p.progressed()
}

// refuseTopic gives back what waits for a topic that the cluster says can never be.
func (p *Publisher) refuseTopic(t *topic, code kafka.Error) {
	for {
		first := t.first()
		if first == nil {
			return
		}
		r := refusalOf(t.name, metaOf(&first.msg, first.txn), event.ReasonInvalidTopic, code.Error())
		if p.refuse(t, r, copyMessage(&first.msg), first.txn) == Stop {
			t.stop()
			return
		}
		p.window.adjust(-t.dropFirst())
		p.pending.Add(-1)
		p.progressed()
	}
}

// dropFirst takes the first waiting message away and gives its size.
func (t *topic) dropFirst() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	size := t.held[0].size
	t.held[0] = heldMessage{}
	if t.held = t.held[1:]; len(t.held) == 0 {
		t.held = nil
	}
	return size
}

// refuse gives the flight's one record back. Where nobody takes it the lane stops at
// it, after the word of it: whoever finds events stuck has been told why. Everything
// before it is acknowledged.
func (s *sender) refuse(l *lane, reason event.Reason, detail string) {
	all, err := l.contents()
	if err != nil {
		s.broken(l, "read refused record of", err)
		return
	}
	if s.p.refuse(l.topic, refusalOf(l.topic.name, all[0].meta, reason, detail), all[0].msg, all[0].meta.txn) == Stop {
		l.stop()
		return
	}
	s.drop(l)
}

// broken is a fault of our own.
func (s *sender) broken(l *lane, op string, err error) {
	s.p.fail(&operr.Error{Class: operr.Internal, Op: op, Subject: "topic " + l.topic.name, Err: err})
	l.stop()
}

// drop ends a flight whose records were all taken. Nothing of it was appended, so its
// sequence is the next flight's.
func (s *sender) drop(l *lane) {
	b := l.flight
	if next := l.settle(false); next != s {
		next.notify()
	} else {
		s.notify()
	}
	s.p.dropped(l, b, b.count)
	b.recycle()
}

// dropped takes n events of a batch out of the accounts, and the batch's memory.
func (p *Publisher) dropped(l *lane, b *batch, n int32) {
	p.window.adjust(-int64(b.reserved))
	p.pending.Add(-int64(n))
	if l.topic.barrier.Load() && l.topic.drained() {
		p.wantMetadata()
	}
	p.progressed()
}

// content is a record of a batch with all that is known of it.
type content struct {
	raw       rawRecord
	timestamp int64
	meta      recordMeta
	msg       event.Message
}

// contents takes the flight apart.
func (l *lane) contents() ([]content, error) {
	b := l.flight
	records, owned, err := b.plainRecords()
	if err != nil {
		return nil, err
	}
	if owned {
		defer records.reset()
	}
	all := make([]content, b.count)
	recs, meta := cursor{buf: records}, cursor{buf: &b.meta}
	for i := range all {
		c := &all[i]
		if c.raw, err = readRecord(&recs); err != nil {
			return nil, err
		}
		if c.meta, err = readMeta(&meta); err != nil {
			return nil, err
		}
		c.timestamp = b.baseTimestamp + c.raw.timestampDelta
		c.msg = c.meta.message(l.topic.name, c.timestamp)
		if c.meta.chosen {
			c.msg.Partition = l.partition
		}
		if err := c.raw.content(&c.msg); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// message is what the record itself does not say.
func (m *recordMeta) message(topic string, timestamp int64) event.Message {
	return event.Message{
		Topic: topic, EventID: m.id, TimestampMillis: timestamp, Partition: event.NoPartition,
		Position:      event.Position{Commit: m.commit, Index: m.index},
		AggregateType: m.aggregateType, EventType: m.kind, AggregateVersion: m.revision, OnRefusal: m.policy, DeadLetter: m.deadLetter,
	}
}

func refusalOf(topic string, m recordMeta, reason event.Reason, detail string) *event.Refusal {
	order := event.OrderKnown
	if reason == event.ReasonInvalidTopic {
		order = event.OrderNone
	}
	return &event.Refusal{
		Reason: reason, Topic: topic, EventID: string(m.id), Detail: detail, Policy: m.policy, Order: order,
		Position: event.Position{Commit: m.commit, Index: m.index},
	}
}

// hold is a key whose records are given back.
type hold struct {
	// all: those of Inject too, since one of them was refused again.
	all bool
}

// holdKey begins to hold a key, or sharpens the hold.
func (t *topic) holdKey(key []byte, all bool) {
	if key == nil {
		return // no order to keep
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holds == nil {
		t.holds = map[string]*hold{}
	}
	if h := t.holds[string(key)]; h == nil {
		t.holds[string(key)] = &hold{all: all}
	} else {
		h.all = h.all || all
	}
	t.holding.Store(true)
}

// Release ends the hold on a key: nothing before it is left.
func (p *Publisher) Release(topic string, key []byte) {
	p.withHolds(topic, func(holds map[string]*hold) { delete(holds, string(key)) })
}

// Readmit lets records of Inject pass again after one of a key was refused, when all
// of that key that were on their way have come back.
func (p *Publisher) Readmit(topic string, key []byte) {
	p.withHolds(topic, func(holds map[string]*hold) {
		if h := holds[string(key)]; h != nil {
			h.all = false
		}
	})
}

// withHolds changes the holds of a topic, if there is such a topic.
func (p *Publisher) withHolds(name string, change func(map[string]*hold)) {
	p.topicsMu.Lock()
	t := p.findTopic(name)
	p.topicsMu.Unlock()
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	change(t.holds)
	t.holding.Store(len(t.holds) > 0)
}

// holdsKey says whether a record is to be given back.
func (t *topic) holdsKey(key []byte, txn uint64) bool {
	if key == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.holds[string(key)]
	return h != nil && (h.all || txn < Injected)
}

// sift gives back the flight's records that stand behind a refused one of their key
// (rule 20: looked at again when a batch is assembled). It says whether something is
// left to send; where not, the lane was dealt with.
func (s *sender) sift(l *lane) (left bool) {
	all, err := l.contents()
	if err != nil {
		s.broken(l, "look through batch of", err)
		return false
	}
	held := func(c content) bool { return l.topic.holdsKey(c.msg.Key, c.meta.txn) }
	first := slices.IndexFunc(all, held)
	if first < 0 {
		return true
	}
	kept := newBatch()
	kept.attributes = l.flight.attributes &^ compressionMask
	for i := range all {
		c := &all[i]
		// Asked one by one: what is given back may sharpen the hold for those behind it.
		if i < first || !held(*c) {
			kept.addRaw(c.raw, c.timestamp, c.meta)
			continue
		}
		r := refusalOf(l.topic.name, c.meta, event.ReasonHeld, "it stands behind a parked event of its key")
		if s.p.refuse(l.topic, r, c.msg, c.meta.txn) == Stop {
			kept.recycle()
			l.stop()
			return false
		}
	}
	if kept.count == 0 {
		kept.recycle()
		s.drop(l)
		return false
	}
	s.keep(l, kept)
	return true
}

// keep puts what is left of the flight in its place.
func (s *sender) keep(l *lane, kept *batch) {
	b := l.flight
	kept.sealed = true
	kept.reserved = kept.capacity()
	s.p.window.adjust(int64(kept.reserved))
	l.mu.Lock()
	l.flight = kept
	l.events -= int64(b.count - kept.count)
	l.mu.Unlock()
	s.p.dropped(l, b, b.count-kept.count)
	b.recycle()
}
