package checkpoint

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// Accepted is what an acceptance changed.
type Accepted struct {
	// From is what was stored, To what is: the slot's position.
	From event.LSN `json:"from_lsn"`
	To   event.LSN `json:"to_lsn"`
	// Slot, SystemID and Timeline are what the position is bound to now.
	Slot     string `json:"slot"`
	SystemID string `json:"system_id"`
	Timeline int32  `json:"timeline"`
	// SnapshotKept says that the ticked-off snapshot still means the same transactions.
	SnapshotKept bool `json:"snapshot_kept"`
}

// CheckAccept refuses what no acceptance heals: no row, no slot, one from which nothing
// comes any more, one that somebody holds.
func CheckAccept(st State) error {
	switch {
	case st.Row == nil:
		return &operr.Error{
			Class: operr.Config, Op: "accept", Subject: "slot " + pgx.Identifier{st.Slot.Name}.Sanitize(),
			Err:  errors.New("no position is stored, so that there is none to differ from"),
			Hint: "postrider setup, or postrider run: it begins where the slot stands",
		}
	case st.Holder != nil:
		return HeldError("accept", st.Slot.Name, *st.Holder)
	}
	return usable(st.Row, st.Slot)
}

// Accept stores the slot's position, on this server and timeline, as what is published:
// whatever was stored before. One transaction does, with its line in the audit, and only
// while row and slot are as in st. detail goes to the audit.
//
// The ticked-off snapshot stays where it still means the same transactions, since it tells
// which rows are proved to be published (see Row.TickedOff); else it goes, and with it
// that of the slot's birth.
func (d *Desk) Accept(ctx context.Context, st State, history []TimelineSwitch, detail map[string]any) (Accepted, error) {
	if err := CheckAccept(st); err != nil {
		return Accepted{}, err
	}
	_, other := st.Row.TickedOff(st.System, st.Slot.WALEnd, history)
	a := Accepted{
		From: st.Row.Confirmed, To: st.Slot.Confirmed, Slot: d.cfg.Slot, SystemID: st.System.ID, Timeline: st.System.Timeline,
		SnapshotKept: other == nil,
	}
	err := d.tx(ctx, "accept the position", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE postrider.checkpoint c
			SET slot = s.slot_name, system_id = $3, timeline = $4, slot_birth_lsn = NULL, confirmed_lsn = s.confirmed_flush_lsn, idle = false,
			    oldest_unconfirmed = NULL, walsender_pid = NULL, updated_at = clock_timestamp(),
			    snapshot = CASE WHEN $5 THEN c.snapshot END, birth_snapshot = CASE WHEN $5 THEN c.birth_snapshot END
			FROM pg_replication_slots s
			WHERE c.publisher = $1 AND c.xmin::text = $6 AND s.slot_name = $2 AND s.active_pid IS NULL
			  AND s.confirmed_flush_lsn = $7::text::pg_lsn`,
			d.cfg.Publisher, d.cfg.Slot, st.System.ID, st.System.Timeline, a.SnapshotKept, st.Row.version, st.Slot.Confirmed.String())
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return d.changed(ctx, tx, "accept")
		}
		return d.audit(ctx, tx, "accept", with(detail, map[string]any{
			"from_lsn": a.From, "to_lsn": a.To, "slot": a.Slot, "system_id": a.SystemID, "timeline": a.Timeline, "snapshot_kept": a.SnapshotKept,
			"was": map[string]any{"slot": st.Row.Slot, "system_id": st.Row.SystemID, "timeline": st.Row.Timeline, "slot_birth_lsn": st.Row.SlotBirth, "idle": st.Row.Idle, "snapshot": st.Row.Snapshot},
		}))
	})
	if err != nil {
		return Accepted{}, err
	}
	return a, nil
}
