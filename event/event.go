// Package event holds the types that the other packages hand to each other:
// a position in the log, a row as it was decoded, a message as it will be
// published, and the refusal of a row that cannot become a message.
//
// It is a leaf: it imports nothing of this module and does no I/O.
package event

import (
	"fmt"
	"time"
)

// Position identifies one received insert: the transaction and the index of
// the insert in it. The LSN of a change is never used, because changes of
// interleaved transactions do not rise and several may share one LSN (trap 2).
type Position struct {
	// Commit is the LSN at which the commit record starts, known from the
	// transaction's Begin message on.
	Commit LSN
	// End is the LSN just past the commit record (pgoutput's end_lsn). It is
	// what gets confirmed. Zero while the transaction is still arriving.
	End LSN
	// Index counts all received inserts of the transaction from 0, routed or
	// not, so that a changed configuration does not shift it (rule 10).
	Index uint64
}

// Before says that p's event was committed before q's, or stands before it in their
// transaction.
func (p Position) Before(q Position) bool {
	return p.Commit < q.Commit || p.Commit == q.Commit && p.Index < q.Index
}

// String is for messages to people: "transaction 0/16B3748, event 3".
func (p Position) String() string {
	lsn := p.End
	if lsn == 0 {
		lsn = p.Commit
	}
	return fmt.Sprintf("transaction %s, event %d", lsn, p.Index)
}

// Column is one column of a Relation as PostgreSQL described it on the wire.
type Column struct {
	Name    string
	TypeOID uint32
	TypeMod int32
	// Key says that the column belongs to the replica identity.
	Key bool
}

// Relation is a table as the Relation message that precedes its rows described
// it (not as the catalog describes it now). It is immutable once handed out; a
// changed table arrives as a new Relation with the same OID and a higher
// Generation.
type Relation struct {
	OID       uint32
	Namespace string
	Name      string
	Columns   []Column
	// Generation rises with each Relation message that the process has seen; it
	// lets a cache tell an old description from a new one.
	Generation uint64
}

// String is the qualified name as the catalog has it, without SQL quoting.
func (r *Relation) String() string { return r.Namespace + "." + r.Name }

// ColumnIndex finds a column by its exact name; -1 where there is none.
func (r *Relation) ColumnIndex(name string) int {
	for i := range r.Columns {
		if r.Columns[i].Name == name {
			return i
		}
	}
	return -1
}

// Kind tells how pgoutput sent a column's value.
type Kind byte

const (
	// Null is an SQL NULL ('n').
	Null Kind = 'n'
	// Text is the value in PostgreSQL's own text format ('t').
	Text Kind = 't'
	// Unchanged is a TOASTed value that an UPDATE did not touch ('u'). It
	// cannot occur in an insert; the decoder refuses it there (rule 10).
	Unchanged Kind = 'u'
)

// Value is one column's value. Data aliases the read buffer.
type Value struct {
	Kind Kind
	Data []byte
}

// Row is one inserted row. It and everything that it refers to but Relation is
// valid only until the call that received it returns.
type Row struct {
	Relation *Relation
	// Values has one entry for each of Relation.Columns.
	Values []Value
	// Position.End is zero: the transaction is still arriving.
	Position Position
	// CommitTime is when the transaction committed, by the server's clock.
	CommitTime time.Time
}

// Header is one record header. A nil Value is a null header value, an empty
// one has length zero.
type Header struct {
	Name  string
	Value []byte
}

// NoPartition in Message.Partition leaves the choice to the partitioner.
const NoPartition int32 = -1

