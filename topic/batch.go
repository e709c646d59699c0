package topic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/segmentio/kafka-go/compress"

	"github.com/postrider/postrider/event"
)

// A batch of the v2 format: what lies where.
const (
	atLength     = 8 // of what follows the length itself
	atMagic      = 16
	atChecksum   = 17
	atAttributes = 21 // the checksum covers all from here on
	batchHead    = 61

	codecMask     = 0x07
	logAppendTime = 1 << 3
	transactional = 1 << 4
	control       = 1 << 5
)

// maxPlain bounds a batch's size after decompression.
const maxPlain = 512 << 20

var (
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
	errIncomplete = errors.New("the batch is cut off")
)

// batch is the head of one, and its records as they are stored.
type batch struct {
	base, last int64 // offsets
	attributes int16
	baseTime   int64 // milliseconds
	maxTime    int64
	producer   int64
	count      int32
	records    []byte
	checked    []byte // what the checksum covers
	checksum   uint32
}

// nextBatch splits the first batch from data. errIncomplete means that the answer ends in
// the middle of it, as brokers may do with the last one.
func nextBatch(data []byte) (b batch, rest []byte, err error) {
	if len(data) < atMagic+1 {
		return b, nil, errIncomplete
	}
	length := int64(int32(binary.BigEndian.Uint32(data[atLength:])))
	size := length + atLength + 4
	switch magic := data[atMagic]; {
	case length < 0:
		return b, nil, fmt.Errorf("a batch of %d bytes makes no sense", length)
	case magic < 2:
		return b, nil, fmt.Errorf("message format %d is older than Kafka 0.11 and not read", magic)
	case size > int64(len(data)):
		return b, nil, errIncomplete
	case size < batchHead:
		return b, nil, fmt.Errorf("a batch of %d bytes is shorter than its head", size)
	}
	p := parser{rest: data[:size]}
	b.base = p.int64()
	p.skip(atChecksum - 8)
	b.checksum = uint32(p.int32())
	b.checked = p.rest
	b.attributes = p.int16()
	b.last = b.base + int64(p.int32())
	b.baseTime, b.maxTime, b.producer = p.int64(), p.int64(), p.int64()
	p.skip(2 + 4) // epoch, sequence
	b.count = p.int32()
	b.records = p.rest
	if b.last < b.base {
		return b, nil, fmt.Errorf("batch at offset %d ends before it begins", b.base)
	}
	return b, data[size:], p.err
}

func (b *batch) is(attribute int16) bool { return b.attributes&attribute != 0 }

// decoder turns batches into records. Its buffers are used again for the next batch.
type decoder struct {
	plain   bytes.Buffer
	headers []event.Header
}

// each hands on the batch's records from offset from on, in order. The record and what it
// refers to are valid until yield returns.
func (d *decoder) each(b *batch, from int64, record *Record, yield func(*Record) error) error {
	if crc32.Checksum(b.checked, castagnoli) != b.checksum {
		return fmt.Errorf("batch at offset %d: the checksum does not fit", b.base)
	}
	plain, err := d.decompress(b)
	if err != nil {
		return fmt.Errorf("batch at offset %d: %w", b.base, err)
	}
	p := parser{rest: plain}
	for n := b.count; n > 0; n-- {
		d.next(&p, b, record)
		if p.err != nil {
			return fmt.Errorf("batch at offset %d: read record: %w", b.base, p.err)
		}
		if record.Offset < from {
			continue
		}
		if err := yield(record); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) decompress(b *batch) ([]byte, error) {
	id := compress.Compression(b.attributes & codecMask)
	if id == compress.None {
		return b.records, nil
	}
	codec := id.Codec()
	if codec == nil {
		return nil, fmt.Errorf("compression %d is not known", id)
	}
	r := codec.NewReader(bytes.NewReader(b.records))
	defer func() { _ = r.Close() }()
	d.plain.Reset()
	n, err := d.plain.ReadFrom(io.LimitReader(r, maxPlain+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("decompress %s: %w", codec.Name(), err)
	case n > maxPlain:
		return nil, fmt.Errorf("decompress %s: more than %d bytes", codec.Name(), maxPlain)
	}
	return d.plain.Bytes(), nil
}

// next reads a record; p.err says whether it went well.
func (d *decoder) next(p *parser, b *batch, record *Record) {
	body := parser{rest: p.bytes(), err: p.err}
	body.int8() // attributes, unused
	millis := b.baseTime + body.varint()
	if b.is(logAppendTime) {
		millis = b.maxTime
	}
	record.Offset = b.base + body.varint()
	record.Time = time.UnixMilli(millis)
	record.Key, record.Value = body.bytes(), body.bytes()
	d.headers = d.headers[:0]
	for n := body.varint(); n > 0 && body.err == nil; n-- {
		d.headers = append(d.headers, event.Header{Name: string(body.bytes()), Value: body.bytes()})
	}
	record.Headers = d.headers
	p.err = body.err
}
