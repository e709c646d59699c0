package router

import (
	"encoding/base64"
	"strconv"
)

// style is the place that a converted value is written to.
type style uint8

const (
	// styleHeader is a header's value: Connect's SimpleHeaderConverter.
	styleHeader style = iota
	// styleElement is an element of an array in a header.
	styleElement
	// styleJSON is a field of an envelope: Connect's JsonConverter.
	styleJSON
)

// converter writes values in the forms of Debezium's PostgreSQL connector with its
// default options (time.precision.mode=adaptive, decimal.handling.mode=precise,
// binary.handling.mode=bytes, interval.handling.mode=numeric). It holds scratch
// space only. Problems are texts without any part of the value; "" is none.
type converter struct {
	bytes, digits, element []byte
	words                  []uint64
}

// debeziumSupports says why a type has no Debezium form here, or "".
func debeziumSupports(t pgType) string {
	kind := t.kind
	if kind == kindArray {
		switch t.elem {
		case kindTime, kindTimeTZ, kindInterval, kindBit, kindVarbit:
			return "is an array of a type that format debezium is not offered for"
		}
		kind = t.elem
	}
	switch {
	case kind == kindOther:
		return "is of a type that format debezium is not offered for"
	case t.domain && (kind == kindNumeric || kind == kindTime || kind == kindTimestamp || kind == kindTimestampTZ || kind == kindBit || kind == kindVarbit):
		return "is a domain whose precision the server does not send, so format debezium cannot follow it"
	case kind == kindNumeric && t.mod >= 0 && numericScale(t.mod) < 0:
		return "is a numeric with a negative scale, which format debezium is not offered for"
	}
	return ""
}

// append writes one value of type t.
func (c *converter) append(dst []byte, t pgType, text []byte, s style) ([]byte, string) {
	switch t.kind {
	case kindBool:
		return appendBool(dst, text)
	case kindInt:
		return appendInt(dst, text)
	case kindFloat4:
		return appendFloat(dst, text, 32, s)
	case kindFloat8:
		return appendFloat(dst, text, 64, s)
	case kindNumeric:
		return c.appendNumeric(dst, t, text, s)
	case kindBytea:
		return c.appendBytea(dst, text, s)
	case kindBit, kindVarbit:
		return c.appendBits(dst, t, text, s)
	case kindDate, kindTime, kindTimestamp, kindInterval:
		return appendTemporal(dst, t, text)
	case kindTimestampTZ:
		return c.appendZoned(dst, t, text, s, appendISOTimestamp)
	case kindTimeTZ:
		return c.appendZoned(dst, t, text, s, appendISOTime)
	case kindArray:
		return c.appendArray(dst, t, text, s)
	}
	return appendText(dst, text, s), ""
}

// appendText writes text as the style has it. Connect's own escaping inside arrays
// covers the quote and the backslash only.
func appendText(dst, text []byte, s style) []byte {
	switch s {
	case styleHeader:
		return append(dst, text...)
	case styleJSON:
		return appendJSONString(dst, text)
	}
	dst = append(dst, '"')
	for _, b := range text {
		if b == '"' || b == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, b)
	}
	return append(dst, '"')
}

func appendBytes(dst, raw []byte, s style) []byte {
	if s == styleHeader {
		return base64.StdEncoding.AppendEncode(dst, raw)
	}
	return appendBase64JSON(dst, raw)
}

func (c *converter) appendBytea(dst, text []byte, s style) ([]byte, string) {
	raw, ok := appendHexDecoded(c.bytes[:0], text)
	c.bytes = raw
	if !ok {
		return dst, badBytea
	}
	return appendBytes(dst, raw, s), ""
}

// appendBits writes bit(1) as a boolean and longer ones as little-endian bytes
// without the zero bytes at the end.
func (c *converter) appendBits(dst []byte, t pgType, text []byte, s style) ([]byte, string) {
	if t.mod == 1 {
		return strconv.AppendBool(dst, string(text) == "1"), ""
	}
	raw := c.bytes[:0]
	for i := range text {
		bit := text[len(text)-1-i]
		if bit != '0' && bit != '1' {
			return dst, "is no bit string"
		}
		if i%8 == 0 {
			raw = append(raw, 0)
		}
		raw[i/8] |= (bit - '0') << (i % 8)
	}
	for len(raw) > 0 && raw[len(raw)-1] == 0 {
		raw = raw[:len(raw)-1]
	}
	c.bytes = raw
	return appendBytes(dst, raw, s), ""
}

// appendFloat writes what Java's Float.toString or Double.toString (19 and later)
// writes. JSON has no NaN, so there it is a string.
func appendFloat(dst, text []byte, bits int, s style) ([]byte, string) {
	f, err := strconv.ParseFloat(string(text), bits)
	switch {
	case err != nil:
		return dst, "is no floating-point number"
	case f-f != 0 && s == styleJSON: // NaN or an infinity
		return appendJSONString(dst, text), ""
	case f-f != 0:
		return append(dst, text...), ""
	}
	return appendJavaFloat(dst, f, bits), ""
}

// appendJavaFloat gives the shortest decimal of at least two digits that reads back
// as f: plain from 10^-3 up to 10^7, else as d.dE±n.
func appendJavaFloat(dst []byte, f float64, bits int) []byte {
	abs := f
	if f < 0 {
		abs = -f
	}
	if f == 0 || abs >= 1e-3 && abs < 1e7 {
		start := len(dst)
		dst = strconv.AppendFloat(dst, f, 'f', -1, bits)
		if hasPoint(dst[start:]) {
			return dst
		}
		return append(dst, '.', '0')
	}
	var tmp [32]byte
	sci := strconv.AppendFloat(tmp[:0], f, 'e', -1, bits)
	if !hasPoint(sci) {
		sci = strconv.AppendFloat(tmp[:0], f, 'e', 1, bits)
	}
	return appendJavaExponent(dst, sci)
}

func hasPoint(text []byte) bool {
	for _, c := range text {
		if c == '.' {
			return true
		}
	}
	return false
}

// appendJavaExponent turns 1.5e+07 into 1.5E7.
func appendJavaExponent(dst, sci []byte) []byte {
	for i, c := range sci {
		if c != 'e' {
			continue
		}
		dst = append(append(dst, sci[:i]...), 'E')
		if sci[i+1] == '-' {
			dst = append(dst, '-')
		}
		exponent := sci[i+2:]
		for len(exponent) > 1 && exponent[0] == '0' {
			exponent = exponent[1:]
		}
		return append(dst, exponent...)
	}
	return append(dst, sci...)
}

// trim lets go of scratch space that a huge value has made.
func (c *converter) trim() {
	for _, buf := range []*[]byte{&c.bytes, &c.digits, &c.element} {
		if cap(*buf) > maxScratch {
			*buf = nil
		}
	}
}
