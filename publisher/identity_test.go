package publisher

import (
	"math"
	"testing"
)

// rule 15: after 2^31-1 comes 0.
func TestSequenceWraps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from  int32
		count int32
		want  int32
	}{
		{0, 10, 10},
		{math.MaxInt32 - 10, 10, math.MaxInt32},
		{math.MaxInt32 - 9, 10, 0},
		{math.MaxInt32, 1, 0},
		{math.MaxInt32, 5, 4},
		{math.MaxInt32 - 2, 10, 7},
	} {
		s := producerState{identity: identity{sequence: c.from}}
		s.advance(c.count)
		if s.identity.sequence != c.want {
			t.Errorf("%d + %d = %d, want %d", c.from, c.count, s.identity.sequence, c.want)
		}
	}
}

// rule 15: a base offset that does not rise is a log reset.
func TestAcknowledgeNoticesResets(t *testing.T) {
	t.Parallel()
	s := producerState{ackedEnd: -1}
	for i, c := range []struct {
		base  int64
		count int32
		reset bool
		end   int64
	}{
		{100, 5, false, 105},
		{105, 1, false, 106},
		{200, 10, false, 210}, // others write too
		{-1, 3, false, 213},   // 46: a lower bound
		{213, 1, false, 214},
		{0, 2, true, 2},
		{2, 2, false, 4},
		{3, 1, true, 4},
	} {
		if got := s.acknowledge(c.base, c.count); got != c.reset || s.ackedEnd != c.end {
			t.Fatalf("step %d: reset %v, end %d, want %v, %d", i, got, s.ackedEnd, c.reset, c.end)
		}
	}
}
