package topic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/brokers"
)

// Record is one committed record. It and what it refers to are valid only until the call
// that received it returns.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	// Time is the record's timestamp, by the producer's or the broker's clock as the topic is configured.
	Time time.Time
	// Key and Value are nil where they are null.
	Key, Value []byte
	Headers    []event.Header
}

// Header is the value of the first header of that name; ok says whether there is one.
func (r *Record) Header(name string) (value []byte, ok bool) {
	for i := range r.Headers {
		if r.Headers[i].Name == name {
			return r.Headers[i].Value, true
		}
	}
	return nil, false
}

// Span says what to scan: the offsets [From, To) of each partition. A nil From is the
// topic's start, a nil To what Ends says when the scan begins. Partitions are those to read; nil is all.
type Span struct {
	From, To   Offsets
	Partitions []int32
}

// Scan hands on the committed records of the span, partition after partition, each in
// offset order. It returns when all were yielded, with yield's error, or with the context's.
// Offsets that retention or compaction has removed are passed over. The error has
// ErrNoTopic in its chain where there is no such topic.
func (r *Reader) Scan(ctx context.Context, topic string, span Span, yield func(*Record) error) error {
	leaders, err := r.leaders(ctx, topic)
	if err != nil {
		return err
	}
	if span.To == nil {
		if span.To, err = r.Ends(ctx, topic); err != nil {
			return err
		}
	}
	if span.Partitions == nil {
		for p := range leaders {
			span.Partitions = append(span.Partitions, int32(p))
		}
	}
	for _, p := range span.Partitions {
		if p < 0 || int(p) >= len(leaders) {
			return readError("read", topic, fmt.Errorf("there is no partition %d among its %d", p, len(leaders)))
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &fetcher{r: r, topic: topic, span: span, leaders: leaders, pages: make(chan page), free: make(chan []byte, 2)}
	f.free <- nil
	f.free <- nil
	go f.run(ctx)
	// The fetcher's connections are closed before Scan returns.
	defer func() {
		cancel()
		for p := range f.pages {
			_ = p // it only waits
		}
	}()
	return r.consume(ctx, topic, f, yield)
}

func (r *Reader) consume(ctx context.Context, topic string, f *fetcher, yield func(*Record) error) error {
	d := &decoder{}
	for p := range f.pages {
		if p.err != nil {
			return p.err
		}
		if err := p.each(ctx, topic, d, yield); err != nil {
			return err
		}
		f.free <- p.buf
	}
	return ctx.Err()
}

// page is one answer of a broker: what it holds from offset from to before end.
type page struct {
	partition int32
	from, end int64
	res       *fetchResponse
	buf       []byte
	err       error
}

// each hands on the committed records of the page.
func (p *page) each(ctx context.Context, topic string, d *decoder, yield func(*Record) error) error {
	record := &Record{Topic: topic, Partition: p.partition}
	aborted := map[int64]bool{}
	pending := p.res.aborted // in the order of their first offsets
	var stop error
	within := func(rec *Record) error {
		if rec.Offset >= p.end {
			return nil
		}
		stop = yield(rec)
		return stop
	}
	for rest := p.res.batches; len(rest) > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b, next, err := nextBatch(rest)
		if errors.Is(err, errIncomplete) || err == nil && b.base >= p.end {
			return nil
		}
		if err == nil {
			for len(pending) > 0 && pending[0].first <= b.last {
				aborted[pending[0].producer] = true
				pending = pending[1:]
			}
			switch {
			case b.is(control):
				// The marker ends the transaction, whichever way.
				delete(aborted, b.producer)
			case b.is(transactional) && aborted[b.producer]:
			default:
				err = d.each(&b, p.from, record, within)
			}
		}
		switch {
		case stop != nil:
			return stop
		case err != nil:
			return readError("read", topic, fmt.Errorf("partition %d: %w", p.partition, err))
		}
		rest = next
	}
	return nil
}

// fetcher asks for pages ahead of what is consumed, one at a time.
type fetcher struct {
	r       *Reader
	topic   string
	span    Span
	leaders []int32
	pages   chan page
	free    chan []byte

	conn *brokers.Conn
	on   int32 // the broker that conn leads to
}

// run goes through the partitions. It closes pages when it is done.
func (f *fetcher) run(ctx context.Context) {
	defer close(f.pages)
	defer f.hangUp()
	for _, partition := range f.span.Partitions {
		if err := f.partition(ctx, partition); err != nil {
			if ctx.Err() == nil {
				err = readError("read", f.topic, fmt.Errorf("partition %d: %w", partition, err))
			}
			f.hand(ctx, page{err: err})
			return
		}
	}
}

func (f *fetcher) hand(ctx context.Context, p page) bool {
	select {
	case f.pages <- p:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *fetcher) hangUp() {
	if f.conn != nil {
		f.conn.Close()
		f.conn = nil
	}
}
