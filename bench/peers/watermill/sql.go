package watermill

import (
	"strings"

	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/jackc/pgx/v5"
)

// forwarderTopic is where the forwarder reads; the tables' names are given by Config.Table instead.
const forwarderTopic = "events_to_forward"

// offsetsTable is where the subscriber keeps its place.
func offsetsTable(table string) string { return table + "_offsets" }

func schema(table string, batch int) sql.DefaultPostgreSQLSchema {
	return sql.DefaultPostgreSQLSchema{
		SubscribeBatchSize:        batch,
		GenerateMessagesTableName: func(string) string { return quote(table) },
	}
}

func offsets(table string) sql.DefaultPostgreSQLOffsetsAdapter {
	return sql.DefaultPostgreSQLOffsetsAdapter{
		GenerateMessagesOffsetsTableName: func(string) string { return quote(offsetsTable(table)) },
	}
}

// Setup makes the library's tables, empties them, and fills the one of messages from source, a table of the product's
// layout, with topic as every message's destination. A message keeps the transaction id of its row, so the table is
// what an application would have left there: one transaction a row where the source has that.
func Setup(table, source, topic string) (string, error) {
	messages, err := schema(table, 0).SchemaInitializingQueries(
		sql.SchemaInitializingQueriesParams{Topic: forwarderTopic})
	if err != nil {
		return "", err
	}
	places, err := offsets(table).SchemaInitializingQueries(
		sql.OffsetsSchemaInitializingQueriesParams{Topic: forwarderTopic})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("DROP TABLE IF EXISTS " + quote(table) + ", " + quote(offsetsTable(table)) + ";\n")
	for _, q := range append(messages, places...) {
		b.WriteString(strings.TrimRight(q.Query, "; \n\t") + ";\n")
	}
	b.WriteString(expand(`INSERT INTO {table} (uuid, payload, metadata, transaction_id)
SELECT gen_random_uuid()::text, {envelope}, '{}'::json, xid::text::xid8
FROM (SELECT xmin AS xid, * FROM {source} ORDER BY age(xmin) DESC, ctid) outbox;
`, table, source, topic))
	return b.String(), nil
}

// Analyze is run after Setup, outside a transaction.
func Analyze(table string) string { return "VACUUM (ANALYZE) " + quote(table) }

// Insert is one event as forwarder.Publisher writes it in the application's transaction: $1 event_id, $2
// aggregate_type, $3 aggregate_id, $4 event_type, $5 payload.
func Insert(table, topic string) string {
	return expand(`INSERT INTO {table} (uuid, payload, metadata, transaction_id)
SELECT gen_random_uuid()::text, {envelope}, '{}'::json, pg_current_xact_id()
FROM (SELECT $1::uuid AS event_id, $2::text AS aggregate_type, $3::text AS aggregate_id, $4::text AS event_type,
    $5::jsonb AS payload) outbox`, table, "", topic)
}

// envelope is what forwarder.Publisher writes: the message as JSON, its payload in base64 (so its bytes survive any
// JSON column), the partition key and the event's type in the metadata. PostgreSQL breaks base64 into lines, Go does
// not.
const envelope = `json_build_object('destination_topic', {topic}::text, 'uuid', event_id::text,
    'payload', translate(encode(convert_to(payload::text, 'UTF8'), 'base64'), E'\n', ''),
    'metadata', json_build_object('` + metadataID + `', event_id::text, '` + metadataKey + `', aggregate_id, '` + metadataType + `', event_type))`

func expand(text, table, source, topic string) string {
	text = strings.ReplaceAll(text, "{envelope}", envelope)
	return strings.NewReplacer(
		"{table}", quote(table), "{source}", quote(source), "{topic}", "'"+strings.ReplaceAll(topic, "'", "''")+"'",
	).Replace(text)
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
