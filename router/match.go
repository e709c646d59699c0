package router

import (
	"regexp"
	"unicode/utf8"
)

// condition is one compiled Match.
type condition struct {
	slot  int
	exact *string
	glob  string
	regex *regexp.Regexp
}

func (c *condition) holds(v cell) bool {
	switch {
	case v.null:
		return false
	case c.exact != nil:
		return string(v.data) == *c.exact
	case c.regex != nil:
		return c.regex.Match(v.data)
	}
	return globMatch(c.glob, string(v.data))
}

// globMatch says whether the whole of s matches a pattern of literal text, * and
// ?. On a mismatch it goes back to the last star only, which is enough because a
// later star can match whatever an earlier one could: no exponential time.
func globMatch(pattern, s string) bool {
	p, i := 0, 0
	starAt, retry := -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			starAt, retry = p, i
			p++
		case p < len(pattern) && pattern[p] == '?':
			_, n := utf8.DecodeRuneInString(s[i:])
			p, i = p+1, i+n
		case p < len(pattern) && pattern[p] == s[i]:
			p, i = p+1, i+1
		case starAt >= 0:
			_, n := utf8.DecodeRuneInString(s[retry:])
			retry += n
			p, i = starAt+1, retry
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
