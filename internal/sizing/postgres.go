package sizing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

const appName = "postrider bench"

// server is what was found out about PostgreSQL by reading.
type server struct {
	version, address string
	leftovers        []string
}

// checkServer asks what makes a measurement impossible, all at once, and writes nothing.
func checkServer(ctx context.Context, conn *pgx.Conn) (server, error) {
	var problems []error
	for _, problem := range replication.Check(ctx, conn, replication.CheckConfig{}) {
		problems = append(problems, problem)
	}
	var s server
	var role string
	var mayCreate bool
	err := conn.QueryRow(ctx, `SELECT split_part(current_setting('server_version'), ' ', 1), current_user, r.rolcreatedb OR r.rolsuper
		FROM pg_catalog.pg_roles r WHERE r.rolname = current_user`).Scan(&s.version, &role, &mayCreate)
	switch {
	case err != nil:
		problems = append(problems, sqlError("check", "role", err))
	case !mayCreate:
		problems = append(problems, &operr.Error{
			Class: operr.Postgres, Op: "check role", Subject: fmt.Sprintf("%q", role), Err: errors.New("it may not create a database, which this run needs for itself"),
			Hint: "as a superuser: ALTER ROLE " + pgx.Identifier{role}.Sanitize() + " CREATEDB; or another role, for this command alone",
		})
	}
	s.address = fmt.Sprintf("%s port %d", conn.Config().Host, conn.Config().Port)
	leftovers, err := readLeftovers(ctx, conn)
	if err != nil {
		problems = append(problems, err)
	}
	s.leftovers = leftovers
	return s, errors.Join(problems...)
}

// readLeftovers names idle slots of earlier runs.
func readLeftovers(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT slot_name FROM pg_catalog.pg_replication_slots WHERE starts_with(slot_name, $1) AND NOT active ORDER BY 1`, namePrefix)
	if err != nil {
		return nil, sqlError("look for", "slots of earlier runs", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, sqlError("look for", "slots of earlier runs", err)
	}
	return names, nil
}

// loadChunk is how many rows are written between two looks at the progress.
const loadChunk = 10_000

// load writes the backlog and says how much WAL the server wrote meanwhile, and where
// the last commit ends.
func load(ctx context.Context, conn *pgx.Conn, cfg Config, told func(rows int)) (walBytes int64, end event.LSN, err error) {
	// The loader need not wait for the disk; its WAL is flushed below.
	if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
		return 0, 0, sqlError("prepare", "the loading session", err)
	}
	before, err := walEnd(ctx, conn)
	if err != nil {
		return 0, 0, err
	}
	chunk := max(loadChunk/cfg.PerTx, 1) * cfg.PerTx
	for at := 0; at < cfg.Rows; at += chunk {
		call := fmt.Sprintf("CALL public.load_backlog(%d, %d, %d, %d, %d)", at, min(at+chunk, cfg.Rows)-1, cfg.PerTx, backlogKeys, cfg.Payload-len(payloadFrame))
		if _, err := conn.Exec(ctx, call, pgx.QueryExecModeSimpleProtocol); err != nil {
			return 0, 0, sqlError("write", "the backlog", err)
		}
		told(min(at+chunk, cfg.Rows))
	}
	after, err := walEnd(ctx, conn)
	if err != nil {
		return 0, 0, err
	}
	return int64(after - before), after, flush(ctx, conn)
}

// flush makes all WAL so far durable, and so visible to decoding: it commits, waiting
// for the disk, a message that publishes nothing.
func flush(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SET synchronous_commit = on")
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT pg_catalog.pg_logical_emit_message(true, $1, '')", appName)
	}
	if err != nil {
		return sqlError("flush", "the backlog", err)
	}
	return nil
}

func walEnd(ctx context.Context, conn *pgx.Conn) (event.LSN, error) {
	var text string
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_current_wal_insert_lsn()::text").Scan(&text); err != nil {
		return 0, sqlError("read", "the WAL's end", err)
	}
	return event.ParseLSN(text)
}

// peekLimit bounds the rows of a peek: the server keeps them all in a temporary file.
const peekLimit = 500_000

// peek has the server decode the backlog and throw it away, without moving the slot: no
// reader can be faster. It gives the rows a second.
func peek(ctx context.Context, conn *pgx.Conn, name string) (float64, error) {
	const insert = 'I' // pgoutput's message byte
	began := time.Now()
	var rows int
	err := conn.QueryRow(ctx, `SELECT count(*) FILTER (WHERE get_byte(data, 0) = $3)
		FROM pg_catalog.pg_logical_slot_peek_binary_changes($1, NULL, $2, 'proto_version', '1', 'publication_names', $4)`,
		name, peekLimit, int(insert), pgx.Identifier{name}.Sanitize()).Scan(&rows)
	if err != nil {
		return 0, sqlError("decode", "the backlog", err)
	}
	return float64(rows) / time.Since(began).Seconds(), nil
}

// sqlError is for statements of this package; others bring operator's errors of their own.
func sqlError(op, subject string, err error) error {
	e := &operr.Error{Class: operr.Postgres, Op: op, Subject: subject, Err: err}
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "42501" { // insufficient_privilege
		e.Hint = "a role with CREATEDB and REPLICATION, for this command alone"
	}
	return e
}
