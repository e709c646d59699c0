package publisher

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/postrider/postrider/event"
)

// A record of the v2 format: a zig-zag varint length, then attributes (one
// zero byte), timestamp delta, offset delta, key, value and headers, lengths
// and counts as zig-zag varints, where length -1 stands for null.

// varintLen is the length of v as a zig-zag varint.
func varintLen(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	return (bits.Len64(u|1) + 6) / 7
}

// bytesLen is the length of a nullable byte string with its length before it.
func bytesLen(b []byte) int {
	if b == nil {
		return 1
	}
	return varintLen(int64(len(b))) + len(b)
}

// bodyLen is the length of a record after its length field.
func bodyLen(msg *event.Message, timestampDelta, offsetDelta int64) int {
	n := 1 + varintLen(timestampDelta) + varintLen(offsetDelta) + bytesLen(msg.Key) + bytesLen(msg.Value)
	n += varintLen(int64(len(msg.Headers)))
	for i := range msg.Headers {
		h := &msg.Headers[i]
		n += varintLen(int64(len(h.Name))) + len(h.Name) + bytesLen(h.Value)
	}
	return n
}

// recordLen is the length of a whole record.
func recordLen(msg *event.Message, timestampDelta, offsetDelta int64) int {
	n := bodyLen(msg, timestampDelta, offsetDelta)
	return varintLen(int64(n)) + n
}

// maxRecordLen bounds recordLen whatever the deltas are.
func maxRecordLen(msg *event.Message) int {
	return bodyLen(msg, 0, 0) + 2*binary.MaxVarintLen64 + binary.MaxVarintLen32
}

// appendRecord copies msg into b.
func appendRecord(b *buffer, msg *event.Message, timestampDelta, offsetDelta int64) {
	b.writeVarint(int64(bodyLen(msg, timestampDelta, offsetDelta)))
	b.writeByte(0)
	b.writeVarint(timestampDelta)
	b.writeVarint(offsetDelta)
	appendBytes(b, msg.Key)
	appendBytes(b, msg.Value)
	b.writeVarint(int64(len(msg.Headers)))
	for i := range msg.Headers {
		h := &msg.Headers[i]
		b.writeVarint(int64(len(h.Name)))
		b.writeString(h.Name)
		appendBytes(b, h.Value)
	}
}

func appendBytes(b *buffer, p []byte) {
	if p == nil {
		b.writeVarint(-1)
		return
	}
	b.writeVarint(int64(len(p)))
	_, _ = b.Write(p)
}

// rawRecord is a record taken out of a batch: everything behind the deltas is
// kept as it is.
type rawRecord struct {
	timestampDelta int64
	rest           []byte
}

// readRecord reads the next record of our own making.
func readRecord(c *cursor) (rawRecord, error) {
	n, err := binary.ReadVarint(c)
	if err != nil {
		return rawRecord{}, fmt.Errorf("read record length: %w", err)
	}
	body, err := c.next(int(n))
	if err != nil {
		return rawRecord{}, fmt.Errorf("read record of %d bytes: %w", n, err)
	}
	body = body[1:] // attributes
	ts, k := binary.Varint(body)
	body = body[k:]
	_, k = binary.Varint(body)
	return rawRecord{timestampDelta: ts, rest: body[k:]}, nil
}

// appendRaw writes a record under new deltas.
func appendRaw(b *buffer, r rawRecord, timestampDelta, offsetDelta int64) {
	b.writeVarint(int64(1 + varintLen(timestampDelta) + varintLen(offsetDelta) + len(r.rest)))
	b.writeByte(0)
	b.writeVarint(timestampDelta)
	b.writeVarint(offsetDelta)
	_, _ = b.Write(r.rest)
}

// content reads what is behind the deltas: key, value and headers, as slices of r.rest.
func (r *rawRecord) content(msg *event.Message) error {
	p := parser{rest: r.rest}
	msg.Key, msg.Value = p.bytes(), p.bytes()
	msg.Headers = nil
	for n := p.varint(); n > 0 && p.err == nil; n-- {
		name := p.bytes()
		msg.Headers = append(msg.Headers, event.Header{Name: string(name), Value: p.bytes()})
	}
	return p.err
}

// parser reads what appendRecord wrote. It stays at the first error.
type parser struct {
	rest []byte
	err  error
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.rest)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *parser) bytes() []byte {
	n := p.varint()
	if p.err != nil || n < 0 {
		return nil
	}
	if n > int64(len(p.rest)) {
		p.fail()
		return nil
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}

func (p *parser) fail() {
	if p.err == nil {
		p.err = fmt.Errorf("read own record: %d bytes are left, which do not fit", len(p.rest))
	}
	p.rest = nil
}
