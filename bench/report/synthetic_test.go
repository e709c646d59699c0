package report

import (
	"fmt"
	"math"

	"github.com/postrider/postrider/bench/result"
)

// synthetic is a whole run made up for the tests: no figure in it was measured. Everything of it counts, but for what
// a test changes.
func synthetic() result.Run {
	run := result.Run{Environment: result.Environment{
		Machine: "A made-up machine, 2 cores, 8 GB, Linux 6.1", Cores: 2, MemoryMB: 7936, Started: "2026-01-02T03:04:05Z", Took: 3301,
		Versions:   map[string]string{"postgresql": "15.9", "kafka": "4.1.0", "go": "1.26.8", "debezium": "3.6.1.Final"},
		Settings:   map[string]string{"kafka": "one KRaft node, heap 1 GiB", "postrider": "", "debezium-tuned": "poll.interval.ms=5 max.batch.size=20480 | max.queue.size=81920"},
		PGSettings: map[string]string{"wal_level": "logical", "shared_buffers": "1GB"},
	}}
	for round := 1; round <= 3; round++ {
		run.Results = append(run.Results, drains(round)...)
		run.Results = append(run.Results, latencies(round)...)
	}
	run.Results = append(run.Results, scales()...)
	return result.Run{Environment: run.Environment, Results: append(run.Results, ends()...)}
}

// made is what a contender is made to look like.
type made struct {
	contender        string
	rows             int
	speed            float64 // events/s
	cpu, server, brk float64 // µs per event
	rss              float64 // MiB
	batch, startup   float64
	p50              float64 // ms at 1,000/s
}

var madeUp = []made{
	{peek, 500000, 200000, 0, 4.9, 0, 0, 0, 0, 0},
	{pgRecvlogical, 500000, 70000, 5.5, 9.1, 0, 6, 0, 0.05, 0},
	{postrider, 500000, 170000, 0.82, 4.6, 1.1, 19, 4100, 0.2, 0.52},
	{"postrider-tls", 500000, 150000, 1.4, 4.7, 1.9, 21, 4000, 0.21, 0},
	{"postrider-gzip", 500000, 61000, 9.3, 4.6, 0.7, 27, 4100, 0.2, 0},
	{"postrider-snappy", 500000, 160000, 1.6, 4.6, 0.8, 24, 4100, 0.2, 0},
	{"postrider-lz4", 500000, 158000, 1.7, 4.6, 0.8, 26, 4100, 0.2, 0},
	{"postrider-zstd", 500000, 150000, 2.4, 4.6, 0.6, 31, 4100, 0.2, 0},
	{debezium, 200000, 26900, 52, 8.8, 2.9, 1100, 2048, 9.2, 357},
	{debeziumTuned, 200000, 27700, 55, 8.7, 2.1, 1024, 9000, 9.1, 10.9},
	{polling, 200000, 41000, 8.5, 12, 1.3, 18, 1000, 0.1, 68},
	{pollingTuned, 300000, 95000, 4.1, 8.2, 1.2, 34, 5000, 0.1, 7.1},
	{watermill, 20000, 2700, 178, 101, 44, 30, 1, 0.3, 9.4},
}

// jitter is the noise of a round: 1 in the first, then a little less and a little more.
func jitter(round int) float64 { return []float64{1, 0.94, 1.07}[(round-1)%3] }

func half(seconds float64) result.CPU { return result.CPU{User: seconds / 2, System: seconds / 2} }

func (m made) drain(round, rows int) result.Result {
	n, j := float64(rows), jitter(round)
	return result.Result{
		Contender: m.contender, Round: round, At: "2026-01-02T03:10:00Z", Events: rows, Seconds: n / m.speed / j, Startup: m.startup,
		CPU: half(n * m.cpu / 1e6 / j), ServerCPU: half(n * m.server / 1e6 / j), BrokerCPU: half(n * m.brk / 1e6 / j),
		PeakRSS: int64(m.rss * mib * j), BatchMean: m.batch * j, Check: result.Check{Checked: !reference(m.contender)},
	}
}

func drains(round int) []result.Result {
	var out []result.Result
	for _, m := range madeUp {
		r := m.drain(round, m.rows)
		r.Kind, r.Step = result.KindDrain, fmt.Sprintf("drain/%d/%s", round, m.contender)
		r.Params = result.Params{Rows: m.rows, Partitions: 6, PayloadBytes: 203, RowsPerTxn: 1}
		out = append(out, r)
	}
	return out
}

func latencies(round int) []result.Result {
	var out []result.Result
	for _, m := range madeUp {
		if m.p50 == 0 {
			continue
		}
		for _, perSec := range []float64{10, 1000, 5000} {
			if m.contender == watermill && perSec > 1000 {
				continue
			}
			l := curveOf(m.p50 * jitter(round) * (1 + perSec/20000))
			n := int(perSec * 30)
			l.Count = n
			out = append(out, result.Result{
				Step: fmt.Sprintf("latency/%d/%g/%s", round, perSec, m.contender), Kind: result.KindLatency, Contender: m.contender, Round: round,
				Params: result.Params{RatePerSec: perSec, Seconds: 30, PayloadBytes: 203}, Events: n, Seconds: 30,
				CPU: half(float64(n) * m.cpu * 9 / 1e6), ServerCPU: half(float64(n) * m.server * 3 / 1e6), PeakRSS: int64(m.rss * mib),
				Latency: &l, Check: result.Check{Checked: true},
			})
		}
	}
	return out
}

