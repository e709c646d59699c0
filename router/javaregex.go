package router

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// javaPattern is a regular expression in Java's syntax, compiled for RE2.
//
// Only what both engines read alike is accepted or translated; everything that
// RE2 lacks, or would read in another sense without saying so, is an error.
type javaPattern struct {
	// full decides, as Matcher.matches does; find locates what is replaced, as
	// Matcher.replaceFirst does. They may differ: a|ab matches all of "ab", but
	// finds "a" first.
	full, find *regexp.Regexp
}

// compileJava compiles a pattern or says why it cannot.
func compileJava(pattern string) (*javaPattern, error) {
	t := javaTranslator{in: pattern, names: map[string]bool{}}
	if err := t.run(); err != nil {
		return nil, err
	}
	find, err := regexp.Compile(t.out.String())
	if err != nil {
		return nil, fmt.Errorf("is no regular expression that can be used here: %w", err)
	}
	full, err := regexp.Compile(`\A(?:` + t.out.String() + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("is no regular expression that can be used here: %w", err)
	}
	return &javaPattern{full: full, find: find}, nil
}

// javaSpace is Java's \s; RE2's lacks the vertical tab. javaDot is what a dot does
// not match in Java, which knows more line ends than RE2.
const (
	javaSpace = `\t\n\x0B\f\r `
	javaDot   = `[^\n\r\x{85}\x{2028}\x{2029}]`
)

type javaTranslator struct {
	in    string
	pos   int
	out   strings.Builder
	names map[string]bool
	// dotAll is the flag s in the current group; outer are those of the groups around.
	dotAll bool
	outer  []bool
	// atom says that a repetition may follow.
	atom bool
}

func (t *javaTranslator) run() error {
	for t.pos < len(t.in) {
		if err := t.step(); err != nil {
			return err
		}
	}
	if len(t.outer) > 0 {
		return t.errorf("a ( is not closed")
	}
	return nil
}

func (t *javaTranslator) errorf(format string, args ...any) error {
	return fmt.Errorf("at character %d: %s", t.pos+1, fmt.Sprintf(format, args...))
}

// rest is what has not been read; hasPrefix looks ahead in it.
func (t *javaTranslator) rest() string            { return t.in[t.pos:] }
func (t *javaTranslator) hasPrefix(s string) bool { return strings.HasPrefix(t.rest(), s) }
func (t *javaTranslator) emit(s string, n int)    { t.out.WriteString(s); t.pos += n; t.atom = true }

func (t *javaTranslator) operator(s string)         { t.out.WriteString(s); t.pos += len(s); t.atom = false }
func (t *javaTranslator) literal(r rune, width int) { t.emit(regexp.QuoteMeta(string(r)), width) }

func (t *javaTranslator) step() error {
	switch c := t.in[t.pos]; c {
	case '\\':
		return t.escape()
	case '[':
		return t.class()
	case '(':
		return t.open()
	case ')':
		if len(t.outer) == 0 {
			return t.errorf("a ) closes nothing")
		}
		last := len(t.outer) - 1
		t.dotAll, t.outer = t.outer[last], t.outer[:last]
		t.emit(")", 1)
	case '.':
		if t.dotAll {
			t.emit("(?s:.)", 1)
		} else {
			t.emit(javaDot, 1)
		}
	case '*', '+', '?', '{':
		return t.repetition()
	case '|':
		t.operator("|")
	case '^', '$':
		t.emit(string(c), 1)
	default:
		r, width := utf8.DecodeRuneInString(t.rest())
		t.literal(r, width)
	}
	return nil
}

var (
	countedRepetition = regexp.MustCompile(`^\{[0-9]+(,[0-9]*)?\}`)
	groupName         = regexp.MustCompile(`^\(\?<([a-zA-Z][a-zA-Z0-9]*)>`)
	inlineFlags       = regexp.MustCompile(`^\(\?([a-zA-Z]*)(-[a-zA-Z]*)?([:)])`)
)

func (t *javaTranslator) repetition() error {
	if !t.atom {
		return t.errorf("a repetition without anything before it")
	}
	rep := t.in[t.pos : t.pos+1]
	if rep == "{" {
		if rep = countedRepetition.FindString(t.rest()); rep == "" {
			return t.errorf(`a { that is no repetition must be written \{`)
		}
	}
	t.operator(rep)
	switch {
	case t.hasPrefix("?"):
		t.operator("?")
	case t.hasPrefix("+"):
		return t.errorf("possessive repetition is not supported")
	}
	return nil
}

// open reads a group's beginning.
func (t *javaTranslator) open() error {
	rest := t.rest()
	switch {
	case !strings.HasPrefix(rest, "(?"):
		t.push(t.dotAll, "(", 1)
		return nil
	case strings.HasPrefix(rest, "(?=") || strings.HasPrefix(rest, "(?!"):
		return t.errorf("lookahead is not supported")
	case strings.HasPrefix(rest, "(?<=") || strings.HasPrefix(rest, "(?<!"):
		return t.errorf("lookbehind is not supported")
	case strings.HasPrefix(rest, "(?>"):
		return t.errorf("atomic groups are not supported")
	case strings.HasPrefix(rest, "(?<"):
		return t.openNamed()
	}
	return t.flags()
}

func (t *javaTranslator) push(dotAll bool, out string, width int) {
	t.outer = append(t.outer, t.dotAll)
	t.dotAll = dotAll
	t.emit(out, width)
	t.atom = false
}

func (t *javaTranslator) openNamed() error {
	m := groupName.FindStringSubmatch(t.rest())
	if m == nil {
		return t.errorf("a group's name consists of letters and digits and begins with a letter: (?<name>…)")
	}
	if t.names[m[1]] {
		return t.errorf("the group name %s is used twice", m[1])
	}
	t.names[m[1]] = true
	t.push(t.dotAll, "(?P<"+m[1]+">", len(m[0]))
	return nil
}

// flags reads (?i), (?s), (?-i:…) and the like. RE2 reads (?U), (?u), (?d) and (?x)
// in another sense or not at all.
func (t *javaTranslator) flags() error {
	m := inlineFlags.FindStringSubmatch(t.rest())
	if m == nil {
		return t.errorf("this kind of group is not supported; write (?<name>…), (?:…) or (…)")
	}
	on, off := m[1], strings.TrimPrefix(m[2], "-")
	for _, f := range on + off {
		if f != 'i' && f != 's' {
			return t.errorf("the flag %c is not supported", f)
		}
	}
	dotAll := (t.dotAll || strings.Contains(on, "s")) && !strings.Contains(off, "s")
	if m[3] == ":" {
		t.push(dotAll, m[0], len(m[0]))
		return nil
	}
	if on+off != "" {
		t.out.WriteString(m[0])
	}
	t.dotAll, t.atom = dotAll, false
	t.pos += len(m[0])
	return nil
}
