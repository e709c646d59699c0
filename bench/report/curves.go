package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/postrider/postrider/bench/result"
)

// curve is one line of a plot.
type curve struct {
	name   string
	colour int
	points []xy // in the plot's values
}

// plot is a field with axes; x, y, w and h are its inside, in px.
type plot struct {
	x, y, w, h     float64
	xScale, yScale scale
	xTicks, yTicks []float64
	xText, yText   func(float64) string
}

func (p plot) at(v xy) xy { return xy{p.x + p.xScale(v.x)*p.w, p.y + (1-p.yScale(v.y))*p.h} }

func (p plot) grid(s *svg) {
	for _, t := range p.yTicks {
		y := p.y + (1-p.yScale(t))*p.h
		s.line(p.x, y, p.x+p.w, y, "grid")
		s.text(p.x-8, y+4, "m", "end", p.yText(t))
	}
	for _, t := range p.xTicks {
		x := p.x + p.xScale(t)*p.w
		s.line(x, p.y, x, p.y+p.h, "grid")
		s.text(x, p.y+p.h+18, "m", "middle", p.xText(t))
	}
	s.line(p.x, p.y+p.h, p.x+p.w, p.y+p.h, "axis")
}

// draw draws the curves, each with its name at its right end; names keep apart.
func (p plot) draw(s *svg, curves []curve) {
	type label struct {
		curve
		y float64
	}
	var labels []label
	for _, c := range curves {
		var places []xy
		for _, v := range c.points {
			places = append(places, p.at(v))
		}
		s.path(places, fmt.Sprintf("l s%d d%d", c.colour, c.colour))
		labels = append(labels, label{c, places[len(places)-1].y + 4})
	}
	slices.SortStableFunc(labels, func(a, b label) int { return cmp.Compare(a.y, b.y) })
	const apart = 16
	for i := 1; i < len(labels); i++ {
		labels[i].y = max(labels[i].y, labels[i-1].y+apart)
	}
	for _, l := range labels {
		end := p.at(l.points[len(l.points)-1])
		s.path([]xy{{end.x + 3, end.y}, {p.x + p.w + 14, l.y - 4}, {p.x + p.w + 30, l.y - 4}}, fmt.Sprintf("l s%d d%d", l.colour, l.colour))
		s.text(p.x+p.w+36, l.y, "", "", l.name)
	}
}

// nines stretches percentiles: p50, p90, p99 and p99.9 lie about as far from each other.
func nines(share float64) float64 { return -math.Log10(1 - share) }

const latencyRate = 1000

func latencyChart(v view) []byte {
	steps := v.counted(kind(result.KindLatency), rate(latencyRate), func(r result.Result) bool {
		return r.Latency != nil && len(r.Latency.Curve) > 1 && (!ours(r.Contender) || r.Contender == postrider)
	})
	if len(steps) == 0 {
		return nil
	}
	const lastShare = 0.999
	lo, hi := math.Inf(1), 0.0
	var curves []curve
	var words []string
	for _, c := range contenders(steps) {
		l := middleRound(only(steps, c)).Latency
		words = append(words, fmt.Sprintf("%s: p50 %s, p99 %s, p99.9 %s", nameOf(c), millis(l.P50), millis(l.P99), millis(l.P999)))
		points := latencyPoints(l.Curve, lastShare)
		if len(points) < 2 {
			continue
		}
		for _, p := range points {
			lo, hi = min(lo, p.y), max(hi, p.y)
		}
		curves = append(curves, curve{name: nameOf(c), colour: colour(c), points: points})
	}
	if len(curves) == 0 {
		return nil
	}
	const height = 400
	s := newSVG(height, "From commit to consumer at 1,000 events a second, ms", "lower is better · logarithmic · of each contender the round with the median p99",
		"Latency by percentile. "+strings.Join(words, "; ")+".")
	ticks := decades(lo, hi, 10)
	p := plot{
		x: 70, y: 74, w: width - 70 - 200, h: height - 74 - 56,
		xScale: linear(0, nines(lastShare)), yScale: logarithmic(ticks[0], ticks[len(ticks)-1]),
		xTicks: []float64{0, nines(0.5), nines(0.9), nines(0.99), nines(0.999)}, yTicks: ticks,
		xText: percentile, yText: figure,
	}
	p.grid(s)
	s.text(p.x+p.w/2, height-16, "m", "middle", "share of events that arrive within the time")
	p.draw(s, curves)
	return s.done()
}

