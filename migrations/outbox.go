package migrations

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

// PayloadType is the type of the default outbox table's payload column.
type PayloadType string

// The payload types of the default outbox table.
const (
	JSONB PayloadType = "jsonb"
	Bytea PayloadType = "bytea"
)

// Table names a table exactly as the catalog has it, without SQL quotes.
type Table struct {
	Schema string
	Name   string
}

// SQL is the quoted, qualified name.
func (t Table) SQL() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// OutboxTableSQL is the default outbox table. The relay reads nothing of it but the
// stream, so it needs no index beyond the primary key. A null payload is a tombstone
// where the mapping says so.
func OutboxTableSQL(table Table, payload PayloadType) (string, error) {
	if payload != JSONB && payload != Bytea {
		return "", &operr.Error{
			Class: operr.Config, Op: "create", Subject: "outbox table " + table.SQL(),
			Err: fmt.Errorf("unknown payload type %q", payload), Hint: "jsonb or bytea",
		}
	}
	return fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s (
    event_id          uuid PRIMARY KEY,
    aggregate_type    text NOT NULL,
    aggregate_id      text NOT NULL,
    aggregate_version bigint,
    event_type        text NOT NULL,
    payload           %s,
    headers           jsonb,
    occurred_at       timestamptz NOT NULL DEFAULT now()
);
`, table.SQL(), payload), nil
}
