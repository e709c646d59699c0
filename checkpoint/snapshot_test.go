package checkpoint_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
)

func TestParseSnapshot(t *testing.T) {
	t.Parallel()
	good := map[string]checkpoint.Snapshot{
		"10:20:10,14,15":         {Xmin: 10, Xmax: 20, Running: []uint64{10, 14, 15}},
		"795:799:":               {Xmin: 795, Xmax: 799},
		"3:3:":                   {Xmin: 3, Xmax: 3},
		"4294967400:4294967401:": {Xmin: 4294967400, Xmax: 4294967401},
		"18446744073709551614:18446744073709551615:18446744073709551614": {
			Xmin: 18446744073709551614, Xmax: 18446744073709551615, Running: []uint64{18446744073709551614},
		},
	}
	for text, want := range good {
		got, err := checkpoint.ParseSnapshot(text)
		if err != nil || got.Xmin != want.Xmin || got.Xmax != want.Xmax || !slices.Equal(got.Running, want.Running) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", ":", "::", "10:20", "10:20:1x", "x:20:", "10:x:", "20:10:", "10:20:20", "10:20:9",
		"-1:20:", "10:20:15:", " 10:20:", "10:20: 15", "0:5:", "2:5:", "18446744073709551616:18446744073709551616:",
	} {
		if got, err := checkpoint.ParseSnapshot(text); err == nil {
			t.Errorf("%q was accepted as %+v", text, got)
		}
	}
}

// rule 4: xid < S.xmin is ticked off; what is at or past S.xmax, running, or between
// is a suspect; the 64-bit id is found over the wrap of the 32-bit one.
func TestCovered(t *testing.T) {
	t.Parallel()
	const epoch = uint64(1) << 32
	tests := []struct {
		name string
		s    checkpoint.Snapshot
		xmin uint32
		want bool
	}{
		{"before", checkpoint.Snapshot{Xmin: 100, Xmax: 110}, 99, true},
		{"at xmin", checkpoint.Snapshot{Xmin: 100, Xmax: 110}, 100, false},
		{"between, ended: may be a subtransaction", checkpoint.Snapshot{Xmin: 100, Xmax: 110, Running: []uint64{100}}, 105, false},
		{"at xmax", checkpoint.Snapshot{Xmin: 100, Xmax: 110}, 110, false},
		{"after", checkpoint.Snapshot{Xmin: 100, Xmax: 110}, 5000, false},
		{"first normal id", checkpoint.Snapshot{Xmin: 100, Xmax: 110}, 3, true},
		{"frozen", checkpoint.Snapshot{Xmin: 100, Xmax: 110}, 2, true},
		{"bootstrap", checkpoint.Snapshot{Xmin: 100, Xmax: 110}, 1, true},
		{"2^31 - 1 back", checkpoint.Snapshot{Xmin: 1 << 31, Xmax: 1<<31 + 100}, 101, true},
		{"2^31 - 1 ahead", checkpoint.Snapshot{Xmin: 100, Xmax: 110}, 110 + 1<<31 - 1, false},
		{"a young server: nothing is before its first id", checkpoint.Snapshot{Xmin: 100, Xmax: 110}, 4294967295, false},
		{"second epoch, before", checkpoint.Snapshot{Xmin: epoch + 100, Xmax: epoch + 110}, 99, true},
		{"second epoch, after", checkpoint.Snapshot{Xmin: epoch + 100, Xmax: epoch + 110}, 111, false},
		{"row of the epoch before", checkpoint.Snapshot{Xmin: epoch + 100, Xmax: epoch + 110}, 4294967200, true},
		{"row of the epoch after", checkpoint.Snapshot{Xmin: epoch - 20, Xmax: epoch - 10}, 5, false},
		{"snapshot over the wrap, before", checkpoint.Snapshot{Xmin: epoch - 20, Xmax: epoch + 10}, 4294967275, true},
		{"snapshot over the wrap, between", checkpoint.Snapshot{Xmin: epoch - 20, Xmax: epoch + 10}, 4294967276, false},
		{"snapshot over the wrap, between, past it", checkpoint.Snapshot{Xmin: epoch - 20, Xmax: epoch + 10}, 5, false},
	}
	for _, tt := range tests {
		if got := checkpoint.Covered(tt.s, tt.xmin); got != tt.want {
			t.Errorf("%s: xmin %d of %d:%d covered %t", tt.name, tt.xmin, tt.s.Xmin, tt.s.Xmax, got)
		}
	}
}

