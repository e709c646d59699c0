package recovery

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"iter"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// mostCandidates bounds what is compared at once, at 72 bytes each.
const mostCandidates = 20_000_000

// fate is what became of a candidate.
type fate uint8

const (
	missing  fate = iota // to be published
	inTopic              // its topic has it
	isParked             // postrider.parked has it
	onStream             // it comes on the stream of a slot that is kept
	replaced             // its topic is compacted, and has a later event of its key
	conflict             // its topic has another event of that id
	expired              // its topic does not reach back to its time
	gone                 // its row was deleted since it was listed
)

// unknownTime marks a candidate of which nobody knows when it was published.
const unknownTime = math.MinInt64

// candidate is a row that may be missing from its topic.
type candidate struct {
	id     uint64 // of the event id
	digest uint64 // of key and value
	unit   uint64 // of topic and key: what has an order; 0 where there is none
	n      int64  // its number in the list, or 0
	millis int64  // the record's time, or unknownTime
	commit int64  // when its transaction committed, or unknownTime
	topic  uint32 // in candidates.topics; noTopic where the router refused it, or its row is gone
	table  uint32 // in candidates.tables
	kind   uint32 // in candidates.kinds
	fate   fate
}

const noTopic = math.MaxUint32

// candidates is all of them, found by event id. Hashes stand for ids: with a second
// hash over the content no two events can be taken for one another.
type candidates struct {
	seed   maphash.Seed
	list   []candidate
	topics names
	tables names
	kinds  names // aggregate type and event type, with a zero byte between
}

func newCandidates() *candidates { return &candidates{seed: maphash.MakeSeed()} }

// add takes a row. commit is the time of its transaction, zero where nobody knows. msg is
// what could be found of the record; refused says that the router does not take it.
func (c *candidates) add(table string, n int64, commit time.Time, msg *event.Message, refused bool) error {
	if len(c.list) == mostCandidates {
		return &operr.Error{
			Class: operr.Config, Op: "compare", Subject: "table and topic", Err: fmt.Errorf("more than %d rows may be missing", mostCandidates),
			Hint: "postrider recover --since, which leaves older rows out and says so",
		}
	}
	added := candidate{id: c.hash(msg.EventID), n: n, millis: msg.TimestampMillis, topic: noTopic, table: c.tables.index(table), kind: c.kinds.index(string(msg.AggregateType) + "\x00" + string(msg.EventType))}
	if msg.TimestampMillis <= 0 {
		added.millis = unknownTime
	}
	if added.commit = commit.UnixMilli(); commit.IsZero() {
		added.commit = unknownTime
	}
	if !refused {
		added.topic = c.topics.index(msg.Topic)
		added.digest = c.digest(msg.Key, msg.Value)
		if msg.Key != nil {
			added.unit = c.unit(msg.Topic, msg.Key)
		}
	}
	c.list = append(c.list, added)
	return nil
}

// addGone adds items of which the row is gone, unless it was there a moment ago. It takes a
// sealed list and seals it again.
func (c *candidates) addGone(each func(yield func(table string, n int64, id []byte) error) error) error {
	var added []candidate
	err := each(func(table string, n int64, id []byte) error {
		for m := range c.withID(id) {
			if m.n == n {
				return nil
			}
		}
		added = append(added, candidate{
			id: c.hash(id), n: n, millis: unknownTime, commit: unknownTime, topic: noTopic, table: c.tables.index(table), kind: c.kinds.index("\x00"), fate: gone,
		})
		return nil
	})
	c.list = append(c.list, added...)
	c.seal()
	return err
}

// seal sorts the list; no add comes after it.
func (c *candidates) seal() {
	slices.SortFunc(c.list, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.n, b.n)) })
}

// withID gives the candidates with an event id.
func (c *candidates) withID(id []byte) iter.Seq[*candidate] {
	h := c.hash(id)
	return func(yield func(*candidate) bool) {
		i := sort.Search(len(c.list), func(i int) bool { return c.list[i].id >= h })
		for ; i < len(c.list) && c.list[i].id == h; i++ {
			if !yield(&c.list[i]) {
				return
			}
		}
	}
}

