package replication

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	t.Parallel()
	const full = 256 << 10
	type step struct {
		waited time.Duration
		n      int
		pause  time.Duration
	}
	quick := func(n int, pause time.Duration) step { return step{10 * time.Microsecond, n, pause} }
	repeat := func(times int, s step) (steps []step) {
		for range times {
			steps = append(steps, s)
		}
		return steps
	}
	for name, steps := range map[string][]step{
		"a quiet stream is read at once":     repeat(100, step{2 * time.Millisecond, 300, 0}),
		"a burst shorter than the streak":    append(repeat(busyAfter-1, quick(300, 0)), step{time.Second, 300, 0}, quick(300, 0)),
		"a busy stream gathers":              append(repeat(busyAfter-1, quick(300, 0)), repeat(50, quick(20<<10, gatherFor))...),
		"a full buffer needs no pause":       append(repeat(busyAfter-1, quick(300, 0)), quick(20<<10, gatherFor), quick(full, 0), quick(full, 0), quick(20<<10, gatherFor)),
		"a pause that found little was idle": append(repeat(busyAfter-1, quick(300, 0)), quick(300, gatherFor), quick(thinRead-1, 0), quick(300, 0)),
		"a wait ends it":                     append(repeat(busyAfter-1, quick(300, 0)), quick(300, gatherFor), step{quickRead, 20 << 10, 0}, quick(300, 0)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p pace
			for i, s := range steps {
				if p.read(s.waited, s.n, full); p.pause() != s.pause {
					t.Fatalf("after step %d the pause is %s, want %s", i, p.pause(), s.pause)
				}
			}
		})
	}
}
