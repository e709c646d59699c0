package run

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/bench/contender"
	"github.com/postrider/postrider/bench/plan"
	"github.com/postrider/postrider/bench/result"
)

func TestEveryStepHasItsContender(t *testing.T) {
	t.Parallel()
	known := map[string]bool{contender.Peek: true, contender.Recvlogical: true}
	for _, c := range contender.All("") {
		known[c.Name()] = true
	}
	for _, s := range plan.Selected(plan.Options{}).Steps {
		if !known[s.Contender] {
			t.Errorf("step %s: nobody is called %s", s.Name, s.Contender)
		}
	}
}

// Slots take 63 characters of a-z, 0-9 and _; so do tables, which get "_v_polling" and the like behind them.
func TestJobNamesAreShortAndTheirOwn(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, s := range plan.Selected(plan.Options{}).Steps {
		name := jobName(s.Name)
		if len(name) > 45 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Errorf("%s is no name for a slot", name)
		}
		if other, twice := seen[name]; twice {
			t.Errorf("%s and %s are both called %s", s.Name, other, name)
		}
		seen[name] = s.Name
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		r    result.Result
		want string
	}{
		{result.Result{Error: "no jars\nand a log"}, "NOT MEASURED: no jars"},
		{
			result.Result{Kind: result.KindDrain, Events: 1000, Seconds: 0.5, CPU: result.CPU{User: 0.002}, PeakRSS: 3 << 20, Check: result.Check{Checked: true}},
			"2000 events/s (0.50 s); CPU 2.00 µs an event, PostgreSQL's 0.00, broker's 0.00; peak 3 MiB; all there (0 duplicates)",
		},
		{
			result.Result{Kind: result.KindDrain, Check: result.Check{Checked: true, Missing: 2, OutOfOrder: 1}},
			"WRONG: 2 missing, 1 out of order, 0 other bytes",
		},
		{result.Result{Kind: result.KindIdle, Seconds: 10, CPU: result.CPU{System: 0.05}}, "0.50 % of a core"},
	} {
		if got := Line(test.r); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}

func TestLatencyNote(t *testing.T) {
	t.Parallel()
	if got := latencyNote(1000, 995, 5, 1000); got != "" {
		t.Errorf("got %q for a run as it should be", got)
	}
	got := latencyNote(5000, 4000, 200, 1000)
	for _, part := range []string{"4000 of 5000", "20 %"} {
		if !strings.Contains(got, part) {
			t.Errorf("%q does not say %s", got, part)
		}
	}
}