// rule 4: for every row within 2^31 transactions of the snapshot the answer is that
// of the full id.
func TestCoveredProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		xmax := rapid.Uint64Range(3, 1<<40).Draw(t, "xmax")
		s := checkpoint.Snapshot{Xmin: rapid.Uint64Range(max(3, xmax-min(xmax-3, 1000)), xmax).Draw(t, "xmin"), Xmax: xmax}
		low := uint64(3)
		if xmax > 1<<31+3 {
			low = xmax - 1<<31
		}
		full := rapid.Uint64Range(low, xmax+1<<31-1).Draw(t, "row")
		if uint32(full) < 3 {
			t.Skip("no transaction has this id")
		}
		if got, want := checkpoint.Covered(s, uint32(full)), full < s.Xmin; got != want {
			t.Fatalf("row of %d, snapshot %d:%d: covered %t", full, s.Xmin, s.Xmax, got)
		}
	})
}

// rule 4: a tick counts once everything up to its LSN is confirmed, and a newer one
// does not push out the one that waits.
func TestTickOff(t *testing.T) {
	t.Parallel()
	var ticks checkpoint.TickOff
	if got := ticks.Snapshot(1000); got != "" || !ticks.Wants() {
		t.Fatalf("%q ticked off before any", got)
	}
	ticks.Offer(checkpoint.Tick{Snapshot: "10:10:", LSN: 200})
	ticks.Offer(checkpoint.Tick{Snapshot: "20:20:", LSN: 300})
	for _, step := range []struct {
		confirmed event.LSN
		want      string
		wants     bool
	}{{100, "", false}, {199, "", false}, {200, "10:10:", true}, {900, "10:10:", true}} {
		if got := ticks.Snapshot(step.confirmed); got != step.want || ticks.Wants() != step.wants {
			t.Errorf("confirmed %s: %q, wants another %t", step.confirmed, got, ticks.Wants())
		}
	}
	ticks.Offer(checkpoint.Tick{Snapshot: "30:30:", LSN: 1000})
	if got := ticks.Snapshot(999); got != "10:10:" {
		t.Errorf("%q before its time", got)
	}
	if got := ticks.Snapshot(1000); got != "30:30:" {
		t.Errorf("%q stays", got)
	}
}

// TestTickOffProof: the latch needs a snapshot that covers every event so far. One
// that was taken before an event does not, nor one that saw a transaction running
// which was open when the event came (rules 3 and 4).
func TestTickOffProof(t *testing.T) {
	t.Parallel()
	var ticks checkpoint.TickOff
	offer := func(snapshot string, lsn event.LSN, pending event.LSN) {
		t.Helper()
		ticks.Offer(checkpoint.Tick{Snapshot: snapshot, LSN: lsn})
		if got := ticks.Pending(); got != pending {
			t.Errorf("%s: pending %s, want %s", snapshot, got, pending)
		}
		ticks.Snapshot(lsn)
		if got := ticks.Proved(); got != (pending != 0) {
			t.Errorf("%s: proved %t", snapshot, got)
		}
	}
	offer("10:10:", 100, 100)
	ticks.Event()
	if ticks.Proved() {
		t.Error("a snapshot from before the event proves it")
	}
	// 15 runs: the event's row may be of it, or of a transaction after it.
	offer("15:20:15", 200, 0)
	offer("15:40:15", 300, 0)
	// It has ended; what runs now began after the event.
	offer("30:50:30,45", 400, 400)

	// A tick that waits while an event comes does not prove that event.
	ticks.Offer(checkpoint.Tick{Snapshot: "50:50:", LSN: 500})
	ticks.Event()
	if ticks.Snapshot(500); ticks.Proved() {
		t.Error("a tick from before the event proves it")
	}

	// In the quiet a useless one makes room, a useful one stays.
	ticks.Offer(checkpoint.Tick{Snapshot: "55:60:55", LSN: 600})
	if ticks.Discard(); !ticks.Wants() {
		t.Error("a tick that will not do is kept")
	}
	ticks.Offer(checkpoint.Tick{Snapshot: "60:60:", LSN: 700})
	if ticks.Discard(); ticks.Wants() {
		t.Error("a tick that will do is dropped")
	}
}
