package plan

import (
	"regexp"
	"slices"
	"testing"

	"github.com/postrider/postrider/bench/result"
)

func TestStepsHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	for _, quick := range []bool{false, true} {
		seen := map[string]bool{}
		for _, s := range Selected(Options{Quick: quick}).Steps {
			if seen[s.Name] {
				t.Errorf("quick %v: %s is there twice", quick, s.Name)
			}
			seen[s.Name] = true
			if s.Estimate <= 0 {
				t.Errorf("%s has no estimate", s.Name)
			}
		}
	}
}

func TestARunEndsInTime(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		quick bool
		limit float64
	}{{false, 3600}, {true, 300}} {
		if got := Selected(Options{Quick: test.quick}).Estimate(); got > test.limit {
			t.Errorf("quick %v is estimated at %.0f s, more than %.0f", test.quick, got, test.limit)
		}
	}
}

func TestEveryBacklogIsAsLargeAsItsSteps(t *testing.T) {
	t.Parallel()
	p := Selected(Options{})
	for _, s := range p.Steps {
		if s.Backlog == "" {
			continue
		}
		if !slices.Contains(p.Backlogs[s.Backlog].Tails, s.Params.Rows) {
			t.Errorf("%s: backlog %s has no slot for the last %d rows", s.Name, s.Backlog, s.Params.Rows)
		}
	}
	// Only what is asked for is loaded.
	p = Selected(Options{Only: regexp.MustCompile("^drain/1/debezium$")})
	if len(p.Steps) != 1 || len(p.Backlogs) != 1 || !slices.Equal(p.Backlogs["outbox"].Tails, []int{250_000}) {
		t.Errorf("got %+v", p)
	}
}

func TestWhatIsDoneIsLeftOut(t *testing.T) {
	t.Parallel()
	all := Selected(Options{})
	done := map[string]bool{}
	for _, s := range all.Steps[:5] {
		done[s.Name] = true
	}
	left := Selected(Options{Done: func(name string) bool { return done[name] }})
	if len(left.Steps) != len(all.Steps)-5 || left.Steps[0].Name != all.Steps[5].Name {
		t.Errorf("%d of %d steps are left, the first is %s", len(left.Steps), len(all.Steps), left.Steps[0].Name)
	}
}

func TestRoundsAreInterleaved(t *testing.T) {
	t.Parallel()
	var drains []Step
	for _, s := range Selected(Options{}).Steps {
		if s.Kind == result.KindDrain {
			drains = append(drains, s)
		}
	}
	n := len(drainOrder)
	if len(drains) != 3*n {
		t.Fatalf("%d drains", len(drains))
	}
	for i, s := range drains {
		if s.Contender != drainOrder[i%n] || s.Round != 1+i/n {
			t.Errorf("step %d is %s", i, s.Name)
		}
	}
}
