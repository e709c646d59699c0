package reconcile

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"strings"

	"github.com/postrider/postrider/event"
)

// entry is a row and what the topics have of it.
type entry struct {
	// key is the hash of the event id, shifted by the topic: ids are unique in a topic only.
	key uint64
	// recordKey, value and headers are hashes of what the record should be.
	recordKey, value, headers uint64

	xid     uint64
	commit  int64 // microseconds since 1970; unknown where the server does not say
	at      int64 // milliseconds since 1970, by what the window goes by
	stamp   int64 // the record's time, in milliseconds
	version int64
	command uint32

	table, topic, kind   uint32 // indices of names
	idChunk, idAt, idLen uint32 // where the event id is in the set's memory

	// plain and copies count records without and with a mark.
	plain, copies uint16
	flags         flag
	// differs names the fields in which the last record differs.
	differs field
	// partition and offset are the last record's.
	partition int32
	offset    int64
}

const unknown = math.MinInt64

type flag uint8

const (
	isRefused   flag = 1 << iota // the router does not take the row as it is
	isShared                     // another row of the topic has the id
	isParked                     // and outstanding
	isDiscarded                  // parked, and given up
	isHealed                     // an earlier record was different, the last is not
	wasRepaired                  // the last record carries another payload on purpose
	isSettled                    // a copy is as it should be, whatever else there is
)

// field names parts of a record.
type field uint8

const (
	fieldKey field = 1 << iota
	fieldValue
	fieldHeaders
	fieldTopic
)

// words are the field's names, for people and --json.
func (f field) words() (list []string) {
	for i, name := range [...]string{"key", "value", "headers", "topic"} {
		if f&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	return list
}

func (e *entry) found() bool { return e.plain > 0 || e.copies > 0 }

// names numbers strings.
type names struct {
	list []string
	byID map[string]uint32
}

func (n *names) index(b []byte) uint32 {
	if i, ok := n.byID[string(b)]; ok {
		return i
	}
	if n.byID == nil {
		n.byID = map[string]uint32{}
	}
	i := uint32(len(n.list))
	n.list = append(n.list, string(b))
	n.byID[n.list[i]] = i
	return i
}

// hasher hashes with a seed of its own: nobody can make events that look alike.
type hasher struct{ seed maphash.Seed }

// bytes tells null and empty apart.
func (h hasher) bytes(b []byte) uint64 {
	if b == nil {
		return 0
	}
	return maphash.Bytes(h.seed, b)
}

// salt shifts the hashes of a topic's event ids.
func (h hasher) salt(topic string) uint64 { return maphash.String(h.seed, "\x00topic\x00"+topic) }

// headers leaves our marks out: a copy carries them, the row does not know them.
func (h hasher) headers(list []event.Header) uint64 {
	var sum maphash.Hash
	sum.SetSeed(h.seed)
	var scratch [binary.MaxVarintLen64]byte
	field := func(length int) { _, _ = sum.Write(binary.AppendVarint(scratch[:0], int64(length))) }
	for i := range list {
		name, value := list[i].Name, list[i].Value
		if isMark(name) {
			continue
		}
		field(len(name))
		_, _ = sum.WriteString(name)
		if value == nil {
			field(-1)
			continue
		}
		field(len(value))
		_, _ = sum.Write(value)
	}
	return sum.Sum64()
}

// isMark says that a header is one that we put on copies.
func isMark(name string) bool { return strings.HasPrefix(name, "postrider-") }
