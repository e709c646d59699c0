package watermill

import (
	"fmt"
	"strings"
)

// ForwarderTopic is where the forwarder reads: the table "watermill_events_to_forward".
const ForwarderTopic = "events_to_forward"

// Table is DefaultPostgreSQLSchema's name for the messages of ForwarderTopic.
const Table = `"watermill_` + ForwarderTopic + `"`

// Drop removes what Setup makes.
const Drop = `DROP TABLE IF EXISTS ` + Table + `, "watermill_offsets_` + ForwarderTopic + `"`

// Analyze is run after the fill, outside the measurement.
const Analyze = `VACUUM (ANALYZE) ` + Table

// envelope is what forwarder.Publisher writes: the message as JSON, its payload in base64 (so the bytes survive the
// JSON column), the partition key and the event's type in the metadata. PostgreSQL breaks base64 into lines; Go does
// not. A test compares the two.
const envelope = `json_build_object(
    'destination_topic', %[1]s::text,
    'uuid', event_id::text,
    'payload', translate(encode(convert_to(payload::text, 'UTF8'), 'base64'), E'\n', ''),
    'metadata', json_build_object('` + MetadataID + `', event_id::text, '` + MetadataKey + `', aggregate_id, '` + MetadataType + `', event_type))`

// FillSQL copies the backlog of the table source, in the order of order, into watermill's layout, with topic as the
// destination. Each message keeps the transaction id of its row, so the table is what an application would have
// left there: one transaction a row where the backlog has that.
func FillSQL(topic, source, order string) string {
	return fmt.Sprintf(`INSERT INTO `+Table+` (uuid, payload, metadata, transaction_id)
SELECT gen_random_uuid()::text, `+envelope+`, '{}'::json, xmin::text::xid8
FROM (SELECT xmin, event_id, aggregate_id, event_type, payload FROM %[2]s ORDER BY %[3]s) outbox`,
		literal(topic), source, order)
}

// InsertSQL is one event as forwarder.Publisher writes it in the application's transaction. Parameters: event_id,
// aggregate_type, aggregate_id, event_type, payload.
func InsertSQL(topic string) string {
	return fmt.Sprintf(`INSERT INTO `+Table+` (uuid, payload, metadata, transaction_id)
SELECT gen_random_uuid()::text, `+envelope+`, '{}'::json, pg_current_xact_id()
FROM (SELECT $1::uuid AS event_id, $2::text AS aggregate_type, $3::text AS aggregate_id, $4::text AS event_type, $5::jsonb AS payload) outbox`,
		literal(topic))
}

// literal quotes text for SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
