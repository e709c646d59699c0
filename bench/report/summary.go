package report

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/bench/result"
)

func summary(v view, p *markdown) {
	e := v.run.Environment
	p.line("Postrider and other ways of bringing an outbox table to Kafka, measured in one run on one machine: %s. Figures are medians over "+
		"interleaved rounds, with the smallest and the largest in brackets. The machine is shared by PostgreSQL, Kafka and the program that is measured, so "+
		"compare ratios, not figures from elsewhere.", orMissing(e.Machine))
	if e.Quick {
		p.line("> **This was a quick run**: smaller backlogs, fewer rounds, shorter waits. Its figures are noisier, and sizes differ from those that the " +
			"targets name.")
	}
	p.line("## Is it faster, and what does it cost?")
	p.chart("drain.svg")
	p.list(compact(drainAnswer(v), costAnswer(v), latencyAnswer(v), targetAnswer(v), checkAnswer(v), betterAnswer(v)))
}

// compact drops what has no answer.
func compact(items ...string) []string {
	var out []string
	for _, s := range items {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

func orMissing(s string) string {
	if s == "" {
		return "*not recorded*"
	}
	return s
}

func drainAnswer(v view) string {
	mine := speed.over(v.counted(kind(result.KindDrain), of(postrider)))
	if mine.n == 0 {
		return "**Speed: missing.** No drain by Postrider counts in this run."
	}
	var than []string
	for _, c := range contenders(v.counted(kind(result.KindDrain))) {
		if r := v.ratio(speed, result.KindDrain, postrider, c); !ours(c) && r.n > 0 {
			than = append(than, fmt.Sprintf("%s as fast as %s", times(r.median), inText(c)))
		}
	}
	s := fmt.Sprintf("**Speed:** Postrider drains a backlog at %s events/s", mine.text(figure))
	if len(than) == 0 {
		return s + "; there is nothing in this run to compare it with."
	}
	return s + ": " + strings.Join(than, ", ") + "."
}

// inText is a contender's name inside a sentence.
func inText(contender string) string {
	switch contender {
	case pgRecvlogical:
		return "`pg_recvlogical` to /dev/null"
	case polling:
		return "the polling relay"
	case pollingTuned:
		return "the polling relay when tuned"
	case debezium:
		return "Debezium with its defaults"
	case debeziumTuned:
		return "Debezium when tuned"
	case watermill:
		return "watermill's forwarder"
	}
	return nameOf(contender)
}

func costAnswer(v view) string {
	var parts []string
	for _, c := range contenders(v.counted(kind(result.KindDrain))) {
		steps := v.counted(kind(result.KindDrain), of(c))
		work, memory := cpu.over(steps), peakRSS.over(steps)
		if reference(c) || ours(c) && c != postrider || work.n == 0 || memory.n == 0 {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %s of CPU per event and %s at its peak", nameOf(c), micros(work.median), mebibytes(memory.median)))
	}
	if len(parts) == 0 {
		return ""
	}
	return "**Cost of a drain** (the process alone): " + strings.Join(parts, "; ") + "."
}

func latencyAnswer(v view) string {
	const perSec = 1000
	var parts []string
	steps := v.counted(kind(result.KindLatency), rate(perSec))
	for _, c := range contenders(steps) {
		if mine := v.counted(kind(result.KindLatency), rate(perSec), of(c)); !ours(c) || c == postrider {
			parts = append(parts, fmt.Sprintf("%s p50 %s, p99 %s", nameOf(c), millis(p50.over(mine).median), millis(p99.over(mine).median)))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "**From commit to consumer at 1,000 events/s:** " + strings.Join(parts, "; ") + "."
}

func targetAnswer(v view) string {
	count := map[verdict]int{}
	for _, t := range targets {
		count[t.judge(v).verdict]++
	}
	return fmt.Sprintf("**Targets:** %d of %d reached, %d missed, %d without figures in this run ([which](#targets)).",
		count[reached], len(targets), count[missed], count[unknown])
}

func checkAnswer(v view) string {
	checked := v.all(func(r result.Result) bool { return r.Check.Checked })
	if len(checked) == 0 {
		return "**Correctness: missing.** Nothing that arrived was checked in this run."
	}
	wrong := v.all(func(r result.Result) bool { return !r.Check.OK() })
	if len(wrong) == 0 {
		return fmt.Sprintf("**Correctness:** in all %d steps whose events were checked, each event arrived, in order for each key, with the bytes "+
			"that PostgreSQL has.", len(checked))
	}
	var parts []string
	for _, c := range contenders(wrong) {
		n := len(v.all(of(c), func(r result.Result) bool { return !r.Check.OK() }))
		parts = append(parts, fmt.Sprintf("%s (%d)", nameOf(c), n))
	}
	return fmt.Sprintf("**Correctness: wrong in %d of %d steps that were checked**: %s. The speed of these steps does not count "+
		"anywhere on this page ([details](#notes-and-errors)).", len(wrong), len(checked), strings.Join(parts, ", "))
}

func betterAnswer(v view) string {
	if n := len(v.beaten(peer)); n > 0 {
		return fmt.Sprintf("**A peer is better in %d metric%s** ([which](#where-a-peer-is-better)).", n, plural(n))
	}
	return "**A peer is better** in no metric of this run."
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

func targetSection(v view, p *markdown) {
	p.line("## Targets")
	p.line("They were set before the product was written. A ratio is taken inside each round, since rounds are interleaved; of memory, the worst round " +
		"counts, of everything else the median.")
	words := map[verdict]string{reached: "reached", missed: "**missed**", unknown: "*missing*"}
	var rows [][]string
	for _, t := range targets {
		o := t.judge(v)
		said := words[o.verdict]
		if o.by != "" {
			said += ": " + o.by
		}
		if o.measured == "" {
			o.measured = none
		}
		rows = append(rows, []string{t.name, t.want, o.measured, said})
	}
	rows = append(rows, []string{"Allocations per event on the steady path", "0", none, "asserted by tests (`testing.AllocsPerRun`), not by this run"})
	p.table(false, []string{"target", "wanted", "measured", ""}, rows)
	p.line("*Flat* is the median of the last quarter of an outage's samples of memory less that of the second quarter (in the first, the buffers fill). "+
		"*A straight line* is judged in time and in the process's CPU: the line from the first size to the last may lie at most %[1]s over what was measured "+
		"between, and from no size to a larger one may the cost grow by more than %[1]s more than the size does. CPU is read in steps of 10 ms; two such steps "+
		"are allowed for.", percent(straightLimit*100))
}
