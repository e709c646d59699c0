// Package facts puts what package replication reads of a server into the words of
// package checkpoint, which decides by them and knows no replication.
package facts

import (
	"context"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/replication"
)

// Slot is a slot as checkpoint.Decide wants it.
func Slot(s replication.SlotInfo) checkpoint.SlotState {
	return checkpoint.SlotState{
		Name: s.Name, Exists: s.Exists, Confirmed: s.ConfirmedFlush, Restart: s.RestartLSN,
		WALStatus: s.WALStatus, Reason: s.InvalidationReason, Failover: s.Failover,
	}
}

// History reads the timeline history where the stored row (nil: none) is of another
// timeline than the server (rule 2); else there is none to read. It takes a replication
// connection of its own: one that streams answers nothing else.
func History(ctx context.Context, cfg replication.Config, stored *checkpoint.Row, sys checkpoint.System) ([]checkpoint.TimelineSwitch, error) {
	if stored == nil || stored.Timeline == sys.Timeline || sys.Timeline == 1 {
		return nil, nil
	}
	s, err := replication.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer s.Close(context.WithoutCancel(ctx))
	switches, err := s.TimelineHistory(ctx, sys.Timeline)
	if err != nil {
		return nil, err
	}
	history := make([]checkpoint.TimelineSwitch, len(switches))
	for i, sw := range switches {
		history[i] = checkpoint.TimelineSwitch{Timeline: sw.Timeline, End: sw.Switch}
	}
	return history, nil
}
