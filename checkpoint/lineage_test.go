package checkpoint_test

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
)

// rule 4, trap 10: the ticked-off snapshot counts in the history in which it was taken,
// and nowhere else.
func TestTickedOff(t *testing.T) {
	t.Parallel()
	history := []checkpoint.TimelineSwitch{{Timeline: 1, End: 0x100}, {Timeline: 2, End: 0x250}}
	tests := []struct {
		name     string
		snapshot string
		sys      checkpoint.System
		walEnd   event.LSN
		refused  string
	}{
		{name: "here", snapshot: "10:20:", sys: checkpoint.System{ID: "77", Timeline: 2}, walEnd: 0x200},
		{name: "the WAL's end is not known", snapshot: "10:20:", sys: checkpoint.System{ID: "77", Timeline: 2}},
		{name: "confirmed up to the fork", snapshot: "10:20:", sys: checkpoint.System{ID: "77", Timeline: 3}, walEnd: 0x900},
		{name: "none", sys: checkpoint.System{ID: "77", Timeline: 2}, refused: "no snapshot is stored"},
		{name: "broken", snapshot: "10", sys: checkpoint.System{ID: "77", Timeline: 2}, refused: "not a pg_snapshot"},
		{name: "another system", snapshot: "10:20:", sys: checkpoint.System{ID: "78", Timeline: 2}, refused: "system identifier 77, this server is 78"},
		{name: "of a newer copy", snapshot: "10:20:", sys: checkpoint.System{ID: "77", Timeline: 2}, walEnd: 0x1ff, refused: "newer copy of the database"},
		{name: "of an older timeline", snapshot: "10:20:", sys: checkpoint.System{ID: "77", Timeline: 1}, walEnd: 0x900, refused: "no ancestor of timeline 1"},
	}
	for _, tt := range tests {
		row := &checkpoint.Row{SystemID: "77", Timeline: 2, Confirmed: 0x200, Snapshot: tt.snapshot}
		s, err := row.TickedOff(tt.sys, tt.walEnd, history)
		switch {
		case tt.refused == "" && (err != nil || s.Xmin != 10 || s.Xmax != 20):
			t.Errorf("%s: %+v, error %v", tt.name, s, err)
		case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)):
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.refused)
		}
	}
	past := &checkpoint.Row{SystemID: "77", Timeline: 2, Confirmed: 0x251, Snapshot: "10:20:"}
	if _, err := past.TickedOff(checkpoint.System{ID: "77", Timeline: 3}, 0x900, history); err == nil || !strings.Contains(err.Error(), "ended at 0/250") {
		t.Errorf("past the fork: error %v", err)
	}
}
