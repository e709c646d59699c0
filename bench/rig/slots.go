package rig

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// CreateSlot makes a slot at the end of the WAL.
func (r *Rig) CreateSlot(ctx context.Context, name string) error {
	_, err := r.conn.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, name)
	return err
}

// CopySlot makes a slot that stands where base does, so that many drains read the same WAL.
func (r *Rig) CopySlot(ctx context.Context, base, name string) error {
	_, err := r.conn.Exec(ctx, `SELECT pg_copy_logical_replication_slot($1, $2)`, base, name)
	return err
}

// DropSlot removes a slot whose reader has been stopped; a slot that is not there is no error. A walsender takes a moment to notice that its
// reader is gone.
func (r *Rig) DropSlot(ctx context.Context, name string) error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := r.conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, name)
		var pg *pgconn.PgError
		if err == nil || !errors.As(err, &pg) || pg.Code != "55006" || time.Now().After(deadline) {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// Slot is what the server tells of a slot.
type Slot struct {
	// PID is the process that reads it; 0 for none.
	PID int
	// Confirmed says that it is confirmed up to where it was asked for.
	Confirmed bool
}

// ReadSlot looks at a slot; end is in PostgreSQL's own form.
func (r *Rig) ReadSlot(ctx context.Context, name, end string) (Slot, error) {
	var s Slot
	err := r.conn.QueryRow(ctx, `SELECT coalesce(active_pid, 0), confirmed_flush_lsn >= $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`,
		name, end).Scan(&s.PID, &s.Confirmed)
	return s, err
}

// Flushed is the end of what is durable in the WAL.
func (r *Rig) Flushed(ctx context.Context) (string, error) {
	// A commit of its own makes everything before it durable, whatever synchronous_commit was.
	if _, err := r.conn.Exec(ctx, `SELECT pg_logical_emit_message(true, 'bench', '')`); err != nil {
		return "", err
	}
	var lsn string
	err := r.conn.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&lsn)
	return lsn, err
}

// Quiet lets the servers finish what lies about, so that it does not fall into a measurement: PostgreSQL its checkpoint, and
// the kernel what the broker has written and never asked to be durable, which else delays somebody's commit half a minute later.
func (r *Rig) Quiet(ctx context.Context) error {
	_, err := r.conn.Exec(ctx, `CHECKPOINT`)
	unix.Sync()
	return err
}

// Backends are the processes that serve others than this program, SQL sessions and walsenders alike.
func (r *Rig) Backends(ctx context.Context) ([]int, error) {
	rows, err := r.conn.Query(ctx, `SELECT pid FROM pg_stat_activity
		WHERE backend_type IN ('client backend', 'walsender') AND application_name <> $1 AND pid <> pg_backend_pid()`, ownName)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