func percentile(nines float64) string { return trimmed(100*(1-math.Pow(10, -nines)), 1) + " %" }

// latencyPoints are a curve's points up to last, each at its place on the stretched axis.
func latencyPoints(points []result.Point, last float64) []xy {
	var out []xy
	for _, p := range points {
		if p.T > 0 && p.T <= last+1e-9 && p.V > 0 {
			out = append(out, xy{nines(min(p.T, last)), p.V})
		}
	}
	return out
}

// middleRound is the round whose p99 is the (lower) median.
func middleRound(steps []result.Result) result.Result {
	sorted := slices.Clone(steps)
	slices.SortStableFunc(sorted, func(a, b result.Result) int { return cmp.Compare(a.Latency.P99, b.Latency.P99) })
	return sorted[(len(sorted)-1)/2]
}

func outageChart(v view) []byte {
	steps := v.counted(kind(result.KindOutage), func(r result.Result) bool { return len(r.RSS) > 1 })
	if len(steps) == 0 {
		return nil
	}
	lo, hi, last := math.Inf(1), float64(memoryLimit)/mib, 0.0
	var curves []curve
	var words []string
	for _, c := range contenders(steps) {
		r := only(steps, c)[0]
		var points []xy
		for _, pt := range thinned(r.RSS, 160) {
			if m := pt.V / mib; m > 0 {
				points = append(points, xy{pt.T, m})
				lo, hi, last = min(lo, m), max(hi, m), max(last, pt.T)
			}
		}
		if len(points) < 2 {
			continue
		}
		words = append(words, nameOf(c)+": "+mebibytes(float64(r.PeakRSS))+" at its peak")
		curves = append(curves, curve{name: nameOf(c), colour: colour(c), points: points})
	}
	if len(curves) == 0 {
		return nil
	}
	const height = 340
	s := newSVG(height, "Memory while the broker is gone, MiB", "lower and flat is better · resident set of the process over seconds · dashed: the target for Postrider",
		"Memory of the process during an outage of the broker. "+strings.Join(words, "; ")+".")
	p := plot{x: 70, y: 74, w: width - 70 - 200, h: height - 74 - 56, xText: figure, yText: whole}
	p.memoryAxis(lo, hi)
	p.xTicks = ticksTo(last)
	p.xScale = linear(0, p.xTicks[len(p.xTicks)-1])
	p.grid(s)
	limit := p.at(xy{0, memoryLimit / mib}).y
	s.line(p.x, limit, p.x+p.w, limit, "limit")
	s.text(p.x+p.w/2, height-16, "m", "middle", "seconds")
	p.draw(s, curves)
	return s.done()
}

// whole is for round numbers: 1,024.
func whole(v float64) string { return grouped(int64(math.Round(v))) }

// memoryAxis is linear while all contenders are of one size, and logarithmic where one needs many times another's.
func (p *plot) memoryAxis(lo, hi float64) {
	if hi <= 4*memoryLimit/mib {
		p.yTicks = ticksTo(hi)
		p.yScale = linear(0, p.yTicks[len(p.yTicks)-1])
		return
	}
	p.yTicks = decades(lo, hi, 2)
	p.yScale = logarithmic(p.yTicks[0], p.yTicks[len(p.yTicks)-1])
}

// thinned keeps at most about n points, the last one among them.
func thinned(points []result.Point, n int) []result.Point {
	every := (len(points) + n - 1) / n
	var out []result.Point
	for i := 0; i < len(points); i += every {
		out = append(out, points[i])
	}
	if tail := points[len(points)-1]; out[len(out)-1] != tail {
		out = append(out, tail)
	}
	return out
}
