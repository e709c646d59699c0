package report

import (
	"math"
	"strings"
	"testing"

	"github.com/postrider/postrider/bench/result"
)

// judged is one target's outcome.
func judged(t *testing.T, run result.Run, name string) outcome {
	t.Helper()
	for _, target := range targets {
		if target.name == name {
			return target.judge(view{run})
		}
	}
	t.Fatalf("no target %q", name)
	return outcome{}
}

// edit sets what a target looks at, so that its figure becomes v.
type edit func(run result.Run, v float64) result.Run

func on(k result.Kind, only filter, set func(r *result.Result, v float64)) edit {
	return func(run result.Run, v float64) result.Run {
		return change(run, k, postrider, func(r *result.Result) {
			if only == nil || only(*r) {
				set(r, v)
			}
		})
	}
}

// faster makes Postrider v times as fast as a peer in each round.
func faster(than string) edit {
	return func(run result.Run, v float64) result.Run {
		return change(run, result.KindDrain, postrider, func(r *result.Result) {
			for _, other := range run.Results {
				if other.Kind == result.KindDrain && other.Contender == than && other.Round == r.Round {
					r.Seconds = float64(r.Events) / other.EventsPerSec() / v
				}
			}
		})
	}
}

func setPeak(r *result.Result, v float64) { r.PeakRSS = int64(v) }

func walsender(run result.Run, v float64) result.Run {
	return change(run, result.KindDrain, postrider, func(r *result.Result) {
		for _, other := range run.Results {
			if other.Kind == result.KindDrain && other.Contender == pgRecvlogical && other.Round == r.Round {
				r.ServerCPU = result.CPU{User: other.ServerCPU.Total() / float64(other.Events) * float64(r.Events) * v}
			}
		}
	})
}

// TestTargetsBothSides: every target is reached a little on the good side of its bound and missed a little on the other.
func TestTargetsBothSides(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		good, bad float64
		set       edit
	}{
		"Drain, against `pg_recvlogical`":   {2.01, 1.99, faster(pgRecvlogical)},
		"Drain, against Debezium, tuned":    {5.01, 4.99, faster(debeziumTuned)},
		"Drain, against the polling relay":  {3.01, 2.99, faster(polling)},
		"Drain, against the decoding limit": {0.751, 0.749, faster(peek)},
		"CPU of the process, per event of 200 bytes": {1.99, 2.01, on(result.KindDrain, nil, func(r *result.Result, v float64) {
			r.CPU = result.CPU{User: v / 2 * float64(r.Events) / 1e6, System: v / 2 * float64(r.Events) / 1e6}
		})},
		"The walsender's CPU per event, against `pg_recvlogical`": {0.599, 0.601, walsender},
		"Peak memory, drain":                                     {64 * mib, 64*mib + 1, on(result.KindDrain, round(2), setPeak)},
		"Peak memory, broker outage":                             {64 * mib, 64*mib + 1, on(result.KindOutage, nil, setPeak)},
		"Peak memory, 96 partitions":                             {64 * mib, 64*mib + 1, on(result.KindScale, partitions(96), setPeak)},
		"Peak memory, one transaction of 1,000,000 rows of 1 KB": {64 * mib, 64*mib + 1, on(result.KindHugeTxn, nil, setPeak)},
		"Memory gained during the outage (flat)": {3.9 * mib, 4.1 * mib, on(result.KindOutage, nil, func(r *result.Result, v float64) {
			for i := range r.RSS {
				r.RSS[i].V = 20 * mib
				if i > len(r.RSS)/2 {
					r.RSS[i].V += v
				}
			}
		})},
		"Commit → consumer at 1,000/s, p50": {1.5, 1.51, on(result.KindLatency, rate(1000), func(r *result.Result, v float64) { r.Latency.P50 = v })},
		"Commit → consumer at 1,000/s, p99": {8, 8.01, on(result.KindLatency, rate(1000), func(r *result.Result, v float64) { r.Latency.P99 = v })},
		"Commit → consumer at 10/s, p99":    {5, 5.01, on(result.KindLatency, rate(10), func(r *result.Result, v float64) { r.Latency.P99 = v })},
		"CPU while idle, of a core": {0.499, 0.501, on(result.KindIdle, nil, func(r *result.Result, v float64) {
			r.CPU = result.CPU{User: v / 100 * r.Seconds}
		})},
		"Cost along the axis: rows":       {1, 1.2, power("rows")},
		"Cost along the axis: partitions": {1, 1.5, power("partitions")},
		"Cost along the axis: payload":    {1, 1.5, power("payload")},
	}
	for _, target := range targets {
		c, ok := cases[target.name]
		if !ok {
			t.Errorf("no case for %q", target.name)
			continue
		}
		if o := judged(t, c.set(synthetic(), c.good), target.name); o.verdict != reached || o.by != "" {
			t.Errorf("%s at %v: %+v, want reached", target.name, c.good, o)
		}
		if o := judged(t, c.set(synthetic(), c.bad), target.name); o.verdict != missed || o.by == "" {
			t.Errorf("%s at %v: %+v, want missed, with by how much", target.name, c.bad, o)
		}
		if o := judged(t, without(synthetic(), of(postrider)), target.name); o.verdict != unknown || o.measured != "" {
			t.Errorf("%s without Postrider's steps: %+v, want no verdict", target.name, o)
		}
	}
}

