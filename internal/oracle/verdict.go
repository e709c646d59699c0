package oracle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Verdict is what the oracle found. A count of zero in every fault means that
// the promise held. Duplicates are counted, not faults: at-least-once allows
// them after a crash.
type Verdict struct {
	Committed int `json:"committed"` // distinct events
	Delivered int `json:"delivered"` // committed events that stand in a topic
	Records   int `json:"records"`   // records read
	Parked    int `json:"parked"`    // committed events in the parked store

	// Duplicates counts further copies of committed events.
	Duplicates int `json:"duplicates"`

	Lost           int `json:"lost"`            // O1
	ParkedTwice    int `json:"parked_twice"`    // O1
	OutOfOrder     int `json:"out_of_order"`    // O2
	Phantom        int `json:"phantom"`         // O3
	UnsafeAcks     int `json:"unsafe_acks"`     // O4: events that were confirmed too early
	WrongBytes     int `json:"wrong_bytes"`     // O5, and a wrong topic
	CommittedTwice int `json:"committed_twice"` // one id in two committed rows: the writer's fault

	// Samples is the number of usable samples behind UnsafeAcks; with none, O4
	// was not checked.
	Samples int `json:"samples"`

	// Details has examples of each fault.
	Details []string `json:"details,omitempty"`
}

// Faults is the number of faults of all kinds.
func (v Verdict) Faults() int {
	return v.Lost + v.ParkedTwice + v.OutOfOrder + v.Phantom + v.UnsafeAcks + v.WrongBytes + v.CommittedTwice
}

// Err is nil when the promise held.
func (v Verdict) Err() error {
	if v.Faults() == 0 {
		return nil
	}
	return fmt.Errorf("%s\n  %s", v, strings.Join(v.Details, "\n  "))
}

// String is one line.
func (v Verdict) String() string {
	s := fmt.Sprintf("committed %d, delivered %d, lost %d, out of order %d, phantom %d, wrong bytes %d, unsafe acks %d (%d samples), duplicates %d",
		v.Committed, v.Delivered, v.Lost, v.OutOfOrder, v.Phantom, v.WrongBytes, v.UnsafeAcks, v.Samples, v.Duplicates)
	if v.Parked > 0 || v.ParkedTwice > 0 {
		s += fmt.Sprintf(", parked %d, parked twice %d", v.Parked, v.ParkedTwice)
	}
	if v.CommittedTwice > 0 {
		s += fmt.Sprintf(", ids committed twice %d", v.CommittedTwice)
	}
	return s
}

// list counts faults of a kind and keeps the first few in words.
type list struct {
	limit int
	count int
	lines []string
}

func (l *list) add(format string, args ...any) {
	l.count++
	if len(l.lines) < l.limit {
		l.lines = append(l.lines, fmt.Sprintf(format, args...))
	}
}

// judgement is the work of one Verdict call.
type judgement struct {
	*Oracle
	v     Verdict
	lines []string
}

// Verdict judges what has been reported so far. Called before everything is
// reported, what is missing looks lost and what is early looks a phantom.
func (o *Oracle) Verdict() Verdict {
	o.mu.Lock()
	defer o.mu.Unlock()
	j := &judgement{Oracle: o, v: Verdict{Committed: o.committed, Records: o.delivered, Samples: o.sampled}}
	inOrder := j.inCommitOrder()
	j.lostAndParked(inOrder)
	j.outOfOrder(inOrder)
	j.phantoms()
	j.unsafeAcks(inOrder)
	j.wrongBytes(inOrder)
	j.v.CommittedTwice = j.report("committed twice", o.committedTwice)
	j.v.Details = j.lines
	return j.v
}

// named is an entry with its id.
type named struct {
	id string
	*entry
}

func (j *judgement) list() list { return list{limit: j.config.Details} }

func (j *judgement) report(kind string, l list) int {
	for _, line := range l.lines {
		j.lines = append(j.lines, kind+": "+line)
	}
	if more := l.count - len(l.lines); more > 0 {
		j.lines = append(j.lines, fmt.Sprintf("%s: %d more", kind, more))
	}
	return l.count
}

