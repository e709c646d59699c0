package replication

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// rule 22: what turns gathering on and off.
func TestPace(t *testing.T) {
	t.Parallel()
	type read struct {
		n      int
		waited time.Duration
		on     bool // afterwards
	}
	quick := func(n int, on bool) read { return read{n, quickRead - 1, on} }
	repeat := func(times int, r read) (reads []read) {
		for range times {
			reads = append(reads, r)
		}
		return reads
	}
	busy := append(repeat(busyAfter-1, quick(300, false)), quick(300, true))
	then := func(before []read, more ...read) []read { return append(append([]read(nil), before...), more...) }
	for name, reads := range map[string][]read{
		"a quiet stream is read at once":      repeat(100, read{300, 2 * time.Millisecond, false}),
		"a burst shorter than the streak":     then(repeat(busyAfter-1, quick(300, false)), then(repeat(1, read{300, quickRead, false}), repeat(busyAfter-1, quick(300, false))...)...),
		"a busy stream gathers":               then(busy, repeat(50, quick(20<<10, true))...),
		"waiting after gathering is no quiet": then(busy, repeat(50, read{thinRead, time.Second, true})...),
		"one thin read does not end it":       then(busy, quick(thinRead-1, true), quick(thinRead, true), quick(thinRead-1, true), quick(thinRead, true)),
		"thin reads in a row end it":          then(busy, quick(thinRead-1, true), quick(thinRead-1, false)),
		"it comes back only after a streak":   then(busy, then([]read{quick(1, true), quick(1, false)}, busy...)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p pace
			for i, r := range reads {
				if p.read(r.n, r.waited, p.gathers()); p.gathers() != r.on {
					t.Fatalf("after read %d: gathers is %t, want %t", i, p.gathers(), r.on)
				}
			}
		})
	}
}

// rule 22: a stream that has to be waited for at least once in so many reads is never gathered, whatever comes in
// between; and one that has become quiet gathers thinMost more times and no more.
func TestQuietStreamsNeverGather(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var p pace
		sizes, quick := rapid.IntRange(1, 1<<20), rapid.IntRange(0, busyAfter-1)
		waits := rapid.Int64Range(int64(quickRead), int64(time.Hour))
		for range rapid.IntRange(1, 50).Draw(t, "bursts") {
			for range quick.Draw(t, "quick reads") {
				p.read(sizes.Draw(t, "size"), 0, p.gathers())
			}
			if p.gathers() {
				t.Fatal("a quiet stream is gathered")
			}
			p.read(sizes.Draw(t, "size"), time.Duration(waits.Draw(t, "wait")), p.gathers())
		}
		for range rapid.IntRange(busyAfter, 100).Draw(t, "busy reads") {
			p.read(1<<16, 0, p.gathers())
		}
		for i := range 10 {
			if p.gathers() != (i < thinMost) {
				t.Fatalf("after %d reads of a quiet stream: gathers is %t", i, p.gathers())
			}
			p.read(rapid.IntRange(1, thinRead-1).Draw(t, "thin"), time.Millisecond, p.gathers())
		}
	})
}
