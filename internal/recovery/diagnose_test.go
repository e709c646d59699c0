package recovery

import (
	"testing"
	"time"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/replication"
)

// rules 2 to 4, traps 8 to 10 and 29, case C32: what the facts mean. Where `run` starts
// nothing is to be recovered; where it does not, the case, the candidates and what becomes
// of the slot follow from the facts alone.
func TestDiagnose(t *testing.T) {
	t.Parallel()
	type (
		row  = checkpoint.Row
		slot = replication.SlotInfo
	)
	// The usual facts, of which each test changes something.
	usual := func() *Facts {
		return &Facts{
			Publisher: "orders", Database: "shop", System: checkpoint.System{ID: "77", Timeline: 2}, WALEnd: 0x900,
			Stored: &row{Publisher: "orders", Slot: "s", SystemID: "77", Timeline: 2, Confirmed: 0x200, Snapshot: "10:20:12"},
			Slot: slot{
				Name: "s", Exists: true, Logical: true, Plugin: replication.Plugin, Database: "shop",
				ConfirmedFlush: 0x200, RestartLSN: 0x180, WALStatus: "reserved",
			},
		}
	}
	gone := func(f *Facts) { f.Slot = slot{Name: "s"} }
	fork := func(at event.LSN) func(*Facts) {
		return func(f *Facts) {
			f.System.Timeline = 3
			f.History = []checkpoint.TimelineSwitch{{Timeline: 2, End: at}}
		}
	}
	tests := []struct {
		name   string
		change []func(*Facts)
		want   Case
		method Method
		scope  Scope
		starts bool
	}{
		{name: "healthy", want: CaseHealthy, method: KeepSlot, scope: Uncovered, starts: true},
		{name: "slot gone", change: []func(*Facts){gone}, want: CaseNoSlot, method: NewSlot, scope: Uncovered},
		{name: "slot lost", change: []func(*Facts){func(f *Facts) { f.Slot.WALStatus = "lost" }}, want: CaseLost, method: NewSlot, scope: Uncovered},
		{name: "slot invalidated", change: []func(*Facts){func(f *Facts) { f.Slot.WALStatus, f.Slot.InvalidationReason = "lost", "idle_timeout" }}, want: CaseLost, method: NewSlot, scope: Uncovered},
		{name: "slot moved", change: []func(*Facts){func(f *Facts) { f.Slot.ConfirmedFlush = 0x300 }}, want: CaseMoved, method: KeepSlot, scope: Uncovered},
		{
			name: "slot moved, nothing ticked off yet", change: []func(*Facts){func(f *Facts) { f.Slot.ConfirmedFlush, f.Stored.Snapshot = 0x300, "" }},
			want: CaseMoved, method: KeepSlot, scope: AllRows,
		},
		{
			name: "older than its own birth", change: []func(*Facts){func(f *Facts) { f.Slot.ConfirmedFlush, f.Stored.SlotBirth = 0x100, 0x180 }},
			want: CaseMoved, method: KeepSlot, scope: Uncovered,
		},
		{
			name: "under the latch it proves itself", change: []func(*Facts){func(f *Facts) { f.Slot.ConfirmedFlush, f.Stored.Idle = 0x300, true }},
			want: CaseDoubtful, method: KeepSlot, scope: Uncovered, starts: true,
		},
		{name: "row of another slot", change: []func(*Facts){func(f *Facts) { f.Stored.Slot = "t" }}, want: CaseOtherSlot, method: KeepSlot, scope: Uncovered},
		{name: "slot of another database", change: []func(*Facts){func(f *Facts) { f.Slot.Database = "old" }}, want: CaseForeign, method: NewSlot, scope: Uncovered},
		{name: "slot of another plugin", change: []func(*Facts){func(f *Facts) { f.Slot.Plugin = "wal2json" }}, want: CaseForeign, method: NewSlot, scope: Uncovered},
		{
			name: "loaded elsewhere: a slot that is older than the loading would stream it", change: []func(*Facts){func(f *Facts) { f.System.ID = "78" }},
			want: CaseOtherSystem, method: NewSlot, scope: AllRows,
		},
		{name: "loaded elsewhere, no slot", change: []func(*Facts){func(f *Facts) { f.System.ID = "78" }, gone}, want: CaseOtherSystem, method: NewSlot, scope: AllRows},
		{name: "promoted without the slot", change: []func(*Facts){fork(0x250), gone}, want: CaseNoSlot, method: NewSlot, scope: Uncovered},
		{name: "promoted without the slot, row past the fork", change: []func(*Facts){fork(0x190), gone}, want: CaseOtherHistory, method: NewSlot, scope: AllRows},
		{
			name: "promoted, slot made by hand, row past the fork", change: []func(*Facts){fork(0x190), func(f *Facts) { f.Slot.ConfirmedFlush = 0x300 }},
			want: CaseOtherHistory, method: KeepSlot, scope: AllRows,
		},
		{
			name: "promoted with a failover slot", change: []func(*Facts){fork(0x250), func(f *Facts) { f.Slot.Failover, f.Slot.ConfirmedFlush = true, 0x240 }},
			want: CaseDoubtful, method: KeepSlot, scope: Uncovered, starts: true,
		},
		{
			name: "an older copy of the database with a newer row", change: []func(*Facts){func(f *Facts) { f.WALEnd = 0x1f0; f.Slot.ConfirmedFlush = 0x100 }},
			want: CaseOtherHistory, method: KeepSlot, scope: AllRows,
		},
		{name: "nothing stored, no slot", change: []func(*Facts){gone, func(f *Facts) { f.Stored = nil }}, want: CaseNoRow, method: NewSlot, scope: AllRows},
		{name: "nothing stored, a slot", change: []func(*Facts){func(f *Facts) { f.Stored = nil }}, want: CaseHealthy, method: KeepSlot, scope: AllRows, starts: true},
	}
	for _, tt := range tests {
		f := usual()
		for _, change := range tt.change {
			change(f)
		}
		d := Diagnose(f)
		if d.Case != tt.want || d.Method != tt.method || d.Scope != tt.scope || d.Needed == tt.starts {
			t.Errorf("%s: %s %s %s, needed %t; want %s %s %s, needed %t", tt.name, d.Case, d.Method, d.Scope, d.Needed, tt.want, tt.method, tt.scope, !tt.starts)
		}
		if d.Says == "" || d.MethodWhy == "" || d.ScopeWhy == "" {
			t.Errorf("%s: something is not explained: %+v", tt.name, d)
		}
	}
}

