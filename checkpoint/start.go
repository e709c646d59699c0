package checkpoint

import (
	"github.com/postrider/postrider/event"
)

// System is the server that a session has reached.
type System struct {
	ID       string
	Timeline int32
}

// TimelineSwitch is one line of a timeline history: Timeline ended at End, and the
// next one in the list goes on from there.
type TimelineSwitch struct {
	Timeline int32
	End      event.LSN
}

// SlotState is the slot as pg_replication_slots shows it.
type SlotState struct {
	Name      string
	Exists    bool
	Confirmed event.LSN // confirmed_flush_lsn
	Restart   event.LSN // restart_lsn
	// WALStatus is reserved, extended, unreserved or lost.
	WALStatus string
	// Reason is invalidation_reason (17+), or "".
	Reason string
	// Failover says that standbys keep a copy of the slot (17+).
	Failover bool
	// WALEnd is the server's WAL insert position, read after the stored row; 0 where
	// nobody asked. A stored position past it is of a newer copy of the database.
	WALEnd event.LSN
}

// Start is where a run begins.
type Start struct {
	// Skip: transactions with end LSN <= Skip are published already. It is what
	// NewLedger begins with.
	Skip event.LSN
	// Timeline is the server's.
	Timeline int32
	// Doubtful says that the slot stands past the stored position for a plausible
	// reason that is not proved: run the tick-off (rule 4) before trusting it.
	Doubtful bool
	// Parted says that the stored position lies past the point at which this server's
	// history left that of the row: the row's snapshot means nothing here, and Claim
	// drops it.
	Parted bool
	// Why is a sentence for the log.
	Why string
}
