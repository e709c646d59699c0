package router

// Config lists the outbox tables of one publisher.
type Config struct {
	Sources []Source
}

// Source is one outbox table: which columns make the message, and which topic it
// goes to.
type Source struct {
	// Schema and Table are exact names as the catalog has them, without SQL
	// quoting. Both are required.
	Schema string
	Table  string
	// Partitions says that the table is partitioned and published without
	// publish_via_partition_root, so that rows arrive under the names of its
	// leaves. The router cannot know which leaf belongs to which root; the caller
	// looks the root up and uses Router.BindAs.
	Partitions bool
	Mapping    Mapping
	// Routes are tried in order; the first one that applies decides. Empty: one
	// route with the topic DefaultTopic.
	Routes []Route
	// OnRefusal is the policy of routes that name none, and of rows that no route
	// takes. Default: park_aggregate.
	OnRefusal OnRefusal
	// DeadLetterTopic gets a copy of each parked event of routes that name none, and of
	// rows that no route takes. Default: none.
	DeadLetterTopic string
}

// DefaultTopic is the topic template of a source that has no routes.
const DefaultTopic = "outbox.event.${aggregate_type}"

// Disabled is the name that leaves a default header, or a source's dead-letter topic, out.
const Disabled = "-"

// Mapping names the column of each field of a message. Column names are exact.
// EventID, Key and Payload are required, all else is optional: an empty name
// means "not mapped".
type Mapping struct {
	// EventID is the column that identifies the event. It becomes the header
	// EventIDHeader. NULL and the empty text are refused.
	EventID string
	// Key is the column of the record key (the aggregate's id). NULL is refused:
	// a record without a key has no order.
	Key string
	// EmptyKey decides about a key of length 0. Default: refuse.
	EmptyKey EmptyKey
	// Payload is the column of the record value, passed on byte for byte.
	Payload string
	// NullPayload decides about an SQL NULL in Payload. Default: refuse.
	NullPayload NullPayload
	// BlankPayload decides about a text payload that is empty or consists of
	// blanks and control characters only. Default: keep.
	BlankPayload BlankPayload

	// AggregateType, EventType and AggregateVersion can be used in topics and in
	// match rules under these names.
	AggregateType    string
	EventType        string
	AggregateVersion string

	// Timestamp is the source of the record's timestamp. Default, and for NULL:
	// the time of commit.
	Timestamp Timestamp
	// Partition is an integer column with an explicit partition. NULL leaves the
	// choice to the partitioner.
	Partition string
	// Tombstone is a boolean column: where it is true the record's value is null,
	// whatever the payload. NULL counts as false.
	Tombstone string

	// EventIDHeader names the header that carries the event id: default "id".
	EventIDHeader string
	// EventTypeHeader names the header that carries the event type, if EventType is
	// mapped: default "event_type".
	EventTypeHeader string
	// AggregateVersionHeader names the header that carries the aggregate's version,
	// if AggregateVersion is mapped: default none.
	AggregateVersionHeader string
	// Headers are further headers, in this order, behind the default ones.
	Headers []Field
	// HeadersColumn is a json or jsonb column that holds one flat object of
	// strings; each member becomes a header, behind all others.
	HeadersColumn string
	// Envelope, where set, wraps the payload and named columns in one JSON object.
	Envelope *Envelope

	// OnMissing decides about a column of Headers, Envelope or Partition that
	// the table does not have. Default: error. Required columns are never ignored.
	OnMissing OnMissing
	// OnNoMatch decides about a row that no route applies to. Default: refuse.
	OnNoMatch OnNoMatch
}

// Timestamp names the column of a record's timestamp.
type Timestamp struct {
	// Column is of type timestamptz, timestamp (taken as UTC) or bigint.
	Column string
	// Unit is required for a bigint column and not allowed for the others.
	Unit Unit
}

// Field is a column that is carried in a header or in the envelope.
type Field struct {
	Column string
	// Name is the name in the message. Default: the column's.
	Name string
	// Format is how the value is written in a header. Default: text. The format of
	// an envelope's field is the envelope's.
	Format Format
}

// Envelope makes the record's value a JSON object: the payload under
// PayloadName, then Fields in order.
type Envelope struct {
	// Mode is EnvelopeJSON by default.
	Mode EnvelopeMode
	// PayloadName is the member that holds the payload: default "payload".
	PayloadName string
	// PayloadAs says how EnvelopeJSON writes a payload that is not json or jsonb.
	// Default: a string.
	PayloadAs PayloadAs
	Fields    []Field
}

// Route is a rule that gives a topic. It is either a template (Topic) or, as in
// Debezium's Event Router, a regular expression over one field (Regex,
// Replacement).
type Route struct {
	// Name is for messages to people; optional.
	Name string
	// Match are conditions that must all hold. Empty: the route always applies.
	Match []Match
	// Topic is a template: text with ${field} in it.
	Topic string

	// By is the field that Regex looks at: default aggregate_type.
	By string
	// Regex is a regular expression in Java's syntax that must match the whole
	// value; where it does not, the next route is tried.
	Regex string
	// Replacement is the topic, in Java's syntax: $1, ${group}, \ escapes.
	Replacement string

	// OnRefusal is what happens to an event of this route that cannot be published.
	// Default: the source's.
	OnRefusal OnRefusal
	// DeadLetterTopic gets a copy of each parked event of this route. Default: the
	// source's; Disabled for none.
	DeadLetterTopic string
}

// Match is one condition on one field; exactly one of Exact, Glob and Regex is
// set. NULL matches nothing.
//
// Fields in By, Match.Field and templates are aggregate_type, event_type,
// aggregate_version and key, as the mapping defines them, and column.NAME for any
// other column.
type Match struct {
	Field string
	Exact *string
	// Glob knows * (any run of characters) and ? (one character).
	Glob string
	// Regex is RE2 and matches anywhere in the value unless it is anchored.
	Regex string
}
