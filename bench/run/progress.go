package run

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/postrider/postrider/bench/plan"
	"github.com/postrider/postrider/bench/result"
)

// progress tells a person where a run is.
type progress struct {
	out   io.Writer
	total int
	// left is the estimated time of the steps that are not done, in seconds.
	left float64
}

func newProgress(out io.Writer, p plan.Plan) *progress {
	return &progress{out: out, total: len(p.Steps), left: p.Estimate()}
}

func (p *progress) line(format string, args ...any) {
	fmt.Fprintf(p.out, "        "+format+"\n", args...)
}

// did takes what was done beside the steps from the time that is left.
func (p *progress) did(estimate float64) { p.left -= estimate }

// begin announces step i, from 0.
func (p *progress) begin(i int, s plan.Step) {
	left := time.Duration(max(p.left, 1) * float64(time.Second)).Round(time.Second)
	fmt.Fprintf(p.out, "[%d/%d] %s, %s left\n", i+1, p.total, s.Name, left)
	p.left -= s.Estimate
}

func (p *progress) end(s plan.Step, r result.Result) {
	p.line("%s: %s", s.Contender, Line(r))
}

// Line is a result in one line.
func Line(r result.Result) string {
	if r.Error != "" {
		first, _, _ := strings.Cut(r.Error, "\n")
		return "NOT MEASURED: " + first
	}
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	switch {
	case r.Latency != nil:
		add("p50 %.2f ms, p95 %.2f, p99 %.2f, max %.1f of %d", r.Latency.P50, r.Latency.P95, r.Latency.P99, r.Latency.Max, r.Latency.Count)
	case r.Kind == result.KindIdle:
		add("%.2f %% of a core", 100*r.CPU.Total()/r.Seconds)
	case r.Events > 0 && r.Kind != result.KindOutage:
		add("%.0f events/s (%.2f s)", r.EventsPerSec(), r.Seconds)
	}
	if r.Events > 0 {
		each := 1e6 / float64(r.Events)
		add("CPU %.2f µs an event, PostgreSQL's %.2f, broker's %.2f", r.CPU.Total()*each, r.ServerCPU.Total()*each, r.BrokerCPU.Total()*each)
	}
	if r.PeakRSS > 0 {
		add("peak %d MiB", r.PeakRSS>>20)
	}
	if r.BatchMean > 0 {
		add("%.0f events a batch", r.BatchMean)
	}
	switch c := r.Check; {
	case !c.Checked:
	case c.OK():
		add("all there (%d duplicates)", c.Duplicates)
	default:
		add("WRONG: %d missing, %d out of order, %d other bytes", c.Missing, c.OutOfOrder, c.WrongBytes)
	}
	if r.Note != "" {
		add("%s", r.Note)
	}
	return strings.Join(parts, "; ")
}
