package reconcile

import (
	"math"

	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/topic"
)

// The headers that mark what did not come from the stream; the value is the task's number.
const (
	markReplayed   = "postrider-replayed"
	markBackfilled = "postrider-backfilled"
	markRecovered  = "postrider-recovered"
)

// stranger is a record whose event the window does not have.
type stranger struct {
	at        place
	millis    int64
	recordKey uint64
}

// strangerKey tells strangers apart: ids are unique in a topic only.
type strangerKey struct {
	topic  uint32
	idHash uint64
}

// place is where a record stands.
type place struct {
	topic     uint32
	partition int32
	offset    int64
}

// reading takes the records of one topic, in one pass.
type reading struct {
	c     *comparison
	topic uint32
	*bounds
	// early says that what is read lies before the window.
	early bool
	order order
	// keys are those that a compacted topic has; nil where it is none.
	keys map[uint64]struct{}
}

// record takes one.
func (r *reading) record(rec *topic.Record) error {
	c := r.c
	id := c.idOf(rec)
	if c.pass == r.pass && !r.early {
		r.count(rec, id)
	}
	if id == nil {
		return nil
	}
	idHash, keyHash := c.set.bytes(id), c.set.bytes(rec.Key)
	if c.set.part(rec.Key, idHash)%uint64(c.passes) != uint64(c.pass) {
		return nil
	}
	if r.keys != nil {
		r.keys[keyHash] = struct{}{}
	}
	if i := c.set.find(r.topic, idHash); i != none {
		r.occurrence(i, rec, keyHash)
		return nil
	}
	r.strange(rec, idHash, keyHash)
	return nil
}

func (r *reading) count(rec *topic.Record, id []byte) {
	r.read.Records++
	if id == nil {
		r.read.WithoutID++
	}
	if r.read.Records%progressEvery == 0 {
		r.c.progress("read topic "+r.read.Topic, r.read.Records, r.span)
	}
	counts := &r.c.report.Copies
	for mark, n := range map[string]*int64{markReplayed: &counts.Replayed, markBackfilled: &counts.Backfilled, markRecovered: &counts.Recovered} {
		if _, marked := rec.Header(mark); marked {
			*n++
		}
	}
}

// occurrence is a record of a row.
func (r *reading) occurrence(i int32, rec *topic.Record, keyHash uint64) {
	e := r.c.set.row(i)
	var differs field
	if keyHash != e.recordKey {
		differs |= fieldKey
	}
	_, repaired := rec.Header(parking.RepairedHeader)
	if !repaired && r.c.set.bytes(rec.Value) != e.value {
		differs |= fieldValue
	}
	if r.c.set.headers(rec.Headers) != e.headers {
		differs |= fieldHeaders
	}
	isCopy := isCopy(rec)
	e.last(rec, differs, isCopy, repaired)
	if isCopy {
		e.copies = increased(e.copies)
		return
	}
	e.plain = increased(e.plain)
	if e.plain == 1 && !r.early && e.flags&isShared == 0 {
		r.order.first(r.c, i, rec.Partition)
	}
}

// last notes the record that counts: the last one, and a copy that is as it should be in any
// case, since that is how a wrong one is made good.
func (e *entry) last(rec *topic.Record, differs field, isCopy, repaired bool) {
	if e.flags&isSettled != 0 {
		return
	}
	if e.differs != 0 && differs == 0 {
		e.flags |= isHealed
	}
	if isCopy && differs == 0 {
		e.flags |= isSettled
	}
	e.differs, e.partition, e.offset = differs, rec.Partition, rec.Offset
	if e.flags &^= wasRepaired; repaired {
		e.flags |= wasRepaired
	}
}

func increased(n uint16) uint16 {
	if n < math.MaxUint16 {
		n++
	}
	return n
}

func isCopy(rec *topic.Record) bool {
	for i := range rec.Headers {
		switch rec.Headers[i].Name {
		case markReplayed, markBackfilled, markRecovered:
			return true
		}
	}
	return false
}

// strange notes a record whose event the window does not have.
func (r *reading) strange(rec *topic.Record, idHash, keyHash uint64) {
	millis := rec.Time.UnixMilli()
	c := r.c
	if !c.inWindow(millis) || r.early {
		return
	}
	if len(c.strangers) >= mostListed {
		c.report.Truncated = true
		return
	}
	key := strangerKey{r.topic, idHash}
	if _, known := c.strangers[key]; !known {
		c.strangers[key] = stranger{
			at:     place{topic: r.topic, partition: rec.Partition, offset: rec.Offset},
			millis: millis, recordKey: keyHash,
		}
	}
}

// idOf is the record's event id, nil where it has none.
func (c *comparison) idOf(rec *topic.Record) []byte {
	for _, name := range c.idHeaders {
		if id, ok := rec.Header(name); ok && len(id) > 0 {
			return id
		}
	}
	return nil
}

func (c *comparison) inWindow(millis int64) bool {
	return (c.o.Since.IsZero() || millis >= c.o.Since.UnixMilli()) && (c.o.Until.IsZero() || millis < c.o.Until.UnixMilli())
}
