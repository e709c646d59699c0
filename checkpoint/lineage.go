package checkpoint

import (
	"errors"
	"fmt"

	"github.com/postrider/postrider/event"
)

// TickedOff gives the row's snapshot where it says something about the tables of this
// server, and else an error that says why it does not. walEnd is the server's WAL
// insert position, read after the row; history is its timeline history, needed only
// where the row is of another timeline.
//
// Transaction ids mean something in one history of one cluster only. Up to the point
// where two histories part they are the same in both; past it each hands out the same
// ids to other transactions, and a snapshot from there would cover rows that nobody
// has published. S was taken before L and is stored when L is confirmed (rule 4), and
// a transaction that S saw ended has its end in the WAL before L. So S belongs to the
// part in common if confirmed, which is not below L, lies before the fork.
//
// Other databases of the same cluster share its transaction ids: rows that were loaded
// into one have later ids than any snapshot that was ticked off before, and come out
// as not covered, which is the safe side.
func (r *Row) TickedOff(sys System, walEnd event.LSN, history []TimelineSwitch) (Snapshot, error) {
	switch {
	case r.Snapshot == "":
		return Snapshot{}, errors.New("no snapshot is stored")
	case r.SystemID != sys.ID:
		return Snapshot{}, fmt.Errorf("the stored snapshot is of system identifier %s, this server is %s: transaction ids of one mean nothing in the other", r.SystemID, sys.ID)
	}
	end, known := r.commonUpTo(sys, walEnd, history)
	switch {
	case !known:
		return Snapshot{}, fmt.Errorf("the stored snapshot is of timeline %d, which is no ancestor of timeline %d", r.Timeline, sys.Timeline)
	case r.Confirmed > end && r.Timeline == sys.Timeline:
		return Snapshot{}, fmt.Errorf("the stored snapshot was taken up to %s, past the end of this server's WAL at %s: it is of a newer copy of the database", r.Confirmed, end)
	case r.Confirmed > end:
		return Snapshot{}, fmt.Errorf("the stored snapshot was taken up to %s, and timeline %d ended at %s: past it this server gave the same transaction ids to other transactions", r.Confirmed, r.Timeline, end)
	}
	return ParseSnapshot(r.Snapshot)
}

// commonUpTo is where the history of the row and that of the server part, or end;
// false where they have nothing that is known in common.
func (r *Row) commonUpTo(sys System, walEnd event.LSN, history []TimelineSwitch) (event.LSN, bool) {
	if r.Timeline == sys.Timeline {
		if walEnd == 0 {
			return r.Confirmed, true
		}
		return walEnd, true
	}
	for _, h := range history {
		if h.Timeline == r.Timeline && r.Timeline < sys.Timeline {
			return h.End, true
		}
	}
	return 0, false
}
