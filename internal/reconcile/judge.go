package reconcile

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/postrider/postrider/topic"
)

// judge says what became of a row.
func (c *comparison) judge(e *entry, readings map[uint32]*reading) {
	r := c.report
	r.Rows++
	switch {
	case e.flags&isShared != 0:
		r.Shared++
	case e.found():
		c.judgeFound(e)
	case e.flags&isParked != 0:
		r.Parked++
	case e.flags&isDiscarded != 0:
		r.Discarded++
	case c.beforeSlot(e.xid):
		r.BeforeSlot++
	case !c.due(e.xid):
		c.notDue(e)
	case e.flags&isRefused != 0:
		c.lose(e)
	default:
		c.judgeMissing(e, readings[e.topic])
	}
}

func (c *comparison) judgeFound(e *entry) {
	r := c.report
	if e.plain > 1 {
		r.Duplicates++
		r.DuplicateRecords += int64(e.plain) - 1
		if len(r.Findings.Duplicates) < c.o.Examples {
			f := c.finding(e)
			f.Records = int(e.plain)
			r.Findings.Duplicates = append(r.Findings.Duplicates, f)
		}
	}
	if e.flags&wasRepaired != 0 {
		r.Repaired++
	}
	if e.differs == 0 {
		r.Agreed++
		if e.flags&isHealed != 0 {
			r.Healed++
		}
		return
	}
	c.different(e, c.finding(e))
}

// different takes an event whose last record is not as it should be.
func (c *comparison) different(e *entry, f Finding) {
	r := c.report
	r.Different++
	f.Fields = e.differs.words()
	for _, name := range f.Fields {
		r.DifferentBy[name]++
	}
	if len(r.Findings.Different) < c.o.Examples {
		r.Findings.Different = append(r.Findings.Different, f)
	}
	c.toRepair(f)
}

func (c *comparison) toRepair(f Finding) {
	if len(c.repair) >= mostListed {
		c.report.Truncated = true
		return
	}
	c.repair = append(c.repair, Ref{Table: f.Table, EventID: f.EventID})
}

func (c *comparison) notDue(e *entry) {
	c.report.NotDue++
	if e.at == unknown {
		return
	}
	at := time.UnixMilli(e.at).UTC()
	if oldest := c.report.OldestNotDue; oldest == nil || at.Before(*oldest) {
		c.report.OldestNotDue = &at
	}
}

// judgeMissing: a row that is due and has no record in its topic.
func (c *comparison) judgeMissing(e *entry, r *reading) {
	switch {
	case r == nil: // there is no such topic
		c.lose(e)
	case r.bounds.read.OpenTransaction:
		c.report.Held++
	case r.has(e.recordKey):
		c.report.Compacted++
	case e.older(r.bounds.oldest):
		c.report.Expired++
	default:
		c.lose(e)
	}
}

// older says that the row's record was older than that, if there was one.
func (e *entry) older(millis int64) bool {
	stamp := e.stamp
	if stamp == unknown {
		stamp = e.at
	}
	return stamp != unknown && stamp < millis
}

// lose keeps a row until all strangers are known: one of them may be its record.
func (c *comparison) lose(e *entry) {
	c.lost = append(c.lost, lost{entry: *e, id: string(c.set.id(e))})
}

// settle ends the comparison: what stands in another topic or under another key is
// different, not missing; what only a topic has is counted.
func (c *comparison) settle(ctx context.Context) error {
	slices.SortFunc(c.lost, func(a, b lost) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.xid, b.xid), cmp.Compare(a.command, b.command))
	})
	for i := range c.lost {
		c.settleLost(&c.lost[i])
	}
	if !c.o.filtered() {
		if err := c.settleStrangers(ctx); err != nil {
			return err
		}
	}
	if err := c.describe(ctx); err != nil {
		return err
	}
	c.conclude()
	return nil
}

func (c *comparison) settleLost(l *lost) {
	s, there := c.strangerOf(l)
	if !there {
		c.missing(l)
		return
	}
	if l.flags&isRefused != 0 {
		c.report.Agreed++ // it was routed by another mapping then
		return
	}
	if s.at.topic != l.topic {
		l.differs |= fieldTopic
	}
	if s.recordKey != l.recordKey {
		l.differs |= fieldKey
	}
	l.partition, l.offset, l.plain = s.at.partition, s.at.offset, 1
	f := c.findingOf(&l.entry, l.id)
	f.Topic = c.set.topics.list[s.at.topic]
	c.different(&l.entry, f)
}

