package outbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

var (
	readOnly  = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	readWrite = pgx.TxOptions{IsoLevel: pgx.RepeatableRead}
)

// At makes what follows read at an exported snapshot, for as long as that is kept open;
// "" is the end of it.
func (r *Reader) At(snapshotName string) { r.snapshot = snapshotName }

// Hold makes all that follows, until Release, one transaction of one snapshot. What
// that sees was committed, in the WAL, before the returned position.
func (r *Reader) Hold(ctx context.Context) (upTo event.LSN, err error) {
	if r.held != nil || r.snapshot != "" {
		return 0, &operr.Error{Class: operr.Internal, Op: "hold a snapshot", Err: errors.New("one is held")}
	}
	tx, err := r.conn.BeginTx(ctx, readWrite)
	if err == nil {
		if _, err = nextXID(ctx, tx); err == nil { // its first statement takes the snapshot
			upTo, err = checkpoint.WALPosition(ctx, tx)
		}
		if err != nil {
			_ = tx.Rollback(context.WithoutCancel(ctx)) // the first error is the one to report
		}
	}
	if err != nil {
		return 0, sqlError("hold", "a snapshot", err)
	}
	r.held = tx
	return upTo, nil
}

// Release ends Hold; keep commits what was written under it.
func (r *Reader) Release(ctx context.Context, keep bool) error {
	tx := r.held
	if tx == nil {
		return nil
	}
	r.held = nil
	if keep {
		return sqlError("commit", "what was read", tx.Commit(ctx))
	}
	err := tx.Rollback(context.WithoutCancel(ctx))
	if errors.Is(err, pgx.ErrTxClosed) {
		err = nil
	}
	return sqlError("end", "the reading", err)
}

// inTx runs fn in a transaction of one snapshot.
func (r *Reader) inTx(ctx context.Context, opts pgx.TxOptions, fn func(pgx.Tx) error) error {
	if r.held != nil {
		return pgx.BeginFunc(ctx, r.held, fn)
	}
	return pgx.BeginTxFunc(ctx, r.conn, opts, func(tx pgx.Tx) error {
		if r.snapshot != "" {
			if _, err := tx.Exec(ctx, "SET TRANSACTION SNAPSHOT "+literal(r.snapshot)); err != nil {
				return err
			}
		}
		return fn(tx)
	})
}

// nextXID is the first transaction id that the transaction's snapshot knows nothing of.
func nextXID(ctx context.Context, tx pgx.Tx) (next int64, err error) {
	err = tx.QueryRow(ctx, `SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint`).Scan(&next)
	return next, err
}
