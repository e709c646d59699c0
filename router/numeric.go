package router

import (
	"encoding/base64"
	"math/bits"
	"strconv"
)

// decimal is a numeric taken apart: ±digits × 10^-scale. digits alias the text or
// the scratch space of the conversion.
type decimal struct {
	negative bool
	digits   []byte
	scale    int
}

const badNumeric = "is a numeric that Debezium has no form for (NaN or infinite)"

// parseDecimal reads PostgreSQL's text of a numeric, which never has an exponent.
// digits is written into buf.
func parseDecimal(text, buf []byte) (d decimal, ok bool) {
	if len(text) > 0 && text[0] == '-' {
		d.negative, text = true, text[1:]
	}
	d.digits = buf[:0]
	point := -1
	for i, c := range text {
		switch {
		case c >= '0' && c <= '9':
			d.digits = append(d.digits, c)
		case c == '.' && point < 0:
			point = i
		default:
			return d, false
		}
	}
	if point >= 0 {
		d.scale = len(text) - point - 1
	}
	return d, len(d.digits) > 0
}

// trimLeading drops leading zeros but the last.
func (d *decimal) trimLeading() {
	for len(d.digits) > 1 && d.digits[0] == '0' {
		d.digits = d.digits[1:]
	}
}

// stripTrailingZeros is BigDecimal's, but the scale does not fall below 0.
func (d *decimal) stripTrailingZeros() {
	for d.scale > 0 && len(d.digits) > 0 && d.digits[len(d.digits)-1] == '0' {
		d.digits = d.digits[:len(d.digits)-1]
		d.scale--
	}
	if len(d.digits) == 0 {
		d.digits = append(d.digits, '0')
	}
}

func (d *decimal) zero() bool { return len(d.digits) == 1 && d.digits[0] == '0' }

// rescale sets the scale to a larger one.
func (d *decimal) rescale(scale int) bool {
	if scale < d.scale {
		return false
	}
	for ; d.scale < scale; d.scale++ {
		d.digits = append(d.digits, '0')
	}
	return true
}

// appendJava writes what Java's BigDecimal.toString writes: plain unless the
// adjusted exponent is below -6.
func (d *decimal) appendJava(dst []byte) []byte {
	if d.negative && !d.zero() {
		dst = append(dst, '-')
	}
	n := len(d.digits)
	adjusted := n - 1 - d.scale
	switch {
	case d.scale == 0:
		return append(dst, d.digits...)
	case adjusted < -6:
		dst = append(dst, d.digits[0])
		if n > 1 {
			dst = append(append(dst, '.'), d.digits[1:]...)
		}
		return strconv.AppendInt(append(dst, 'E'), int64(adjusted), 10)
	case n > d.scale:
		dst = append(dst, d.digits[:n-d.scale]...)
		return append(append(dst, '.'), d.digits[n-d.scale:]...)
	}
	dst = append(dst, '0', '.')
	for range d.scale - n {
		dst = append(dst, '0')
	}
	return append(dst, d.digits...)
}

// appendUnscaled writes the digits as BigInteger.toByteArray does: big-endian two's
// complement in as few bytes as hold the sign too.
func (c *converter) appendUnscaled(dst []byte, d *decimal) []byte {
	c.words = appendWords(c.words[:0], d.digits)
	negative := d.negative && !d.zero()
	if negative {
		negate(c.words)
	}
	start := len(dst)
	for i := len(c.words) - 1; i >= 0; i-- {
		for shift := 56; shift >= 0; shift -= 8 {
			dst = append(dst, byte(c.words[i]>>shift))
		}
	}
	raw := dst[start:]
	skip, fill := 0, byte(0)
	if negative {
		fill = 0xFF
	}
	for skip < len(raw)-1 && raw[skip] == fill && (raw[skip+1]^fill)&0x80 == 0 {
		skip++
	}
	copy(raw, raw[skip:])
	return dst[:len(dst)-skip]
}

// appendWords converts decimal digits to little-endian 64-bit words, with a word
// to spare for the sign. Eighteen digits at a time keep it fast enough for
// PostgreSQL's longest numeric.
func appendWords(words []uint64, digits []byte) []uint64 {
	words = append(words, 0)
	for len(digits) > 0 {
		n := min(len(digits), 18)
		var chunk, factor uint64 = 0, 1
		for _, c := range digits[:n] {
			chunk = chunk*10 + uint64(c-'0')
			factor *= 10
		}
		digits = digits[n:]
		carry := chunk
		for i := range words {
			hi, lo := bits.Mul64(words[i], factor)
			var over uint64
			words[i], over = bits.Add64(lo, carry, 0)
			carry = hi + over
		}
		if carry != 0 {
			words = append(words, carry)
		}
	}
	return append(words, 0)
}

// negate is two's complement in place.
func negate(words []uint64) {
	carry := uint64(1)
	for i := range words {
		words[i], carry = bits.Add64(^words[i], 0, carry)
	}
}

// appendNumeric writes a numeric. Without precision and scale Debezium makes it a
// structure of scale and bytes, since Connect's decimal has a fixed scale.
func (c *converter) appendNumeric(dst []byte, t pgType, text []byte, s style) ([]byte, string) {
	d, ok := parseDecimal(text, c.digits[:0])
	c.digits = d.digits[:0]
	if !ok {
		return dst, badNumeric
	}
	if t.mod < 0 {
		return c.appendVariableScale(dst, &d), ""
	}
	if !d.rescale(numericScale(t.mod)) {
		return dst, "has more decimals than its column allows"
	}
	c.digits = d.digits[:0]
	d.trimLeading()
	if s != styleJSON {
		return d.appendJava(dst), ""
	}
	c.bytes = c.appendUnscaled(c.bytes[:0], &d)
	return appendBase64JSON(dst, c.bytes), ""
}

func (c *converter) appendVariableScale(dst []byte, d *decimal) []byte {
	d.stripTrailingZeros()
	d.trimLeading()
	if d.zero() {
		d.scale = 0
	}
	c.bytes = c.appendUnscaled(c.bytes[:0], d)
	dst = append(dst, `{"scale":`...)
	dst = strconv.AppendInt(dst, int64(d.scale), 10)
	dst = append(dst, `,"value":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, c.bytes)
	return append(dst, `"}`...)
}

// numericScale is the scale in a numeric's type modifier (since PostgreSQL 15 an
// 11-bit signed number).
func numericScale(mod int32) int {
	return int(((mod-4)&0x7FF)^1024) - 1024
}
