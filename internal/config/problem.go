package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Problem is one fault of a configuration file. It never holds the text of a
// secret, nor of a line beside the faulty one: what it quotes are keys, bounds
// and values that this package has recognised as harmless.
type Problem struct {
	// Path is the key as an operator would say it: sources[0].routes[2].topic.
	Path string `json:"path"`
	// Line counts from 1; for a missing key it is the line of the section that
	// lacks it. Zero: the file as a whole.
	Line int `json:"line"`
	// Message is what is wrong, without path and line.
	Message string `json:"message"`
}

func (p Problem) String() string {
	s := p.Message
	if p.Path != "" {
		s = p.Path + ": " + s
	}
	if p.Line > 0 {
		s = "line " + strconv.Itoa(p.Line) + ": " + s
	}
	return s
}

// Problems is all that is wrong with one file, in the order of its lines.
type Problems struct {
	File string
	List []Problem
}

var _ error = (*Problems)(nil)

// Error lists every problem, one a line.
func (p *Problems) Error() string {
	if len(p.List) == 1 {
		return p.List[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems", len(p.List))
	for _, problem := range p.List {
		b.WriteString("\n  " + problem.String())
	}
	return b.String()
}

// report collects problems with the line of their path.
type report struct {
	// lines maps the path of each key that stands in the file to its line.
	lines map[string]int
	list  []Problem
	// broken are the paths whose value could not be read at all, so that what
	// stands there, or should stand below, is not judged again.
	broken []string
}

func newReport() *report { return &report{lines: map[string]int{}} }

// at records a problem at a known line.
func (r *report) at(line int, path, format string, args ...any) {
	r.list = append(r.list, Problem{Path: path, Line: line, Message: fmt.Sprintf(format, args...)})
}

// add records a problem at the line of the path or of the nearest section around it.
func (r *report) add(path, format string, args ...any) {
	r.at(r.lineOf(path), path, format, args...)
}

// unreadable records that the value at a path could not be read.
func (r *report) unreadable(line int, path, format string, args ...any) {
	r.at(line, path, format, args...)
	r.broken = append(r.broken, path)
}

// follow records a problem unless it would be a consequence of another: the same
// key has one, or the value itself, a part of it or the section around it could
// not be read. A value of the wrong type is not missing too.
func (r *report) follow(path, format string, args ...any) {
	for _, p := range r.list {
		if p.Path == path {
			return
		}
	}
	for _, b := range r.broken {
		if b == path || within(path, b) || within(b, path) && b != "" {
			return
		}
	}
	r.add(path, format, args...)
}

// has says whether the key stands in the file.
func (r *report) has(path string) bool {
	_, ok := r.lines[path]
	return ok
}

// clean says that nothing is wrong at or below a path.
func (r *report) clean(path string) bool {
	for _, p := range r.list {
		if p.Path == path || within(path, p.Path) {
			return false
		}
	}
	return true
}

func (r *report) lineOf(path string) int {
	for path != "" {
		if line, ok := r.lines[path]; ok {
			return line
		}
		path = parent(path)
	}
	return r.lines[""]
}

// problems gives them in the order of their lines.
func (r *report) problems(file string) *Problems {
	list := slices.Clone(r.list)
	slices.SortStableFunc(list, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path))
	})
	return &Problems{File: file, List: list}
}

// within says that path lies below section.
func within(section, path string) bool {
	rest, ok := strings.CutPrefix(path, section)
	return ok && rest != "" && (section == "" || rest[0] == '.' || rest[0] == '[')
}

func parent(path string) string {
	if i := strings.LastIndexAny(path, ".["); i >= 0 {
		return path[:i]
	}
	return ""
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
