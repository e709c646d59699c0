package report

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/postrider/postrider/bench/result"
)

// Contenders that the report speaks of by name.
const (
	postrider     = "postrider"
	pgRecvlogical = "pg_recvlogical"
	peek          = "peek"
	debezium      = "debezium"
	debeziumTuned = "debezium-tuned"
	polling       = "polling"
	pollingTuned  = "polling-tuned"
	watermill     = "watermill"
)

// names are how contenders are called in tables and charts, in the order in which they are shown.
var names = []struct{ id, name string }{
	{postrider, "Postrider"},
	{"postrider-tls", "Postrider, TLS"},
	{"postrider-gzip", "Postrider, gzip"},
	{"postrider-snappy", "Postrider, snappy"},
	{"postrider-lz4", "Postrider, lz4"},
	{"postrider-zstd", "Postrider, zstd"},
	{debeziumTuned, "Debezium, tuned"},
	{debezium, "Debezium, defaults"},
	{pollingTuned, "Polling relay, tuned"},
	{polling, "Polling relay"},
	{watermill, "watermill's forwarder"},
	{pgRecvlogical, "pg_recvlogical to /dev/null"},
	{peek, "PostgreSQL's decoding alone"},
}

func nameOf(contender string) string {
	for _, n := range names {
		if n.id == contender {
			return n.name
		}
	}
	return contender
}

// rank puts contenders in the order of names; unknown ones come last.
func rank(contender string) int {
	for i, n := range names {
		if n.id == contender {
			return i
		}
	}
	return len(names)
}

// ours says that a contender is Postrider in one of its settings.
func ours(contender string) bool {
	return contender == postrider || strings.HasPrefix(contender, postrider+"-")
}

// absent are the names of known contenders, of those that pass, that have no step.
func absent(results []result.Result, of func(contender string) bool) []string {
	var out []string
	for _, n := range names {
		if of(n.id) && len(only(results, n.id)) == 0 {
			out = append(out, n.name)
		}
	}
	return out
}

// reference says that a contender publishes nothing: it shows what is possible, and is no peer.
func reference(contender string) bool { return contender == peek || contender == pgRecvlogical }

// view asks a run.
type view struct{ run result.Run }

// counts says that a step's figures may be shown as speed: it was measured, and what arrived was right. A drain that
// publishes has to have been checked.
func counts(r result.Result) bool {
	if r.Error != "" || !r.Check.OK() {
		return false
	}
	drains := r.Kind == result.KindDrain || r.Kind == result.KindScale
	return r.Check.Checked || reference(r.Contender) || !drains
}

type filter func(result.Result) bool

func kind(k result.Kind) filter { return func(r result.Result) bool { return r.Kind == k } }
func of(contender string) filter {
	return func(r result.Result) bool { return r.Contender == contender }
}

func rate(perSec float64) filter {
	return func(r result.Result) bool { return r.Params.RatePerSec == perSec }
}
func round(n int) filter { return func(r result.Result) bool { return r.Round == n } }

// all are the steps that pass every filter, in the run's order.
func (v view) all(filters ...filter) []result.Result {
	var out []result.Result
next:
	for _, r := range v.run.Results {
		for _, f := range filters {
			if !f(r) {
				continue next
			}
		}
		out = append(out, r)
	}
	return out
}

// counted are those of all whose figures count.
func (v view) counted(filters ...filter) []result.Result { return v.all(append(filters, counts)...) }

// only are a contender's steps.
func only(results []result.Result, contender string) []result.Result {
	return slices.DeleteFunc(slices.Clone(results), func(r result.Result) bool { return r.Contender != contender })
}

