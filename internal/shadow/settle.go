package shadow

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider/outbox"
)

// finish reads the stream for the last time and gives its slot back, waits for the records of what was streamed, then settles what
// no event was streamed for.
func (c *comparison) finish(ctx context.Context) error {
	if !c.book.crowded() {
		if err := c.readStream(ctx); err != nil {
			return err
		}
	}
	c.slot.Close(ctx)
	c.slot, c.book.closed = nil, true
	if err := c.wait(ctx); err != nil {
		return err
	}
	c.book.end()
	return c.settleAll(ctx)
}

// wait is for the patience at most.
func (c *comparison) wait(ctx context.Context) error {
	waiting, cancel := c.untilInterrupt(ctx, c.o.Patience)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for len(c.book.waiting) > 0 {
		if err := c.look(ctx, false); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-waiting.Done():
			return nil
		}
	}
	return nil
}

// settleAll takes a minute at most: a table without an index on the event id is scanned for each of its statements.
func (c *comparison) settleAll(ctx context.Context) error {
	ctx, cancel := c.untilInterrupt(ctx, DefaultPatience)
	defer cancel()
	for len(c.book.strangers) > 0 {
		switch err := c.settle(ctx, true); {
		case ctx.Err() != nil:
			c.report.note(fmt.Sprintf("%d records without a streamed event were not looked up in the table", len(c.book.strangers)))
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// settle looks some records up whose event was not streamed: those of rows that the table had before are nobody's fault.
func (c *comparison) settle(ctx context.Context, last bool) error {
	list := c.book.strangers[:min(len(c.book.strangers), settleAtOnce)]
	switch {
	case len(list) == 0 || !last && !c.settles.ready():
		return nil
	case c.o.Match != MatchID:
		c.report.Before += int64(len(list))
		c.report.note("records without a streamed event were not looked up: that takes an id")
		c.book.strangers = c.book.strangers[len(list):]
		return nil
	}
	began := time.Now()
	defer func() { c.settles.since(began) }()
	there, err := c.inTable(ctx, list)
	if err != nil {
		return err
	}
	for _, s := range list {
		if there[s.Event] {
			c.report.Before++
			continue
		}
		c.report.Unexpected++
		c.book.sample(s)
	}
	c.book.strangers = slices.Clone(c.book.strangers[len(list):])
	return nil
}

// inTable says which of the events have a row. It goes by no publication: a row that ours leaves out is somebody's, too.
func (c *comparison) inTable(ctx context.Context, list []Sample) (there map[string]bool, err error) {
	if c.rows == nil {
		c.rows, err = outbox.Open(ctx, outbox.Config{
			ConnString: c.cfg.Peek.Replication.ConnString, AppName: "postrider " + c.cfg.Peek.Publisher + " (shadow)", Router: c.cfg.Peek.Router,
		})
		if err != nil {
			return nil, err
		}
	}
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].Event
	}
	there = map[string]bool{}
	return there, c.rows.Rows(ctx, outbox.Selection{EventIDs: ids}, func(row *outbox.Row) error {
		there[string(row.Message.EventID)] = true
		return nil
	})
}
