package publisher

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/postrider/postrider/event"
)

// Delivery is a batch that the broker has acknowledged, with where it stands in the log.
// It belongs to the one who is given it, until Release.
type Delivery struct {
	Topic     string
	Partition int32
	// Base is the offset of the first record; those behind it follow without a gap. -1
	// where the broker did not name it: it had the batch from an attempt that it did not answer.
	Base int64
	// Count is the number of records.
	Count int
	// At is when the answer came, by this machine's clock.
	At time.Time

	// origins holds a recordMeta for each record. They are the batch's own bytes, taken over.
	origins buffer
}

// Origin is what names a delivered record's event.
type Origin struct {
	// EventID is valid until the next record.
	EventID []byte
	// Position.Commit is 0 where the event did not come from the stream.
	Position event.Position
}

var deliveryPool = sync.Pool{New: func() any { return &Delivery{origins: buffer{pool: metaChunks}} }}

// deliver takes the origins out of a batch that is done with. Nothing is copied.
func (l *lane) deliver(b *batch, base int64) *Delivery {
	d := deliveryPool.Get().(*Delivery)
	d.Topic, d.Partition, d.Base, d.Count, d.At = l.topic.name, l.partition, base, int(b.count), time.Now()
	d.origins, b.meta = b.meta, d.origins
	return d
}

// Size is the memory that it holds, in bytes.
func (d *Delivery) Size() int { return d.origins.capacity() }

// Release gives the memory back. Nobody may refer to d any more.
func (d *Delivery) Release() {
	d.origins.reset()
	*d = Delivery{origins: buffer{pool: metaChunks, chunks: d.origins.chunks}}
	deliveryPool.Put(d)
}

// Each goes through the records in the order of their offsets, and may be called again.
// It allocates nothing for a record, but for an id that lies across two pieces of memory.
func (d *Delivery) Each(yield func(offset int64, o Origin) error) error {
	c := cursor{buf: &d.origins}
	var split []byte
	for i := range d.Count {
		var o Origin
		var err error
		if o, split, err = readOrigin(&c, split); err != nil {
			return fmt.Errorf("read origin of record %d of %d: %w", i, d.Count, err)
		}
		if err := yield(d.Base+int64(i), o); err != nil {
			return err
		}
	}
	return nil
}

// readOrigin is readMeta for those who want no more than the event's name. split is
// scratch space.
func readOrigin(c *cursor, split []byte) (o Origin, _ []byte, err error) {
	var v [3]uint64 // transaction, commit, index
	for i := range v {
		if v[i], err = c.uvarint(); err != nil {
			return o, split, err
		}
	}
	o.Position = event.Position{Commit: event.LSN(v[1]), Index: v[2]}
	flags, err := c.ReadByte()
	if err != nil {
		return o, split, err
	}
	n, err := c.uvarint()
	if err != nil {
		return o, split, err
	}
	if o.EventID, split, err = c.view(int(n), split); err != nil {
		return o, split, err
	}
	texts := 3 // aggregate type, event type, aggregate version
	if flags&deadLetterFlag != 0 {
		texts++
	}
	for ; texts > 0; texts-- {
		if n, err = c.uvarint(); err != nil {
			return o, split, err
		}
		if err = c.skip(int(n)); err != nil {
			return o, split, err
		}
	}
	return o, split, nil
}

// uvarint reads one, without a call for each byte where it lies in one chunk.
func (c *cursor) uvarint() (uint64, error) {
	if rest := c.rest(); len(rest) > 0 {
		if v, n := binary.Uvarint(rest); n > 0 {
			c.off += n
			return v, nil
		}
	}
	return binary.ReadUvarint(c)
}

// view gives the next n bytes: in place where they lie in one chunk, else in split, which
// is grown.
func (c *cursor) view(n int, split []byte) (p, grown []byte, err error) {
	if rest := c.rest(); n <= len(rest) {
		c.off += n
		return rest[:n:n], split, nil
	}
	if cap(split) < n {
		split = make([]byte, n)
	}
	split = split[:n]
	_, err = io.ReadFull(c, split)
	return split, split, err
}

// skip passes over n bytes.
func (c *cursor) skip(n int) error {
	for n > 0 {
		rest := c.rest()
		if len(rest) == 0 {
			return io.ErrUnexpectedEOF
		}
		k := min(n, len(rest))
		c.off += k
		n -= k
	}
	return nil
}

// rest is what is left of the chunk at hand; empty at the end of all.
func (c *cursor) rest() []byte {
	for c.chunk < len(c.buf.chunks) {
		if b := c.buf.chunks[c.chunk].b; c.off < len(b) {
			return b[c.off:]
		}
		c.chunk, c.off = c.chunk+1, 0
	}
	return nil
}
