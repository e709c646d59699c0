package router

// daysPerMonth is Debezium's approximation of a month (365.25 / 12).
const daysPerMonth = 365.25 / 12

const badInterval = "is no interval in PostgreSQL's own style"

// interval is an interval in its units, as PostgreSQL keeps them apart.
type interval struct {
	years, months, days, hours, minutes, seconds, micros int64
}

// parseInterval reads IntervalStyle=postgres: "1 year -2 mons +3 days -04:05:06.7".
func parseInterval(text []byte) (v interval, ok bool) {
	s := scan(text)
	for s.ok && s.pos < len(s.text) {
		if v != (interval{}) || s.pos > 0 {
			s.expect(' ')
		}
		negative := s.skip('-')
		if !negative {
			s.skip('+')
		}
		start := s.pos
		n := s.number(1, 10)
		if s.peek() == ':' {
			s.pos = start
			s.intervalClock(&v, negative)
			break
		}
		if negative {
			n = -n
		}
		s.intervalUnit(&v, n)
	}
	return v, s.done() && s.pos > 0
}

func (s *scanner) intervalUnit(v *interval, n int64) {
	switch {
	case s.skipWord(" year"):
		v.years = n
	case s.skipWord(" mon"):
		v.months = n
	case s.skipWord(" day"):
		v.days = n
	default:
		s.ok = false
	}
	s.skip('s')
}

// intervalClock reads the time, whose sign is the sign of all its parts.
func (s *scanner) intervalClock(v *interval, negative bool) {
	v.hours = s.number(2, 10)
	s.expect(':')
	v.minutes = s.number(2, 2)
	s.expect(':')
	v.seconds = s.number(2, 2)
	v.micros = s.fraction()
	if negative {
		v.hours, v.minutes, v.seconds, v.micros = -v.hours, -v.minutes, -v.seconds, -v.micros
	}
}

// debeziumMicros is Debezium's MicroDuration.durationMicros, in its order of
// operations on doubles: the same rounding gives the same last digit. The
// conversions keep the compiler from fusing operations.
func (v interval) debeziumMicros() int64 {
	seconds := float64(v.seconds) + float64(float64(v.micros)/1e6)
	days := float64(float64(v.years*12+v.months)*daysPerMonth) + float64(v.days)
	hours := float64(days*24) + float64(v.hours)
	minutes := float64(hours*60) + float64(v.minutes)
	total := float64(minutes*60) + seconds
	return int64(float64(total * 1e6))
}
