package router

const (
	badArray      = "is no array of one dimension"
	badArrayBound = "is an array with explicit bounds or several dimensions, which format debezium is not offered for"
)

// appendArray writes a one-dimensional array as JSON. PostgreSQL's text is
// {a,"b c",NULL}; inside quotes a backslash keeps the next character.
func (c *converter) appendArray(dst []byte, t pgType, text []byte, s style) ([]byte, string) {
	if len(text) > 0 && text[0] == '[' {
		return dst, badArrayBound
	}
	if s == styleHeader {
		s = styleElement
	}
	sc := scan(text)
	sc.expect('{')
	dst = append(dst, '[')
	element := pgType{kind: t.elem, mod: t.mod}
	for first := true; sc.ok && !(first && sc.skip('}')); first = false {
		if !first {
			if sc.skip('}') {
				break
			}
			sc.expect(',')
			dst = append(dst, ',')
		}
		if sc.peek() == '{' {
			return dst, badArrayBound
		}
		value, null := c.arrayElement(&sc)
		if !sc.ok {
			break
		}
		if null {
			dst = append(dst, "null"...)
			continue
		}
		var problem string
		if dst, problem = c.append(dst, element, value, s); problem != "" {
			return dst, "has an element that " + problem
		}
	}
	if !sc.done() {
		return dst, badArray
	}
	return append(dst, ']'), ""
}

// arrayElement reads one element into scratch space.
func (c *converter) arrayElement(s *scanner) (value []byte, null bool) {
	value = c.element[:0]
	quoted := s.skip('"')
	for s.pos < len(s.text) {
		b := s.text[s.pos]
		switch {
		case b == '\\':
			s.pos++
			value = append(value, s.peek())
			s.pos++
			continue
		case quoted && b == '"':
			s.pos++
			c.element = value
			return value, false
		case !quoted && (b == ',' || b == '}'):
			c.element = value
			s.ok = len(value) > 0
			return value, string(value) == "NULL"
		}
		value = append(value, b)
		s.pos++
	}
	s.ok = false
	return value, false
}
