package router

import (
	"unicode/utf16"
	"unicode/utf8"

	"github.com/postrider/postrider/event"
)

// maxColumnHeaders bounds the headers that one row's headers column may give.
const maxColumnHeaders = 256

// Problems of a headers column. None holds anything of the value.
const (
	badHeadersNotFlat  = "must hold one flat object whose values are strings"
	badHeadersReserved = "has a name that begins with " + reservedPrefix + ", which is reserved"
	badHeadersRepeated = "has a name that another header has already"
	badHeadersTooMany  = "has more than 256 members"
	badHeadersEscape   = "has an escape that stands for no character"
)

// headersParser reads a flat JSON object of strings into headers. It is the only
// place that parses JSON, and it never touches the payload.
type headersParser struct {
	scanner
	buf     []byte
	problem string
}

// names interns header names, so that a name that was seen before costs nothing.
type names map[string]string

const maxNames = 1024

func (n names) intern(name []byte) string {
	if s, ok := n[string(name)]; ok {
		return s
	}
	if len(n) >= maxNames {
		clear(n)
	}
	s := string(name)
	n[s] = s
	return s
}

// appendColumnHeaders appends the members of the object in text to headers. Values
// alias text, or buf where they had escapes; the grown buf is returned.
func appendColumnHeaders(headers []event.Header, text, buf []byte, n names) (_ []event.Header, _ []byte, problem string) {
	p := headersParser{scanner: scan(text), buf: buf}
	first := len(headers)
	p.space()
	p.expect('{')
	p.space()
	for more := p.ok && !p.skip('}'); more && p.problem == ""; {
		name := p.str()
		p.space()
		p.expect(':')
		p.space()
		value := p.str()
		p.space()
		more = p.skip(',')
		if p.space(); !more {
			p.expect('}')
		}
		if !p.ok || p.problem != "" {
			break
		}
		headers = p.add(headers, first, n.intern(name), value)
	}
	p.space()
	if p.problem == "" && !p.done() {
		p.problem = badHeadersNotFlat
	}
	return headers, p.buf, p.problem
}

func (p *headersParser) add(headers []event.Header, first int, name string, value []byte) []event.Header {
	switch {
	case len(headers)-first >= maxColumnHeaders:
		p.problem = badHeadersTooMany
	case len(name) >= len(reservedPrefix) && name[:len(reservedPrefix)] == reservedPrefix:
		p.problem = badHeadersReserved
	}
	for i := range headers {
		if headers[i].Name == name {
			p.problem = badHeadersRepeated
		}
	}
	return append(headers, event.Header{Name: name, Value: value})
}

func (p *headersParser) space() {
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// str reads a string. Without escapes it is a part of the text.
func (p *headersParser) str() []byte {
	p.expect('"')
	start := p.pos
	for p.ok && p.pos < len(p.text) {
		switch c := p.text[p.pos]; {
		case c == '"':
			p.pos++
			return p.text[start : p.pos-1 : p.pos-1]
		case c == '\\':
			return p.escaped(start)
		case c < 0x20:
			p.ok = false
		default:
			p.pos++
		}
	}
	p.ok = false
	return nil
}

// escaped goes on with a string at its first escape.
func (p *headersParser) escaped(start int) []byte {
	from := len(p.buf)
	p.buf = append(p.buf, p.text[start:p.pos]...)
	for p.ok && p.pos < len(p.text) {
		c := p.text[p.pos]
		p.pos++
		switch {
		case c == '"':
			return p.buf[from:len(p.buf):len(p.buf)]
		case c == '\\':
			p.escape()
		case c < 0x20:
			p.ok = false
		default:
			p.buf = append(p.buf, c)
		}
	}
	p.ok = false
	return nil
}

// escape reads what follows a backslash.
func (p *headersParser) escape() {
	c := p.peek()
	p.pos++
	switch c {
	case '"', '\\', '/':
		p.buf = append(p.buf, c)
	case 'b':
		p.buf = append(p.buf, '\b')
	case 'f':
		p.buf = append(p.buf, '\f')
	case 'n':
		p.buf = append(p.buf, '\n')
	case 'r':
		p.buf = append(p.buf, '\r')
	case 't':
		p.buf = append(p.buf, '\t')
	case 'u':
		p.unicode()
	default:
		p.ok = false
	}
}

// unicode reads the four digits of \uHHHH and, for a surrogate, its other half. A
// json column may hold halves that stand for no character; jsonb refuses them.
func (p *headersParser) unicode() {
	r := p.hex4()
	if utf16.IsSurrogate(r) {
		low := utf8.RuneError
		if p.skip('\\') && p.skip('u') {
			low = p.hex4()
		}
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			p.problem = badHeadersEscape
		}
	}
	p.buf = utf8.AppendRune(p.buf, r)
}

func (p *headersParser) hex4() rune {
	var r rune
	for range 4 {
		d := hexDigit[p.peek()]
		if p.pos >= len(p.text) || d > 15 {
			p.ok = false
			return utf8.RuneError
		}
		r = r<<4 | rune(d)
		p.pos++
	}
	return r
}
