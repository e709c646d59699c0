package receipts

import (
	"encoding/binary"
	"io"
	"sync"
	"time"

	"github.com/postrider/postrider/publisher"
)

// copySQL takes the columns in the order in which rows encodes them.
const copySQL = `COPY postrider.receipt (publisher, event_id, topic, partition, kafka_offset, acked_at, commit_lsn, event_index)
	FROM STDIN (FORMAT binary)`

const columns = 8

// epoch is from when PostgreSQL counts its microseconds.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// rows is deliveries in COPY's binary format, made piece by piece as it is read.
type rows struct {
	publisher  string
	mu         sync.Mutex
	deliveries []*publisher.Delivery
	buf        []byte
	off        int
	err        error // io.EOF behind the trailer
}

var _ io.Reader = (*rows)(nil)

// newRows encodes into buf, which it may grow.
func newRows(name string, list []*publisher.Delivery, buf []byte) *rows {
	buf = append(buf[:0], "PGCOPY\n\xff\r\n\x00"...)
	buf = append(buf, 0, 0, 0, 0, 0, 0, 0, 0) // no flags, no extension
	return &rows{publisher: name, deliveries: list, buf: buf}
}

// Read is called by a goroutine of the driver.
func (r *rows) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.off == len(r.buf) {
		if r.err != nil {
			return 0, r.err
		}
		r.next()
	}
	n := copy(p, r.buf[r.off:])
	r.off += n
	return n, nil
}

// next encodes the next delivery, or the trailer.
func (r *rows) next() {
	r.buf, r.off = r.buf[:0], 0
	if len(r.deliveries) == 0 {
		r.buf, r.err = binary.BigEndian.AppendUint16(r.buf, 0xffff), io.EOF
		return
	}
	d := r.deliveries[0]
	r.deliveries = r.deliveries[1:]
	if err := d.Each(func(offset int64, o publisher.Origin) error {
		r.row(d, offset, o)
		return nil
	}); err != nil {
		r.err = err
	}
}

func (r *rows) row(d *publisher.Delivery, offset int64, o publisher.Origin) {
	be := binary.BigEndian
	b := be.AppendUint16(r.buf, columns)
	b = append(be.AppendUint32(b, uint32(len(r.publisher))), r.publisher...)
	b = append(be.AppendUint32(b, uint32(len(o.EventID))), o.EventID...)
	b = append(be.AppendUint32(b, uint32(len(d.Topic))), d.Topic...)
	b = be.AppendUint32(be.AppendUint32(b, 4), uint32(d.Partition))
	b = be.AppendUint64(be.AppendUint32(b, 8), uint64(offset))
	b = be.AppendUint64(be.AppendUint32(b, 8), uint64(d.At.Sub(epoch).Microseconds()))
	if o.Position.Commit == 0 {
		const null = 0xffffffff
		r.buf = be.AppendUint32(be.AppendUint32(b, null), null)
		return
	}
	b = be.AppendUint64(be.AppendUint32(b, 8), uint64(o.Position.Commit))
	r.buf = be.AppendUint64(be.AppendUint32(b, 8), o.Position.Index)
}

// close ends all reading, whoever may still do it. It gives the buffer back, and the error
// of a delivery that could not be read, which is a fault of our own.
func (r *rows) close() (buf []byte, fault error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil && r.err != io.EOF { //nolint:errorlint // it is set here, and never wrapped
		fault = r.err
	}
	buf, r.deliveries, r.buf, r.off, r.err = r.buf, nil, nil, 0, io.EOF
	return buf, fault
}
