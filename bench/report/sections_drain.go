package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/postrider/postrider/bench/result"
)

// compression says that a contender differs from Postrider in its codec alone; these have a table of their own.
func compression(contender string) bool {
	return slices.Contains([]string{"postrider-gzip", "postrider-snappy", "postrider-lz4", "postrider-zstd"}, contender)
}

// column is a metric with its heading.
type column struct {
	head string
	metric
}

func drainSection(v view, p *markdown) {
	p.line("## Drain of a backlog")
	steps := v.all(kind(result.KindDrain), func(r result.Result) bool { return !compression(r.Contender) })
	if len(steps) == 0 {
		p.missing("the drain")
		return
	}
	p.line("How fast a backlog arrives in Kafka. `pg_recvlogical` and the decoding alone publish nothing: " +
		"they are what PostgreSQL can give at most. CPU is that of the process, of the PostgreSQL backends that serve it (for slots, the walsender) and of " +
		"the broker, each by event.")
	p.table(true, drainHeader, drainRows(steps))
	notHere(p, absent(steps, func(c string) bool { return !compression(c) }))
	p.chart("cpu.svg")
}

// notHere names contenders that have no step.
func notHere(p *markdown, who []string) {
	if len(who) > 0 {
		p.line("*Missing, not measured in this run: %s.*", strings.Join(who, "; "))
	}
}

var drainColumns = []column{
	{"events/s", speed},
	{"CPU per event", cpu},
	{"PostgreSQL's", serverCPU},
	{"the broker's", brokerCPU},
	{"peak memory", peakRSS},
	{"mean batch", batch},
	{"to first event", startup},
}

var drainHeader = header("", drainColumns, "events", "rounds", "what arrived")

func header(first string, columns []column, last ...string) []string {
	out := []string{first}
	for _, c := range columns {
		out = append(out, c.head)
	}
	return append(out, last...)
}

func drainRows(steps []result.Result) [][]string {
	var rows [][]string
	for _, c := range contenders(steps) {
		mine := only(steps, c)
		rows = append(rows, append(cells(nameOf(c), drainColumns, mine), eventsOf(mine), rounds(mine), arrived(mine)))
	}
	return rows
}

// cells are the columns' figures of the steps that count.
func cells(first string, columns []column, steps []result.Result) []string {
	out := []string{first}
	good := slices.DeleteFunc(slices.Clone(steps), func(r result.Result) bool { return !counts(r) })
	for _, c := range columns {
		out = append(out, c.over(good).text(c.format))
	}
	return out
}

func eventsOf(steps []result.Result) string {
	for _, r := range steps {
		if r.Events > 0 {
			return grouped(int64(r.Events))
		}
	}
	return none
}

// rounds says how many steps count, of how many.
func rounds(steps []result.Result) string {
	good := 0
	for _, r := range steps {
		if counts(r) {
			good++
		}
	}
	if good == len(steps) {
		return fmt.Sprint(good)
	}
	return fmt.Sprintf("%d of %d", good, len(steps))
}

// arrived is the column of correctness: the sum of what was found over all steps, those that do not count included.
func arrived(steps []result.Result) string {
	var sum result.Check
	checked, failed := 0, 0
	for _, r := range steps {
		if r.Check.Checked {
			checked++
		}
		if r.Error != "" {
			failed++
		}
		sum.Missing += r.Check.Missing
		sum.OutOfOrder += r.Check.OutOfOrder
		sum.WrongBytes += r.Check.WrongBytes
		sum.Duplicates += r.Check.Duplicates
	}
	switch {
	case !sum.OK():
		return "**wrong**: " + wrong(sum)
	case failed == len(steps):
		return "failed"
	case checked == 0 && reference(steps[0].Contender):
		return "publishes nothing"
	case checked == 0:
		return "not checked"
	case checked < len(steps):
		return fmt.Sprintf("right, in %d of %d checked%s", checked, len(steps), duplicates(sum))
	}
	return "right" + duplicates(sum)
}

func wrong(c result.Check) string {
	var parts []string
	for _, f := range []struct {
		n    int
		what string
	}{{c.Missing, "missing"}, {c.OutOfOrder, "out of order"}, {c.WrongBytes, "with other bytes"}, {c.Duplicates, "duplicates"}} {
		if f.n > 0 {
			parts = append(parts, grouped(int64(f.n))+" "+f.what)
		}
	}
	return strings.Join(parts, ", ")
}

func duplicates(c result.Check) string {
	if c.Duplicates == 0 {
		return ""
	}
	return fmt.Sprintf(", %s duplicate%s", grouped(int64(c.Duplicates)), plural(c.Duplicates))
}

func compressionSection(v view, p *markdown) {
	p.line("## Compression and TLS")
	steps := v.all(kind(result.KindDrain), func(r result.Result) bool { return ours(r.Contender) })
	if len(contenders(steps)) < 2 {
		p.missing("the drain with compression or TLS")
		return
	}
	p.line("The same drain by Postrider, with each codec of `kafka.compression`, and over TLS. *Against none* is the ratio of events/s inside the same round.")
	var rows [][]string
	for _, c := range contenders(steps) {
		mine := only(steps, c)
		row := cells(nameOf(c), compressionColumns, mine)
		against := none
		if c != postrider {
			against = v.ratio(speed, result.KindDrain, c, postrider).text(times)
		}
		rows = append(rows, append(row, against, rounds(mine), arrived(mine)))
	}
	p.table(true, header("", compressionColumns, "against none", "rounds", "what arrived"), rows)
	notHere(p, absent(steps, ours))
}

var compressionColumns = []column{
	{"events/s", speed}, {"CPU per event", cpu}, {"the broker's", brokerCPU}, {"peak memory", peakRSS}, {"mean batch", batch},
}

func latencySection(v view, p *markdown) {
	p.line("## Latency, commit → consumer")
	rates := v.rates()
	if len(rates) == 0 {
		p.missing("latency")
		return
	}
	p.line("From the return of the commit to its writer until a consumer has the event, at a steady rate of single commits. A contender that cannot follow a rate is not " +
		"measured at it: its latency would be the length of its queue.")
	p.chart("latency.svg")
	for _, perSec := range rates {
		steps := v.all(kind(result.KindLatency), rate(perSec))
		p.line("### At %s event%s a second", figure(perSec), plural(int(perSec)))
		var rows [][]string
		for _, c := range contenders(steps) {
			mine := only(steps, c)
			rows = append(rows, append(cells(nameOf(c), latencyColumns, mine), eventsOf(mine), rounds(mine), arrived(mine)))
		}
		p.table(true, header("", latencyColumns, "events", "rounds", "what arrived"), rows)
		notHere(p, absent(steps, func(c string) bool { return peer(c) && (!ours(c) || c == postrider) }))
	}
	for _, perSec := range []float64{10, 1000, 5000} {
		if !slices.Contains(rates, perSec) {
			p.missing(fmt.Sprintf("latency at %s events a second", figure(perSec)))
		}
	}
}

var latencyColumns = []column{
	{"p50", p50}, {"p95", p95}, {"p99", p99}, {"p99.9", p999}, {"max", pMax}, {"CPU per event", cpu}, {"PostgreSQL's", serverCPU},
}
