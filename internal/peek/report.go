package peek

import (
	"cmp"
	"slices"
	"time"

	"github.com/postrider/postrider/event"
)

// What becomes of an event when a relay comes to it.
const (
	// Publish: it goes to its topic.
	Publish = "publish"
	// Held: it is parked behind a parked event of its topic and key.
	Held = "held"
	// Park: it is refused, and parked.
	Park = "park"
	// Halt: it is refused, and the relay halts at it.
	Halt = "halt"
)

// Report is what was seen. The JSON fields are a documented contract.
type Report struct {
	Publisher string `json:"publisher" doc:"whose events they are"`
	Slot      string `json:"slot" doc:"its slot"`
	// From is up to where everything is published; Until is where it was looked to.
	From  event.LSN `json:"from_lsn" doc:"up to here everything is published"`
	Until event.LSN `json:"until_lsn" doc:"up to here it was looked"`
	// SlotAt is where the slot stands: nothing before it can be read.
	SlotAt event.LSN `json:"slot_lsn" doc:"where the slot stands; what ended before it can not be read"`
	// Doubt says why From cannot be trusted: with these words a run refuses to start.
	Doubt string `json:"doubt,omitempty" doc:"why from_lsn can not be trusted, where a run would refuse to start"`
	// Complete is false where the look ended early, in the transaction at StoppedAt.
	Complete  bool       `json:"complete" doc:"false where the look ended early, at max_events"`
	StoppedAt *event.LSN `json:"stopped_at_lsn" doc:"the transaction in which it ended early"`
	// Events, in Transactions, are not published; Bytes are their keys and values.
	Transactions int64 `json:"transactions" doc:"transactions with events that are not published"`
	Events       int64 `json:"events" doc:"events that are not published"`
	Bytes        int64 `json:"bytes" doc:"of keys and values"`
	// Parked are no more to be published from the stream: they have a row in postrider.parked.
	Parked int64 `json:"parked" doc:"events besides that are in the parked store already, whatever became of them"`
	// Oldest and Newest are commit times.
	Oldest *time.Time `json:"oldest_commit_time"`
	Newest *time.Time `json:"newest_commit_time"`
	Counts []Count    `json:"counts"`
	// First are the first events in the order in which they would be published.
	First []Event `json:"first"`
	// Notes are things that a person should know of.
	Notes []string `json:"notes"`

	// Inside is set where Until lies inside a commit record, which ends there.
	Inside event.LSN `json:"-"`
}

// Count counts events of one kind.
type Count struct {
	Outcome   string `json:"outcome" doc:"publish, held, park or halt"`
	Reason    string `json:"reason,omitempty" doc:"why it is refused"`
	EventType string `json:"event_type"`
	Topic     string `json:"topic"`
	Events    int64  `json:"events"`
	Bytes     int64  `json:"bytes"`
}

// Event is one event as it would be published. Key, headers' values and payload are
// there only where they were asked for.
type Event struct {
	CommitLSN        event.LSN `json:"commit_lsn"`
	Index            uint64    `json:"event_index"`
	CommitTime       time.Time `json:"commit_time"`
	Outcome          string    `json:"outcome"`
	Reason           string    `json:"reason,omitempty"`
	Detail           string    `json:"detail,omitempty"`
	Topic            string    `json:"topic"`
	EventID          string    `json:"event_id"`
	EventType        string    `json:"event_type"`
	AggregateType    string    `json:"aggregate_type"`
	AggregateVersion string    `json:"aggregate_version"`
	Partition        *int32    `json:"partition"`
	Timestamp        time.Time `json:"timestamp"`
	HeaderNames      []string  `json:"header_names"`
	KeyBytes         int       `json:"key_bytes"`
	ValueBytes       int       `json:"value_bytes"`
	// Tombstone says that the value is null.
	Tombstone bool     `json:"tombstone"`
	Key       []byte   `json:"key,omitempty"`
	Value     []byte   `json:"value,omitempty"`
	Headers   []Header `json:"headers,omitempty"`
}

// Header is a record header.
type Header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

type kind struct{ outcome, reason, eventType, topic string }

// mostKinds bounds Counts: topics and types come from the rows.
const mostKinds = 1000

// others takes in what is beyond mostKinds.
const others = "(others)"

// tally counts kinds of events.
type tally map[kind]*Count

func (t tally) add(k kind, bytes int64) {
	c := t[k]
	if c == nil && len(t) >= mostKinds {
		k.eventType, k.topic = others, others
		c = t[k]
	}
	if c == nil {
		c = &Count{Outcome: k.outcome, Reason: k.reason, EventType: k.eventType, Topic: k.topic}
		t[k] = c
	}
	c.Events++
	c.Bytes += bytes
}

// sorted has the most frequent first.
func (t tally) sorted() []Count {
	list := make([]Count, 0, len(t))
	for _, c := range t {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Events, a.Events), cmp.Compare(a.EventType, b.EventType), cmp.Compare(a.Topic, b.Topic),
			cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}
