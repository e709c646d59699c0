package reconcile

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/outbox"
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

	table, topic, kind uint32 // indices of names
	idAt               uint64 // in the set's memory
	idLen              uint32

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

// set is the rows of a pass.
type set struct {
	hasher
	topics, tables, kinds names
	salts                 []uint64 // by topic

	list   []entry
	keys   []uint64 // of list, once it is sealed
	memory []byte   // event ids
}

// topicIndex numbers a topic.
func (s *set) topicIndex(name string) uint32 {
	i := s.topics.index([]byte(name))
	for len(s.salts) < len(s.topics.list) {
		s.salts = append(s.salts, s.salt(s.topics.list[len(s.salts)]))
	}
	return i
}

// id is the entry's event id.
func (s *set) id(e *entry) []byte { return s.memory[e.idAt : e.idAt+uint64(e.idLen)] }

// idHash is the hash of the entry's event id alone.
func (s *set) idHash(e *entry) uint64 { return e.key - s.salts[e.topic] }

// part is the hash by which keys are dealt to passes. A null key is no unit of order.
func (s *set) part(key []byte, idHash uint64) uint64 {
	if key == nil {
		return idHash
	}
	return s.bytes(key)
}

// noTopic is the topic of rows that the router refuses.
const noTopic = ""

// entryOf takes a row; its id is not in memory yet.
func (s *set) entryOf(row *outbox.Row) entry {
	m := row.Message
	e := entry{
		recordKey: s.bytes(m.Key), value: s.bytes(m.Value), headers: s.headers(m.Headers),
		xid: row.XID, commit: unknown, at: unknown, stamp: unknown, version: unknown, command: row.Command,
		table: s.tables.index([]byte(row.Table)), kind: s.kinds.index(m.AggregateType),
		topic: s.topicIndex(m.Topic),
	}
	if row.Refusal != nil {
		e.flags, e.topic = isRefused, s.topicIndex(noTopic)
	}
	e.key = s.bytes(m.EventID) + s.salts[e.topic]
	if !row.CommitTime.IsZero() {
		e.commit = row.CommitTime.UnixMicro()
	}
	if !row.At.IsZero() {
		e.at = row.At.UnixMilli()
	}
	if m.TimestampMillis != 0 {
		e.stamp = m.TimestampMillis
	}
	if v, err := strconv.ParseInt(string(m.AggregateVersion), 10, 64); err == nil {
		e.version = v
	}
	return e
}

func (s *set) add(e entry, id []byte) {
	e.idAt, e.idLen = uint64(len(s.memory)), uint32(len(id))
	s.memory = append(s.memory, id...)
	s.list = append(s.list, e)
}

// reset forgets the rows and keeps the names.
func (s *set) reset() { s.list, s.keys, s.memory = s.list[:0], s.keys[:0], s.memory[:0] }

// seal sorts the rows, to find them by their keys. Of rows that share an id the first
// by transaction counts.
func (s *set) seal() {
	slices.SortFunc(s.list, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.xid, b.xid), cmp.Compare(a.command, b.command))
	})
	s.keys = s.keys[:0]
	for i := range s.list {
		s.keys = append(s.keys, s.list[i].key)
		if i > 0 && s.keys[i-1] == s.keys[i] {
			s.list[i].flags |= isShared
		}
	}
}

// find gives the index of the row of a topic's event, none where there is none.
func (s *set) find(topic uint32, idHash uint64) int32 {
	i, ok := slices.BinarySearch(s.keys, idHash+s.salts[topic])
	if !ok {
		return none
	}
	return int32(i)
}
