package router

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// escape reads a backslash outside a class.
func (t *javaTranslator) escape() error {
	if t.hasPrefix(`\Q`) {
		t.quoted()
		return nil
	}
	out, width, err := t.readEscape(false)
	if err != nil {
		return err
	}
	t.emit(out, width)
	return nil
}

// quoted reads \Q…\E, whose end may be missing.
func (t *javaTranslator) quoted() {
	text, _, closed := strings.Cut(t.in[t.pos+2:], `\E`)
	width := len(`\Q`) + len(text)
	if closed {
		width += len(`\E`)
	}
	atom := t.atom || text != ""
	t.emit(regexp.QuoteMeta(text), width)
	t.atom = atom
}

// readEscape translates one escape; width is its length in the input.
func (t *javaTranslator) readEscape(inClass bool) (out string, width int, err error) {
	if t.pos+1 >= len(t.in) {
		return "", 0, t.errorf(`a \ at the end`)
	}
	c := t.in[t.pos+1]
	switch c {
	case 'd', 'D', 'w', 'W', 't', 'n', 'r', 'f', 'a':
		return `\` + string(c), 2, nil
	case 'e':
		return `\x1B`, 2, nil
	case 's', 'S':
		return spaceClass(c, inClass), 2, nil
	case 'x', 'u':
		return t.readHex()
	case 'p', 'P':
		return t.readProperty(inClass)
	case 'b', 'B', 'A', 'z':
		if !inClass {
			return `\` + string(c), 2, nil
		}
	case 'k', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return "", 0, t.errorf("back references are not supported")
	}
	switch {
	case c >= utf8.RuneSelf:
		r, n := utf8.DecodeRuneInString(t.in[t.pos+1:])
		return string(r), 1 + n, nil
	case isAlnum(c):
		return "", 0, t.errorf(`\%c is not supported here`, c)
	}
	return `\` + string(c), 2, nil
}

// spaceClass is \s or \S in Java's sense. Inside a class \S keeps RE2's sense,
// which differs in the vertical tab alone.
func spaceClass(c byte, inClass bool) string {
	switch {
	case c == 's' && inClass:
		return javaSpace
	case c == 's':
		return "[" + javaSpace + "]"
	case inClass:
		return `\S`
	}
	return "[^" + javaSpace + "]"
}

var hexEscape = regexp.MustCompile(`^\\(?:x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4}))`)

func (t *javaTranslator) readHex() (out string, width int, err error) {
	m := hexEscape.FindStringSubmatch(t.rest())
	if m == nil {
		return "", 0, t.errorf(`a character by number is written \xHH, \x{H…} or \uHHHH`)
	}
	code, _ := strconv.ParseUint(m[1]+m[2]+m[3], 16, 32) // at most six digits
	if !utf8.ValidRune(rune(code)) {
		return "", 0, t.errorf("%s is no character", m[0])
	}
	return `\x{` + strconv.FormatUint(code, 16) + `}`, len(m[0]), nil
}

// javaPOSIX are Java's ASCII classes under their POSIX names.
var javaPOSIX = map[string]string{
	"Lower": "lower", "Upper": "upper", "ASCII": "ascii", "Alpha": "alpha",
	"Digit": "digit", "Alnum": "alnum", "Punct": "punct", "Graph": "graph",
	"Print": "print", "Blank": "blank", "Cntrl": "cntrl", "XDigit": "xdigit",
	"Space": "space",
}

var property = regexp.MustCompile(`^\\([pP])(?:([A-Z])|\{([A-Za-z_]+)\})`)

// readProperty translates \p{…}: ASCII classes, general categories and scripts.
func (t *javaTranslator) readProperty(inClass bool) (out string, width int, err error) {
	m := property.FindStringSubmatch(t.rest())
	if m == nil {
		return "", 0, t.errorf("this kind of property is not supported")
	}
	name, negated := m[2]+m[3], m[1] == "P"
	if posix, ok := javaPOSIX[name]; ok {
		return posixClass(posix, negated, inClass), len(m[0]), nil
	}
	short := strings.TrimPrefix(name, "Is")
	_, category := unicode.Categories[short]
	_, script := unicode.Scripts[short]
	if category && len(short) <= 2 || script && short != name {
		return `\` + m[1] + "{" + short + "}", len(m[0]), nil
	}
	return "", 0, t.errorf("the property %s is not supported", name)
}

func posixClass(name string, negated, inClass bool) string {
	if negated {
		name = "^" + name
	}
	if inClass {
		return "[:" + name + ":]"
	}
	return "[[:" + name + ":]]"
}

// class reads […]. Java's unions and intersections would be taken by RE2 for
// literals, so they are refused.
func (t *javaTranslator) class() error {
	var b strings.Builder
	b.WriteByte('[')
	t.pos++
	if t.hasPrefix("^") {
		b.WriteByte('^')
		t.pos++
	}
	for first := true; ; first = false {
		if t.pos >= len(t.in) {
			return t.errorf("a [ is not closed")
		}
		if t.hasPrefix("]") && !first {
			b.WriteByte(']')
			t.emit(b.String(), 1)
			return nil
		}
		out, width, err := t.classItem()
		if err != nil {
			return err
		}
		b.WriteString(out)
		t.pos += width
	}
}

func (t *javaTranslator) classItem() (out string, width int, err error) {
	switch {
	case t.hasPrefix("]"):
		return "", 0, t.errorf(`a ] that begins a class must be written \]`)
	case t.hasPrefix("["):
		return "", 0, t.errorf(`a class inside a class is not supported; a literal [ must be written \[`)
	case t.hasPrefix("&&"):
		return "", 0, t.errorf("intersection (&&) is not supported")
	case t.hasPrefix(`\`):
		return t.readEscape(true)
	case t.hasPrefix("-"):
		return "-", 1, nil
	}
	r, n := utf8.DecodeRuneInString(t.rest())
	if r == '^' {
		return `\^`, n, nil
	}
	return string(r), n, nil
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