// record takes a record of a topic and says whether it has a candidate's id, and whether it
// is another event under it. A record that a person repaired has another value by intention.
func (c *candidates) record(topic uint32, id, key, value []byte, repaired bool) (known, other bool) {
	digest, have := uint64(0), false
	for m := range c.withID(id) {
		if m.fate == gone {
			m.fate = inTopic // nothing is left to compare it by; the table does not have it, so that it is not known
		}
		if m.topic != topic {
			continue
		}
		known = true
		if !have {
			digest, have = c.digest(key, value), true
		}
		switch {
		case m.fate == isParked || m.fate == onStream:
		case repaired || m.digest == digest:
			m.fate = inTopic
		case m.fate == missing:
			m.fate, other = conflict, true
		}
	}
	return known, other
}

// late hands on the missing candidates behind which a later one of their key is in their
// topic: they come too late for the order of their key.
func (c *candidates) late(yield func(*candidate)) {
	last := map[uint64]int64{} // the last published one of a key that has a missing one
	for i := range c.list {
		if m := &c.list[i]; m.fate == missing && m.unit != 0 {
			last[m.unit] = 0
		}
	}
	for i := range c.list {
		m := &c.list[i]
		if at, asked := last[m.unit]; asked && m.fate == inTopic && m.n > at {
			last[m.unit] = m.n
		}
	}
	for i := range c.list {
		if m := &c.list[i]; m.fate == missing && m.unit != 0 && m.n < last[m.unit] {
			yield(m)
		}
	}
}

// groups counts what is missing by topic and types.
func (c *candidates) groups() []Group {
	counts := map[Group]int64{}
	for i := range c.list {
		m := &c.list[i]
		if m.fate != missing {
			continue
		}
		aggregate, kind, _ := strings.Cut(c.kinds.all[m.kind], "\x00")
		g := Group{Table: c.tables.all[m.table], AggregateType: aggregate, EventType: kind}
		if m.topic != noTopic {
			g.Topic = c.topics.all[m.topic]
		}
		counts[g]++
	}
	list := make([]Group, 0, len(counts))
	for g, n := range counts {
		g.Events = n
		list = append(list, g)
	}
	slices.SortFunc(list, func(a, b Group) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.AggregateType, b.AggregateType), cmp.Compare(a.EventType, b.EventType), cmp.Compare(a.Table, b.Table))
	})
	return list
}

// count counts the candidates of a fate.
func (c *candidates) count(f fate) (n int64) {
	for i := range c.list {
		if c.list[i].fate == f {
			n++
		}
	}
	return n
}

// earliest is the lowest time of a topic's candidates; known is false where one has none.
func (c *candidates) earliest(topic uint32) (millis int64, known bool) {
	millis, known = math.MaxInt64, true
	for i := range c.list {
		switch m := &c.list[i]; {
		case m.topic != topic:
		case m.millis == unknownTime:
			return 0, false
		default:
			millis = min(millis, m.millis)
		}
	}
	return millis, known
}

func (c *candidates) hash(b []byte) uint64 { return maphash.Bytes(c.seed, b) }

// digest tells null from empty.
func (c *candidates) digest(key, value []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	for _, b := range [][]byte{key, value} {
		maphash.WriteComparable(&h, len(b))
		maphash.WriteComparable(&h, b == nil)
		_, _ = h.Write(b) // never fails
	}
	return h.Sum64()
}

// unit is never 0. It serves for a table and an event id, too.
func (c *candidates) unit(topic string, key []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	maphash.WriteComparable(&h, topic)
	_, _ = h.Write(key) // never fails
	return max(1, h.Sum64())
}

// names gives small numbers to repeated strings.
type names struct {
	all    []string
	byName map[string]uint32
}

func (n *names) index(name string) uint32 {
	i, ok := n.byName[name]
	if !ok {
		if n.byName == nil {
			n.byName = map[string]uint32{}
		}
		i = uint32(len(n.all))
		n.all = append(n.all, name)
		n.byName[name] = i
	}
	return i
}
