package router

import (
	"encoding/base64"
	"encoding/json"
)

// appendJSONString writes text as a JSON string, escaping only what must be: the
// characters of the text arrive as they are.
func appendJSONString(dst, text []byte) []byte {
	const hex = "0123456789ABCDEF"
	dst = append(dst, '"')
	start := 0
	for i, c := range text {
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, text[start:]...)
	return append(dst, '"')
}

// appendBase64JSON writes bytes as a JSON string in base64.
func appendBase64JSON(dst, raw []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, raw)
	return append(dst, '"')
}

// isJSON says whether text is one JSON value. It decides about the splicing of a
// text column; the text itself is passed on unchanged.
func isJSON(text []byte) bool { return json.Valid(text) }

// appendJSONValue writes a column's value for EnvelopeJSON: numbers, booleans and
// json as they are, everything else as a string that holds PostgreSQL's text
// (bytea: base64).
func appendJSONValue(dst []byte, t pgType, text []byte, tmp *[]byte) ([]byte, string) {
	switch t.kind {
	case kindJSON:
		return append(dst, text...), ""
	case kindInt:
		return appendInt(dst, text)
	case kindFloat4, kindFloat8, kindNumeric:
		if isJSONNumber(text) {
			return append(dst, text...), ""
		}
		return appendJSONString(dst, text), "" // NaN, Infinity, -Infinity
	case kindBool:
		return appendBool(dst, text)
	case kindBytea:
		raw, ok := appendHexDecoded((*tmp)[:0], text)
		*tmp = raw
		if !ok {
			return dst, badBytea
		}
		return appendBase64JSON(dst, raw), ""
	}
	return appendJSONString(dst, text), ""
}

// isJSONNumber tells a number from NaN and the infinities, and from what PostgreSQL
// would not write: digits, then at most one fraction and one exponent.
func isJSONNumber(text []byte) bool {
	s := scan(text)
	s.skip('-')
	digits := func() bool {
		start := s.pos
		for s.peek() >= '0' && s.peek() <= '9' {
			s.pos++
		}
		return s.pos > start
	}
	if s.peek() == '0' {
		s.pos++
	} else if !digits() {
		return false
	}
	if s.skip('.') && !digits() {
		return false
	}
	if s.skip('e') {
		if !s.skip('-') {
			s.skip('+')
		}
		if !digits() {
			return false
		}
	}
	return s.done()
}

func appendInt(dst, text []byte) ([]byte, string) {
	if _, ok := parseInt(text); !ok || !isJSONNumber(text) {
		return dst, "is no integer"
	}
	return append(dst, text...), ""
}

func appendBool(dst, text []byte) ([]byte, string) {
	switch string(text) {
	case "t":
		return append(dst, "true"...), ""
	case "f":
		return append(dst, "false"...), ""
	}
	return dst, "is no boolean"
}

const badBytea = `is no bytea in hexadecimal form (\x…)`
