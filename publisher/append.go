package publisher

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/event"
)

// Append copies msg into its partition's open batch and returns when it is
// accepted, not when it is delivered. It blocks while the window is full, having
// woken the lanes. An error means that msg was not accepted: ctx ended, or the
// publisher is closed. An event that can never be published is accepted and
// reported to OnRefused. One goroutine at a time calls Append and Flush.
func (p *Publisher) Append(ctx context.Context, msg *event.Message, txn uint64) error {
	if err := p.reserve(ctx, appendNeeds(msg)); err != nil {
		return err
	}
	t := p.last
	if t == nil || t.name != msg.Topic {
		t = p.topic(msg.Topic)
		p.last = t
	}
	p.pending.Add(1)
	t.mu.Lock()
	if t.state != topicOpen {
		p.credit -= t.hold(msg, txn)
		t.mu.Unlock()
		return nil
	}
	l, grown, refusal := t.place(msg, txn)
	t.mu.Unlock()
	p.credit -= int64(grown)
	if refusal != nil {
		p.refuseUnplaced(t, refusal, msg, txn)
		return nil
	}
	p.touch(l)
	select {
	case p.unflushed <- struct{}{}:
	default: // the usual case: the loop sleeps with a token waiting
	}
	return nil
}

// touch remembers a lane for the next Flush.
func (p *Publisher) touch(l *lane) {
	if l.dirty {
		return
	}
	l.dirty = true
	p.dirty = append(p.dirty, l)
}

// Flush is a hint that the input is used up for now: idle partitions send at
// once. Where it is forgotten, open batches go after 50 ms.
func (p *Publisher) Flush() {
	p.flushDirty()
	if p.credit > 0 {
		p.window.adjust(-p.credit)
		p.credit = 0
	}
}

func (p *Publisher) flushDirty() {
	var last *sender
	for i, l := range p.dirty {
		l.dirty = false
		p.dirty[i] = nil
		if s := l.flush(); s != nil && s != last {
			last.notify()
			last = s
		}
	}
	last.notify()
	p.dirty = p.dirty[:0]
}

// flushAll lets all open batches go. Any goroutine may call it.
func (p *Publisher) flushAll() {
	for _, t := range p.topicList() {
		t.mu.Lock()
		t.flush()
		t.mu.Unlock()
	}
}

// flushLoop stands behind a forgotten Flush. It sleeps while nothing is appended.
func (p *Publisher) flushLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.unflushed:
		}
		if !sleep(ctx, unflushedMost) {
			return
		}
		p.flushAll()
	}
}

// appendNeeds bounds the memory that msg may take: new chunks for its record and
// its origin, a new batch, a grown list of runs; or its size while it is held.
func appendNeeds(msg *event.Message) int64 {
	const newBatchRuns = 1024 * runSize
	records := (maxRecordLen(msg)/recordChunk + 2) * recordChunk
	origin := (metaSize(msg)/metaChunk + 2) * metaChunk
	return max(int64(records+origin+runsGrowth+newBatchRuns), heldSize(msg))
}

// reserve makes sure of need bytes of credit.
func (p *Publisher) reserve(ctx context.Context, need int64) error {
	for p.credit < need {
		if p.closing() {
			return errClosed
		}
		if p.window.reserve(need-p.credit, p.credit) {
			p.credit = need
			return nil
		}
		p.flushDirty()
		select {
		case <-p.window.released:
		case <-ctx.Done():
			return fmt.Errorf("append: window of %d bytes is full: %w", p.window.size, context.Cause(ctx))
		case <-p.ctx.Done():
			return errClosed
		}
	}
	return nil
}

// reserveAgain brings the window up to date with a batch that changed its size.
func (p *Publisher) reserveAgain(b *batch) {
	before := b.reserved
	b.reserved = b.capacity()
	p.window.adjust(int64(b.reserved - before))
}

// topic finds or makes a topic and has it looked up.
func (p *Publisher) topic(name string) *topic {
	if t := p.byName[name]; t != nil {
		return t
	}
	t := p.sharedTopic(name)
	p.byName[name] = t
	return t
}

// sharedTopic is topic for any goroutine.
func (p *Publisher) sharedTopic(name string) *topic {
	p.topicsMu.Lock()
	defer p.topicsMu.Unlock()
	if t := p.findTopic(name); t != nil {
		return t
	}
	t := newTopic(p, name)
	p.topics = append(p.topics, t)
	p.wantMetadata()
	return t
}

// findTopic gives nil where there is none. topicsMu is held.
func (p *Publisher) findTopic(name string) *topic {
	for _, t := range p.topics {
		if t.name == name {
			return t
		}
	}
	return nil
}
