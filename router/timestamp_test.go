package router

import (
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	"pgregory.net/rapid"
)

// The record's timestamp, from each type that may hold it.
func TestTimestamp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typ  string
		unit Unit
		text any
		want int64
	}{
		{"timestamptz", "", nil, commitMillis},
		{"timestamptz", "", "2024-03-05 06:07:08.123999+00", 1709618828123},
		{"timestamptz", "", "2024-03-05 06:07:08+00", 1709618828000},
		{"timestamptz", "", "2024-03-05 06:07:08+02", 1709618828000 - 7200_000},
		{"timestamptz", "", "2024-03-05 06:07:08-05:30", 1709618828000 + 19800_000},
		{"timestamptz", "", "2024-03-05 06:07:08+00:00:01", 1709618827000},
		{"timestamptz", "", "1970-01-01 00:00:00+00", 0},
		{"timestamptz", "", "294276-12-31 23:59:59.999999+00", 9224318015999999},
		{"timestamp", "", "2024-03-05 06:07:08.123999", 1709618828123},
		{"timestamp", "", "2000-02-29 00:00:00", 951782400000},
		{"int8", UnitSeconds, "1709618828", 1709618828000},
		{"int8", UnitMillis, "1709618828123", 1709618828123},
		{"int8", UnitMicros, "1709618828123999", 1709618828123},
		{"int8", UnitNanos, "1709618828123999999", 1709618828123},
		{"int8", UnitMillis, "0", 0},
		{"int8", UnitMillis, nil, commitMillis},
	} {
		s := fixture()
		s.Mapping.Timestamp = Timestamp{Column: "at", Unit: c.unit}
		msg := routeOne(t, s, relation("outbox", fixtureColumns+", at "+c.typ), someID, "order", "1", "x", "1", nil, c.text)
		if msg.TimestampMillis != c.want {
			t.Errorf("%s %s %v: %d, want %d", c.typ, c.unit, c.text, msg.TimestampMillis, c.want)
		}
	}
	if msg := routeOne(t, fixture(), relation("outbox", fixtureColumns), someID, "order", "1", "x", "1", nil); msg.TimestampMillis != commitMillis {
		t.Errorf("without a mapping: %d", msg.TimestampMillis)
	}
}

// rule 19: a timestamp that no record can have is refused with a reason of its own.
func TestInvalidTimestamps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typ   string
		unit  Unit
		texts []string
	}{
		{"timestamptz", "", []string{
			"infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "1969-12-31 23:59:59.999999+00", "", "x",
			"2024-03-05 06:07:08", "05/03/2024 06:07:08 IST", "2024-02-30 00:00:00+00", "2024-03-05 06:07:08+00 AD", "2024-13-01 00:00:00+00",
		}},
		{"timestamp", "", []string{"infinity", "-infinity", "0001-01-01 00:00:00 BC", "0000-01-01 00:00:00", "2024-03-05 06:07:08+00", "2024-03-05 06:60:08"}},
		{"int8", UnitMillis, []string{"-1", "", "1.5", "9223372036854775808"}},
		{"int8", UnitMicros, []string{"-1"}},
		{"int8", UnitSeconds, []string{"9223372036854776", "18446744073709552"}},
	} {
		s := fixture()
		s.Mapping.Timestamp = Timestamp{Column: "at", Unit: c.unit}
		rel := relation("outbox", fixtureColumns+", at "+c.typ)
		for _, text := range c.texts {
			refusal := refuseOne(t, event.ReasonTimestamp, s, rel, someID, "order", "1", "x", "1", nil, text)
			if refusal.Column != "at" {
				t.Errorf("refusal is %v", refusal)
			}
		}
	}
}

// The calendar agrees with the standard library's on every day.
func TestCalendar(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		days := rapid.Int64Range(-3_000_000, 100_000_000).Draw(t, "days")
		micros := rapid.Int64Range(0, microsPerDay-1).Draw(t, "micros")
		want := time.Unix(days*86400, micros*1000).UTC()
		c := civilFromDays(days)
		if c.year != int64(want.Year()) || c.month != int64(want.Month()) || c.day != int64(want.Day()) {
			t.Fatalf("%d days is %+v, want %s", days, c, want)
		}
		if back := daysFromCivil(c.year, c.month, c.day); back != days {
			t.Fatalf("%+v is %d days, want %d", c, back, days)
		}
		if c.year < 1 {
			return
		}
		offset := rapid.Int64Range(-15*60, 15*60).Draw(t, "minutes")*60 + rapid.Int64Range(0, 59).Draw(t, "seconds")
		if offset < 0 {
			offset -= offset % 60 // Format does not know seconds west of Greenwich
		}
		text := want.In(time.FixedZone("", int(offset))).Format("2006-01-02 15:04:05.999999-07:00:00")
		if year := want.In(time.FixedZone("", int(offset))).Year(); year < 1 || year > 9999 {
			return // Format writes other years in another way
		}
		at, ok := parseTimestamp([]byte(text), true)
		if !ok || at.days != days || at.micros != micros {
			t.Fatalf("%q is %+v %v, want %d days %d micros", text, at, ok, days, micros)
		}
	})
}
