package reconcile

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/postrider/postrider/topic"
)

// bounds are the offsets of a topic that are read.
type bounds struct {
	read *TopicRead
	// starts, from and to are by partition: the topic's beginning, the window's, and the end.
	starts, from, to topic.Offsets
	// oldest is the time of the youngest of the partitions' first records, in milliseconds:
	// what is older may have been there and be gone. MinInt64 where nothing is gone.
	oldest int64
	pass   int   // in which it was first read
	span   int64 // offsets to read
}

// boundsOf looks a topic up, once.
func (c *comparison) boundsOf(ctx context.Context, number uint32) (*bounds, error) {
	if b := c.bounds[number]; b != nil {
		return b, nil
	}
	name := c.set.topics.list[number]
	b := &bounds{read: &TopicRead{Topic: name, Exists: true}, oldest: math.MinInt64, pass: c.pass}
	err := c.lookUp(ctx, name, b)
	if errors.Is(err, topic.ErrNoTopic) {
		*b.read, err = TopicRead{Topic: name}, nil
	}
	if err != nil {
		return nil, err
	}
	c.bounds[number] = b
	return b, nil
}

func (c *comparison) lookUp(ctx context.Context, name string, b *bounds) (err error) {
	if b.to, err = c.topics.Ends(ctx, name); err != nil {
		return err
	}
	high, err := c.topics.HighWatermarks(ctx, name)
	if err != nil {
		return err
	}
	b.read.OpenTransaction = slices.ContainsFunc(indices(b.to), func(p int) bool { return p < len(high) && b.to[p] < high[p] })
	if b.starts, err = c.topics.Starts(ctx, name); err != nil {
		return err
	}
	b.from = b.starts
	if !c.o.Since.IsZero() {
		if b.from, err = c.topics.Offsets(ctx, name, c.o.Since.Add(-c.o.Margin)); err != nil {
			return err
		}
	}
	b.read.Partitions = int32(len(b.to))
	for p := range b.to {
		b.span += max(0, b.to[p]-at(b.from, p))
	}
	if b.read.Compacted, err = c.topics.Compacted(ctx, name); err != nil {
		return err
	}
	return c.findOldest(ctx, name, b)
}

func indices(o topic.Offsets) []int {
	list := make([]int, len(o))
	for i := range list {
		list[i] = i
	}
	return list
}

func at(o topic.Offsets, partition int) int64 {
	if partition < len(o) {
		return o[partition]
	}
	return 0
}

var errEnough = errors.New("one is enough")

// findOldest reads the first record of each partition whose beginning is gone.
func (c *comparison) findOldest(ctx context.Context, name string, b *bounds) error {
	for p, start := range b.starts {
		if start == 0 {
			continue
		}
		b.read.Trimmed = true
		first := time.Now() // all of it is gone
		span := topic.Span{From: b.starts, To: b.to, Partitions: []int32{int32(p)}}
		err := c.topics.Scan(ctx, name, span, func(rec *topic.Record) error {
			first = rec.Time
			return errEnough
		})
		if err != nil && !errors.Is(err, errEnough) {
			return err
		}
		b.oldest = max(b.oldest, first.UnixMilli())
		oldest := time.UnixMilli(b.oldest).UTC()
		b.read.From = &oldest
	}
	return nil
}

// readTopics takes the records of the pass.
func (c *comparison) readTopics(ctx context.Context) (map[uint32]*reading, error) {
	readings := map[uint32]*reading{}
	for number, name := range c.set.topics.list {
		if name == noTopic {
			continue
		}
		b, err := c.boundsOf(ctx, uint32(number))
		if err != nil {
			return nil, err
		}
		if !b.read.Exists {
			continue
		}
		r := &reading{c: c, topic: uint32(number), bounds: b}
		if b.read.Compacted {
			r.keys = map[uint64]struct{}{}
		}
		readings[uint32(number)] = r
		c.progress("read topic "+name, 0, b.span)
		if err := c.topics.Scan(ctx, name, topic.Span{From: b.from, To: b.to}, r.record); err != nil {
			return nil, err
		}
	}
	return readings, nil
}

// lookEarlier looks for what is missing before the place where the window begins: the
// times of records need not rise.
func (c *comparison) lookEarlier(ctx context.Context) error {
	if c.o.Since.IsZero() {
		return nil
	}
	missing := map[uint32]bool{}
	c.set.each(func(e *entry) {
		if !e.found() && c.due(e.xid) && !c.beforeSlot(e.xid) && e.flags&(isParked|isDiscarded|isRefused) == 0 {
			missing[e.topic] = true
		}
	})
	for number := range missing {
		b := c.bounds[number]
		if b == nil || !b.read.Exists {
			continue
		}
		name := c.set.topics.list[number]
		r := &reading{c: c, topic: number, bounds: b, early: true}
		c.progress("look earlier in topic "+name, 0, 0)
		if err := c.topics.Scan(ctx, name, topic.Span{From: b.starts, To: b.from}, r.record); err != nil {
			return err
		}
	}
	return nil
}
