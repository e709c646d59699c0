package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// Plugin is the only output plugin that is supported.
const Plugin = "pgoutput"

// WALStatusLost is SlotInfo.WALStatus of a slot that cannot be streamed from any more.
const WALStatusLost = "lost"

// SlotInfo is a row of pg_replication_slots.
type SlotInfo struct {
	Name string
	// Exists is false where there is no such slot; then nothing else is set.
	Exists bool
	// Logical is false for a physical slot.
	Logical   bool
	Plugin    string
	Database  string
	Temporary bool
	Active    bool
	// ActivePID is zero where nobody holds the slot.
	ActivePID      uint32
	RestartLSN     event.LSN
	ConfirmedFlush event.LSN
	// WALStatus is reserved, extended, unreserved or lost.
	WALStatus string
	// SafeWALSize is how many bytes of WAL may still be written before the slot
	// may be lost; HasSafeWALSize is false where nothing bounds it.
	SafeWALSize    int64
	HasSafeWALSize bool
	TwoPhase       bool
	// Failover, Synced and InvalidationReason are empty before 17.
	Failover           bool
	Synced             bool
	InvalidationReason string
}

// slotSQL reads by way of JSON what not every version has.
const slotSQL = `SELECT slot_type = 'logical', coalesce(plugin, ''), coalesce(database, ''), temporary, active,
       coalesce(active_pid, 0)::bigint, coalesce(restart_lsn, '0/0')::text, coalesce(confirmed_flush_lsn, '0/0')::text,
       coalesce(wal_status, ''), coalesce(safe_wal_size, 0), safe_wal_size IS NOT NULL, two_phase,
       coalesce((pg_catalog.to_jsonb(s) ->> 'failover')::bool, false),
       coalesce((pg_catalog.to_jsonb(s) ->> 'synced')::bool, false),
       coalesce(pg_catalog.to_jsonb(s) ->> 'invalidation_reason', '')
  FROM pg_catalog.pg_replication_slots s WHERE slot_name = $1`

// ReadSlot reads one slot; a missing one is no error (see SlotInfo.Exists).
func ReadSlot(ctx context.Context, conn *pgx.Conn, name string) (SlotInfo, error) {
	s := SlotInfo{Name: name}
	var pid int64
	var restart, confirmed string
	err := conn.QueryRow(ctx, slotSQL, name).Scan(&s.Logical, &s.Plugin, &s.Database, &s.Temporary, &s.Active,
		&pid, &restart, &confirmed, &s.WALStatus, &s.SafeWALSize, &s.HasSafeWALSize, &s.TwoPhase,
		&s.Failover, &s.Synced, &s.InvalidationReason)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, nil
	}
	if err == nil {
		s.RestartLSN, err = event.ParseLSN(restart)
	}
	if err == nil {
		s.ConfirmedFlush, err = event.ParseLSN(confirmed)
	}
	if err != nil {
		return SlotInfo{Name: name}, classify("read slot", fmt.Sprintf("%q", name), err)
	}
	s.Exists, s.ActivePID = true, uint32(pid)
	return s, nil
}
