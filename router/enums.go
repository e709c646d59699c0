package router

// EmptyKey says what happens to a row whose key has length 0.
type EmptyKey string

// NullPayload says what happens to a row whose payload is an SQL NULL.
type NullPayload string

// BlankPayload says what happens to a row whose payload is blank text.
type BlankPayload string

// OnMissing says what happens where an additional column does not exist.
type OnMissing string

// OnNoMatch says what happens to a row that no route applies to.
type OnNoMatch string

// OnRefusal says what happens to an event that cannot be published.
type OnRefusal string

// Unit is the unit of a bigint timestamp since 1970.
type Unit string

// Format is the way in which a column's value is written into a header.
type Format string

// EnvelopeMode is the way in which an envelope is written.
type EnvelopeMode string

// PayloadAs is the way in which EnvelopeJSON writes a payload that is not json.
type PayloadAs string

// The values of the options. The empty value of each is its default.
const (
	EmptyKeyRefuse EmptyKey = "refuse"
	EmptyKeyAllow  EmptyKey = "allow"

	NullPayloadRefuse NullPayload = "refuse"
	// NullPayloadTombstone: the value is null, with an envelope too.
	NullPayloadTombstone NullPayload = "tombstone"
	// NullPayloadNull is Event Router's way: a null value, or an envelope whose
	// payload is null.
	NullPayloadNull NullPayload = "null"

	BlankPayloadKeep      BlankPayload = "keep"
	BlankPayloadTombstone BlankPayload = "tombstone"

	OnMissingError  OnMissing = "error"
	OnMissingIgnore OnMissing = "ignore"

	OnNoMatchRefuse OnNoMatch = "refuse"
	// OnNoMatchRaw is Event Router's way: the field's own value is the topic.
	OnNoMatchRaw OnNoMatch = "raw"

	OnRefusalParkAggregate OnRefusal = "park_aggregate"
	OnRefusalParkEvent     OnRefusal = "park_event"
	OnRefusalHalt          OnRefusal = "halt"

	UnitSeconds Unit = "s"
	UnitMillis  Unit = "ms"
	UnitMicros  Unit = "us"
	UnitNanos   Unit = "ns"

	// FormatText is PostgreSQL's own text.
	FormatText Format = "text"
	// FormatDebezium is the text that Debezium's connector with Connect's default
	// header converter writes.
	FormatDebezium Format = "debezium"

	// EnvelopeJSON splices the payload in as JSON, unchanged.
	EnvelopeJSON EnvelopeMode = "json"
	// EnvelopeDebezium writes the payload as a JSON string, and fields as Connect's
	// JsonConverter does.
	EnvelopeDebezium EnvelopeMode = "debezium"

	// PayloadAsString writes it as a JSON string (bytea: in base64).
	PayloadAsString PayloadAs = "string"
	// PayloadAsJSON takes it as JSON text; a payload that is none is refused.
	PayloadAsJSON PayloadAs = "json"
)
