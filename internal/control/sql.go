package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
)

// deskTimeout bounds a statement of a command, and its wait for the checkpoint's row.
const deskTimeout = 10 * time.Second

// readWish gives pgx.ErrNoRows where the publisher has no checkpoint. lock is "" or FOR UPDATE.
func readWish(ctx context.Context, tx pgx.Tx, publisher, lock string) (Pausing, error) {
	var since *time.Time
	var by *string
	err := tx.QueryRow(ctx, `SELECT paused_at, paused_by FROM postrider.checkpoint WHERE publisher = $1 `+lock, publisher).Scan(&since, &by)
	if err != nil || since == nil {
		return Pausing{}, err
	}
	p := Pausing{Since: *since, By: "somebody"}
	if by != nil {
		p.By = *by
	}
	return p, nil
}

// relayOf names the relay that holds the slot: the row is claimed for the walsender
// that the slot is active for.
func relayOf(ctx context.Context, tx pgx.Tx, publisher string) (string, error) {
	var holder string
	err := tx.QueryRow(ctx, `SELECT coalesce(c.holder, '') FROM postrider.checkpoint c
		JOIN pg_catalog.pg_replication_slots s ON s.slot_name = c.slot AND s.active_pid = c.walsender_pid WHERE c.publisher = $1`, publisher).Scan(&holder)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return holder, err
}

// inTx runs fn in a transaction with a bound on each statement, on the server and here.
func inTx(ctx context.Context, conn *pgx.Conn, timeout time.Duration, op, publisher string, fn func(context.Context, pgx.Tx) error) error {
	return inTxOf(ctx, conn, "begin", timeout, op, publisher, fn)
}

func inTxOf(ctx context.Context, conn *pgx.Conn, begin string, timeout time.Duration, op, publisher string, fn func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*timeout, fmt.Errorf("no answer within %s", 2*timeout))
	defer cancel()
	opts := pgx.TxOptions{BeginQuery: fmt.Sprintf("%s; set local statement_timeout = %d", begin, timeout.Milliseconds())}
	err := pgx.BeginTxFunc(ctx, conn, opts, func(tx pgx.Tx) error { return fn(ctx, tx) })
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	return sqlError(op, publisher, err)
}

// sqlError puts an error of the session into an operator's words. An operr.Error passes.
func sqlError(op, publisher string, err error) error {
	var known *operr.Error
	if errors.As(err, &known) {
		return err
	}
	e := &operr.Error{Class: operr.Postgres, Op: op, Subject: fmt.Sprintf("the relay of publisher %q", publisher), Err: err}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		e.Transient = !errors.Is(err, context.Canceled) // not the server's word
		return e
	}
	switch pg.Code {
	case "42P01", "3F000", "42703": // undefined_table, invalid_schema_name, undefined_column
		e.Hint = "postrider setup, which creates or updates the schema postrider"
	case "42501": // insufficient_privilege
		e.Hint = "the grants that postrider setup --print shows for the running role"
	case "25006": // read_only_sql_transaction
		e.Hint = "name the primary in postgres.host"
	}
	for _, class := range []string{"08", "40", "53", "57", "55P03"} {
		e.Transient = e.Transient || strings.HasPrefix(pg.Code, class)
	}
	return e
}