// A vantage that was not stored, or does not stand where it was, is never trusted.
func TestVantageHolds(t *testing.T) {
	t.Parallel()
	v := &vantage{Slot: "s", SystemID: "77", Timeline: 2, Point: "0/200"}
	facts := func() *Facts {
		return &Facts{
			System: checkpoint.System{ID: "77", Timeline: 2},
			Slot:   replication.SlotInfo{Name: "s", Exists: true, ConfirmedFlush: 0x200, WALStatus: "reserved"},
		}
	}
	if !v.holds(facts()) {
		t.Error("the same slot is not known again")
	}
	if (*vantage)(nil).holds(facts()) {
		t.Error("no vantage holds")
	}
	for name, change := range map[string]func(*Facts){
		"gone":           func(f *Facts) { f.Slot = replication.SlotInfo{Name: "s"} },
		"made anew":      func(f *Facts) { f.Slot.ConfirmedFlush = 0x208 },
		"lost":           func(f *Facts) { f.Slot.WALStatus = "lost" },
		"another name":   func(f *Facts) { f.Slot.Name = "t" },
		"another system": func(f *Facts) { f.System.ID = "78" },
		"promoted":       func(f *Facts) { f.System.Timeline = 3 },
	} {
		f := facts()
		change(f)
		if v.holds(f) {
			t.Errorf("%s: it is trusted", name)
		}
	}
}

// --since leaves out what is older; a row of which nobody knows the time may be missing.
func TestSinceKeepsUndatedRows(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if sel := selection(&Facts{}, AllRows, &since); !sel.Undated || !sel.Since.Equal(since) {
		t.Errorf("%+v", sel)
	}
}