// curveOf is a latency that grows fivefold from the median to p99.
func curveOf(middle float64) result.Latency {
	at := func(share float64) float64 { return middle * math.Pow(5, (nines(share)-nines(0.5))/1.7) }
	l := result.Latency{P50: at(0.5), P95: at(0.95), P99: at(0.99), P999: at(0.999), Max: at(0.9999)}
	for i := range 60 {
		share := 1 - math.Pow(10, -float64(i)/17)
		l.Curve = append(l.Curve, result.Point{T: share, V: at(share)})
	}
	return l
}

// scales leave the axis of transactions out.
func scales() []result.Result {
	var out []result.Result
	add := func(axis string, p result.Params, speed, work float64) {
		m := madeUp[2]
		m.speed, m.cpu = speed, work
		r := m.drain(1, p.Rows)
		p.Axis = axis
		r.Kind, r.Params, r.Step = result.KindScale, p, fmt.Sprintf("scale/%s/%d/%d/%d", axis, p.Rows, p.Partitions, p.PayloadBytes)
		out = append(out, r)
	}
	add("rows", result.Params{Rows: 50000, Partitions: 6, PayloadBytes: 203, RowsPerTxn: 1}, 140000, 0.95)
	add("rows", result.Params{Rows: 2000000, Partitions: 6, PayloadBytes: 203, RowsPerTxn: 1}, 172000, 0.81)
	add("partitions", result.Params{Rows: 500000, Partitions: 1, PayloadBytes: 203, RowsPerTxn: 1}, 175000, 0.78)
	add("partitions", result.Params{Rows: 500000, Partitions: 24, PayloadBytes: 203, RowsPerTxn: 1}, 160000, 0.9)
	add("partitions", result.Params{Rows: 500000, Partitions: 96, PayloadBytes: 203, RowsPerTxn: 1}, 120000, 1.4)
	add("payload", result.Params{Rows: 200000, Partitions: 6, PayloadBytes: 2048, RowsPerTxn: 1}, 82000, 2.1)
	add("payload", result.Params{Rows: 30000, Partitions: 6, PayloadBytes: 20480, RowsPerTxn: 1}, 12500, 14)
	return out
}

func ends() []result.Result {
	checked := result.Check{Checked: true}
	outage := func(contender string, level, slope float64) result.Result {
		r := result.Result{
			Step: "outage/1/" + contender, Kind: result.KindOutage, Contender: contender, Round: 1, Check: checked, Events: 60000,
			Params: result.Params{Seconds: 600, RatePerSec: 100}, CPU: half(1.2),
		}
		for t := 0.0; t <= 600; t++ {
			v := (level*(1-math.Exp(-t/20)*0.4) + slope*t/600 + math.Sin(t)*0.3) * mib
			r.RSS = append(r.RSS, result.Point{T: t, V: v})
			r.PeakRSS = max(r.PeakRSS, int64(v))
		}
		return r
	}
	return []result.Result{
		{
			Step: "idle/1/postrider", Kind: result.KindIdle, Contender: postrider, Round: 1, CPU: half(0.6), Seconds: 300,
			Params: result.Params{Seconds: 300}, PeakRSS: 15 * mib,
		},
		{
			Step: "idle/1/debezium", Kind: result.KindIdle, Contender: debezium, Round: 1, CPU: half(9), Seconds: 300,
			Params: result.Params{Seconds: 300}, PeakRSS: 700 * mib,
		},
		outage(postrider, 24, 0.4), outage(debeziumTuned, 900, 120),
		{
			Step: "hugetxn/1/postrider", Kind: result.KindHugeTxn, Contender: postrider, Round: 1, Events: 1000000, Seconds: 11.1,
			Params: result.Params{Rows: 1000000, PayloadBytes: 1024, RowsPerTxn: 1000000}, CPU: half(2.4), ServerCPU: half(9.6), PeakRSS: 21 * mib,
			Check: checked, Note: "PostgreSQL spilled 1.2 GB to disk before it sent the first change.",
		},
	}
}

// change applies f to the steps of a kind by a contender.
func change(run result.Run, k result.Kind, contender string, f func(*result.Result)) result.Run {
	for i := range run.Results {
		if r := &run.Results[i]; r.Kind == k && r.Contender == contender {
			f(r)
		}
	}
	return run
}

// without drops steps.
func without(run result.Run, drop filter) result.Run {
	var kept []result.Result
	for _, r := range run.Results {
		if !drop(r) {
			kept = append(kept, r)
		}
	}
	run.Results = kept
	return run
}
