package report

import (
	"cmp"
	"slices"

	"github.com/postrider/postrider/bench/result"
)

// base are the sizes from which one axis at a time is changed; Rows differ in a quick run, and are not compared.
var base = result.Params{Partitions: 6, PayloadBytes: 200, RowsPerTxn: 1}

// axes are those of result.Params.Axis, with what their x is.
var axes = []struct {
	name, title string
	x           func(result.Params) float64
	label       func(float64) string
}{
	{"rows", "Rows of the backlog", func(p result.Params) float64 { return float64(p.Rows) }, short},
	{"partitions", "Partitions of the topic", func(p result.Params) float64 { return float64(p.Partitions) }, short},
	{"payload", "Payload", func(p result.Params) float64 { return float64(p.PayloadBytes) }, size},
	{"transaction", "Rows per transaction", func(p result.Params) float64 { return float64(max(p.RowsPerTxn, 1)) }, short},
}

// point is one size on an axis.
type point struct {
	x       float64
	results []result.Result
}

func axisX(axis string) func(result.Params) float64 {
	for _, a := range axes {
		if a.name == axis {
			return a.x
		}
	}
	return func(result.Params) float64 { return 0 }
}

// axis are a contender's points along an axis, rising: the steps of the axis, and the drain (or a scaling step without
// an axis) as the base, where no step of the axis has that size.
func (v view) axis(axis, contender string) []point {
	x := axisX(axis)
	var points []point
	add := func(r result.Result, always bool) {
		i := slices.IndexFunc(points, func(p point) bool { return p.x == x(r.Params) })
		switch {
		case i < 0:
			points = append(points, point{x(r.Params), []result.Result{r}})
		case always || points[i].results[0].Kind == r.Kind && points[i].results[0].Params.Axis == r.Params.Axis:
			points[i].results = append(points[i].results, r)
		}
	}
	for _, r := range v.counted(kind(result.KindScale), of(contender)) {
		if r.Params.Axis == axis && r.Events > 0 {
			add(r, true)
		}
	}
	if len(points) == 0 {
		return nil
	}
	for _, r := range v.counted(of(contender)) {
		if r.Events > 0 && isBase(r) {
			add(r, false)
		}
	}
	slices.SortFunc(points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	return points
}

func isBase(r result.Result) bool {
	p := r.Params
	sized := p.Partitions == base.Partitions && about(p.PayloadBytes, base.PayloadBytes) && max(p.RowsPerTxn, 1) == base.RowsPerTxn
	return sized && (r.Kind == result.KindDrain || r.Kind == result.KindScale && p.Axis == "")
}

// about allows for a payload that is 203 bytes on average where 200 were asked for.
func about(a, b int) bool { return 10*a >= 9*b && 10*a <= 11*b }

// costs are what the points of an axis cost: in seconds for the axis of rows (in all), in µs for the others (per event).
// Against the axis's x, either cost is to be a straight line.
type costs struct {
	xs        []float64
	time, cpu series
}

// series are a cost's values, and how much more each may be than it reads.
type series struct{ values, grain []float64 }

// cpuGrain is how much CPU time, in seconds, a reading of user and system time in steps of 10 ms may leave out.
const cpuGrain = 0.02

func costsOf(axis string, points []point) costs {
	var c costs
	for _, p := range points {
		events := float64(p.results[0].Events)
		scale := 1.0
		if axis == "rows" {
			scale = events / 1e6
		}
		c.xs = append(c.xs, p.x)
		c.time.add(wall.over(p.results).median*scale, 0)
		c.cpu.add(cpu.over(p.results).median*scale, cpuGrain/events*1e6*scale)
	}
	return c
}

// incomplete says that some point lacks a figure.
func (c costs) incomplete() bool {
	return slices.Contains(c.time.values, 0) || slices.Contains(c.cpu.values, 0)
}

func (s *series) add(value, grain float64) {
	s.values, s.grain = append(s.values, value), append(s.grain, grain)
}
