package checkpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// Status is what "checkpoint show" prints. The JSON fields are a documented
// contract; LSNs are in PostgreSQL's spelling, times are RFC 3339, and a field that
// is not known is null or absent.
type Status struct {
	Publisher string `json:"publisher"`
	Slot      string `json:"slot"`
	// SlotExists, SlotActive, WalStatus: the slot as the server has it now.
	SlotExists bool   `json:"slot_exists"`
	SlotActive bool   `json:"slot_active"`
	WALStatus  string `json:"wal_status,omitempty"`
	// SafeWALSize is the number of bytes that may still be written before the slot
	// is in danger of being lost; null where nothing limits it.
	SafeWALSize *int64 `json:"safe_wal_size"`
	// Stored is the durable position, Confirmed and Restart the slot's, Current the
	// end of the WAL.
	Stored    *string `json:"stored_lsn"`
	Confirmed *string `json:"confirmed_lsn"`
	Restart   *string `json:"restart_lsn"`
	Current   string  `json:"current_lsn"`
	// BytesBehind is Current minus Confirmed, BytesHeld Current minus Restart: the
	// WAL that the slot keeps from being removed.
	BytesBehind *int64 `json:"bytes_behind"`
	BytesHeld   *int64 `json:"bytes_held"`
	// OldestUnconfirmed is the commit time of the oldest event that the relay had
	// received and not resolved when it last wrote the row (UpdatedAt), and
	// OldestUnconfirmedSeconds its age now.
	OldestUnconfirmed        *time.Time `json:"oldest_unconfirmed_at"`
	OldestUnconfirmedSeconds *float64   `json:"oldest_unconfirmed_seconds"`
	// Idle says that the slot may stand past Stored, over WAL without events.
	Idle            bool       `json:"idle"`
	CommitTime      *time.Time `json:"commit_time"`
	EventsPublished int64      `json:"events_published"`
	SystemID        string     `json:"system_id,omitempty"`
	Timeline        int32      `json:"timeline,omitempty"`
	// Holder is the process that last claimed the position; it holds it now if the
	// slot is active for WalsenderPID.
	Holder       string     `json:"holder,omitempty"`
	Holding      bool       `json:"holding"`
	WalsenderPID int32      `json:"walsender_pid,omitempty"`
	UpdatedAt    *time.Time `json:"updated_at"`
	// PausedAt and PausedBy: the relay holds the slot, or will, and publishes nothing.
	PausedAt *time.Time `json:"paused_at"`
	PausedBy string     `json:"paused_by,omitempty"`
}

// ReadStatus reads the row and the slot in one statement. A missing row or slot is
// not an error: the fields say so.
func ReadStatus(ctx context.Context, conn *pgx.Conn, publisher, slot string) (Status, error) {
	st := Status{Publisher: publisher, Slot: slot}
	if err := readStatus(ctx, conn, &st); err != nil {
		return Status{}, storeError("read the checkpoint", fmt.Sprintf("of publisher %q", publisher), err)
	}
	return st, nil
}

func readStatus(ctx context.Context, conn *pgx.Conn, st *Status) error {
	var walStatus, systemID, holder, pausedBy *string
	var idle *bool
	var events *int64
	var timeline, walsender, active *int32
	var w walPosition
	err := conn.QueryRow(ctx, `
		SELECT `+walPositionSQL+`,
		       s.slot_name IS NOT NULL, s.active_pid, s.wal_status, s.safe_wal_size, s.confirmed_flush_lsn::text, s.restart_lsn::text,
		       c.confirmed_lsn::text, c.idle, c.commit_time, c.events_published, c.system_id, c.timeline,
		       c.holder, c.walsender_pid, c.updated_at, c.paused_at, c.paused_by, c.oldest_unconfirmed,
		       extract(epoch FROM clock_timestamp() - c.oldest_unconfirmed)::float8
		FROM (SELECT) one
		LEFT JOIN pg_replication_slots s ON s.slot_name = $2::text
		LEFT JOIN postrider.checkpoint c ON c.publisher = $1`, st.Publisher, st.Slot).Scan(
		&w.insert, &w.block, &w.segment,
		&st.SlotExists, &active, &walStatus, &st.SafeWALSize, &st.Confirmed, &st.Restart,
		&st.Stored, &idle, &st.CommitTime, &events, &systemID, &timeline,
		&holder, &walsender, &st.UpdatedAt, &st.PausedAt, &pausedBy, &st.OldestUnconfirmed,
		&st.OldestUnconfirmedSeconds)
	if err != nil {
		return err
	}
	st.WALStatus, st.SystemID, st.Holder, st.PausedBy = orEmpty(walStatus), orEmpty(systemID), orEmpty(holder), orEmpty(pausedBy)
	st.Idle, st.EventsPublished = orEmpty(idle), orEmpty(events)
	st.Timeline, st.WalsenderPID = orEmpty(timeline), orEmpty(walsender)
	st.SlotActive = active != nil
	st.Holding = active != nil && walsender != nil && *active == *walsender
	return st.measure(w)
}

// measure fills in what follows from the positions.
func (st *Status) measure(w walPosition) error {
	current, err := w.end()
	if err != nil {
		return err
	}
	st.Current = current.String()
	if st.BytesBehind, err = distance(current, st.Confirmed); err != nil {
		return err
	}
	st.BytesHeld, err = distance(current, st.Restart)
	return err
}

// distance is never negative: the slot may have moved on while the statement ran.
func distance(current event.LSN, from *string) (*int64, error) {
	if from == nil {
		return nil, nil
	}
	lsn, err := event.ParseLSN(*from)
	if err != nil {
		return nil, err
	}
	d := max(0, int64(current)-int64(lsn))
	return &d, nil
}

func orEmpty[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
