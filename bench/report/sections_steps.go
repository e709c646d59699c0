package report

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/bench/result"
)

func scaleSection(v view, p *markdown) {
	p.line("## Scaling: one size at a time")
	steps := v.all(kind(result.KindScale))
	if len(steps) == 0 {
		p.missing("scaling")
		return
	}
	p.line("A drain with one size changed; the others stay at 6 partitions, payloads of 200 bytes and one row a transaction. Where an axis has no step " +
		"of the base's size, the drain above stands for it.")
	p.chart("scaling.svg")
	for _, a := range axes {
		p.line("### %s", a.title)
		var rows [][]string
		var slopes []string
		for _, c := range contenders(steps) {
			points := v.axis(a.name, c)
			for _, pt := range points {
				row := cells(nameOf(c), scaleColumns, pt.results)
				rows = append(rows, append(append([]string{row[0], a.label(pt.x)}, row[1:]...), eventsOf(pt.results), rounds(pt.results)))
			}
			if len(points) > 1 {
				slopes = append(slopes, slopeText(a.name, c, points))
			}
		}
		if len(rows) == 0 {
			p.missing("the axis")
			continue
		}
		p.table(true, append([]string{"", strings.ToLower(a.title)}, header("", scaleColumns, "events", "rounds")[1:]...), rows)
		p.list(slopes)
	}
}

var scaleColumns = []column{
	{"events/s", speed}, {"time per event", wall}, {"CPU per event", cpu}, {"PostgreSQL's", serverCPU}, {"peak memory", peakRSS}, {"mean batch", batch},
}

// slopeText is the line of least squares through time and CPU along an axis.
func slopeText(axis, contender string, points []point) string {
	costs := costsOf(axis, points)
	texts := make([]string, 2)
	for i, cost := range []series{costs.time, costs.cpu} {
		l := fit(costs.xs, cost.values)
		switch axis {
		case "rows":
			texts[i] = fmt.Sprintf("%s + %s per event", signed(l.intercept, seconds), micros(l.slope*1e6))
		case "payload":
			texts[i] = fmt.Sprintf("%s + %s per KB", signed(l.intercept, micros), micros(l.slope*1000))
		case "partitions":
			texts[i] = fmt.Sprintf("%s + %s per partition", signed(l.intercept, micros), micros(l.slope))
		default:
			texts[i] = fmt.Sprintf("%s + %s per row of a transaction", signed(l.intercept, micros), micros(l.slope))
		}
	}
	each := "per event"
	if axis == "rows" {
		each = "in all"
	}
	s := fmt.Sprintf("%s, line of least squares, %s: time %s; CPU %s.", nameOf(contender), each, texts[0], texts[1])
	if len(points) > 2 {
		s += fmt.Sprintf(" Against a straight line: %s.", costs.off())
	}
	return s
}

func signed(v float64, format func(float64) string) string {
	if v < 0 {
		return "−" + format(-v)
	}
	return format(v)
}

func idleSection(v view, p *markdown) {
	simple(v, p, "Idle", result.KindIdle, "idle CPU", "CPU while nothing is written, of all of the process's threads together.", []column{
		{"CPU", idleCPU}, {"peak memory", peakRSS}, {"for", metric{"duration", true, span, seconds}},
	})
}

func outageSection(v view, p *markdown) {
	simple(v, p, "Memory while the broker is gone", result.KindOutage, "an outage of the broker",
		"Events go on being written while the broker stands still: its connections stay open, and nothing answers. Nothing may be lost, and memory may not grow with the outage.", []column{
			{"peak memory", peakRSS}, {"gained", metric{"memory gained", false, func(r result.Result) float64 {
				if g, ok := gain(r); ok {
					return max(g, 0)
				}
				return unmeasured
			}, mebibytes}},
		})
	p.chart("outage.svg")
}

func hugeSection(v view, p *markdown) {
	simple(v, p, "One huge transaction", result.KindHugeTxn, "a huge transaction",
		"One transaction, timed as a drain; PostgreSQL spills it to disk first.", []column{
			{"time", elapsed}, {"events/s", speed}, {"CPU per event", cpu}, {"PostgreSQL's", serverCPU}, {"peak memory", peakRSS},
		})
}

// simple is a section of one table.
func simple(v view, p *markdown, title string, k result.Kind, what, text string, columns []column) {
	p.line("## %s", title)
	steps := v.all(kind(k))
	if len(steps) == 0 {
		p.missing(what)
		return
	}
	last := []string{"rounds", "what arrived"}
	if k == result.KindIdle {
		last = last[:1] // nothing arrives
	} else {
		text += sizes(steps)
	}
	p.line("%s", text)
	var rows [][]string
	for _, c := range contenders(steps) {
		mine := only(steps, c)
		rows = append(rows, append(cells(nameOf(c), columns, mine), []string{rounds(mine), arrived(mine)}[:len(last)]...))
	}
	p.table(true, header("", columns, last...), rows)
}

// sizes says what the steps were in this run, as their Params have it.
func sizes(steps []result.Result) string {
	p := steps[0].Params
	var parts []string
	if p.Rows > 0 {
		parts = append(parts, grouped(int64(p.Rows))+" rows")
	}
	if p.PayloadBytes > 0 {
		parts = append(parts, "of "+size(float64(p.PayloadBytes)))
	}
	if p.RatePerSec > 0 {
		parts = append(parts, "at "+figure(p.RatePerSec)+" a second")
	}
	if p.Seconds > 0 {
		parts = append(parts, "for "+seconds(p.Seconds))
	}
	if len(parts) == 0 {
		return ""
	}
	return " In this run: " + strings.Join(parts, " ") + "."
}

func notesSection(v view, p *markdown) {
	p.line("## Notes and errors")
	var notes []string
	add := func(r result.Result, what string) { notes = append(notes, fmt.Sprintf("`%s`: %s", r.Step, what)) }
	for _, r := range v.run.Results {
		if r.Error != "" {
			add(r, "**not measured**: "+firstLine(r.Error))
		}
		if !r.Check.OK() {
			add(r, "**what arrived is wrong, its speed does not count**: "+wrong(r.Check))
		}
		if r.Error == "" && r.Check.OK() && !counts(r) {
			add(r, "**what arrived was not checked, its speed does not count**")
		}
		if r.Note != "" {
			add(r, firstLine(r.Note))
		}
	}
	if len(notes) == 0 {
		p.line("None: every step that was begun was measured, and nothing needs a remark.")
		return
	}
	p.list(notes)
}

// firstLine leaves out what follows in an error: the end of a log, which names files of the machine.
func firstLine(text string) string {
	const longest = 300
	line, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if runes := []rune(line); len(runes) > longest {
		line, rest = string(runes[:longest]), "more"
	}
	if rest != "" {
		line += " … (the rest is in the run's results)"
	}
	return line
}
