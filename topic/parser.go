package topic

import (
	"encoding/binary"
	"errors"
)

var errShort = errors.New("the bytes end too early")

// parser reads big-endian numbers, varints and byte strings. It stays at the first error.
type parser struct {
	rest []byte
	err  error
}

// take is the next n bytes; nil where n is negative, as null is written.
func (p *parser) take(n int) []byte {
	if n < 0 || p.err != nil {
		return nil
	}
	if n > len(p.rest) {
		p.err, p.rest = errShort, nil
		return nil
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}

func (p *parser) skip(n int) { p.take(n) }

func (p *parser) int8() int8 {
	if b := p.take(1); b != nil {
		return int8(b[0])
	}
	return 0
}

func (p *parser) int16() int16 {
	if b := p.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (p *parser) int32() int32 {
	if b := p.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (p *parser) int64() int64 {
	if b := p.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.rest)
	if n <= 0 {
		if p.err == nil {
			p.err, p.rest = errShort, nil
		}
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

// bytes is a nullable byte string with a varint before it.
func (p *parser) bytes() []byte {
	n := p.varint()
	if n > int64(len(p.rest)) {
		p.err, p.rest = errShort, nil
		return nil
	}
	return p.take(int(n))
}
