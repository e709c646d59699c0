package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/router"
)

// rule is how one table is purged.
type rule struct {
	table *table
	// before is how old a row must be; nil: any age will do.
	before *time.Time
	// by names what tells the age.
	by string
	// old is the condition; it is NULL where the age is not known, "" where none is asked for.
	old string
}

// newRule finds what tells the age of a row. The server's clock decides.
func (p *Purge) newRule(ctx context.Context, t *table, cfg PurgeRule) (*rule, error) {
	r := &rule{table: t, by: "nothing: all that is confirmed"}
	if cfg.Retention <= 0 {
		return r, nil
	}
	var before time.Time
	// Whole microseconds, as the server has them: what is shown is what is compared.
	if err := p.conn.QueryRow(ctx, `SELECT pg_catalog.clock_timestamp() - $1 * interval '1 microsecond'`, cfg.Retention.Microseconds()).Scan(&before); err != nil {
		return nil, sqlError("read", "the time", err)
	}
	r.before = &before
	age := cfg.Age
	if age.Column == "" {
		age = t.src.Mapping.Timestamp
	}
	switch {
	case age.Column != "":
		r.by = "column " + age.Column
		return r, p.byColumn(ctx, r, age)
	case p.commitTimes:
		r.by = "time of commit"
		r.old = "pg_catalog.pg_xact_commit_timestamp(t.xmin) < " + timeLiteral(before)
		return r, nil
	}
	return nil, &operr.Error{
		Class: operr.Config, Op: "tell the age of rows in", Subject: "table " + t.name,
		Err:  errors.New("no timestamp is mapped, and the server does not keep the times of commits"),
		Hint: "name a column in purge.age_column of the source, or set track_commit_timestamp = on (for rows to come), or a retention of 0s",
	}
}

const ageTypeSQL = `SELECT coalesce(nullif(y.typbasetype, 0), a.atttypid)::bigint, pg_catalog.format_type(a.atttypid, a.atttypmod)
  FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
 WHERE a.attrelid = $1 AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped`

// byColumn compares the column itself, so that an index on it may be of use.
func (p *Purge) byColumn(ctx context.Context, r *rule, age router.Timestamp) error {
	rows, err := p.conn.Query(ctx, ageTypeSQL, r.table.rel.OID, age.Column)
	if err != nil {
		return sqlError("look at", "column "+age.Column, err)
	}
	defer rows.Close()
	var oid int64
	var name string
	for rows.Next() {
		if err := rows.Scan(&oid, &name); err != nil {
			return sqlError("look at", "column "+age.Column, err)
		}
	}
	if err := rows.Err(); err != nil {
		return sqlError("look at", "column "+age.Column, err)
	}
	col, at := "t."+ident(age.Column), timeLiteral(*r.before)
	const timestamptz, timestamp, date, bigint, integer = 1184, 1114, 1082, 20, 23
	switch {
	case oid == 0:
		err = errors.New("the table has no such column")
	case oid == timestamptz:
		r.old = col + " < " + at
	case oid == timestamp: // taken as UTC, as the router takes it
		r.old = fmt.Sprintf("%s < (%s AT TIME ZONE 'UTC')", col, at)
	case oid == date:
		r.old = fmt.Sprintf("%s < (%s AT TIME ZONE 'UTC')::date", col, at)
	case oid == bigint || oid == integer:
		r.old, err = epochSQL(col, *r.before, age.Unit)
	default:
		err = fmt.Errorf("it is of type %s", name)
	}
	if err == nil {
		return nil
	}
	return &operr.Error{
		Class: operr.Config, Op: "tell the age of rows in", Subject: fmt.Sprintf("table %s by column %q", r.table.name, age.Column), Err: err,
		Hint: "name a column of type timestamptz, timestamp, date, or bigint with a unit in purge.age_column of the source",
	}
}

func epochSQL(col string, before time.Time, unit router.Unit) (string, error) {
	n, ok := map[router.Unit]int64{
		router.UnitSeconds: before.Unix(), router.UnitMillis: before.UnixMilli(), router.UnitMicros: before.UnixMicro(), router.UnitNanos: before.UnixNano(),
	}[unit]
	if !ok {
		return "", errors.New("it is a whole number, of which the unit is not said")
	}
	return fmt.Sprintf("%s < %d", col, n), nil
}

