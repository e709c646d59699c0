package shadow

import (
	"context"
	"slices"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/topic"
)

// pace keeps work to a part of the time.
type pace struct{ next time.Time }

func (p *pace) ready() bool { return !time.Now().Before(p.next) }

func (p *pace) since(began time.Time) { p.next = time.Now().Add(rest * time.Since(began)) }

// look reads on on both sides: the stream up to its end, after the topics' ends are known, and the topics up to those. So an event is
// hardly ever later than its record, however far behind the other publisher is.
func (c *comparison) look(ctx context.Context, streaming bool) error {
	if c.scanned() {
		if err := c.aim(ctx); err != nil {
			return err
		}
		if streaming && !c.book.crowded() && c.streams.ready() {
			if err := c.readStream(ctx); err != nil {
				return err
			}
		}
	}
	if !c.book.full() {
		if err := c.readTopics(ctx); err != nil {
			return err
		}
	}
	c.expire()
	if err := c.settle(ctx, false); err != nil {
		return err
	}
	if c.cfg.Progress != nil {
		c.cfg.Progress(c.report)
	}
	return nil
}

func (c *comparison) expire() {
	if c.scanned() {
		c.read = c.aimed
	}
	read := c.read
	if c.book.crowded() && c.book.full() {
		read = time.Now() // neither side can go on: what has no record by now has to make room
		c.report.note("so much waited on both sides that events were given up although the topics were not read to their ends")
	}
	c.book.expire(c.streamed, read)
}

func (c *comparison) readStream(ctx context.Context) error {
	began := time.Now()
	defer func() { c.streams.since(began) }()
	var text string
	if err := c.conn.QueryRow(ctx, "SELECT pg_catalog.pg_current_wal_flush_lsn()::text").Scan(&text); err != nil {
		return &operr.Error{Class: operr.Postgres, Op: "ask for", Subject: "the end of the WAL", Err: err}
	}
	end, err := event.ParseLSN(text)
	if err != nil {
		return err
	}
	c.stream.ctx = ctx
	if err := c.slot.Read(ctx, end, c.stream); err != nil {
		return err
	}
	c.streamed = began
	for name := range c.stream.news {
		if err := c.watch(ctx, name, false); err != nil {
			return err
		}
	}
	return nil
}

// aim looks where the topics end.
func (c *comparison) aim(ctx context.Context) error {
	for name := range c.missing {
		if err := c.watch(ctx, name, false); err != nil {
			return err
		}
	}
	now := time.Now()
	for name, from := range c.at {
		to, err := c.topics.Ends(ctx, name)
		if err != nil {
			return err
		}
		for len(from) < len(to) {
			from = append(from, 0) // partitions that were added
		}
		c.at[name], c.to[name], c.counts[name] = from, to, int32(len(to))
	}
	c.aimed = now
	return nil
}

// scanned says that the topics are read up to where they ended at the last look.
func (c *comparison) scanned() bool {
	for name, to := range c.to {
		if !slices.EqualFunc(c.at[name], to, func(at, to int64) bool { return at >= to }) {
			return false
		}
	}
	return true
}

func (c *comparison) readTopics(ctx context.Context) error {
	for name, to := range c.to {
		from := c.at[name]
		upTo := make(topic.Offsets, len(to))
		for p := range upTo {
			upTo[p] = max(from[p], min(to[p], from[p]+scanAtOnce))
		}
		if err := c.topics.Scan(ctx, name, topic.Span{From: from, To: upTo}, c.take); err != nil {
			return err
		}
		c.at[name] = upTo
	}
	return nil
}
