package replication

import (
	"bytes"
	"encoding/binary"
	"time"
)

// pgoutput's message bytes, protocol 1 (PostgreSQL manual, "Logical Replication
// Message Formats"), and what version 1 must not send but some servers do.
const (
	msgBegin       = 'B'
	msgCommit      = 'C'
	msgInsert      = 'I'
	msgUpdate      = 'U'
	msgDelete      = 'D'
	msgTruncate    = 'T'
	msgRelation    = 'R'
	msgType        = 'Y'
	msgOrigin      = 'O'
	msgMessage     = 'M'
	msgStreamAbort = 'A'
)

// pgEpochMicros is 2000-01-01 UTC, PostgreSQL's epoch, in microseconds since 1970.
const pgEpochMicros = 946_684_800_000_000

// fromPGMicros converts PostgreSQL's microseconds since 2000.
func fromPGMicros(us uint64) time.Time {
	return time.UnixMicro(int64(us) + pgEpochMicros).UTC()
}

// toPGMicros converts to PostgreSQL's microseconds since 2000.
func toPGMicros(t time.Time) uint64 {
	return uint64(t.UnixMicro() - pgEpochMicros)
}

// cursor reads a message's fields. After a field that is not there it stays
// failed and gives zeros, so that a caller checks once.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) take(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.bad, c.b = true, nil
		return nil
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func (c *cursor) byte() byte {
	if p := c.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (c *cursor) uint16() uint16 {
	if p := c.take(2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (c *cursor) uint32() uint32 {
	if p := c.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

// cstring reads up to a zero byte and drops that.
func (c *cursor) cstring() string {
	i := bytes.IndexByte(c.b, 0)
	if i < 0 {
		c.bad, c.b = true, nil
		return ""
	}
	s := string(c.b[:i])
	c.b = c.b[i+1:]
	return s
}
