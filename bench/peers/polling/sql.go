package polling

// Schema is the relay's table. The partial index is what such relays are told to have: it holds what waits alone, so
// that a poll costs the same with a million dispatched rows behind it.
const Schema = `CREATE TABLE polling_outbox (
    id             bigserial PRIMARY KEY,
    event_id       uuid NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id   text NOT NULL,
    event_type     text NOT NULL,
    payload        jsonb NOT NULL,
    occurred_at    timestamptz NOT NULL DEFAULT now(),
    dispatched_at  timestamptz
);
CREATE INDEX polling_outbox_waiting ON polling_outbox (id) WHERE dispatched_at IS NULL;
`

// Drop removes the table, so that a job starts on pages that no earlier job has left dead rows in.
const Drop = `DROP TABLE IF EXISTS polling_outbox`

// Fill copies the backlog from the table that the format verb names, in the order that its second verb gives. ids of
// one INSERT … SELECT … ORDER BY are given in that order.
const Fill = `INSERT INTO polling_outbox (event_id, aggregate_type, aggregate_id, event_type, payload, occurred_at)
SELECT event_id, aggregate_type, aggregate_id, event_type, payload, occurred_at FROM %s ORDER BY %s`

// Analyze is run after Fill, outside the measurement: without it the planner guesses, and may sort the whole backlog.
const Analyze = `VACUUM (ANALYZE) polling_outbox`

// Insert is one event as the application writes it. Parameters: event_id, aggregate_type, aggregate_id, event_type,
// payload.
const Insert = `INSERT INTO polling_outbox (event_id, aggregate_type, aggregate_id, event_type, payload)
VALUES ($1, $2, $3, $4, $5)`

const selectBatch = `SELECT id, event_id::text, aggregate_id, event_type, payload::text
FROM polling_outbox WHERE dispatched_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`

const markDispatched = `UPDATE polling_outbox SET dispatched_at = now() WHERE id = ANY($1)`

const deleteDispatched = `DELETE FROM polling_outbox WHERE id = ANY($1)`
