package report

import (
	"fmt"
	"math"
	"strings"
)

// panelSize and gaps of the four panels, in px.
const (
	panelWide, panelHigh = 300.0, 170.0
	panelLeft, panelTop  = 64.0, 124.0
	panelDX, panelDY     = 385.0, 260.0
)

// scalingChart has a panel an axis: what an event costs Postrider, against the size on a logarithmic axis.
func scalingChart(v view) []byte {
	var words []string
	for _, a := range axes {
		if points := v.axis(a.name, postrider); len(points) > 1 {
			words = append(words, a.title+": "+costText(a.label, points))
		}
	}
	if len(words) == 0 {
		return nil
	}
	const height = panelTop + panelDY + panelHigh + 50
	s := newSVG(height, "What an event costs as one size grows, µs", "lower is better · dots: medians; lines: a straight line from end to end, which a logarithmic axis bends · sizes are logarithmic",
		"Time and CPU of the process per event, in microseconds. "+strings.Join(words, ". ")+".")
	panelLegend(s)
	for i, a := range axes {
		x, y := panelLeft+float64(i%2)*panelDX, panelTop+float64(i/2)*panelDY
		s.text(x, y-16, "b", "", a.title)
		points := v.axis(a.name, postrider)
		if len(points) < 2 {
			s.text(x, y+20, "m", "", "missing: not measured in this run")
			continue
		}
		panel(s, x, y, a.name, a.label, points)
	}
	return s.done()
}

// panelCurves are the two curves of a panel, each with the class of its colour and dashes.
var panelCurves = []struct {
	metric
	name   string
	colour int
}{{wall, "time per event", 2}, {cpu, "CPU of the process per event", 0}}

func panelLegend(s *svg) {
	x := panelLeft
	for _, c := range panelCurves {
		s.line(x, 76, x+26, 76, fmt.Sprintf("l s%d d%d", c.colour, c.colour))
		s.text(x+34, 80, "", "", c.name)
		s.dot(x+13, 76, fmt.Sprintf("f%d", c.colour))
		x += 220
	}
}

func panel(s *svg, x, y float64, axis string, label func(float64) string, points []point) {
	lo, hi, top := points[0].x, points[len(points)-1].x, 0.0
	for _, pt := range points {
		top = max(top, wall.over(pt.results).median, cpu.over(pt.results).median)
	}
	ticks := ticksTo(top)
	p := plot{
		x: x, y: y, w: panelWide, h: panelHigh,
		xScale: logarithmic(lo, hi), yScale: linear(0, ticks[len(ticks)-1]),
		yTicks: ticks, xText: label, yText: figure,
	}
	for _, pt := range points {
		p.xTicks = append(p.xTicks, pt.x)
	}
	p.grid(s)
	costs := costsOf(axis, points)
	for i, cost := range []series{costs.time, costs.cpu} {
		c := panelCurves[i]
		s.path(p.straightLine(axis, chord(costs.xs, cost.values), lo, hi), fmt.Sprintf("l s%d d%d", c.colour, c.colour))
		for _, pt := range points {
			if v := c.over(pt.results); v.n > 0 {
				at := p.at(xy{pt.x, v.median})
				s.dot(at.x, at.y, fmt.Sprintf("f%d", c.colour))
			}
		}
	}
}

// straightLine is how a straight line looks on a logarithmic axis of sizes, by event.
func (p plot) straightLine(axis string, l line, lo, hi float64) []xy {
	const pieces = 24
	var out []xy
	for i := range pieces + 1 {
		x := lo * math.Pow(hi/lo, float64(i)/pieces)
		v := l.at(x)
		if axis == "rows" {
			v *= 1e6 / x // the line is of seconds in all
		}
		out = append(out, p.at(xy{x, max(v, 0)}))
	}
	return out
}

func costText(label func(float64) string, points []point) string {
	var out []string
	for _, p := range points {
		out = append(out, fmt.Sprintf("%s time %s, CPU %s", label(p.x), wall.over(p.results).text(micros), cpu.over(p.results).text(micros)))
	}
	return strings.Join(out, "; ")
}
