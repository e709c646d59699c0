package router

// instant is a point of a calendar without leap seconds: days since 1970-01-01
// (proleptic Gregorian, as PostgreSQL and Java have it) and microseconds of the
// day. Both are kept apart because PostgreSQL's years reach past what
// microseconds since 1970 can hold.
type instant struct {
	days   int64
	micros int64
	// infinite is +1 for infinity, -1 for -infinity.
	infinite int8
}

const (
	microsPerSecond = 1_000_000
	microsPerDay    = 86_400 * microsPerSecond
	millisPerDay    = 86_400_000
)

// scanner walks over a value's text; a failed step leaves ok false.
type scanner struct {
	text []byte
	pos  int
	ok   bool
}

func scan(text []byte) scanner { return scanner{text: text, ok: true} }

// done says that all steps succeeded and nothing is left.
func (s *scanner) done() bool { return s.ok && s.pos == len(s.text) }

func (s *scanner) peek() byte {
	if s.pos < len(s.text) {
		return s.text[s.pos]
	}
	return 0
}

// skip steps over c if it is next.
func (s *scanner) skip(c byte) bool {
	if s.peek() != c || s.pos >= len(s.text) {
		return false
	}
	s.pos++
	return true
}

func (s *scanner) expect(c byte) {
	if !s.skip(c) {
		s.ok = false
	}
}

// skipWord steps over word if it is next.
func (s *scanner) skipWord(word string) bool {
	if len(s.text)-s.pos < len(word) || string(s.text[s.pos:s.pos+len(word)]) != word {
		return false
	}
	s.pos += len(word)
	return true
}

// number reads between min and max digits (max at most 18).
func (s *scanner) number(minDigits, maxDigits int) int64 {
	var n int64
	start := s.pos
	for s.pos < len(s.text) && s.pos-start < maxDigits {
		c := s.text[s.pos]
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int64(c-'0')
		s.pos++
	}
	if s.pos-start < minDigits {
		s.ok = false
	}
	return n
}

// fraction reads ".d" to ".dddddd" as microseconds, if it is next.
func (s *scanner) fraction() int64 {
	if !s.skip('.') {
		return 0
	}
	start := s.pos
	n := s.number(1, 6)
	for range 6 - (s.pos - start) {
		n *= 10
	}
	return n
}

// clock reads HH:MM:SS[.ffffff] as microseconds; 24:00:00 is allowed.
func (s *scanner) clock() int64 {
	h := s.number(2, 2)
	s.expect(':')
	m := s.number(2, 2)
	s.expect(':')
	sec := s.number(2, 2)
	micros := ((h*60+m)*60+sec)*microsPerSecond + s.fraction()
	if m > 59 || sec > 59 || micros > microsPerDay {
		s.ok = false
	}
	return micros
}

// zone reads +HH[:MM[:SS]] as seconds east of Greenwich.
func (s *scanner) zone() int64 {
	sign := int64(1)
	if s.skip('-') {
		sign = -1
	} else {
		s.expect('+')
	}
	secs := s.number(2, 2) * 3600
	if s.skip(':') {
		secs += s.number(2, 2) * 60
		if s.skip(':') {
			secs += s.number(2, 2)
		}
	}
	return sign * secs
}

// civil is a date before its era is known.
type civil struct{ year, month, day int64 }

func (s *scanner) date() civil {
	c := civil{year: s.number(4, 7)}
	s.expect('-')
	c.month = s.number(2, 2)
	s.expect('-')
	c.day = s.number(2, 2)
	return c
}

// days applies the era that may end the text and counts days since 1970.
func (s *scanner) days(c civil) int64 {
	if c.year == 0 {
		s.ok = false
	}
	if s.skipWord(" BC") {
		c.year = 1 - c.year
	}
	if c.month < 1 || c.month > 12 || c.day < 1 || c.day > daysIn(c.year, c.month) {
		s.ok = false
		return 0
	}
	return daysFromCivil(c.year, c.month, c.day)
}

// parseDate reads PostgreSQL's ISO text of a date.
func parseDate(text []byte) (t instant, ok bool) {
	if t, ok = parseInfinity(text); ok {
		return t, true
	}
	s := scan(text)
	t.days = s.days(s.date())
	return t, s.done()
}

// parseTimestamp reads PostgreSQL's ISO text of a timestamp, or of a timestamptz
// where zoned is set, and normalises it to UTC.
func parseTimestamp(text []byte, zoned bool) (t instant, ok bool) {
	if t, ok = parseInfinity(text); ok {
		return t, true
	}
	s := scan(text)
	date := s.date()
	s.expect(' ')
	t.micros = s.clock()
	if zoned {
		t.micros -= s.zone() * microsPerSecond
	}
	t.days = s.days(date)
	t.days += floorDiv(t.micros, microsPerDay)
	t.micros -= floorDiv(t.micros, microsPerDay) * microsPerDay
	return t, s.done()
}

func parseInfinity(text []byte) (instant, bool) {
	switch string(text) {
	case "infinity":
		return instant{infinite: 1}, true
	case "-infinity":
		return instant{infinite: -1}, true
	}
	return instant{}, false
}

// millis is the finite instant in milliseconds since 1970, cut towards the past.
// It cannot overflow within PostgreSQL's range of years.
func (t instant) millis() int64 { return t.days*millisPerDay + t.micros/1000 }

// microsSince1970 is the finite instant in microseconds; not ok where int64
// cannot hold it (past the year 294246).
func (t instant) microsSince1970() (int64, bool) {
	const limit = (1<<63-1)/microsPerDay - 1
	if t.days > limit || t.days < -limit {
		return 0, false
	}
	return t.days*microsPerDay + t.micros, true
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func daysIn(year, month int64) int64 {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// daysFromCivil counts days since 1970-01-01 in the proleptic Gregorian calendar,
// by eras of 400 years that begin in March, so that the leap day is last
// (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
func daysFromCivil(year, month, day int64) int64 {
	if month <= 2 {
		year--
	}
	era := floorDiv(year, 400)
	yearOfEra := year - era*400
	dayOfYear := (153*((month+9)%12)+2)/5 + day - 1
	dayOfEra := yearOfEra*365 + yearOfEra/4 - yearOfEra/100 + dayOfYear
	return era*146097 + dayOfEra - 719468
}

// civilFromDays is the inverse of daysFromCivil.
func civilFromDays(days int64) civil {
	days += 719468
	era := floorDiv(days, 146097)
	dayOfEra := days - era*146097
	yearOfEra := (dayOfEra - dayOfEra/1460 + dayOfEra/36524 - dayOfEra/146096) / 365
	dayOfYear := dayOfEra - (365*yearOfEra + yearOfEra/4 - yearOfEra/100)
	mp := (5*dayOfYear + 2) / 153
	c := civil{year: yearOfEra + era*400, month: mp + 3, day: dayOfYear - (153*mp+2)/5 + 1}
	if c.month > 12 {
		c.month -= 12
		c.year++
	}
	return c
}
