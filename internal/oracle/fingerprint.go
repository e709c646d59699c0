package oracle

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/postrider/postrider/event"
)

// fingerprint stands for a record's bytes. Two are equal exactly when the bytes
// are (SHA-256 cut to 128 bits; a collision is not going to happen), with null
// told from empty.
type fingerprint struct {
	key, value, headers [16]byte
	// lengths are for messages: -1 is null.
	keyLen, valueLen, headerCount int32
}

func (o *Oracle) fingerprint(key, value []byte, headers []event.Header) fingerprint {
	f := fingerprint{key: digest(key), value: digest(value), keyLen: length(key), valueLen: length(value)}
	h := sha256.New()
	var n [8]byte
	write := func(b []byte, null bool) {
		size := int64(len(b))
		if null {
			size = -1
		}
		binary.BigEndian.PutUint64(n[:], uint64(size))
		h.Write(n[:])
		h.Write(b)
	}
	for _, header := range headers {
		if o.config.IgnoreHeader(header.Name) {
			continue
		}
		write([]byte(header.Name), false)
		write(header.Value, header.Value == nil)
		f.headerCount++
	}
	copy(f.headers[:], h.Sum(nil))
	return f
}

func digest(b []byte) (d [16]byte) {
	if b == nil {
		return d
	}
	sum := sha256.Sum256(b)
	copy(d[:], sum[:])
	return d
}

func length(b []byte) int32 {
	if b == nil {
		return -1
	}
	return int32(len(b))
}

// difference says in words what is not as it was wanted.
func (f fingerprint) difference(want fingerprint) string {
	var parts []string
	if f.key != want.key {
		parts = append(parts, fmt.Sprintf("key of %s, want %s", size(f.keyLen), size(want.keyLen)))
	}
	if f.value != want.value {
		parts = append(parts, fmt.Sprintf("value of %s, want %s", size(f.valueLen), size(want.valueLen)))
	}
	if f.headers != want.headers {
		parts = append(parts, fmt.Sprintf("%d headers, want %d", f.headerCount, want.headerCount))
	}
	return strings.Join(parts, "; ")
}

func size(n int32) string {
	if n < 0 {
		return "null"
	}
	return fmt.Sprintf("%d bytes", n)
}
