package reissue

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/postrider/postrider/publisher"
)

// In whatever order events are resolved: what is saved covers resolved events only, no more than the window
// is uncovered, notes are saved once and with the prefix, and nothing is forgotten.
func TestWindowCoversResolvedOnly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2, 12).Draw(t, "size")
		w := newWindow(size, 3, 1)
		var open []int64
		resolved, noted, saved := map[int64]bool{}, map[int64]bool{}, map[int64]bool{}
		next, refused := int64(4), int64(1)
		save := func() {
			s, upTo, changed := w.take()
			if !changed {
				return
			}
			for _, note := range s.Notes {
				if !noted[note.N] || saved[note.N] || note.N > s.Done {
					t.Fatalf("note of %d with prefix %d", note.N, s.Done)
				}
				saved[note.N] = true
			}
			refused += int64(len(s.Notes))
			for n := int64(4); n < next; n++ {
				if slices.Contains(open, n) && n <= s.Done {
					t.Fatalf("%d is open, saved up to %d", n, s.Done)
				}
			}
			if s.Refused != refused {
				t.Fatalf("refused %d, want %d", s.Refused, refused)
			}
			w.keep(s, upTo)
		}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				ok, err := w.enter(next)
				if err != nil {
					t.Fatal(err)
				}
				if uncovered := w.tail - w.saved; uncovered > uint64(size) {
					t.Fatalf("%d uncovered", uncovered)
				}
				if ok {
					open = append(open, next)
					next += int64(rapid.IntRange(1, 3).Draw(t, "gap"))
				}
			case 2:
				if len(open) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				n := open[i]
				open = slices.Delete(open, i, i+1)
				resolved[n] = true
				if rapid.Bool().Draw(t, "refused") {
					noted[n] = true
					w.resolve(n, "refused")
				} else {
					w.acknowledge([]publisher.Run{{Txn: uint64(n), Count: 1}})
				}
			case 3:
				save()
			}
		}
		for _, n := range open {
			w.acknowledge([]publisher.Run{{Txn: uint64(n), Count: 1}})
		}
		open = nil
		save()
		if len(saved) != len(noted) || w.saved != w.tail {
			t.Fatalf("%d of %d notes saved; window %d of %d", len(saved), len(noted), w.saved, w.tail)
		}
	})
}

// A unit is saved with the prefix that covers its refused event, not before: the next run begins at the prefix, where
// earlier events of the unit may still have to go.
func TestUnitsAreSavedWithThePrefix(t *testing.T) {
	t.Parallel()
	h := newHeld(nil)
	a, b := UnitOf("t", []byte("a")), UnitOf("t", []byte("b"))
	h.add(5, a)
	h.add(9, b)
	h.add(11, a)
	if got := h.fresh(8); !slices.Equal(got, []Unit{a}) {
		t.Errorf("up to 8: %v", got)
	}
	h.saved(8)
	if got := h.fresh(20); !slices.Equal(got, []Unit{b}) {
		t.Errorf("up to 20: %v", got)
	}
	text, err := a.MarshalText()
	var back Unit
	if err != nil || back.UnmarshalText(text) != nil || back != a || back.UnmarshalText([]byte("00")) == nil {
		t.Errorf("%s, %v", text, err)
	}
}