// contenders are those that have steps, in the order of names.
func contenders(results []result.Result) []string {
	var out []string
	for _, r := range results {
		if !slices.Contains(out, r.Contender) {
			out = append(out, r.Contender)
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	return out
}

// rates are the rates of the latency steps, rising.
func (v view) rates() []float64 {
	var out []float64
	for _, r := range v.all(kind(result.KindLatency)) {
		if !slices.Contains(out, r.Params.RatePerSec) {
			out = append(out, r.Params.RatePerSec)
		}
	}
	slices.Sort(out)
	return out
}

// metric is one figure of a step.
type metric struct {
	name   string
	more   bool                        // more is better
	of     func(result.Result) float64 // unmeasured where there is none
	format func(float64) string
}

// unmeasured stands for a figure that a step does not have. Zero will not do: an idle process uses none of the CPU, and an
// event can be with its consumer before the commit has returned to its writer.
var unmeasured = math.NaN()

// orUnmeasured takes zero for "not measured", where a step can't be free and a field that was left out reads as zero.
func orUnmeasured(v float64) float64 {
	if v <= 0 {
		return unmeasured
	}
	return v
}

// over takes the metric of each step that has it.
func (m metric) over(results []result.Result) spread {
	var values []float64
	for _, r := range results {
		if v := m.of(r); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return spreadOf(values)
}

func perEvent(seconds float64, r result.Result) float64 {
	if r.Events == 0 {
		return unmeasured
	}
	return orUnmeasured(seconds / float64(r.Events) * 1e6)
}

func latency(of func(result.Latency) float64) func(result.Result) float64 {
	return func(r result.Result) float64 {
		if r.Latency == nil || r.Latency.Count == 0 {
			return unmeasured
		}
		return of(*r.Latency)
	}
}

var (
	speed     = metric{"events/s", true, func(r result.Result) float64 { return orUnmeasured(r.EventsPerSec()) }, figure}
	cpu       = metric{"CPU per event", false, func(r result.Result) float64 { return perEvent(r.CPU.Total(), r) }, micros}
	serverCPU = metric{"PostgreSQL's CPU per event", false, func(r result.Result) float64 { return perEvent(r.ServerCPU.Total(), r) }, micros}
	brokerCPU = metric{"the broker's CPU per event", false, func(r result.Result) float64 { return perEvent(r.BrokerCPU.Total(), r) }, micros}
	peakRSS   = metric{"peak memory", false, func(r result.Result) float64 { return orUnmeasured(float64(r.PeakRSS)) }, mebibytes}
	startup   = metric{"time from start to the first event", false, func(r result.Result) float64 { return orUnmeasured(r.Startup) }, seconds}
	batch     = metric{"mean batch", true, func(r result.Result) float64 { return orUnmeasured(r.BatchMean) }, figure}
	elapsed   = metric{"time", false, func(r result.Result) float64 { return orUnmeasured(r.Seconds) }, seconds}
	wall      = metric{"time per event", false, func(r result.Result) float64 { return perEvent(r.Seconds, r) }, micros}

	p50  = metric{"p50", false, latency(func(l result.Latency) float64 { return l.P50 }), millis}
	p95  = metric{"p95", false, latency(func(l result.Latency) float64 { return l.P95 }), millis}
	p99  = metric{"p99", false, latency(func(l result.Latency) float64 { return l.P99 }), millis}
	p999 = metric{"p99.9", false, latency(func(l result.Latency) float64 { return l.P999 }), millis}
	pMax = metric{"the longest", false, latency(func(l result.Latency) float64 { return l.Max }), millis}

	idleCPU = metric{"CPU while idle", false, idleShare, func(v float64) string { return percent(v) + " of a core" }}
)

// span is how long a step lasted that lasts a fixed time.
func span(r result.Result) float64 {
	if r.Seconds > 0 {
		return r.Seconds
	}
	return orUnmeasured(r.Params.Seconds)
}

// idleShare is in percent of one core.
func idleShare(r result.Result) float64 { return r.CPU.Total() / span(r) * 100 }

// ratio is a's metric by b's in each round in which both were measured: rounds are interleaved, so a slow minute of the
// machine meets both.
func (v view) ratio(m metric, k result.Kind, a, b string) spread {
	var values []float64
	for _, r := range v.counted(kind(k), of(a)) {
		mine, theirs := m.of(r), m.over(v.counted(kind(k), of(b), round(r.Round)))
		if !math.IsNaN(mine) && theirs.n > 0 {
			values = append(values, mine/theirs.median)
		}
	}
	return spreadOf(values)
}
