package report

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// The charts are written here, without a chart library. gonum/plot and go-analyze/charts, the two Go libraries with SVG
// output that are kept up, were tried: both write their colours into every element, so that a chart has one theme (GitHub
// shows README on white and on black); both place text by the metrics of fonts that a reader does not have, and let it
// run into its neighbours elsewhere; neither has <title> and <desc>; the second has neither a logarithmic axis nor
// whiskers. What is needed, bars and lines, is less than the code that would repair their output.

// svg is a drawing. Colours come from classes, so that it follows the reader's theme; text stays text, and is
// anchored, so that its width is never needed.
type svg struct {
	strings.Builder
	height float64
}

// width is that of every chart, in px; GitHub scales it down on a narrow screen.
const width = 780

// style has both themes. The background is the drawing's own: a page whose theme is not the system's stays readable. The
// colours are told apart with the common forms of colour blindness, and in print: lines have dashes, too.
const style = `
text{font-family:-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:12px;fill:#1f2328}
.bg{fill:#fff;stroke:#d1d9e0}.title{font-size:16px;font-weight:600}.b{font-weight:600}.m{fill:#59636e}
.grid{stroke:#e4e8ec}.axis{stroke:#818b98}.limit{fill:none;stroke:#59636e;stroke-dasharray:6 4}.whisker{stroke:#1f2328;stroke-width:1.5}
.f0{fill:#0072b2}.f1{fill:#c44e00}.f2{fill:#a67300}.f3{fill:#00795a}.f4{fill:#a3457e}.f5{fill:#818b98}.f6{fill:#5f6b00}
.l{fill:none;stroke-width:2.5;stroke-linejoin:round}
.s0{stroke:#0072b2}.s1{stroke:#c44e00}.s2{stroke:#a67300}.s3{stroke:#00795a}.s4{stroke:#a3457e}.s5{stroke:#818b98}.s6{stroke:#5f6b00}
.d1{stroke-dasharray:9 4}.d2{stroke-dasharray:5 3}.d3{stroke-dasharray:2 3}.d4{stroke-dasharray:9 3 2 3}.d5{stroke-dasharray:1 4}.d6{stroke-dasharray:14 3}
@media (prefers-color-scheme:dark){
text{fill:#f0f6fc}.bg{fill:#0d1117;stroke:#3d444d}.m{fill:#9198a1}
.grid{stroke:#262c34}.axis{stroke:#656c76}.limit{stroke:#9198a1}.whisker{stroke:#f0f6fc}
.f0{fill:#56b4e9}.f1{fill:#f58553}.f2{fill:#e6b422}.f3{fill:#2fbf97}.f4{fill:#df9bc4}.f5{fill:#7d8590}.f6{fill:#b5c34a}
.s0{stroke:#56b4e9}.s1{stroke:#f58553}.s2{stroke:#e6b422}.s3{stroke:#2fbf97}.s4{stroke:#df9bc4}.s5{stroke:#7d8590}.s6{stroke:#b5c34a}
}
`

// newSVG begins a drawing. The description tells in words what the chart shows, for readers who do not see it.
func newSVG(height float64, title, subtitle, description string) *svg {
	s := &svg{height: height}
	s.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %s" width="%d" height="%s" role="img" aria-labelledby="t d">`,
		width, px(height), width, px(height))
	s.add(`<title id="t">%s</title>`, escaped(title))
	s.add(`<desc id="d">%s</desc>`, escaped(description))
	s.add(`<style>%s</style>`, style)
	s.add(`<rect class="bg" x="0.5" y="0.5" width="%d" height="%s" rx="6"/>`, width-1, px(height-1))
	s.text(20, 30, "title", "", title)
	s.text(20, 50, "m", "", subtitle)
	return s
}

func (s *svg) add(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

func (s *svg) done() []byte {
	s.add(`</svg>`)
	return []byte(s.String())
}

// text is anchored at its start, or as anchor says: middle, end.
func (s *svg) text(x, y float64, class, anchor, text string) {
	attrs := ""
	if class != "" {
		attrs += fmt.Sprintf(` class="%s"`, class)
	}
	if anchor != "" {
		attrs += fmt.Sprintf(` text-anchor="%s"`, anchor)
	}
	s.add(`<text x="%s" y="%s"%s>%s</text>`, px(x), px(y), attrs, escaped(text))
}

func (s *svg) rect(x, y, w, h float64, class string) {
	s.add(`<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>`, class, px(x), px(y), px(w), px(h))
}

func (s *svg) line(x1, y1, x2, y2 float64, class string) {
	s.add(`<path class="%s" d="M%s %sL%s %s"/>`, class, px(x1), px(y1), px(x2), px(y2))
}

func (s *svg) dot(x, y float64, class string) {
	s.add(`<circle class="%s" cx="%s" cy="%s" r="3.5"/>`, class, px(x), px(y))
}

// path joins points by straight lines.
func (s *svg) path(points []xy, class string) {
	var d strings.Builder
	for i, p := range points {
		d.WriteString(map[bool]string{true: "M", false: "L"}[i == 0] + px(p.x) + " " + px(p.y))
	}
	s.add(`<path class="%s" d="%s"/>`, class, d.String())
}

type xy struct{ x, y float64 }

// px has one digit after the point: the same bytes on every machine, and small files.
func px(v float64) string {
	if r := math.Round(v*10) / 10; r != 0 {
		return trimmed(r, 1)
	}
	return "0"
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder never fails
	return b.String()
}

// colour is the number of a contender's classes f, s and d: the same in every chart.
func colour(contender string) int {
	switch {
	case ours(contender):
		return 0
	case contender == debezium:
		return 1
	case contender == debeziumTuned:
		return 2
	case contender == polling:
		return 3
	case contender == watermill:
		return 4
	case contender == pollingTuned:
		return 6
	}
	return 5
}

// scale turns a value into a place between 0 and 1.
type scale func(float64) float64

func linear(lo, hi float64) scale {
	return func(v float64) float64 { return (v - lo) / (hi - lo) }
}

func logarithmic(lo, hi float64) scale {
	return func(v float64) float64 { return math.Log(v/lo) / math.Log(hi/lo) }
}

// ticksTo are round numbers from 0 to at least hi, some five of them.
func ticksTo(hi float64) []float64 {
	if hi <= 0 {
		hi = 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(hi/5)))
	step := unit * 10
	for _, f := range []float64{1, 2, 2.5, 5} {
		if unit*f*5 >= hi*(1-1e-9) {
			step = unit * f
			break
		}
	}
	var out []float64
	for i := 0; ; i++ {
		out = append(out, float64(i)*step)
		if float64(i)*step >= hi*(1-1e-9) {
			return out
		}
	}
}

// decades are the powers of base around lo…hi.
func decades(lo, hi, base float64) []float64 {
	first := math.Floor(math.Log(lo)/math.Log(base) + 1e-9)
	last := math.Ceil(math.Log(hi)/math.Log(base) - 1e-9)
	var out []float64
	for e := first; e <= max(last, first+1); e++ {
		out = append(out, math.Pow(base, e))
	}
	return out
}
