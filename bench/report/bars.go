package report

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/bench/result"
)

// chart is one picture of the page. draw gives nil where the run has no figures for it.
type chart struct {
	file, alt string
	draw      func(view) []byte
}

var charts = []chart{
	{"drain.svg", "Bars: events per second of each contender while a backlog drains, median with the range over rounds", drainChart},
	{"cpu.svg", "Bars: CPU per event of each contender while a backlog drains, split into process, PostgreSQL and broker", cpuChart},
	{"latency.svg", "Curves: latency from commit to consumer at 1,000 events a second, by percentile", latencyChart},
	{"scaling.svg", "Four curves: what an event costs as backlog, partitions, payload or transaction grow", scalingChart},
	{"outage.svg", "Curves: memory of the process while the broker is gone", outageChart},
}

// bar is one contender's.
type bar struct {
	contender string
	value     spread
	parts     []float64 // of the value, stacked; nil for one piece
}

const (
	barTop, barRow, barHigh = 74.0, 34.0, 18.0
	barLeft                 = 200.0 // room for names
	figureRoom, partsRoom   = 90.0, 150.0
)

// drainBars are the drains that count: peers first, fastest on top, then what publishes nothing.
func drainBars(v view, m metric) (bars, references []bar) {
	steps := v.counted(kind(result.KindDrain), func(r result.Result) bool { return !ours(r.Contender) || r.Contender == postrider })
	for _, c := range contenders(steps) {
		b := bar{contender: c, value: m.over(only(steps, c))}
		switch {
		case b.value.n == 0:
		case reference(c):
			references = append(references, b)
		default:
			bars = append(bars, b)
		}
	}
	return bars, references
}

func drainChart(v view) []byte {
	bars, references := drainBars(v, speed)
	if len(bars) == 0 {
		return nil
	}
	sortBars(bars, true)
	all := append(bars, references...)
	height := barTop + float64(len(all))*barRow + 34
	if len(references) > 0 {
		height += 26
	}
	s := newSVG(height, "Draining an outbox to Kafka, events per second", "longer is better · bar: median of the rounds, whisker: smallest and largest · every event checked",
		"Events per second while a backlog drains. "+told(all, figure)+".")
	at := barAxis(s, all, height, figureRoom)
	y := barTop
	for i, b := range all {
		if i == len(bars) {
			s.line(20, y, width-20, y, "axis")
			s.text(20, y+18, "m", "", "for comparison: publishes nothing")
			y += 26
		}
		s.text(barLeft-10, y+barRow/2+1, emphasis(b.contender), "end", nameOf(b.contender))
		s.rect(barLeft, y+(barRow-barHigh)/2-3, at(b.value.median)-barLeft, barHigh, fmt.Sprintf("f%d", colour(b.contender)))
		whisker(s, b.value, at, y+barRow/2-3)
		s.text(at(b.value.hi)+10, y+barRow/2+1, emphasis(b.contender), "", figure(b.value.median))
		y += barRow
	}
	return s.done()
}

func sortBars(bars []bar, more bool) {
	// Insertion keeps the order of names among equals.
	for i := range bars {
		for j := i; j > 0 && bars[j].value.median != bars[j-1].value.median && (bars[j].value.median > bars[j-1].value.median) == more; j-- {
			bars[j], bars[j-1] = bars[j-1], bars[j]
		}
	}
}

func emphasis(contender string) string {
	if contender == postrider {
		return "b"
	}
	return ""
}

// told puts the figures of a chart into words.
func told(bars []bar, format func(float64) string) string {
	var out []string
	for _, b := range bars {
		out = append(out, nameOf(b.contender)+": "+b.value.text(format))
	}
	return strings.Join(out, "; ")
}

// barAxis draws the grid under the bars, and gives the place of a value. At the right, room is left for figures.
func barAxis(s *svg, bars []bar, height, room float64) func(float64) float64 {
	hi := 0.0
	for _, b := range bars {
		hi = max(hi, b.value.hi)
	}
	ticks := ticksTo(hi)
	place := linear(0, ticks[len(ticks)-1])
	at := func(v float64) float64 { return barLeft + place(v)*(width-barLeft-room) }
	for _, t := range ticks {
		s.line(at(t), barTop-6, at(t), height-26, "grid")
		s.text(at(t), height-11, "m", "middle", figure(t))
	}
	return at
}

// whisker is the range over rounds.
func whisker(s *svg, v spread, at func(float64) float64, y float64) {
	if v.n < 2 || at(v.hi)-at(v.lo) < 1 {
		return
	}
	s.line(at(v.lo), y, at(v.hi), y, "whisker")
	s.line(at(v.lo), y-4, at(v.lo), y+4, "whisker")
	s.line(at(v.hi), y-4, at(v.hi), y+4, "whisker")
}

// cpuParts are the pieces of a bar of CPU, with their classes.
var cpuParts = []struct {
	metric
	name, class string
}{
	{cpu, "the process", "f0"}, {serverCPU, "PostgreSQL for it", "f2"}, {brokerCPU, "the broker", "f5"},
}

func cpuChart(v view) []byte {
	bars, _ := drainBars(v, cpu)
	if len(bars) == 0 {
		return nil
	}
	var words []string
	for i, b := range bars {
		sum := 0.0
		steps := v.counted(kind(result.KindDrain), of(b.contender))
		for _, part := range cpuParts {
			m := part.over(steps).median
			bars[i].parts = append(bars[i].parts, m)
			sum += m
		}
		bars[i].value = spread{median: sum, lo: sum, hi: sum, n: 1}
		words = append(words, nameOf(b.contender)+": "+partsText(bars[i].parts))
	}
	sortBars(bars, false)
	height := barTop + 20 + float64(len(bars))*barRow + 34
	s := newSVG(height, "CPU per event while a backlog drains, µs", "shorter is better · medians of the rounds", "CPU per event in microseconds. "+strings.Join(words, "; ")+".")
	at := barAxis(s, bars, height, partsRoom)
	legend(s)
	for i, b := range bars {
		y := barTop + 20 + float64(i)*barRow
		s.text(barLeft-10, y+barRow/2+1, emphasis(b.contender), "end", nameOf(b.contender))
		from := 0.0
		for j, part := range b.parts {
			s.rect(at(from), y+(barRow-barHigh)/2-3, at(from+part)-at(from), barHigh, cpuParts[j].class)
			from += part
		}
		s.text(at(from)+10, y+barRow/2+1, emphasis(b.contender), "", partsShort(b.parts))
	}
	return s.done()
}

func legend(s *svg) {
	x := barLeft
	for _, part := range cpuParts {
		s.rect(x, barTop-12, 12, 12, part.class)
		s.text(x+18, barTop-2, "", "", part.name)
		x += 150
	}
}

func partsText(parts []float64) string {
	var out []string
	for i, p := range parts {
		if p > 0 {
			out = append(out, cpuParts[i].name+" "+micros(p))
		}
	}
	return strings.Join(out, ", ")
}

func partsShort(parts []float64) string {
	var out []string
	for _, p := range parts {
		if p > 0 {
			out = append(out, figure(p))
		} else {
			out = append(out, none)
		}
	}
	return strings.Join(out, " + ")
}
