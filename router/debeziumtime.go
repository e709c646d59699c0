package router

import "strconv"

// What Debezium writes for infinite values of types that it makes numbers of: the
// ends of pgjdbc's range.
const (
	positiveInfinityMicros = 9223372036825200000
	negativeInfinityMicros = -9223372036832400000
)

const badTemporal = "is no date or time in ISO form"

// appendTemporal writes the types that become numbers. Up to three decimals the
// unit is milliseconds, else microseconds; a type without a modifier has six.
func appendTemporal(dst []byte, t pgType, text []byte) ([]byte, string) {
	n, problem := temporalNumber(t, text)
	if problem != "" {
		return dst, problem
	}
	return strconv.AppendInt(dst, n, 10), ""
}

func temporalNumber(t pgType, text []byte) (int64, string) {
	switch t.kind {
	case kindDate:
		d, ok := parseDate(text)
		if !ok {
			return 0, badTemporal
		}
		return debeziumDays(d), ""
	case kindTime:
		s := scan(text)
		micros := s.clock()
		if !s.done() {
			return 0, badTemporal
		}
		return micros / divisor(t.mod), ""
	case kindTimestamp:
		return timestampNumber(t, text)
	}
	v, ok := parseInterval(text)
	if !ok {
		return 0, badInterval
	}
	return v.debeziumMicros(), ""
}

// divisor is the number of microseconds in the unit that a precision gives.
func divisor(mod int32) int64 {
	if mod >= 0 && mod <= 3 {
		return 1000
	}
	return 1
}

func timestampNumber(t pgType, text []byte) (int64, string) {
	at, ok := parseTimestamp(text, false)
	if !ok {
		return 0, badTemporal
	}
	switch at.infinite {
	case 1:
		return positiveInfinityMicros / divisor(t.mod), ""
	case -1:
		return negativeInfinityMicros / divisor(t.mod), ""
	}
	if divisor(t.mod) == 1000 {
		return at.millis(), ""
	}
	micros, ok := at.microsSince1970()
	if !ok {
		return 0, "is too far from 1970 for microseconds"
	}
	return micros, ""
}

// debeziumDays gives days since 1970. Debezium's infinite dates are two adjacent
// days far in the past: pgjdbc's limits, wrapped.
func debeziumDays(d instant) int64 {
	switch d.infinite {
	case 1:
		return daysFromCivil(-5877611, 6, 21)
	case -1:
		return daysFromCivil(-5877611, 6, 22)
	}
	return d.days
}

// appendZoned writes the types that become ISO strings.
func (c *converter) appendZoned(dst []byte, t pgType, text []byte, s style,
	format func(dst []byte, t pgType, text []byte) ([]byte, bool),
) ([]byte, string) {
	if s != styleHeader {
		dst = append(dst, '"')
	}
	dst, ok := format(dst, t, text)
	if !ok {
		return dst, badTemporal
	}
	if s != styleHeader {
		dst = append(dst, '"')
	}
	return dst, ""
}

// appendISOTimestamp writes a timestamptz in UTC with as many decimals as its type
// has (six without a modifier); timestamptz(0) has none.
func appendISOTimestamp(dst []byte, t pgType, text []byte) ([]byte, bool) {
	at, ok := parseTimestamp(text, true)
	if !ok {
		return dst, false
	}
	if at.infinite != 0 {
		return append(dst, text...), true
	}
	digits := int(t.mod)
	if t.mod < 0 {
		digits = 6
	}
	date := civilFromDays(at.days)
	dst = appendISOYear(dst, date.year)
	dst = appendPadded(append(dst, '-'), date.month, 2)
	dst = appendPadded(append(dst, '-'), date.day, 2)
	dst = appendClock(append(dst, 'T'), at.micros)
	if digits > 0 {
		dst = append(dst, '.')
		fraction := at.micros % microsPerSecond
		for range 6 - digits {
			fraction /= 10
		}
		dst = appendPadded(dst, fraction, digits)
	}
	return append(dst, 'Z'), true
}

// appendISOTime writes a timetz in UTC with as few decimals as it needs.
func appendISOTime(dst []byte, _ pgType, text []byte) ([]byte, bool) {
	s := scan(text)
	micros := s.clock()
	zone := s.zone()
	if !s.done() {
		return dst, false
	}
	if micros == microsPerDay && zone == 0 {
		return append(dst, "24:00:00Z"...), true
	}
	micros -= zone * microsPerSecond
	micros -= floorDiv(micros, microsPerDay) * microsPerDay
	dst = appendClock(dst, micros)
	if fraction := micros % microsPerSecond; fraction != 0 {
		dst = appendPadded(append(dst, '.'), fraction, 6)
		for dst[len(dst)-1] == '0' {
			dst = dst[:len(dst)-1]
		}
	}
	return append(dst, 'Z'), true
}

// appendISOYear writes four digits, and a sign outside 0 to 9999 (ISO_LOCAL_DATE).
func appendISOYear(dst []byte, year int64) []byte {
	switch {
	case year > 9999:
		return strconv.AppendInt(append(dst, '+'), year, 10)
	case year < 0:
		return appendPadded(append(dst, '-'), -year, 4)
	}
	return appendPadded(dst, year, 4)
}

func appendClock(dst []byte, micros int64) []byte {
	secs := micros / microsPerSecond
	dst = appendPadded(dst, secs/3600, 2)
	dst = appendPadded(append(dst, ':'), secs/60%60, 2)
	return appendPadded(append(dst, ':'), secs%60, 2)
}

// appendPadded writes n >= 0 with leading zeros to at least width digits.
func appendPadded(dst []byte, n int64, width int) []byte {
	for limit, w := int64(10), width; w > 1; w-- {
		if n < limit {
			dst = append(dst, '0')
		}
		limit *= 10
	}
	return strconv.AppendInt(dst, n, 10)
}
