package polling

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// Setup makes the relay's table, empties it, and fills it from source, a table of the product's layout, in commit
// order (the ids of one INSERT … SELECT … ORDER BY are given in that order). The partial index is what such relays
// are told to have: it holds what waits alone, so that a poll costs the same with a million dispatched rows behind it.
func Setup(table, source string) string {
	return expand(`DROP TABLE IF EXISTS {table};
CREATE TABLE {table} (
    id             bigserial PRIMARY KEY,
    event_id       uuid NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id   text NOT NULL,
    event_type     text NOT NULL,
    payload        jsonb NOT NULL,
    occurred_at    timestamptz NOT NULL DEFAULT now(),
    dispatched_at  timestamptz
);
INSERT INTO {table} (event_id, aggregate_type, aggregate_id, event_type, payload, occurred_at)
SELECT event_id, aggregate_type, aggregate_id, event_type, payload, occurred_at FROM {source} ORDER BY age(xmin) DESC, ctid;
CREATE INDEX ON {table} (id) WHERE dispatched_at IS NULL;
`, table, source)
}

// Analyze is run after Setup, outside a transaction: without it the planner guesses, and may sort the whole backlog.
func Analyze(table string) string { return expand(`VACUUM (ANALYZE) {table}`, table, "") }

// Insert is one event as the application writes it: $1 event_id, $2 aggregate_type, $3 aggregate_id, $4 event_type,
// $5 payload.
func Insert(table string) string {
	return expand(`INSERT INTO {table} (event_id, aggregate_type, aggregate_id, event_type, payload)
VALUES ($1, $2, $3, $4, $5)`, table, "")
}

const (
	selectBatch = `SELECT id, event_id::text, aggregate_id, event_type, payload::text
FROM {table} WHERE dispatched_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`

	markDispatched = `UPDATE {table} SET dispatched_at = now() WHERE id = ANY($1)`

	deleteDispatched = `DELETE FROM {table} WHERE id = ANY($1)`
)

func expand(sql, table, source string) string {
	return strings.NewReplacer(
		"{table}", pgx.Identifier{table}.Sanitize(), "{source}", pgx.Identifier{source}.Sanitize(),
	).Replace(sql)
}
