package parking

import (
	"crypto/sha256"
	"encoding/binary"
)

// Unit names a topic and a key together: what has an order. It is a digest, so that a
// held unit costs the same memory whatever its key is.
type Unit [16]byte

// UnitOf gives the unit of a record. A null key has none; the caller does not ask.
func UnitOf(topic string, key []byte) Unit {
	h := sha256.New()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(topic)))
	h.Write(n[:])
	h.Write([]byte(topic))
	h.Write(key)
	var sum [sha256.Size]byte
	return Unit(h.Sum(sum[:0])[:len(Unit{})])
}