// Message is a row after routing. The byte slices may alias the Row or scratch
// space of the router: they are valid only until the next call to the router,
// so the publisher copies what it keeps.
type Message struct {
	Topic string
	// EventID names the event in logs, refusals and the parked store.
	EventID []byte
	// Key is the record key; nil is a null key, which has no order.
	Key []byte
	// Value is the record value; nil is a tombstone, empty is a value of length 0.
	Value   []byte
	Headers []Header
	// TimestampMillis is the record's timestamp, milliseconds since 1970.
	TimestampMillis int64
	// Partition is NoPartition or an explicit partition of the topic.
	Partition int32
	Position  Position

	// AggregateType, EventType and AggregateVersion are the mapped columns' text, empty
	// where they are not mapped or NULL. They are no part of the record: they describe
	// it in the parked store.
	AggregateType    []byte
	EventType        []byte
	AggregateVersion []byte
	// OnRefusal is the policy of the route that gave the topic.
	OnRefusal Policy
	// DeadLetter is the topic that gets a copy of the event if it is parked; "" for none.
	DeadLetter string
}

// Policy says what happens to an event that cannot be published.
type Policy byte

const (
	// Halt stops the pipeline at the event.
	Halt Policy = iota
	// ParkAggregate parks the event and every later one of the same topic and key.
	ParkAggregate
	// ParkEvent parks this one alone: the order of its key is broken.
	ParkEvent
)

// String is the policy as it is configured.
func (p Policy) String() string {
	return [...]string{"halt", "park_aggregate", "park_event"}[p]
}

// Reason names why an event cannot be published. The list is a contract: it
// appears in logs, metrics (label "reason") and the parked store.
type Reason string

// The reasons for which a row or a record is refused.
const (
	ReasonNullKey         Reason = "null_key"
	ReasonEmptyKey        Reason = "empty_key"
	ReasonNullPayload     Reason = "null_payload"
	ReasonNullEventID     Reason = "null_event_id"
	ReasonNullRoute       Reason = "null_route"
	ReasonNoRoute         Reason = "no_route"
	ReasonInvalidTopic    Reason = "invalid_topic"
	ReasonMissingColumn   Reason = "missing_column"
	ReasonUndecodable     Reason = "undecodable_value"
	ReasonTimestamp       Reason = "invalid_timestamp"
	ReasonPartition       Reason = "invalid_partition"
	ReasonHeaders         Reason = "invalid_headers"
	ReasonTooLarge        Reason = "too_large"
	ReasonInvalidRecord   Reason = "invalid_record"
	ReasonUnsupportedType Reason = "unsupported_type"
	// ReasonHeld is an event that is not at fault: it stands behind a parked one of its
	// topic and key.
	ReasonHeld Reason = "held"
)

// Refusal says that one event cannot be published as it is, now or on any
// retry. It never stands for an outage. It implements error.
type Refusal struct {
	Reason Reason
	// Table, Column: where the fault lies; Column may be empty.
	Table  string
	Column string
	// Topic is the target, where routing got that far.
	Topic string
	// EventID is a copy, empty where the row has none.
	EventID  string
	Position Position
	// Detail is a sentence for people, without payload bytes.
	Detail string

	// Policy is what the event's route, or its source, wants to happen.
	Policy Policy
	// Order says whether the event has a place in an order that others wait for.
	Order Order
}

// Order says what is known of a refused event's unit of order, which is its topic and
// its key together.
type Order byte

const (
	// OrderUnknown means that it has a unit, or may have one, and topic or key cannot be told.
	OrderUnknown Order = iota
	// OrderNone means that it has no key, or no topic that could exist.
	OrderNone
	// OrderKnown means that topic and key are known.
	OrderKnown
)

var _ error = (*Refusal)(nil)

// Error names the event, the place and the reason; never payload bytes.
func (r *Refusal) Error() string {
	s := "event refused (" + string(r.Reason) + ")"
	if r.EventID != "" {
		s += " id " + r.EventID
	}
	if r.Table != "" {
		s += " of table " + r.Table
	}
	if r.Column != "" {
		s += " column " + r.Column
	}
	if r.Topic != "" {
		s += " for topic " + r.Topic
	}
	s += " at " + r.Position.String()
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	return s
}
