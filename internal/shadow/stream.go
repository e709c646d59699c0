package shadow

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/roots"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
)

// stream routes what comes, as the relay's handler does, and puts it into the book.
type stream struct {
	//nolint:containedctx // the Handler's calls carry none, as in the relay's
	ctx   context.Context
	c     *comparison
	roots *roots.Finder
	msg   event.Message
	news  map[string]bool // topics that events were routed to
}

var (
	_ replication.Handler     = (*stream)(nil)
	_ replication.RowRefuser  = (*stream)(nil)
	_ replication.TypeDefiner = (*stream)(nil)
)

// DefineType implements replication.TypeDefiner.
func (s *stream) DefineType(oid uint32, schema, name string) {
	s.c.sources.DefineType(oid, schema, name)
}

// Relation binds the mapping; a mapping that does not fit refuses the table's rows.
func (s *stream) Relation(rel *event.Relation) error {
	schema, table, err := s.roots.SourceOf(s.ctx, rel)
	if err != nil {
		return err
	}
	if err := s.c.sources.BindAs(rel, schema, table); err != nil {
		s.c.report.note(fmt.Sprintf("the mapping does not fit %s: %v", rel, err))
	}
	return nil
}

// Insert implements replication.Handler.
func (s *stream) Insert(row *event.Row) error {
	routed, refusal := s.c.sources.Route(row, &s.msg)
	switch {
	case refusal != nil:
		s.c.refuse(refusal)
	case routed:
		s.expect()
	}
	return nil
}

// RowTooLarge counts a row that the relay would halt at.
func (s *stream) RowTooLarge(refusal *event.Refusal, rel *event.Relation) error {
	if _, _, ok := s.roots.Source(rel); ok {
		s.c.refuse(refusal)
	}
	return nil
}

func (c *comparison) refuse(refusal *event.Refusal) {
	c.report.Refused++
	c.book.sample(Sample{Event: refusal.EventID, Topic: refusal.Topic, Field: "refused", Ours: fmt.Sprintf("%s: %s", refusal.Reason, refusal.Detail)})
}

// expect copies the event that was routed last.
func (s *stream) expect() {
	m := &s.msg
	if s.news == nil {
		s.news = map[string]bool{}
	}
	if !s.news[m.Topic] {
		s.news[m.Topic] = true
	}
	want := record{topic: m.Topic, partition: s.partition(), key: clone(m.Key), value: clone(m.Value), headers: cloneHeaders(m.Headers)}
	s.c.book.expect(s.c.match.event(m.EventID, &want), want, time.Now())
}

// partition is the one that the event would go to; -1 while the topic's partitions are not known.
func (s *stream) partition() int32 {
	n := s.c.counts[s.msg.Topic]
	switch {
	case s.msg.Partition != event.NoPartition:
		return s.msg.Partition
	case n == 0 || s.msg.Key == nil:
		return -1
	}
	return publisher.PartitionOf(s.msg.Key, n)
}

// Begin, Commit, Ignored, KeepAlive and InputDrained say nothing about events.

// Begin implements replication.Handler.
func (*stream) Begin(event.LSN, time.Time, uint32) error { return nil }

// Commit implements replication.Handler.
func (*stream) Commit(event.LSN, event.LSN, time.Time) error { return nil }

// Ignored implements replication.Handler.
func (*stream) Ignored(string) {}

// KeepAlive implements replication.Handler.
func (*stream) KeepAlive(event.LSN) {}

// InputDrained implements replication.Handler.
func (*stream) InputDrained() {}
