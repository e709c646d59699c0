package reconcile

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/postrider/postrider/outbox"
)

const (
	// Rows and their ids are kept in pieces that never move: a list that grew by being copied
	// would take twice the memory.
	chunkRows  = 8192
	chunkBytes = 1 << 20
)

// set is the rows of a pass.
type set struct {
	hasher
	topics, tables, kinds names
	// feeds are the tables whose events go to a topic; fed is the pair that was noted last.
	feeds map[uint32][]uint32
	fed   feed
	salts []uint64 // by topic

	chunks [][]entry
	count  int32
	memory [][]byte // event ids
	sorted []placed
}

// placed is the key of a row and its index.
type placed struct {
	key uint64
	row int32
}

// topicIndex numbers a topic.
func (s *set) topicIndex(name string) uint32 {
	i := s.topics.index([]byte(name))
	for len(s.salts) < len(s.topics.list) {
		s.salts = append(s.salts, s.salt(s.topics.list[len(s.salts)]))
	}
	return i
}

// row is the one with an index.
func (s *set) row(i int32) *entry { return &s.chunks[i/chunkRows][i%chunkRows] }

// each goes through all rows.
func (s *set) each(do func(*entry)) {
	for i := range s.count {
		do(s.row(i))
	}
}

// id is the entry's event id.
func (s *set) id(e *entry) []byte { return s.memory[e.idChunk][e.idAt : e.idAt+e.idLen] }

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
	s.feed(feed{e.topic, e.table})
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

// feed says that events of a table go to a topic.
type feed struct{ topic, table uint32 }

func (s *set) feed(f feed) {
	if f == s.fed && s.feeds != nil {
		return
	}
	s.fed = f
	if s.feeds == nil {
		s.feeds = map[uint32][]uint32{}
	}
	if !slices.Contains(s.feeds[f.topic], f.table) {
		s.feeds[f.topic] = append(s.feeds[f.topic], f.table)
	}
}

// mayBeOf says that a record of a topic can be of a table's row: where no row leads there,
// of any. Two tables may use the same ids.
func (s *set) mayBeOf(topic, table uint32) bool {
	of := s.feeds[topic]
	return len(of) == 0 || slices.Contains(of, table)
}

// add takes a row.
func (s *set) add(e entry, id []byte) {
	last := len(s.memory) - 1
	if last < 0 || len(s.memory[last])+len(id) > cap(s.memory[last]) {
		s.memory = append(s.memory, make([]byte, 0, max(chunkBytes, len(id))))
		last++
	}
	e.idChunk, e.idAt, e.idLen = uint32(last), uint32(len(s.memory[last])), uint32(len(id))
	s.memory[last] = append(s.memory[last], id...)
	if int(s.count/chunkRows) == len(s.chunks) {
		s.chunks = append(s.chunks, make([]entry, chunkRows))
	}
	*s.row(s.count) = e
	s.count++
}

// reset forgets the rows and keeps the names.
func (s *set) reset() { s.count, s.memory, s.sorted = 0, nil, s.sorted[:0] }

// seal sorts the rows, to find them by their keys, and marks those that share one.
func (s *set) seal() {
	s.sorted = slices.Grow(s.sorted[:0], int(s.count))
	for i := range s.count {
		s.sorted = append(s.sorted, placed{s.row(i).key, i})
	}
	slices.SortFunc(s.sorted, func(a, b placed) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.row, b.row)) })
	for i := 1; i < len(s.sorted); i++ {
		if a, b := s.sorted[i-1], s.sorted[i]; a.key == b.key {
			s.row(a.row).flags |= isShared
			s.row(b.row).flags |= isShared
		}
	}
}

// find gives the index of the row of a topic's event, none where there is none.
func (s *set) find(topic uint32, idHash uint64) int32 {
	i, ok := slices.BinarySearchFunc(s.sorted, idHash+s.salts[topic], func(p placed, key uint64) int { return cmp.Compare(p.key, key) })
	if !ok {
		return none
	}
	return s.sorted[i].row
}