// power makes the cost along an axis grow with a power of the size: 1 is a straight line.
func power(axis string) edit {
	return func(run result.Run, exponent float64) result.Run {
		x := axisX(axis)
		return change(change(run, result.KindScale, postrider, func(r *result.Result) {
			if r.Params.Axis == axis {
				costing(r, axis, x(r.Params), exponent)
			}
		}), result.KindDrain, postrider, func(r *result.Result) { costing(r, axis, x(r.Params), exponent) })
	}
}

func costing(r *result.Result, axis string, x, exponent float64) {
	perEvent := map[string]float64{
		"rows":       2e-6 * math.Pow(x, exponent-1),
		"partitions": 2e-6 + 1e-7*math.Pow(x, exponent),
		"payload":    2e-6 + 1e-9*math.Pow(x, exponent),
	}[axis]
	r.Seconds = perEvent * float64(r.Events)
	r.CPU = result.CPU{User: r.Seconds / 3}
}

// TestByHowMuch: the distance is a share of the bound.
func TestByHowMuch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		v, bound float64
		want     string
	}{{1.5, 2, "25 % short"}, {3, 2, "50 % over"}, {2.002, 2, "0.1 % over"}} {
		if got := distance(c.v, c.bound); got != c.want {
			t.Errorf("distance(%v, %v) = %q, want %q", c.v, c.bound, got, c.want)
		}
	}
}

// TestRatiosAreTakenInsideARound: rounds of different speed do not move a ratio, and a round in which one of the two
// does not count has none.
func TestRatiosAreTakenInsideARound(t *testing.T) {
	t.Parallel()
	run := synthetic()
	for i := range run.Results {
		run.Results[i].Seconds *= float64(run.Results[i].Round)
		if r := &run.Results[i]; r.Step == "drain/2/pg_recvlogical" {
			r.Error = "broken"
		}
	}
	s := view{run}.ratio(speed, result.KindDrain, postrider, pgRecvlogical)
	if want := 170000.0 / 70000; s.n != 2 || math.Abs(s.lo-want) > 1e-9 || math.Abs(s.hi-want) > 1e-9 {
		t.Errorf("%+v, want two rounds of %v", s, want)
	}
}

func TestMemoryIsJudgedByTheWorstRound(t *testing.T) {
	t.Parallel()
	run := on(result.KindDrain, round(3), setPeak)(synthetic(), 80*mib)
	if o := judged(t, run, "Peak memory, drain"); o.verdict != missed || !strings.Contains(o.by, "25 % over") {
		t.Errorf("%+v, want missed by the third round", o)
	}
}

