package report

import (
	"fmt"

	"github.com/postrider/postrider/bench/result"
)

// verdict is what the run says of a target.
type verdict int

const (
	unknown verdict = iota // the run has no figures for it
	reached
	missed
)

// outcome is a target's verdict with what it rests on.
type outcome struct {
	verdict  verdict
	measured string // as text, with the range over rounds
	by       string // how far it was missed, or what figures are missing
}

// target is one of the goals that were set before the product was written.
type target struct {
	name, want string
	judge      func(view) outcome
}

const (
	memoryLimit   = 64 * mib
	flatLimit     = 4 * mib // what a process may gain over the later three quarters of an outage and still be called flat
	straightLimit = 0.25    // of excess: single figures are noisy by ±15 %
)

// targets are in the order of the page.
var targets = []target{
	atLeast("Drain, against `pg_recvlogical`", 2, speedRatio(pgRecvlogical), times),
	atLeast("Drain, against Debezium, tuned", 5, speedRatio(debeziumTuned), times),
	atLeast("Drain, against the polling relay", 3, speedRatio(polling), times),
	atLeast("Drain, against the decoding limit", 0.75, speedRatio(peek), times),
	atMost("The walsender's CPU per event, against `pg_recvlogical`", 0.6, middle(func(v view) spread {
		return v.ratio(serverCPU, result.KindDrain, postrider, pgRecvlogical)
	}), times),
	atMost("CPU of the process, per event of 200 bytes", 2, middle(func(v view) spread {
		return cpu.over(v.counted(kind(result.KindDrain), of(postrider)))
	}), micros),
	atMost("Peak memory, drain", memoryLimit, highest(peaks(kind(result.KindDrain))), mebibytes),
	atMost("Peak memory, broker outage", memoryLimit, highest(peaks(kind(result.KindOutage))), mebibytes),
	atMost("Memory gained during the outage (flat)", flatLimit, highest(gains), mebibytes),
	atMost("Peak memory, 96 partitions", memoryLimit, highest(peaks(partitions(96))), mebibytes),
	atMost("Peak memory, one transaction of 1,000,000 rows of 1 KB", memoryLimit, highest(peaks(kind(result.KindHugeTxn))), mebibytes),
	atMost("Commit → consumer at 1,000/s, p50", 1.5, middle(latencyAt(p50, 1000)), millis),
	atMost("Commit → consumer at 1,000/s, p99", 8, middle(latencyAt(p99, 1000)), millis),
	atMost("Commit → consumer at 10/s, p99", 5, middle(latencyAt(p99, 10)), millis),
	atMost("CPU while idle, of a core", 0.5, middle(func(v view) spread {
		return idleCPU.over(v.counted(kind(result.KindIdle), of(postrider)))
	}), percent),
	straight("rows"),
	straight("partitions"),
	straight("payload"),
}

// sample gives the figure that is judged, with the spread that is shown.
type sample func(view) (judged float64, s spread)

func middle(of func(view) spread) sample {
	return func(v view) (float64, spread) { s := of(v); return s.median, s }
}

// highest judges the worst round: a bound on memory has to hold each time.
func highest(of func(view) spread) sample {
	return func(v view) (float64, spread) { s := of(v); return s.hi, s }
}

func speedRatio(peer string) sample {
	return middle(func(v view) spread { return v.ratio(speed, result.KindDrain, postrider, peer) })
}

func peaks(f filter) func(view) spread {
	return func(v view) spread { return peakRSS.over(v.counted(f, of(postrider))) }
}

func partitions(n int) filter {
	return func(r result.Result) bool { return r.Kind == result.KindScale && r.Params.Partitions == n }
}

func latencyAt(m metric, perSec float64) func(view) spread {
	return func(v view) spread {
		return m.over(v.counted(kind(result.KindLatency), of(postrider), rate(perSec)))
	}
}

// gains are the memory that the process gained during each outage.
func gains(v view) spread {
	var values []float64
	for _, r := range v.counted(kind(result.KindOutage), of(postrider)) {
		if gained, ok := gain(r); ok {
			values = append(values, gained)
		}
	}
	return spreadOf(values)
}

// gain compares the median of the last quarter of an outage's samples with that of the second quarter: in the first
// one, the buffers fill.
func gain(r result.Result) (float64, bool) {
	var values []float64
	for _, p := range r.RSS {
		if r.Params.Seconds <= 0 || p.T <= r.Params.Seconds { // what comes later is the backlog of the outage
			values = append(values, p.V)
		}
	}
	quarter := len(values) / 4
	if quarter < 2 {
		return 0, false
	}
	return median(values[len(values)-quarter:]) - median(values[quarter:2*quarter]), true
}

func atLeast(name string, bound float64, from sample, format func(float64) string) target {
	return bounded(name, "≥ ", bound, from, format, func(v float64) bool { return v >= bound })
}

func atMost(name string, bound float64, from sample, format func(float64) string) target {
	return bounded(name, "≤ ", bound, from, format, func(v float64) bool { return v <= bound })
}

func bounded(name, sign string, bound float64, from sample, format func(float64) string, holds func(float64) bool) target {
	judge := func(v view) outcome {
		judged, s := from(v)
		if s.n == 0 {
			return outcome{by: "not measured in this run"}
		}
		o := outcome{verdict: reached, measured: s.text(format)}
		if !holds(judged) {
			o.verdict, o.by = missed, distance(judged, bound)
		}
		return o
	}
	return target{name, sign + format(bound), judge}
}

// distance says how far a figure is from its bound, as a share of the bound.
func distance(v, bound float64) string {
	if v < bound {
		return percent((1-v/bound)*100) + " short"
	}
	return percent((v/bound-1)*100) + " over"
}

// straight judges that cost, in time and in the process's CPU, grows along an axis no faster than in a straight line.
func straight(axis string) target {
	judge := func(v view) outcome {
		points := v.axis(axis, postrider)
		if len(points) < 3 {
			return outcome{by: fmt.Sprintf("%d of at least 3 sizes measured", len(points))}
		}
		c := costsOf(axis, points)
		if c.incomplete() {
			return outcome{by: "not every size has time and CPU"}
		}
		o := outcome{verdict: reached, measured: c.off()}
		if worst := max(excess(c.xs, c.time.values, c.time.grain), excess(c.xs, c.cpu.values, c.cpu.grain)); worst > straightLimit {
			o.verdict, o.by = missed, percent((worst-straightLimit)*100)+" more than allowed"
		}
		return o
	}
	return target{"Cost along the axis: " + axis, fmt.Sprintf("a straight line, within %s", percent(straightLimit*100)), judge}
}

// off says how far time and CPU grow faster than a line.
func (c costs) off() string {
	var texts [2]string
	for i, s := range []series{c.time, c.cpu} {
		texts[i] = "no steeper"
		if e := excess(c.xs, s.values, s.grain); e > 0 {
			texts[i] = fmt.Sprintf("%.0f %% off", e*100)
		}
	}
	return fmt.Sprintf("time %s, CPU %s", texts[0], texts[1])
}
