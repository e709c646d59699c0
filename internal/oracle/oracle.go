package oracle

import (
	"sync"

	"github.com/postrider/postrider/event"
)

// Config has a useful zero value.
type Config struct {
	// EventID finds the event's id in a record; nil takes the header "id".
	// The empty string is an id of nothing: a phantom.
	EventID func(*Record) string
	// IgnoreHeader names headers that are not compared; nil compares all.
	IgnoreHeader func(name string) bool
	// Details limits the examples that a Verdict lists of each kind; 0 means 10.
	Details int
}

// Order is a place in commit order.
type Order struct {
	// Commit is the LSN of the transaction's commit record: its start, as
	// pgoutput's Begin has it, not the end.
	Commit event.LSN
	// Index counts the events of the transaction.
	Index uint64
}

func (a Order) before(b Order) bool {
	return a.Commit < b.Commit || a.Commit == b.Commit && a.Index < b.Index
}

// Event is what a committed row has to become. The oracle keeps no reference to
// its bytes.
type Event struct {
	ID string
	// Topic is "" for any.
	Topic string
	// Key nil is a null key, which has no order.
	Key     []byte
	Value   []byte
	Headers []event.Header
}

// Record is what a consumer got. The oracle keeps no reference to its bytes.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Value     []byte
	Headers   []event.Header
}

// Oracle collects a run. Its methods may be called from any goroutine.
type Oracle struct {
	config Config

	mu      sync.Mutex // guards everything below
	events  map[string]*entry
	places  names // topics and partitions
	keys    names
	samples []Sample
	sampled int // also those that samples does not keep

	committed, delivered int // distinct committed ids; records
	phantoms             []Record
	phantomCount         int
	committedTwice       list
}

// entry is what is known of one id.
type entry struct {
	committed, rolledBack bool
	order                 Order
	topic                 string // wanted; "" is any
	key                   int32  // index into keys; noKey for a null key
	want                  fingerprint

	copies  uint32 // records with this id
	parked  uint32
	alone   bool // parked without its key
	first   place
	got     fingerprint
	unequal uint32 // copies that differ from the first copy
}

// place is where an event first stands.
type place struct {
	partition int32 // index into places
	offset    int64
}

const noKey int32 = -1

// New makes an oracle for one run.
func New(config Config) *Oracle {
	if config.EventID == nil {
		config.EventID = headerID
	}
	if config.IgnoreHeader == nil {
		config.IgnoreHeader = func(string) bool { return false }
	}
	if config.Details == 0 {
		config.Details = 10
	}
	return &Oracle{
		config: config, events: map[string]*entry{},
		committedTwice: list{limit: config.Details},
	}
}

func headerID(r *Record) string {
	for _, h := range r.Headers {
		if h.Name == "id" {
			return string(h.Value)
		}
	}
	return ""
}

// Committed says that a row was committed and what it has to become. Telling it
// the same thing twice is no fault.
func (o *Oracle) Committed(at Order, ev Event) {
	want := o.fingerprint(ev.Key, ev.Value, ev.Headers)
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.entry(ev.ID)
	if e.committed {
		if e.order != at {
			o.committedTwice.add("%s at %s and at %s", ev.ID, e.order.Commit, at.Commit)
		}
		return
	}
	o.committed++
	e.committed, e.order, e.topic, e.want, e.key = true, at, ev.Topic, want, noKey
	if ev.Key != nil {
		e.key = o.keys.index(string(ev.Key))
	}
}

// RolledBack says that an id was written and not committed.
func (o *Oracle) RolledBack(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entry(id).rolledBack = true
}

// Parked says that the parked store holds the event; once for each of its rows there.
func (o *Oracle) Parked(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entry(id).parked++
}

// ParkedAlone is Parked for an event whose key did not wait for it: it has an order only
// among its like, and the others have theirs without it.
func (o *Oracle) ParkedAlone(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.entry(id)
	e.parked++
	e.alone = true
}

// Delivered says that a consumer found a record. Records of one partition come
// in any order, each once.
func (o *Oracle) Delivered(r Record) {
	id := o.config.EventID(&r)
	got := o.fingerprint(r.Key, r.Value, r.Headers)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.delivered++
	if id == "" {
		o.phantomCount++
		if len(o.phantoms) < o.config.Details {
			o.phantoms = append(o.phantoms, Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset})
		}
		return
	}
	e := o.entry(id)
	at := place{o.places.index(placeName(r.Topic, r.Partition)), r.Offset}
	e.copies++
	switch {
	case e.copies == 1:
		e.first, e.got = at, got
		return
	case e.got != got:
		e.unequal++
	}
	if at.partition == e.first.partition && at.offset < e.first.offset {
		e.first = at
	}
}

// Progress gives the number of committed events and of records so far.
func (o *Oracle) Progress() (committed, delivered int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.committed, o.delivered
}

func (o *Oracle) entry(id string) *entry {
	e := o.events[id]
	if e == nil {
		e = &entry{key: noKey}
		o.events[id] = e
	}
	return e
}

// names gives small numbers to repeated strings.
type names struct {
	byName map[string]int32
	all    []string
}

func (n *names) index(name string) int32 {
	i, ok := n.byName[name]
	if !ok {
		if n.byName == nil {
			n.byName = map[string]int32{}
		}
		i = int32(len(n.all))
		n.byName[name] = i
		n.all = append(n.all, name)
	}
	return i
}