// strangerOf takes the stranger that has the row's id, and may be its record.
func (c *comparison) strangerOf(l *lost) (stranger, bool) {
	idHash := l.key - c.set.salts[l.topic]
	for t := range uint32(len(c.set.topics.list)) {
		key := strangerKey{t, idHash}
		if s, there := c.strangers[key]; there && c.set.mayBeOf(t, l.table) {
			delete(c.strangers, key)
			return s, true
		}
	}
	return stranger{}, false
}

func (c *comparison) missing(l *lost) {
	c.report.Missing++
	f := c.findingOf(&l.entry, l.id)
	b := c.bounds[l.topic]
	switch {
	case l.flags&isRefused != 0:
		f.Why = "the router refuses the row as it is now, and it is not parked"
	case b != nil && !b.read.Exists:
		f.Why = "its topic does not exist"
	}
	if len(c.report.Findings.Missing) < c.o.Examples {
		c.report.Findings.Missing = append(c.report.Findings.Missing, f)
	}
	if l.flags&isRefused == 0 {
		c.toRepair(f)
	}
}

// settleStrangers asks the whole table: a record of the window may be of a row outside.
func (c *comparison) settleStrangers(ctx context.Context) error {
	if len(c.strangers) > 0 {
		c.progress("look for what only a topic has", 0, 0)
		topics := map[uint32]bool{}
		for key := range c.strangers {
			topics[key.topic] = true
		}
		if err := c.reader.EventIDs(ctx, func(name string, id []byte) error {
			table, idHash := c.set.tables.index([]byte(name)), c.set.bytes(id)
			for t := range topics {
				if c.set.mayBeOf(t, table) {
					delete(c.strangers, strangerKey{t, idHash})
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	n := int64(len(c.strangers))
	c.report.TopicOnly = &n
	for _, s := range c.strangers {
		if len(c.report.Findings.TopicOnly) == c.o.Examples {
			break
		}
		f, err := c.strangerAt(ctx, s.at)
		if err != nil {
			return err
		}
		c.report.Findings.TopicOnly = append(c.report.Findings.TopicOnly, f)
	}
	return nil
}

// strangerAt reads a record again, for its id.
func (c *comparison) strangerAt(ctx context.Context, at place) (Finding, error) {
	f := Finding{Topic: c.set.topics.list[at.topic], Partition: &at.partition, Offset: &at.offset}
	err := c.recordAt(ctx, f.Topic, at.partition, at.offset, func(rec *topic.Record) {
		f.EventID = string(c.idOf(rec))
		t := rec.Time.UTC()
		f.Time = &t
	})
	return f, err
}

// recordAt reads one record; nothing happens where it is gone.
func (c *comparison) recordAt(ctx context.Context, name string, partition int32, offset int64, use func(*topic.Record)) error {
	from := make(topic.Offsets, partition+1)
	to := make(topic.Offsets, partition+1)
	from[partition], to[partition] = offset, offset+1
	return c.topics.Scan(ctx, name, topic.Span{From: from, To: to, Partitions: []int32{partition}}, func(rec *topic.Record) error {
		use(rec)
		return nil
	})
}

// has says that a compacted topic has a record of the key.
func (r *reading) has(key uint64) bool {
	_, ok := r.keys[key]
	return ok
}

func (c *comparison) conclude() {
	r := c.report
	for _, b := range c.bounds {
		r.Topics = append(r.Topics, *b.read)
	}
	slices.SortFunc(r.Topics, func(a, b TopicRead) int { return cmp.Compare(a.Topic, b.Topic) })
	r.OrderBy = c.orderBy()
	r.OK = r.Missing == 0 && r.Different == 0 && r.OutOfOrder == 0 && r.Duplicates <= r.MostDuplicates
}

// describe names the headers in which the examples differ.
func (c *comparison) describe(ctx context.Context) error {
	list := c.report.Findings.Different
	for i := range list {
		at := slices.Index(list[i].Fields, "headers")
		if at < 0 || list[i].Offset == nil {
			continue
		}
		names, err := c.differentHeaders(ctx, &list[i])
		if err != nil {
			return err
		}
		list[i].Fields = slices.Replace(list[i].Fields, at, at+1, names...)
	}
	return nil
}
