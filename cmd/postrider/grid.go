package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// screenWidth is what every table keeps to, whatever names are in it.
	screenWidth = 100
	// leastColumn is the width below which a column is not cut.
	leastColumn = 6
	columnGap   = 2
)

// grid is a table of columns. Where it is wider than the screen, its widest columns are cut; --json has the whole.
type grid struct {
	out    io.Writer
	indent int
	heads  []string // "" in each: no head is shown
	rows   [][]string
}

func newGrid(out io.Writer, heads ...string) *grid { return &grid{out: out, heads: heads} }

// row adds one; it has a value for each head.
func (g *grid) row(values ...any) {
	row := make([]string, len(values))
	for i, v := range values {
		row[i] = shown(fmt.Sprint(v))
	}
	g.rows = append(g.rows, row)
}

func (g *grid) flush() error {
	widths := g.widths()
	var b strings.Builder
	if slices.ContainsFunc(g.heads, func(h string) bool { return h != "" }) {
		g.line(&b, g.heads, widths)
	}
	for _, row := range g.rows {
		g.line(&b, row, widths)
	}
	_, err := io.WriteString(g.out, b.String())
	return err
}

// widths are those of the longest values, less what the screen has no room for.
func (g *grid) widths() []int {
	widths := make([]int, len(g.heads))
	total := g.indent + columnGap*(len(widths)-1)
	for i, head := range g.heads {
		widths[i] = utf8.RuneCountInString(head)
		for _, row := range g.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		total += widths[i]
	}
	for ; total > screenWidth; total-- {
		widest := 0
		for i, w := range widths {
			if w > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= leastColumn {
			break
		}
		widths[widest]--
	}
	return widths
}

func (g *grid) line(b *strings.Builder, values []string, widths []int) {
	line := strings.Repeat(" ", g.indent)
	for i, v := range values {
		cut := clipName
		if endsMatterLess(g.heads[i]) {
			cut = clip
		}
		line += fmt.Sprintf("%-*s", widths[i]+columnGap, cut(v, widths[i]))
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}

// endsMatterLess: an id is known by its beginning, and a text is read from there; two names
// of topics or types often differ at the end only.
func endsMatterLess(head string) bool {
	return slices.Contains([]string{"EVENT ID", "REASON", "REFUSED", "OUTCOME", "OURS", "THEIRS"}, head)
}

// clip keeps a text within n characters: what is longer loses its end.
func clip(s string, n int) string {
	s = shown(s)
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// clipName keeps a name within n characters: what is longer loses its middle.
func clipName(s string, n int) string {
	s = shown(s)
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	front := n / 2
	return string(r[:front]) + "…" + string(r[len(r)-(n-1-front):])
}

// shown is a text without characters that do something to a terminal or to a table: they
// come from rows and topics, and anybody may have written them.
func shown(s string) string {
	acts := func(r rune) bool { return r != ' ' && !unicode.IsGraphic(r) }
	if !strings.ContainsFunc(s, acts) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !acts(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// shownLines leaves the ends of lines.
func shownLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = shown(line)
	}
	return strings.Join(lines, "\n")
}

// table is a list of names and values; long values go on in further lines.
type table struct {
	out    io.Writer
	rows   []tableRow
	widest int // a line of a value, where that is less than the screen has room for
}

type tableRow struct {
	name, value string
	whole       bool // on one line, however long
}

// longestName leaves room for values beside names that come from outside.
const longestName = 34

func newTable(w io.Writer) *table { return &table{out: w, widest: screenWidth} }

func (t *table) row(name, format string, args ...any) {
	t.rows = append(t.rows, tableRow{name: clipName(name, longestName), value: shown(fmt.Sprintf(format, args...))})
}

// bytes is a row for the content of an event, which is neither broken nor cut.
func (t *table) bytes(name string, content []byte) {
	t.rows = append(t.rows, tableRow{name: clipName(name, longestName), value: bytesShown(content), whole: true})
}

func (t *table) flush() error {
	width := 0
	for _, r := range t.rows {
		width = max(width, utf8.RuneCountInString(r.name))
	}
	var b strings.Builder
	for _, r := range t.rows {
		lines := []string{r.value}
		if !r.whole {
			lines = wrap(r.value, min(t.widest, screenWidth-width-columnGap))
		}
		for i, line := range lines {
			name := r.name
			if i > 0 {
				name = ""
			}
			b.WriteString(strings.TrimRight(fmt.Sprintf("%-*s%s", width+columnGap, name, line), " ") + "\n")
		}
	}
	_, err := io.WriteString(t.out, b.String())
	return err
}

// wrap breaks a text at blanks into lines of at most width characters. A word that is longer
// is broken too. A text that fits is left as it is.
func wrap(text string, width int) []string {
	if utf8.RuneCountInString(text) <= width {
		return []string{text}
	}
	var lines []string
	line := []rune{}
	for word := range strings.FieldsSeq(text) {
		w := []rune(word)
		if len(line) > 0 && len(line)+1+len(w) > width {
			lines, line = append(lines, string(line)), nil
		}
		if len(line) > 0 {
			line = append(line, ' ')
		}
		line = append(line, w...)
		for len(line) > width {
			lines, line = append(lines, string(line[:width])), line[width:]
		}
	}
	return append(lines, string(line))
}

// tell writes a sentence; its further lines are indented.
func tell(out io.Writer, format string, args ...any) error {
	const indent = 4
	text := shown(fmt.Sprintf(format, args...))
	body := strings.TrimLeft(text, " ")
	lead := text[:len(text)-len(body)]
	lines := wrap(body, screenWidth-indent-len(lead))
	_, err := fmt.Fprintln(out, lead+strings.Join(lines, "\n"+lead+strings.Repeat(" ", indent)))
	return err
}
