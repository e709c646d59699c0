package walsendertest

import (
	"encoding/binary"
	"time"

	"github.com/postrider/postrider/event"
)

var be = binary.BigEndian

// micros is a time as PostgreSQL sends it: microseconds since 2000.
func micros(t time.Time) uint64 { return uint64(t.UnixMicro() - 946_684_800_000_000) }

// XLogData is the body of a CopyData message that carries a pgoutput message.
func XLogData(start event.LSN, msg []byte) []byte {
	b := []byte{'w'}
	b = be.AppendUint64(b, uint64(start))
	b = be.AppendUint64(b, uint64(start))
	b = be.AppendUint64(b, micros(time.Now()))
	return append(b, msg...)
}

// KeepAlive is the body of a CopyData message.
func KeepAlive(walEnd event.LSN, reply bool, at time.Time) []byte {
	b := be.AppendUint64([]byte{'k'}, uint64(walEnd))
	b = be.AppendUint64(b, micros(at))
	if reply {
		return append(b, 1)
	}
	return append(b, 0)
}

// CommitTime is that of all transactions that this package makes.
var CommitTime = time.Date(2024, 3, 5, 6, 7, 8, 9000, time.UTC)

// Begin is a pgoutput message.
func Begin(commit event.LSN, xid uint32) []byte {
	b := be.AppendUint64([]byte{'B'}, uint64(commit))
	b = be.AppendUint64(b, micros(CommitTime))
	return be.AppendUint32(b, xid)
}

// Commit is a pgoutput message.
func Commit(commit, end event.LSN) []byte {
	b := be.AppendUint64([]byte{'C', 0}, uint64(commit))
	b = be.AppendUint64(b, uint64(end))
	return be.AppendUint64(b, micros(CommitTime))
}

// Relation is a pgoutput message; the columns are text, the first is the key.
func Relation(oid uint32, schema, table string, columns ...string) []byte {
	b := be.AppendUint32([]byte{'R'}, oid)
	b = append(append(b, schema...), 0)
	b = append(append(b, table...), 0, 'd')
	b = be.AppendUint16(b, uint16(len(columns)))
	for i, c := range columns {
		flags := byte(0)
		if i == 0 {
			flags = 1
		}
		b = append(append(append(b, flags), c...), 0)
		b = be.AppendUint32(b, 25)
		b = be.AppendUint32(b, 0xFFFFFFFF)
	}
	return b
}

// Insert is a pgoutput message; a nil value is NULL.
func Insert(oid uint32, values ...[]byte) []byte {
	b := be.AppendUint32([]byte{'I'}, oid)
	b = be.AppendUint16(append(b, 'N'), uint16(len(values)))
	for _, v := range values {
		if v == nil {
			b = append(b, 'n')
			continue
		}
		b = be.AppendUint32(append(b, 't'), uint32(len(v)))
		b = append(b, v...)
	}
	return b
}

// Text makes values of strings.
func Text(values ...string) [][]byte {
	out := make([][]byte, len(values))
	for i, v := range values {
		out[i] = []byte(v)
	}
	return out
}