// TestStraightLineNeedsThreeSizes: two points always lie on a line.
func TestStraightLineNeedsThreeSizes(t *testing.T) {
	t.Parallel()
	run := without(synthetic(), func(r result.Result) bool { return r.Params.Axis == "rows" && r.Params.Rows == 2000000 })
	if o := judged(t, run, "Cost along the axis: rows"); o.verdict != unknown || o.by != "2 of at least 3 sizes measured" {
		t.Errorf("%+v, want no verdict", o)
	}
}

// TestStraightLineNeedsEveryFigure: a figure that is not there is no cost of nothing.
func TestStraightLineNeedsEveryFigure(t *testing.T) {
	t.Parallel()
	run := on(result.KindScale, partitions(96), func(r *result.Result, _ float64) { r.CPU = result.CPU{} })(synthetic(), 0)
	if o := judged(t, run, "Cost along the axis: partitions"); o.verdict != unknown || o.by == "" {
		t.Errorf("%+v, want no verdict", o)
	}
}

func TestExcess(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ys   []float64
		want float64
	}{{[]float64{1, 2, 4}, 0}, {[]float64{2, 3, 4}, 0}, {[]float64{4, 4, 4}, 0}, {[]float64{1, 1, 4}, 1}, {[]float64{1, 4, 4}, 1}} {
		if got := excess([]float64{1, 2, 4}, c.ys, make([]float64, 3)); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("excess of %v is %v, want %v", c.ys, got, c.want)
		}
	}
}

// TestTheClockOfCPUIsAllowedFor: a small drain whose CPU reads 20 ms less than it took is no steep cost.
func TestTheClockOfCPUIsAllowedFor(t *testing.T) {
	t.Parallel()
	xs := []float64{50e3, 500e3, 2e6}
	ys := []float64{0.02, 0.4, 1.6}
	if got := excess(xs, ys, []float64{cpuGrain, cpuGrain, cpuGrain}); got > 1e-9 {
		t.Errorf("excess is %v, want 0", got)
	}
	if got := excess(xs, ys, make([]float64, 3)); math.Abs(got-1) > 1e-9 {
		t.Errorf("without the grain, excess is %v, want 1", got)
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	l := fit([]float64{1, 2, 3, 4}, []float64{5, 7, 9, 11})
	if math.Abs(l.intercept-3) > 1e-9 || math.Abs(l.slope-2) > 1e-9 {
		t.Errorf("got %+v, want 3 + 2x", l)
	}
}

func TestFigure(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 0.0005: "0.0005", 0.5234: "0.523", 1.5: "1.5", 12.04: "12", 99.96: "100", 357: "357", 1234: "1,230", 167432: "167,000", 1999600: "2,000,000",
	} {
		if got := figure(v); got != want {
			t.Errorf("figure(%v) = %q, want %q", v, got, want)
		}
	}
	if got := strings.Join([]string{grouped(1234567), grouped(-123), grouped(-1234)}, " "); got != "1,234,567 -123 -1,234" {
		t.Error(got)
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	if got := spreadOf([]float64{3, 1, 2}).text(figure); got != "2 (1–3)" {
		t.Error(got)
	}
	if got := spreadOf([]float64{4, 1}).text(figure); got != "2.5 (1–4)" {
		t.Error(got)
	}
	if got := spreadOf(nil).text(figure); got != none {
		t.Error(got)
	}
}

// TestALatencyOfZeroIsAFigure: an event can be with its consumer before its writer hears of the commit.
func TestALatencyOfZeroIsAFigure(t *testing.T) {
	t.Parallel()
	run := on(result.KindLatency, rate(10), func(r *result.Result, _ float64) { r.Latency.P99 = 0 })(synthetic(), 0)
	if o := judged(t, run, "Commit → consumer at 10/s, p99"); o.verdict != reached || o.measured != "0 ms" {
		t.Errorf("%+v, want 0 ms, reached", o)
	}
}
