package outbox

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/router"
)

// OrderSQL orders rows of the plan "as they were committed, as well as it can be known":
//
//   - by the time of commit, where the server keeps it (track_commit_timestamp); rows
//     from before it was switched on come first
//   - else by the mapped timestamp
//   - then by the transaction's 64-bit id, which was given when it began to write, not when
//     it committed
//   - then by the command inside the transaction, which the row remembers until another
//     transaction touches it
//   - then by the mapped aggregate_version, the row's place and the event id.
//
// Inside a key a mapped aggregate_version goes before all that: see planSQL.
const OrderSQL = `c.cts NULLS FIRST, CASE WHEN c.cts IS NULL THEN c.mts END, CASE WHEN c.cts IS NULL THEN c.xid END, c.cid, c.xid, c.version, c.source, c.tid, c.id`

// Order says in words what the order of a plan rests on.
func (r *Reader) Order() string {
	var by []string
	if r.commitTimes {
		by = append(by, "time of commit")
	} else if r.mapped(func(m *router.Mapping) string { return m.Timestamp.Column }) > 0 {
		by = append(by, "mapped timestamp")
	}
	order := strings.Join(append(by, "transaction id"), ", then ")
	if n := r.mapped(func(m *router.Mapping) string { return m.AggregateVersion }); n > 0 {
		order += "; within a key by aggregate_version"
	}
	if !r.commitTimes {
		order += " (track_commit_timestamp is off: the order of commits itself is not known)"
	}
	return order
}

// mapped counts the sources that map a column.
func (r *Reader) mapped(column func(*router.Mapping) string) (n int) {
	for _, t := range r.tables {
		if column(&t.src.Mapping) != "" {
			n++
		}
	}
	return n
}

// TimeBy names what Selection.Since and Until, and Counts' times, go by; "" where
// there is nothing.
func (r *Reader) TimeBy() string {
	switch {
	case r.commitTimes:
		return "time of commit"
	case r.mapped(func(m *router.Mapping) string { return m.Timestamp.Column }) == len(r.tables):
		return "mapped timestamp"
	}
	return ""
}

// xid gives the 64-bit id of the transaction that wrote the row, among those before
// next, the first id that had not been given when the reading began: a row cannot be
// from the future, so that also one from more than 2^31 transactions ago is told
// right, up to 2^32 (rule 4). 1 and 2 mark rows that are older than every transaction.
func xidSQL(next int64) string {
	return fmt.Sprintf("CASE WHEN t.xmin::text::bigint < 3 THEN 0 ELSE %[1]d - ((%[1]d - t.xmin::text::bigint) & 4294967295) END", next-1)
}

// commitTimeSQL is NULL where the server does not know.
func (r *Reader) commitTimeSQL() string {
	if !r.commitTimes {
		return "NULL::timestamptz"
	}
	return "pg_catalog.pg_xact_commit_timestamp(t.xmin)"
}

// mappedTimeSQL is the mapped timestamp in seconds since 1970, as numeric.
func (t *table) mappedTimeSQL() string {
	m := t.src.Mapping.Timestamp
	if m.Column == "" {
		return "NULL::numeric"
	}
	col := "t." + ident(m.Column)
	switch m.Unit {
	case router.UnitSeconds:
		return col + "::numeric"
	case router.UnitMillis:
		return col + "::numeric / 1000"
	case router.UnitMicros:
		return col + "::numeric / 1000000"
	case router.UnitNanos:
		return col + "::numeric / 1000000000"
	}
	return "extract(epoch FROM " + col + ")::numeric"
}

// versionSQL is the aggregate's version as a number.
func (t *table) versionSQL() string {
	if t.src.Mapping.AggregateVersion == "" {
		return "NULL::numeric"
	}
	return "t." + ident(t.src.Mapping.AggregateVersion) + "::text::numeric"
}

// timeSQL is the time that Since, Until and Counts go by.
func (r *Reader) timeSQL(t *table) string {
	switch r.TimeBy() {
	case "":
		return "NULL::timestamptz"
	case "time of commit":
		return r.commitTimeSQL()
	}
	return calendarSQL(t.mappedTimeSQL())
}

// calendarSQL makes a timestamp of seconds. What no calendar has is before or behind all times:
// the server would fail at it, and with it everything that is asked of the table.
func calendarSQL(seconds string) string {
	const first, last = -210866803200, 9224318015999 // of timestamptz
	return fmt.Sprintf("CASE WHEN %[1]s < %[2]d THEN '-infinity' WHEN %[1]s > %[3]d THEN 'infinity' ELSE pg_catalog.to_timestamp((%[1]s)::float8) END",
		seconds, first, last)
}
