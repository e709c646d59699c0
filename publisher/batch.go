package publisher

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"github.com/postrider/postrider/event"
)

const (
	// batchOverhead is the size of a v2 batch without records. The broker
	// compares it plus the (compressed) records with max.message.bytes.
	batchOverhead = 61
	// lengthPrefix stands before the record set in a Produce request.
	lengthPrefix = 4

	// maxRuns bounds the memory of Run slices: 4,096 x 16 bytes.
	maxRuns = 4096
	runSize = 16
	// runsGrowth is the most that one more run can cost when the slice doubles.
	runsGrowth = maxRuns / 2 * runSize
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batch is the records of one partition that travel together. It collects
// until it is sealed; from its first attempt on its bytes never change, unless
// the producer's identity must (rule 15).
type batch struct {
	records buffer
	// meta holds a recordMeta for each record.
	meta buffer
	runs []Run

	count              int32
	baseTimestamp      int64
	maxTimestamp       int64
	uncompressed       int // bytes of records before compression
	attributes         int16
	reserved           int // bytes of the window
	sealed, compressed bool
	// headed says that header is valid.
	headed bool
	header [lengthPrefix + batchOverhead]byte

	// uncertain: an earlier attempt may have been appended.
	uncertain bool
	attempts  int
	firstTry  time.Time
}

var batchPool = sync.Pool{New: func() any {
	return &batch{
		records: buffer{pool: recordChunks},
		meta:    buffer{pool: metaChunks},
		runs:    make([]Run, 0, 16),
	}
}}

// newBatch takes an empty batch from the pool.
func newBatch() *batch { return batchPool.Get().(*batch) }

// recycle gives the batch and its chunks back. Nobody may refer to it any more.
func (b *batch) recycle() {
	b.records.reset()
	b.meta.reset()
	runs := b.runs[:0]
	if cap(runs) > 1024 {
		runs = make([]Run, 0, 16)
	}
	*b = batch{records: b.records, meta: b.meta, runs: runs}
	batchPool.Put(b)
}

// capacity is the memory that the batch holds, in bytes.
func (b *batch) capacity() int {
	return b.records.capacity() + b.meta.capacity() + cap(b.runs)*runSize
}

// wireSize is what the broker compares with max.message.bytes.
func (b *batch) wireSize() int { return batchOverhead + b.records.size }

// sizeWith is wireSize after msg was added.
func (b *batch) sizeWith(msg *event.Message) int {
	delta := int64(0)
	if b.count > 0 {
		delta = msg.TimestampMillis - b.baseTimestamp
	}
	return b.wireSize() + recordLen(msg, delta, int64(b.count))
}

// full says that msg has to go into another batch. An empty batch takes any record.
func (b *batch) full(msg *event.Message, limit int) bool {
	return b.sealed || b.count > 0 && (len(b.runs) >= maxRuns || b.sizeWith(msg) > limit)
}

// add copies msg into the batch.
func (b *batch) add(msg *event.Message, txn uint64) {
	b.clock(msg.TimestampMillis)
	appendRecord(&b.records, msg, msg.TimestampMillis-b.baseTimestamp, int64(b.count))
	b.note(metaOf(msg, txn))
}

// addRaw takes over a record of another batch.
func (b *batch) addRaw(r rawRecord, timestamp int64, m recordMeta) {
	b.clock(timestamp)
	appendRaw(&b.records, r, timestamp-b.baseTimestamp, int64(b.count))
	b.note(m)
}

func (b *batch) clock(timestamp int64) {
	if b.count == 0 {
		b.baseTimestamp, b.maxTimestamp = timestamp, timestamp
	}
	b.maxTimestamp = max(b.maxTimestamp, timestamp)
}

// note counts the record that was just appended and remembers what a refusal would name.
func (b *batch) note(m recordMeta) {
	b.count++
	if n := len(b.runs); n > 0 && b.runs[n-1].Txn == m.txn {
		b.runs[n-1].Count++
	} else {
		b.runs = append(b.runs, Run{Txn: m.txn, Count: 1})
	}
	m.write(&b.meta)
	b.uncompressed = b.records.size
}

// identity is what makes a broker recognise a repeated batch.
type identity struct {
	producerID int64
	epoch      int16
	sequence   int32
}

// head writes the batch header for an identity. The records must be final.
func (b *batch) head(id identity) {
	h := b.header[:]
	be := binary.BigEndian
	be.PutUint32(h[0:], uint32(b.wireSize()))
	be.PutUint64(h[4:], 0) // base offset: the broker's to set
	be.PutUint32(h[12:], uint32(b.wireSize()-12))
	be.PutUint32(h[16:], 0xffffffff) // leader epoch: the broker's to set
	h[20] = 2                        // magic
	be.PutUint16(h[25:], uint16(b.attributes))
	be.PutUint32(h[27:], uint32(b.count-1))
	be.PutUint64(h[31:], uint64(b.baseTimestamp))
	be.PutUint64(h[39:], uint64(b.maxTimestamp))
	be.PutUint64(h[47:], uint64(id.producerID))
	be.PutUint16(h[55:], uint16(id.epoch))
	be.PutUint32(h[57:], uint32(id.sequence))
	be.PutUint32(h[61:], uint32(b.count))
	// The checksum covers everything from the attributes on.
	crc := crc32.Checksum(h[25:], castagnoli)
	for _, c := range b.records.chunks {
		crc = crc32.Update(crc, castagnoli, c.b)
	}
	be.PutUint32(h[21:], crc)
	b.headed = true
}

// batchReader presents length, header and records once. Each attempt has its
// own (rule 11).
type batchReader struct {
	batch  *batch
	header int
	rest   cursor
}

var (
	_ io.Reader   = (*batchReader)(nil)
	_ io.WriterTo = (*batchReader)(nil)
)

func (b *batch) reader() *batchReader {
	return &batchReader{batch: b, rest: cursor{buf: &b.records}}
}

func (r *batchReader) Read(p []byte) (int, error) {
	if r.header < len(r.batch.header) {
		n := copy(p, r.batch.header[r.header:])
		r.header += n
		return n, nil
	}
	return r.rest.Read(p)
}

// WriteTo spares io.Copy its buffer.
func (r *batchReader) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(r.batch.header[:])
	if err != nil {
		return int64(n), err
	}
	m, err := r.batch.records.writeTo(w)
	return int64(n) + m, err
}