func (j *judgement) inCommitOrder() []named {
	all := make([]named, 0, j.committed)
	for id, e := range j.events {
		if e.committed {
			all = append(all, named{id, e})
		}
	}
	slices.SortFunc(all, func(a, b named) int {
		switch {
		case a.order.before(b.order):
			return -1
		case b.order.before(a.order):
			return 1
		}
		return strings.Compare(a.id, b.id)
	})
	return all
}

// lostAndParked is O1.
func (j *judgement) lostAndParked(events []named) {
	lost, twice := j.list(), j.list()
	for _, e := range events {
		if e.copies > 0 {
			j.v.Delivered++
			j.v.Duplicates += int(e.copies) - 1
		}
		if e.parked > 0 {
			j.v.Parked++
		}
		if e.parked > 1 {
			twice.add("%s, %d times", e.id, e.parked)
		}
		if e.copies == 0 && e.parked == 0 {
			lost.add("%s, committed at %s, row %d", e.id, e.order.Commit, e.order.Index)
		}
	}
	j.v.Lost = j.report("lost", lost)
	j.v.ParkedTwice = j.report("parked twice", twice)
}

// outOfOrder is O2. Offsets of first occurrences must rise with commit order
// within a key, and a key must stay in one partition of a topic, else no
// consumer sees its order.
func (j *judgement) outOfOrder(events []named) {
	type lane struct {
		topic string
		key   int32
		alone bool
	}
	last := map[lane]named{}
	wrong := j.list()
	for _, e := range events {
		if e.copies == 0 || e.key == noKey {
			continue
		}
		topic, _ := splitPlace(j.places.all[e.first.partition])
		l := lane{topic, e.key, e.alone}
		before, ok := last[l]
		switch {
		case !ok:
		case before.first.partition != e.first.partition:
			wrong.add("key %q: %s stands in %s, the event before it, %s, in %s",
				j.keys.all[e.key], e.id, j.where(e.first), before.id, j.where(before.first))
		case before.first.offset > e.first.offset:
			wrong.add("key %q: %s first stands in %s, before %s in %s, which was committed earlier",
				j.keys.all[e.key], e.id, j.where(e.first), before.id, j.where(before.first))
			continue // the earlier one stays the mark, so that one leapfrog is one fault
		}
		last[l] = e
	}
	j.v.OutOfOrder = j.report("out of order", wrong)
}

// phantoms is O3.
func (j *judgement) phantoms() {
	found := j.list()
	for _, r := range j.Oracle.phantoms {
		found.add("a record without an id in %s offset %d", placeName(r.Topic, r.Partition), r.Offset)
	}
	found.count = j.phantomCount
	for id, e := range j.events {
		switch {
		case e.committed || e.copies == 0:
		case e.rolledBack:
			found.add("%s in %s was rolled back", id, j.where(e.first))
		default:
			found.add("%s in %s was never committed", id, j.where(e.first))
		}
	}
	j.v.Phantom = j.report("phantom", found)
}

// wrongBytes is O5.
func (j *judgement) wrongBytes(events []named) {
	wrong := j.list()
	for _, e := range events {
		if e.copies == 0 {
			continue
		}
		topic, _ := splitPlace(j.places.all[e.first.partition])
		switch {
		case e.got != e.want:
			wrong.add("%s in %s: %s", e.id, j.where(e.first), e.got.difference(e.want))
		case e.topic != "" && e.topic != topic:
			wrong.add("%s is in topic %s, want %s", e.id, topic, e.topic)
		case e.unequal > 0:
			wrong.add("%s: %d further copies differ from the first", e.id, e.unequal)
		}
	}
	j.v.WrongBytes = j.report("wrong bytes", wrong)
}

func (j *judgement) where(p place) string {
	return j.places.all[p.partition] + " offset " + strconv.FormatInt(p.offset, 10)
}

// placeName writes a partition as Kafka's own tools do: orders-3.
func placeName(topic string, partition int32) string {
	return topic + "-" + strconv.FormatInt(int64(partition), 10)
}

func splitPlace(name string) (topic string, partition int32) {
	i := strings.LastIndexByte(name, '-')
	n, _ := strconv.ParseInt(name[i+1:], 10, 32)
	return name[:i], int32(n)
}
