package router

import "github.com/postrider/postrider/event"

// column is a column of a bound relation. index is -1 where the mapping has none.
type column struct {
	index int
	name  string
	typ   pgType
}

func (c *column) mapped() bool { return c.index >= 0 }

// cell is one value of a row; data is never nil unless null is set, so that an
// empty text can never become a tombstone.
type cell struct {
	data []byte
	null bool
}

var noBytes = []byte{}

// cellOf takes a column's value out of a row. It is not ok where the value was
// not sent, which an insert cannot have (rule 10).
func cellOf(row *event.Row, c *column) (cell, bool) {
	v := &row.Values[c.index]
	switch {
	case v.Kind == event.Null:
		return cell{null: true}, true
	case v.Kind != event.Text:
		return cell{}, false
	case v.Data == nil:
		return cell{data: noBytes}, true
	}
	return cell{data: v.Data}, true
}

// parseInt reads a decimal int64 as PostgreSQL writes it.
func parseInt(text []byte) (int64, bool) {
	negative := len(text) > 0 && text[0] == '-'
	if negative {
		text = text[1:]
	}
	if len(text) == 0 || len(text) > 19 {
		return 0, false
	}
	var n uint64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	switch {
	case negative && n <= 1<<63:
		return -int64(n), true //nolint:gosec // 1<<63 wraps to the least int64, which is meant
	case !negative && n < 1<<63:
		return int64(n), true
	}
	return 0, false
}

// appendHexDecoded decodes the text of a bytea (bytea_output=hex): \x, then two
// digits for each byte.
func appendHexDecoded(dst, text []byte) ([]byte, bool) {
	if len(text) < 2 || text[0] != '\\' || text[1] != 'x' || len(text)%2 != 0 {
		return dst, false
	}
	for i := 2; i < len(text); i += 2 {
		hi, lo := hexDigit[text[i]], hexDigit[text[i+1]]
		if hi|lo > 15 {
			return dst, false
		}
		dst = append(dst, hi<<4|lo)
	}
	return dst, true
}

// hexDigit is the value of a hexadecimal digit, 255 for any other byte.
var hexDigit = func() (t [256]byte) {
	for i := range t {
		switch c := byte(i); {
		case c >= '0' && c <= '9':
			t[i] = c - '0'
		case c >= 'a' && c <= 'f':
			t[i] = c - 'a' + 10
		case c >= 'A' && c <= 'F':
			t[i] = c - 'A' + 10
		default:
			t[i] = 255
		}
	}
	return t
}()
