package report

import (
	"fmt"
	"strings"
)

// markdown collects blocks with an empty line between them.
type markdown struct {
	strings.Builder
	drawn map[string]chart // by file name
}

func (m *markdown) line(format string, args ...any) {
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	m.WriteString(format + "\n\n")
}

func (m *markdown) list(items []string) {
	for _, item := range items {
		m.WriteString("- " + oneLine(item) + "\n")
	}
	m.WriteString("\n")
}

// table writes a header and rows; columns from the second on are aligned to the right where numeric says so.
func (m *markdown) table(numeric bool, header []string, rows [][]string) {
	rule := make([]string, len(header))
	for i := range rule {
		rule[i] = "---"
		if numeric && i > 0 {
			rule[i] = "---:"
		}
	}
	for _, row := range append([][]string{header, rule}, rows...) {
		m.WriteString("|")
		for _, cell := range row {
			m.WriteString(" " + strings.ReplaceAll(oneLine(cell), "|", `\|`) + " |")
		}
		m.WriteString("\n")
	}
	m.WriteString("\n")
}

// chart shows a chart, if the run had figures for it.
func (m *markdown) chart(file string) {
	if c, ok := m.drawn[file]; ok {
		m.line("![%s](%s/%s)", c.alt, Folder, file)
	}
}

// missing says that a section has no figures, and of which steps.
func (m *markdown) missing(what string) {
	m.line("*Missing: %s was not measured in this run.*", what)
}

// oneLine keeps a note from breaking a table or a list.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
