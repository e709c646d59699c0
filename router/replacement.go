package router

import (
	"fmt"
	"regexp"
	"strings"
)

// replacement is a topic in the syntax of Java's Matcher.replaceFirst: literal
// text and groups.
type replacement []replacePart

// replacePart is literal text, or the group with this number where group >= 0.
type replacePart struct {
	text  string
	group int
}

var javaGroupRef = regexp.MustCompile(`^\$\{([a-zA-Z][a-zA-Z0-9]*)\}`)

// parseReplacement reads a replacement for the groups of re.
func parseReplacement(text string, re *regexp.Regexp) (replacement, error) {
	var parts replacement
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			parts = append(parts, replacePart{text: literal.String(), group: -1})
			literal.Reset()
		}
	}
	for pos := 0; pos < len(text); {
		switch text[pos] {
		case '\\':
			if pos+1 == len(text) {
				return nil, fmt.Errorf(`ends with a \`)
			}
			literal.WriteByte(text[pos+1])
			pos += 2
		case '$':
			group, width, err := parseGroupRef(text[pos:], re)
			if err != nil {
				return nil, err
			}
			flush()
			parts = append(parts, replacePart{group: group})
			pos += width
		default:
			literal.WriteByte(text[pos])
			pos++
		}
	}
	flush()
	return parts, nil
}

// parseGroupRef reads ${name} or $n at the start of text. A number takes as many
// digits as still name a group, as Java has it: with one group $12 is group 1 and
// the text 2.
func parseGroupRef(text string, re *regexp.Regexp) (group, width int, err error) {
	if strings.HasPrefix(text, "${") {
		m := javaGroupRef.FindStringSubmatch(text)
		if m == nil {
			return 0, 0, fmt.Errorf("has a ${ without a group's name and }")
		}
		if group = re.SubexpIndex(m[1]); group < 0 {
			return 0, 0, fmt.Errorf("names the group %s, which the regex does not have", m[1])
		}
		return group, len(m[0]), nil
	}
	if len(text) < 2 || text[1] < '0' || text[1] > '9' {
		return 0, 0, fmt.Errorf(`has a $ without a group; a literal $ cannot be part of a topic`)
	}
	group, width = int(text[1]-'0'), 2
	if group > re.NumSubexp() {
		return 0, 0, fmt.Errorf("names the group %d, but the regex has %d", group, re.NumSubexp())
	}
	for width < len(text) && text[width] >= '0' && text[width] <= '9' {
		next := group*10 + int(text[width]-'0')
		if next > re.NumSubexp() {
			break
		}
		group, width = next, width+1
	}
	return group, width, nil
}

// apply gives what Java's replaceFirst gives once matches has held: the first
// find is replaced, what stands around it stays.
func (r replacement) apply(p *javaPattern, value string) string {
	loc := p.find.FindStringSubmatchIndex(value)
	if loc == nil {
		return value
	}
	var b strings.Builder
	b.WriteString(value[:loc[0]])
	for _, part := range r {
		if part.group < 0 {
			b.WriteString(part.text)
		} else if from := loc[2*part.group]; from >= 0 {
			b.WriteString(value[from:loc[2*part.group+1]])
		}
	}
	b.WriteString(value[loc[1]:])
	return b.String()
}
