package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

const mib = 1 << 20

// spread is a figure over rounds.
type spread struct {
	median, lo, hi float64
	n              int
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	return spread{median: median(values), lo: slices.Min(values), hi: slices.Max(values), n: len(values)}
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	if n == 0 {
		return 0
	}
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// text is the median, and the range where there was more than one round.
func (s spread) text(format func(float64) string) string {
	switch {
	case s.n == 0:
		return none
	case s.n == 1 || format(s.lo) == format(s.hi):
		return format(s.median)
	}
	lo, _, _ := strings.Cut(format(s.lo), " ") // the unit is behind the median
	hi, _, _ := strings.Cut(format(s.hi), " ")
	return fmt.Sprintf("%s (%s–%s)", format(s.median), lo, hi)
}

// none stands where nothing was measured.
const none = "–"

// figure rounds to three digits: more would be noise. Thousands are set apart.
func figure(v float64) string {
	if v == 0 {
		return "0"
	}
	digits := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	if digits > 0 {
		return trimmed(v, min(digits, 4))
	}
	step := math.Pow(10, max(0, math.Floor(math.Log10(math.Abs(v)))-2))
	return grouped(int64(math.Round(v/step) * step))
}

// trimmed drops zeros at the end, but not a digit that says how exact a figure is: 0.50 becomes 0.5, 12.0 becomes 12.
func trimmed(v float64, digits int) string {
	s := strconv.FormatFloat(v, 'f', digits, 64)
	return strings.TrimRight(strings.TrimRight(s, "0"), ".")
}

// grouped is a whole number with its thousands set apart: 500,000.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func mebibytes(v float64) string { return figure(v/mib) + " MiB" }
func millis(v float64) string    { return figure(v) + " ms" }
func micros(v float64) string    { return figure(v) + " µs" }
func seconds(v float64) string   { return figure(v) + " s" }
func percent(v float64) string   { return figure(v) + " %" }
func times(v float64) string     { return strconv.FormatFloat(v, 'f', 2, 64) + " ×" }

// size is a payload's size as people say it: 200 B, 2 KB.
func size(bytes float64) string {
	if bytes >= 1000 {
		return strconv.FormatFloat(bytes/1000, 'g', 2, 64) + " KB"
	}
	return figure(bytes) + " B"
}

// short is a number for an axis: 50k, 2M.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return figure(v/1e6) + "M"
	case v >= 1e4:
		return figure(v/1e3) + "k"
	}
	return figure(v)
}

// line is a straight line.
type line struct{ intercept, slope float64 }

func (l line) at(x float64) float64 { return l.intercept + l.slope*x }

// fit is the line of least squares; it needs two different x.
func fit(xs, ys []float64) line {
	var mx, my, sxx, sxy float64
	n := float64(len(xs))
	for i := range xs {
		mx, my = mx+xs[i]/n, my+ys[i]/n
	}
	for i := range xs {
		sxx += (xs[i] - mx) * (xs[i] - mx)
		sxy += (xs[i] - mx) * (ys[i] - my)
	}
	if sxx == 0 {
		return line{intercept: my}
	}
	return line{intercept: my - sxy/sxx*mx, slope: sxy / sxx}
}

// chord is the line from the first to the last point.
func chord(xs, ys []float64) line {
	n := len(xs) - 1
	return fit([]float64{xs[0], xs[n]}, []float64{ys[0], ys[n]})
}

// excess says how far, at most, costs ys at the sizes xs grow faster than in a straight line; 0 where they do not. It is
// the larger of two shares: how far the line from end to end lies over a point between, and how far the cost from one
// point to a later one grows by more than the size does (which no line that starts at a cost ≥ 0 can). A cost may be
// higher than it reads by its grain, the resolution of the clock that took it.
func excess(xs, ys, grain []float64) float64 {
	c, worst := chord(xs, ys), 0.0
	for i := range xs {
		y := ys[i] + grain[i]
		if y <= 0 {
			continue
		}
		if i > 0 && i < len(xs)-1 {
			worst = max(worst, c.at(xs[i])/y-1)
		}
		for j := i + 1; j < len(xs); j++ {
			worst = max(worst, ys[j]/y/(xs[j]/xs[i])-1)
		}
	}
	return worst
}
