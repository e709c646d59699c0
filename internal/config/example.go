package config

import (
	"fmt"
	"strings"
)

const exampleHead = `# Postrider's configuration. Lines that are commented out show the default, or
# an example where there is none. docs/configuration.md says more.
#
# ${NAME} is replaced by an environment variable, ${NAME:-text} has a default, and
# $${ is a literal ${. Relative file names start at this file's folder.
`

// exampleWidth is where comments of the sample configuration break.
const exampleWidth = 100

// Example is the sample configuration: every key, with its default or a sample.
func Example() (string, error) {
	tree, err := defaultTree()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(exampleHead)
	w := exampleWriter{out: &b, tree: tree}
	for _, key := range Reference() {
		w.key(key)
	}
	return b.String(), nil
}

// defaultTree is the default configuration with one source in it, so that the
// defaults of sources can be read off too.
func defaultTree() (map[string]any, error) {
	c := defaultConfig()
	c.Sources = []Source{{Mapping: Mapping{EventID: "event_id"}}}
	c.fillDefaults()
	return c.Tree()
}

type exampleWriter struct {
	out  *strings.Builder
	tree map[string]any
	// off is the path of the section that is commented out as a whole, and its indent.
	off       string
	offIndent int
	// item is the list item whose first key has been written.
	item string
}

func (w *exampleWriter) key(k Key) {
	if w.off != "" && !within(w.off, k.Path) {
		w.off = ""
	}
	indent := 2 * (strings.Count(k.Path, ".") + strings.Count(k.Path, "[]"))
	if indent == 0 {
		w.out.WriteString("\n")
	}
	lead := w.lead(k, indent)
	for _, line := range wrap(k.Doc, exampleWidth-indent-2) {
		fmt.Fprintf(w.out, "%s# %s\n", w.comment(indent-len(dashOf(lead))), line)
	}
	name := k.Path[strings.LastIndexByte(k.Path, '.')+1:]
	value := k.Sample
	if value == "" {
		value = defaultText(w.tree, k.Path)
	}
	if k.Type == typeSection {
		value = ""
	}
	fmt.Fprintf(w.out, "%s\n", strings.TrimRight(lead+name+": "+value, " "))
}

// lead is what stands before the name of a key: indent, the dash of a list's
// item, and the mark of a comment.
func (w *exampleWriter) lead(k Key, indent int) string {
	if w.off != "" {
		return w.comment(indent) + w.dash(k.Path)
	}
	if !k.Active {
		if k.Type == typeSection {
			w.off, w.offIndent = k.Path, indent
		}
		return strings.Repeat(" ", indent) + "# "
	}
	dash := w.dash(k.Path)
	return strings.Repeat(" ", indent-len(dash)) + dash
}

// comment is the indent of a comment line, inside a section that is off too.
func (w *exampleWriter) comment(indent int) string {
	if w.off == "" || indent == w.offIndent {
		return strings.Repeat(" ", indent)
	}
	return strings.Repeat(" ", w.offIndent) + "# " + strings.Repeat(" ", indent-w.offIndent)
}

// dash is "- " for the first active key of a list's item.
func (w *exampleWriter) dash(path string) string {
	i := strings.LastIndex(path, "[].")
	if i < 0 || strings.Contains(path[i+3:], ".") || w.item == path[:i] {
		return ""
	}
	w.item = path[:i]
	return "- "
}

func dashOf(lead string) string {
	if strings.HasSuffix(lead, "- ") {
		return "- "
	}
	return ""
}

// defaultText is the default of a key as YAML, read from the code.
func defaultText(tree map[string]any, path string) string {
	var at any = tree
	for part := range strings.SplitSeq(path, ".") {
		name, isList := strings.CutSuffix(part, "[]")
		m, ok := at.(map[string]any)
		if !ok {
			return ""
		}
		at = m[name]
		if list, ok := at.([]any); isList && ok && len(list) > 0 {
			at = list[0]
		}
	}
	if at == nil {
		return ""
	}
	return fmt.Sprint(at)
}

func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}
