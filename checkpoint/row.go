package checkpoint

import (
	"time"

	"github.com/postrider/postrider/event"
)

// Row is the durable position of one publisher: a row of postrider.checkpoint.
type Row struct {
	Publisher string
	// Slot, SystemID, Timeline bind the position: it means nothing elsewhere (trap 10).
	Slot     string
	SystemID string
	Timeline int32
	// SlotBirth is where the slot was created, known only where setup created it; else 0.
	SlotBirth event.LSN
	// BirthSnapshot is pg_current_snapshot() there, in text form, or "": rows that it sees are from before the slot.
	BirthSnapshot string
	// Confirmed: everything of ours up to it is published or parked.
	Confirmed event.LSN
	// CommitTime is that of the last resolved transaction with events; zero where none is known.
	CommitTime time.Time
	// Events counts the published events over all runs; a replay after a crash counts again.
	Events uint64
	// Idle says that the slot may stand past Confirmed, over WAL without events of ours (rule 3).
	Idle bool
	// Snapshot is the last ticked-off pg_snapshot in text form, or "" (rule 4).
	Snapshot string
	// OldestUnconfirmed is the commit time of the oldest event received and not
	// resolved when the row was written; zero where there was none.
	OldestUnconfirmed time.Time
	// Holder names the process that claimed the row: host, process id.
	Holder string
	// WalsenderPID is the server process behind the holder's stream.
	WalsenderPID uint32
	UpdatedAt    time.Time

	version string // xmin of the row as loaded; "" for a row that was not loaded
}

// Next gives the row that is due for a position, and false where none is (rule 3).
// eventsBefore is the Events of the row that the ledger began with. The caller asks
// at most once a second.
//
// Resolved events make a row without the idle latch: while it stands, a slot past
// the row proves that somebody moved it. When nothing of ours came since and all is
// quiet, one row with the latch follows, and then none until the next event: the
// row itself makes WAL.
func (r Row) Next(pos Position, eventsBefore uint64) (Row, bool) {
	progress := pos.Confirmed > r.Confirmed
	latch := !r.Idle && pos.Quiet && pos.EventFree > r.Confirmed
	if !progress && !latch {
		return r, false
	}
	r.Idle = !progress
	r.Confirmed = pos.EventFree
	r.Events = eventsBefore + pos.Events
	if !pos.CommitTime.IsZero() {
		r.CommitTime = pos.CommitTime
	}
	return r, true
}

// MayConfirm is how far the slot may be confirmed while r is the row that is
// durable: up to its position, and past it only over event-free WAL under the latch.
func (r Row) MayConfirm(pos Position) event.LSN {
	if r.Idle && pos.Confirmed <= r.Confirmed {
		return max(r.Confirmed, pos.EventFree)
	}
	return r.Confirmed
}
