package checkpoint_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// rule 2, rule 3, trap 8, trap 9, trap 10, case C31 (a) to (d), case C32.
func TestDecide(t *testing.T) {
	t.Parallel()
	type (
		row  = checkpoint.Row
		slot = checkpoint.SlotState
		line = checkpoint.TimelineSwitch
	)
	// The usual state, of which each test changes something.
	stored := func(change func(*row)) *row {
		r := &row{Publisher: "orders", Slot: "s", SystemID: "77", Timeline: 2, Confirmed: 0x200, CommitTime: noon}
		if change != nil {
			change(r)
		}
		return r
	}
	slotAt := func(lsn event.LSN, change func(*slot)) slot {
		s := slot{Name: "s", Exists: true, Confirmed: lsn, Restart: lsn - 0x10, WALStatus: "reserved"}
		if change != nil {
			change(&s)
		}
		return s
	}
	tests := []struct {
		name    string
		stored  *row
		slot    slot
		sys     checkpoint.System
		history []line
		want    checkpoint.Start
		refused []string // parts of the error
		hint    []string // parts of the remedy
	}{
		{
			name: "first start: where the slot stands, and it says so", slot: slotAt(0x200, nil), sys: checkpoint.System{ID: "77", Timeline: 2},
			want: checkpoint.Start{Skip: 0x200, Timeline: 2},
		},
		{
			name: "slot at the row", stored: stored(nil), slot: slotAt(0x200, nil), sys: checkpoint.System{ID: "77", Timeline: 2},
			want: checkpoint.Start{Skip: 0x200, Timeline: 2},
		},
		{
			name: "slot behind the row, as after a crash of PostgreSQL", stored: stored(nil), slot: slotAt(0x100, nil), sys: checkpoint.System{ID: "77", Timeline: 2},
			want: checkpoint.Start{Skip: 0x200, Timeline: 2},
		},
		{
			name: "slot past the row under the latch", stored: stored(func(r *row) { r.Idle = true }), slot: slotAt(0x300, nil), sys: checkpoint.System{ID: "77", Timeline: 2},
			want: checkpoint.Start{Skip: 0x200, Timeline: 2, Doubtful: true},
		},
		{
			name: "latch, but slot at the row: no doubt", stored: stored(func(r *row) { r.Idle = true }), slot: slotAt(0x200, nil), sys: checkpoint.System{ID: "77", Timeline: 2},
			want: checkpoint.Start{Skip: 0x200, Timeline: 2},
		},
		{
			name: "slot past the row: a gap", stored: stored(nil), slot: slotAt(0x300, nil), sys: checkpoint.System{ID: "77", Timeline: 2},
			refused: []string{`slot "s"`, "stands at 0/300", "stored position 0/200", "2026-01-02 12:00:00", "after 0/200 and up to 0/300 may be missing"},
			hint:    []string{"postrider recover", "postrider checkpoint accept"},
		},
		{
			name: "slot one byte past the row", stored: stored(nil), slot: slotAt(0x201, nil), sys: checkpoint.System{ID: "77", Timeline: 2},
			refused: []string{"0/201"}, hint: []string{"postrider recover", "postrider checkpoint accept"},
		},
		{
			name: "failover slot past the row on the same timeline", stored: stored(nil), slot: slotAt(0x300, func(s *slot) { s.Failover = true }), sys: checkpoint.System{ID: "77", Timeline: 2},
			refused: []string{"may be missing"}, hint: []string{"postrider recover", "postrider checkpoint accept"},
		},
		{
			name: "other system", stored: stored(nil), slot: slotAt(0x100, nil), sys: checkpoint.System{ID: "78", Timeline: 2},
			refused: []string{"system identifier 77", "this server is 78", "may be missing"}, hint: []string{"postgres.host", "postrider recover", "postrider checkpoint accept"},
		},
		{
			name: "row of another slot", stored: stored(func(r *row) { r.Slot = "other" }), slot: slotAt(0x200, nil), sys: checkpoint.System{ID: "77", Timeline: 2},
			refused: []string{`publisher "orders"`, `belongs to slot "other"`}, hint: []string{"another publisher name", "postrider checkpoint accept"},
		},
		{
			name: "slot before its own birth", stored: stored(func(r *row) { r.SlotBirth = 0x180 }), slot: slotAt(0x100, nil), sys: checkpoint.System{ID: "77", Timeline: 2},
			refused: []string{"0/180 where it was created"}, hint: []string{"postrider recover", "postrider checkpoint accept"},
		},
		{
			name: "birth of another timeline says nothing", stored: stored(func(r *row) { r.SlotBirth, r.Timeline = 0x180, 1 }), slot: slotAt(0x100, nil), sys: checkpoint.System{ID: "77", Timeline: 2},
			history: []line{{1, 0x150}},
			want:    checkpoint.Start{Skip: 0x150, Timeline: 2, Parted: true},
		},
		{
			name: "new timeline, row before the fork", stored: stored(nil), slot: slotAt(0x180, nil), sys: checkpoint.System{ID: "77", Timeline: 3},
			history: []line{{1, 0x100}, {2, 0x250}},
			want:    checkpoint.Start{Skip: 0x200, Timeline: 3},
		},
		{
			name: "new timeline, row past the fork: its LSNs mean other events now", stored: stored(nil), slot: slotAt(0x180, nil), sys: checkpoint.System{ID: "77", Timeline: 3},
			history: []line{{1, 0x100}, {2, 0x190}},
			want:    checkpoint.Start{Skip: 0x190, Timeline: 3, Parted: true},
		},
		{
			name: "two promotions on: the fork of the stored timeline counts", stored: stored(nil), slot: slotAt(0x180, nil), sys: checkpoint.System{ID: "77", Timeline: 4},
			history: []line{{1, 0x100}, {2, 0x190}, {3, 0x900}},
			want:    checkpoint.Start{Skip: 0x190, Timeline: 4, Parted: true},
		},
		{
			name: "promotion with a failover slot past the row", stored: stored(nil), slot: slotAt(0x240, func(s *slot) { s.Failover = true }), sys: checkpoint.System{ID: "77", Timeline: 3},
			history: []line{{1, 0x100}, {2, 0x250}},
			want:    checkpoint.Start{Skip: 0x200, Timeline: 3, Doubtful: true},
		},
		{
			name: "promotion, latch, slot past the fork", stored: stored(func(r *row) { r.Idle = true }), slot: slotAt(0x300, nil), sys: checkpoint.System{ID: "77", Timeline: 3},
			history: []line{{1, 0x100}, {2, 0x250}},
			want:    checkpoint.Start{Skip: 0x200, Timeline: 3, Doubtful: true},
		},
		{
			name: "promotion, slot made anew", stored: stored(nil), slot: slotAt(0x300, nil), sys: checkpoint.System{ID: "77", Timeline: 3},
			history: []line{{1, 0x100}, {2, 0x250}},
			refused: []string{"after 0/200 and up to 0/300 may be missing"}, hint: []string{"postrider recover", "postrider checkpoint accept"},
		},
		{
			name: "latch, row past the fork, slot past it: the row's snapshot is of other transactions", stored: stored(func(r *row) { r.Idle = true }),
			slot: slotAt(0x300, nil), sys: checkpoint.System{ID: "77", Timeline: 3},
			history: []line{{1, 0x100}, {2, 0x190}},
			refused: []string{"after 0/190 and up to 0/300 may be missing"}, hint: []string{"postrider recover", "postrider checkpoint accept"},
		},
		{
			name: "failover slot, row past the fork", stored: stored(nil), slot: slotAt(0x300, func(s *slot) { s.Failover = true }), sys: checkpoint.System{ID: "77", Timeline: 3},
			history: []line{{1, 0x100}, {2, 0x190}},
			refused: []string{"after 0/190 and up to 0/300 may be missing"}, hint: []string{"postrider recover", "postrider checkpoint accept"},
		},
		{
			name: "row past the end of the WAL: the database is an older copy", stored: stored(nil), slot: slotAt(0x100, func(s *slot) { s.WALEnd = 0x1ff }), sys: checkpoint.System{ID: "77", Timeline: 2},
			refused: []string{"0/200 lies past the end of this server's WAL at 0/1FF", "older copy"}, hint: []string{"current primary"},
		},
		{
			name: "row at the end of the WAL", stored: stored(nil), slot: slotAt(0x100, func(s *slot) { s.WALEnd = 0x200 }), sys: checkpoint.System{ID: "77", Timeline: 2},
			want: checkpoint.Start{Skip: 0x200, Timeline: 2},
		},
		{
			name: "stored timeline is no ancestor", stored: stored(nil), slot: slotAt(0x200, nil), sys: checkpoint.System{ID: "77", Timeline: 3},
			history: []line{{1, 0x100}},
			refused: []string{"timeline 2", "no ancestor", "timeline 3"}, hint: []string{"current primary", "postrider recover", "postrider checkpoint accept"},
		},
		{
			name: "server is on an older timeline", stored: stored(nil), slot: slotAt(0x200, nil), sys: checkpoint.System{ID: "77", Timeline: 1},
			history: []line{{2, 0x250}},
			refused: []string{"timeline 2", "no ancestor", "timeline 1"}, hint: []string{"current primary"},
		},
		{
			name: "slot missing, nothing stored", slot: slot{Name: "s"}, sys: checkpoint.System{ID: "77", Timeline: 2},
			refused: []string{`slot "s": it does not exist`}, hint: []string{"postrider setup"},
		},
		{
			name: "slot missing", stored: stored(nil), slot: slot{Name: "s"}, sys: checkpoint.System{ID: "77", Timeline: 2},
			refused: []string{"does not exist", "after 0/200", "may be missing"},
			hint:    []string{"postrider recover"},
		},
		{
			name: "slot lost", stored: stored(nil), slot: slotAt(0x180, func(s *slot) { s.WALStatus, s.Reason = "lost", "wal_removed" }), sys: checkpoint.System{ID: "77", Timeline: 2},
			refused: []string{`slot "s"`, "wal_status=lost (wal_removed)", "last confirmed 0/200", "may be missing"},
			hint:    []string{"postrider recover"},
		},
		{
			name: "slot lost, nothing stored", slot: slotAt(0x180, func(s *slot) { s.WALStatus = "lost" }), sys: checkpoint.System{ID: "77", Timeline: 2},
			refused: []string{"wal_status=lost:", "last confirmed 0/180"}, hint: []string{"postrider recover"},
		},
		{
			name: "slot in danger, but whole", stored: stored(nil), slot: slotAt(0x180, func(s *slot) { s.WALStatus = "unreserved" }), sys: checkpoint.System{ID: "77", Timeline: 2},
			want: checkpoint.Start{Skip: 0x200, Timeline: 2},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := checkpoint.Decide(tt.stored, tt.slot, tt.sys, tt.history)
			if tt.refused == nil {
				why := got.Why
				got.Why = ""
				if err != nil || got != tt.want || why == "" {
					t.Fatalf("got %+v %q, error %v, want %+v", got, why, err, tt.want)
				}
				return
			}
			if operr.ClassOf(err) != operr.Slot || operr.IsTransient(err) {
				t.Fatalf("got %+v, error %v of class %v", got, err, operr.ClassOf(err))
			}
			contains(t, "error", err.Error(), tt.refused)
			contains(t, "hint", operr.HintOf(err), tt.hint)
		})
	}
}

