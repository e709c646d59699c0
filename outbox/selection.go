package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
)

// Selection chooses rows; what is set must all hold. The zero value is every row.
type Selection struct {
	// EventIDs as the record's header has them.
	EventIDs []string
	// Since (inclusive) and Until (exclusive) go by what Reader.TimeBy names. For people
	// only: a row that committed late lies in the past.
	Since, Until time.Time
	// Undated takes rows of which nobody knows when they were to be within Since and Until.
	Undated bool
	// Aggregate is a key; AggregateType and EventType are as mapped.
	Aggregate, AggregateType, EventType string
	// VisibleIn is a pg_snapshot: rows whose transaction had committed when it was taken.
	// It must name all that had not, as that of a slot's birth does. A row that was
	// updated since has another transaction's id and is none of them: see Unstreamed.
	// NotVisibleIn is the opposite.
	VisibleIn, NotVisibleIn string
	// Unstreamed names a set of KeepStreamed. With it, rows that are not visible in
	// VisibleIn are taken too, unless they are of the set.
	Unstreamed string
	// NotCovered is a ticked-off pg_snapshot: rows that it does not prove to be published (rule 4).
	NotCovered string
	// Only and Except name sets of event ids that were given to Reader.Keep.
	Only, Except string
	// ExceptTasks leaves out what these tasks have published.
	ExceptTasks []int64
}

// where puts the selection into a condition on table t; next is as xidSQL has it.
func (r *Reader) where(ctx context.Context, tx pgx.Tx, q *query, t *table, sel Selection, next int64) (string, error) {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if t.published != "" {
		add("%s", t.published)
	}
	if sel.EventIDs != nil {
		condition, err := t.idsSQL(ctx, tx, q, sel.EventIDs)
		if err != nil {
			return "", err
		}
		add("%s", condition)
	}
	whereColumns(q, t, sel, add)
	if err := r.whereTime(q, t, sel, add); err != nil {
		return "", err
	}
	if err := whereSnapshot(q, t, sel, xidSQL(next), add); err != nil {
		return "", err
	}
	whereSets(q, t, sel, add)
	return and(all), nil
}

func whereColumns(q *query, t *table, sel Selection, add func(string, ...any)) {
	m := &t.src.Mapping
	for _, equal := range []struct{ value, column string }{
		{sel.Aggregate, m.Key}, {sel.AggregateType, m.AggregateType}, {sel.EventType, m.EventType},
	} {
		switch {
		case equal.value == "":
		case equal.column == "":
			add("false") // a table without the column has no such event
		default:
			add("%s = %s", t.text(equal.column), q.param(equal.value))
		}
	}
}

func whereSets(q *query, t *table, sel Selection, add func(string, ...any)) {
	id := t.text(t.src.Mapping.EventID)
	if sel.Only != "" {
		add("%s", t.inSet(sel.Only, id))
	}
	if sel.Except != "" {
		add("NOT %s", t.inSet(sel.Except, id))
	}
	if len(sel.ExceptTasks) > 0 {
		add(`NOT EXISTS (SELECT FROM postrider.task_item i JOIN postrider.task k ON k.id = i.task
			WHERE k.id = ANY(%s::bigint[]) AND i.n <= k.done AND i.outcome IS NULL AND i.source_table = %s AND i.event_id = %s)`,
			q.param(sel.ExceptTasks), literal(t.name), id)
	}
}

func (r *Reader) whereTime(q *query, t *table, sel Selection, add func(string, ...any)) error {
	if sel.Since.IsZero() && sel.Until.IsZero() {
		return nil
	}
	if r.TimeBy() == "" {
		return &operr.Error{
			Class: operr.Config, Op: "select by time", Err: errors.New("neither the server nor the mapping knows when an event was"),
			Hint: "map a timestamp for each source, or set track_commit_timestamp = on for events to come; or select by event id, key or type",
		}
	}
	at, within := r.timeSQL(t), []string{}
	if !sel.Since.IsZero() {
		within = append(within, at+" >= "+q.param(sel.Since))
	}
	if !sel.Until.IsZero() {
		within = append(within, at+" < "+q.param(sel.Until))
	}
	condition := and(within)
	if sel.Undated {
		condition += " OR " + at + " IS NULL"
	}
	add("%s", condition)
	return nil
}

func whereSnapshot(q *query, t *table, sel Selection, xid string, add func(string, ...any)) error {
	if sel.VisibleIn != "" {
		visible, err := visibleSQL(q, sel.VisibleIn, xid)
		if err != nil {
			return err
		}
		if sel.Unstreamed != "" {
			visible += " OR NOT " + t.inSet(sel.Unstreamed, t.text(t.src.Mapping.EventID))
		}
		add("%s", visible)
	}
	if sel.NotVisibleIn != "" {
		visible, err := visibleSQL(q, sel.NotVisibleIn, xid)
		if err != nil {
			return err
		}
		add("NOT (%s)", visible)
	}
	if sel.NotCovered != "" {
		s, err := parseSnapshot(sel.NotCovered)
		if err != nil {
			return err
		}
		add("%s >= %d", xid, s.Xmin)
	}
	return nil
}

// visibleSQL is pg_visible_in_snapshot, without a conversion for each row.
func visibleSQL(q *query, snapshot, xid string) (string, error) {
	s, err := parseSnapshot(snapshot)
	if err != nil {
		return "", err
	}
	running := make([]int64, len(s.Running))
	for i, x := range s.Running {
		running[i] = int64(x)
	}
	return fmt.Sprintf("%[1]s < %[2]d OR %[1]s < %[3]d AND %[1]s <> ALL(%[4]s::bigint[])", xid, s.Xmin, s.Xmax, q.param(running)), nil
}

func parseSnapshot(text string) (checkpoint.Snapshot, error) {
	s, err := checkpoint.ParseSnapshot(text)
	if err != nil {
		return s, &operr.Error{Class: operr.Internal, Op: "read the snapshot", Err: err}
	}
	return s, nil
}

// mostTried ids are tried one by one.
const mostTried = 100

// idsSQL holds for rows with one of the ids. The comparison by type is for the index; the server
// refuses it for ids that the type cannot hold. To find those among many would take longer
// than to look at each row.
func (t *table) idsSQL(ctx context.Context, tx pgx.Tx, q *query, ids []string) (string, error) {
	ok, err := t.castable(ctx, tx, ids)
	if err == nil && !ok && len(ids) <= mostTried {
		ids, err = t.possible(ctx, tx, ids)
		ok = true
	}
	if err != nil {
		return "", err
	}
	place := q.param(ids)
	exact := t.text(t.src.Mapping.EventID) + " = ANY(" + place + "::text[])"
	if !ok {
		return exact, nil
	}
	return "t." + ident(t.src.Mapping.EventID) + " = ANY(" + place + "::text[]::" + t.idType + "[]) AND " + exact, nil
}

// possible leaves of ids those that the event id's type can hold: no row has the others.
func (t *table) possible(ctx context.Context, tx pgx.Tx, ids []string) ([]string, error) {
	left := []string{}
	for _, id := range ids {
		ok, err := t.castable(ctx, tx, []string{id})
		if err != nil {
			return nil, err
		}
		if ok {
			left = append(left, id)
		}
	}
	return left, nil
}

func (t *table) castable(ctx context.Context, tx pgx.Tx, ids []string) (bool, error) {
	err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		_, err := savepoint.Exec(ctx, "SELECT $1::text[]::"+t.idType+"[]", ids)
		return err
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (pg.Code[:2] == "22" || pg.Code[:2] == "23") { // data exception; a domain's constraint
		return false, nil
	}
	return err == nil, err
}
