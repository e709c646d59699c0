package event

import (
	"fmt"
	"strconv"
	"strings"
)

// LSN is a byte position in PostgreSQL's write-ahead log. The zero LSN means
// "none" (PostgreSQL's InvalidXLogRecPtr).
type LSN uint64

// String gives PostgreSQL's own spelling, two upper-case hexadecimal halves: "16/B374D848".
func (l LSN) String() string {
	return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l))
}

// ParseLSN reads "X/X", each half one to eight hexadecimal digits, and nothing
// else: no blanks, no signs, no prefix, no trailing text. pglogrepl's parser
// takes `0/16B3748xyz` and folds over-long halves into other positions (trap 11,
// case C40), so operators' input never goes through it.
func ParseLSN(s string) (LSN, error) {
	hi, lo, ok := strings.Cut(s, "/")
	if !ok || !isHexHalf(hi) || !isHexHalf(lo) {
		return 0, fmt.Errorf("%q is not an LSN: want two hexadecimal halves of at most eight digits, such as 16/B374D848", s)
	}
	// Both halves are 1 to 8 hexadecimal digits: ParseUint cannot fail.
	h, _ := strconv.ParseUint(hi, 16, 32)
	l, _ := strconv.ParseUint(lo, 16, 32)
	return LSN(h<<32 | l), nil
}

func isHexHalf(s string) bool {
	if len(s) < 1 || len(s) > 8 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return false
		}
	}
	return true
}

// MarshalText gives String, so that JSON shows positions as people know them.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is ParseLSN.
func (l *LSN) UnmarshalText(text []byte) (err error) {
	*l, err = ParseLSN(string(text))
	return err
}