// timeLiteral is exact to the microsecond.
func timeLiteral(t time.Time) string {
	return literal(t.UTC().Format("2006-01-02 15:04:05.000000")+"+00") + "::timestamptz"
}

// Why a row stays, in the order in which it is asked.
const (
	keptFiltered  = "not_published" // the publication's row filter leaves it out: it is nobody's event
	keptUnproved  = "not_confirmed" // not proved to be published by the checkpoint
	keptBefore    = "before_slot"   // of which the checkpoint knows nothing
	keptAgeless   = "age_unknown"   // its column is NULL, or the server has forgotten the time of its commit
	keptYoung     = "within_retention"
	keptWithoutID = "without_id" // it cannot be told among the parked
	keptParked    = "parked"
	keptTask      = "task" // a task has still to publish it, or was refused it
	deletable     = "deletable"
)

// parkedSQL holds while an event is outstanding.
const parkedSQL = `EXISTS (SELECT FROM postrider.parked p WHERE p.event_id = %s AND p.state IN ('parked', 'retry', 'publishing'))`

// conditions are what must hold of a row, each with the reason where it does not. next
// is as xidSQL has it. What tasks keep is left out: that is asked for rows at hand.
func (p *Purge) conditions(r *rule, next int64) (all []reasoned) {
	add := func(reason, sql string) { all = append(all, reasoned{reason, sql}) }
	t := r.table
	if t.published != "" {
		add(keptFiltered, "("+t.published+")")
	}
	xid := xidSQL(next)
	add(keptUnproved, fmt.Sprintf("%s < %d", xid, p.bound.upTo))
	if !p.cfg.BeforeSlot && p.bound.birth > 0 {
		add(keptBefore, fmt.Sprintf("%s >= %d", xid, p.bound.birth))
	}
	if r.old != "" {
		add(keptAgeless, "("+r.old+") IS NOT NULL")
		add(keptYoung, r.old)
	}
	id := t.text(t.src.Mapping.EventID)
	add(keptWithoutID, "nullif("+id+", '') IS NOT NULL")
	add(keptParked, "NOT "+fmt.Sprintf(parkedSQL, id))
	return all
}

// reasoned is a condition, and the reason for which a row stays where it does not hold.
type reasoned struct{ reason, sql string }

// pickSQL holds for rows that may go, but for those that tasks keep.
func (p *Purge) pickSQL(r *rule, next int64) string {
	var all []string
	for _, c := range p.conditions(r, next) {
		all = append(all, c.sql)
	}
	return and(all)
}

// verdictSQL names what is to become of a row. The tasks' events are looked up as a whole.
func (p *Purge) verdictSQL(q *query, r *rule, next int64) string {
	var b strings.Builder
	b.WriteString("CASE")
	for _, c := range p.conditions(r, next) {
		fmt.Fprintf(&b, " WHEN (%s) IS NOT TRUE THEN '%s'", c.sql, c.reason)
	}
	if len(p.keepers) > 0 {
		fmt.Fprintf(&b, " WHEN %s IN (SELECT i.event_id FROM postrider.task_item i JOIN postrider.task k ON k.id = i.task WHERE %s) THEN '%s'",
			r.table.text(r.table.src.Mapping.EventID), p.keptByTasks(q, r.table), keptTask)
	}
	fmt.Fprintf(&b, " ELSE '%s' END", deletable)
	return b.String()
}

// keptByTasks holds for items i of tasks k that need their row. Of a replay that has
// ended none does: what it was refused was published before.
func (p *Purge) keptByTasks(q *query, t *table) string {
	return fmt.Sprintf("k.id = ANY(%s::bigint[]) AND i.source_table = %s AND (k.state NOT IN ('done', 'cancelled') AND i.n > k.done OR k.kind <> 'replay' AND i.outcome IS NOT NULL)",
		q.param(p.keepers), literal(t.name))
}