func contains(t *testing.T, what, text string, parts []string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s %q lacks %q", what, text, part)
		}
	}
}

// A ledger stays over a reconnect only where nothing can have been passed over.
func TestContinue(t *testing.T) {
	t.Parallel()
	held := checkpoint.Row{Publisher: "p", Slot: "s", SystemID: "77", Timeline: 2, Confirmed: 0x200, CommitTime: time.Time{}}
	pos := checkpoint.Position{Confirmed: 0x250, EventFree: 0x280}
	slot := checkpoint.SlotState{Name: "s", Exists: true, Confirmed: 0x200, WALStatus: "reserved"}
	sys := checkpoint.System{ID: "77", Timeline: 2}
	tests := []struct {
		name   string
		change func()
		ok     bool
	}{
		{"same", func() {}, true},
		{"slot at what is resolved", func() { slot.Confirmed = 0x280 }, true},
		{"slot past what is resolved", func() { slot.Confirmed = 0x281 }, false},
		{"slot gone", func() { slot.Exists = false }, false},
		{"slot lost", func() { slot.WALStatus = "lost" }, false},
		{"other slot", func() { slot.Name = "t" }, false},
		{"other system", func() { sys.ID = "78" }, false},
		{"promoted", func() { sys.Timeline = 3 }, false},
	}
	for _, tt := range tests {
		s, y := slot, sys
		tt.change()
		err := checkpoint.Continue(held, pos, slot, sys)
		if (err == nil) != tt.ok {
			t.Errorf("%s: error %v", tt.name, err)
		}
		slot, sys = s, y
	}
}
