package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// ErrBackwards says that a position was to be moved back.
var ErrBackwards = errors.New("a slot cannot go back")

// Advanced is what an advance did.
type Advanced struct {
	// From and To are the stored position before and after.
	From event.LSN `json:"from_lsn"`
	To   event.LSN `json:"to_lsn"`
	// SlotFrom and SlotTo are the slot's.
	SlotFrom event.LSN `json:"slot_from_lsn"`
	SlotTo   event.LSN `json:"slot_to_lsn"`
}

// CheckAdvance refuses a target that would go back, lie in the future, or be changed
// under somebody who holds the slot (trap 8, case C40). start is what Decide makes of st.
// Where the position is there already, and the slot too, there is nothing to do: false.
func CheckAdvance(st State, start Start, to event.LSN) (due bool, err error) {
	// Under the latch the slot may stand past the row: a row that is moved clears the latch,
	// and must not stay behind it.
	base := max(start.Skip, st.Slot.Confirmed)
	refuse := func(class operr.Class, cause error, hint string) error {
		return &operr.Error{Class: class, Op: "advance to", Subject: to.String(), Err: cause, Hint: hint}
	}
	switch {
	case to > st.WALEnd:
		return false, refuse(operr.Config, fmt.Errorf("it lies in the future: the WAL ends at %s", st.WALEnd), "--now, which takes the end of the WAL")
	case to < base:
		return false, refuse(operr.Config,
			fmt.Errorf("everything up to %s is published or given up already: %w, PostgreSQL never sends again what lies before its position", base, ErrBackwards),
			"postrider replay, which publishes events again from the table")
	case st.Holder != nil:
		return false, HeldError("advance", st.Slot.Name, *st.Holder)
	}
	return to > base || to > st.Slot.Confirmed, nil
}

// Advance moves the stored position to a target that CheckAdvance lets pass, and then the
// slot. detail goes to the audit, with from and to.
//
// The row comes first, with its line in the audit, and is what counts: the next run skips
// up to it wherever the slot stands. So whenever this ends in between, either nothing was
// done, or all that counts was and is in the audit; done again it goes on with the slot.
// The other way round a slot would stand past its row, which a run rightly refuses. The
// error is an *operr.Error; see ErrChanged.
func (d *Desk) Advance(ctx context.Context, st State, start Start, to event.LSN, detail map[string]any) (Advanced, error) {
	moved := Advanced{From: start.Skip, To: start.Skip, SlotFrom: st.Slot.Confirmed, SlotTo: st.Slot.Confirmed}
	if to > start.Skip {
		if err := d.advanceRow(ctx, st, start, to, detail); err != nil {
			return moved, err
		}
		moved.To = to
	}
	if to <= st.Slot.Confirmed {
		return moved, nil
	}
	at, err := d.advanceSlot(ctx, st, to)
	if err != nil {
		return moved, err
	}
	moved.SlotTo = at
	return moved, nil
}

// advanceRow: a relay that has taken the slot meanwhile either has claimed the row, which
// then is not as it was, or will find that it has changed before it can.
func (d *Desk) advanceRow(ctx context.Context, st State, start Start, to event.LSN, detail map[string]any) error {
	return d.tx(ctx, "advance the position", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := d.writePosition(ctx, tx, st, start, to)
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return d.changed(ctx, tx, "advance")
		}
		return d.audit(ctx, tx, "advance", with(detail, map[string]any{
			"slot": d.cfg.Slot, "from_lsn": start.Skip, "to_lsn": to, "slot_from_lsn": st.Slot.Confirmed, "timeline": st.System.Timeline,
		}))
	})
}

func (d *Desk) writePosition(ctx context.Context, tx pgx.Tx, st State, start Start, to event.LSN) (pgconn.CommandTag, error) {
	if st.Row == nil {
		return tx.Exec(ctx, `
			INSERT INTO postrider.checkpoint (publisher, slot, system_id, timeline, confirmed_lsn, updated_at)
			SELECT $1, $2::text, $3, $4, $5::text::pg_lsn, clock_timestamp()
			WHERE EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $2::text AND active_pid IS NULL)
			ON CONFLICT (publisher) DO NOTHING`,
			d.cfg.Publisher, d.cfg.Slot, st.System.ID, st.System.Timeline, to.String())
	}
	// Without a walsender in the row a relay that comes back begins anew from it, also one
	// whose ledger has what is given up here.
	return tx.Exec(ctx, `
		UPDATE postrider.checkpoint
		SET confirmed_lsn = $5::text::pg_lsn, timeline = $4, idle = false, oldest_unconfirmed = NULL, walsender_pid = NULL,
		    snapshot = CASE WHEN NOT $7 THEN snapshot END, updated_at = clock_timestamp()
		WHERE publisher = $1 AND slot = $2::text AND system_id = $3 AND xmin::text = $6
		  AND EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $2::text AND active_pid IS NULL)`,
		d.cfg.Publisher, d.cfg.Slot, st.System.ID, st.System.Timeline, to.String(), st.Row.version, start.Parted)
}

// advanceSlot moves the slot where the row says so.
func (d *Desk) advanceSlot(ctx context.Context, st State, to event.LSN) (event.LSN, error) {
	var at string
	err := d.conn.QueryRow(ctx, `
		SELECT (pg_replication_slot_advance(slot::name, confirmed_lsn)).end_lsn::text FROM postrider.checkpoint
		WHERE publisher = $1 AND slot = $2 AND confirmed_lsn = $3::text::pg_lsn`, d.cfg.Publisher, d.cfg.Slot, to.String()).Scan(&at)
	if err == nil {
		return event.ParseLSN(at)
	}
	return 0, &operr.Error{
		Class: operr.Slot, Op: "advance", Subject: "slot " + pgx.Identifier{d.cfg.Slot}.Sanitize(),
		Err:  fmt.Errorf("the stored position is %s, but the slot stays at %s: %w", to, st.Slot.Confirmed, err),
		Hint: "the same again; or postrider run, which skips up to the stored position and moves the slot itself",
	}
}

func with(detail, more map[string]any) map[string]any {
	all := map[string]any{}
	for _, m := range []map[string]any{detail, more} {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}
