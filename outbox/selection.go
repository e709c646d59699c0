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
	// Aggregate is a key; AggregateType and EventType are as mapped.
	Aggregate, AggregateType, EventType string
	// VisibleIn is a pg_snapshot: rows whose transaction had committed when it was taken.
	// It must name all that had not, as that of a slot's birth does. A row that was
	// updated since has another transaction's id and is none of them.
	VisibleIn string
	// NotCovered is a ticked-off pg_snapshot: rows that it does not prove to be published (rule 4).
	NotCovered string
	// Only and Except name sets of event ids that were given to Reader.Keep.
	Only, Except string
}

// where puts the selection into a condition on table t; next is as xidSQL has it.
func (r *Reader) where(ctx context.Context, tx pgx.Tx, q *query, t *table, sel Selection, next int64) (string, error) {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if t.published != "" {
		add("%s", t.published)
	}
	if sel.EventIDs != nil {
		ids, err := t.possible(ctx, tx, sel.EventIDs)
		if err != nil {
			return "", err
		}
		place := q.param(ids)
		add("t.%s = ANY(%s::text[]::%s[]) AND %s = ANY(%s::text[])", ident(t.src.Mapping.EventID), place, t.idType, t.text(t.src.Mapping.EventID), place)
	}
	m := &t.src.Mapping
	for _, equal := range []struct{ value, column, what string }{
		{sel.Aggregate, m.Key, "key"}, {sel.AggregateType, m.AggregateType, "aggregate type"}, {sel.EventType, m.EventType, "event type"},
	} {
		switch {
		case equal.value == "":
		case equal.column == "":
			add("false") // a table without the column has no such event
		default:
			add("%s = %s", t.text(equal.column), q.param(equal.value))
		}
	}
	if err := r.whereTime(q, t, sel, add); err != nil {
		return "", err
	}
	if err := whereSnapshot(q, sel, xidSQL(next), add); err != nil {
		return "", err
	}
	for name, in := range map[string]string{sel.Only: "", sel.Except: "NOT "} {
		if name != "" {
			add("%sEXISTS (SELECT FROM %s i WHERE i.event_id = %s)", in, setTable(name), t.text(m.EventID))
		}
	}
	return and(all), nil
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
	if !sel.Since.IsZero() {
		add("%s >= %s", r.timeSQL(t), q.param(sel.Since))
	}
	if !sel.Until.IsZero() {
		add("%s < %s", r.timeSQL(t), q.param(sel.Until))
	}
	return nil
}

func whereSnapshot(q *query, sel Selection, xid string, add func(string, ...any)) error {
	if sel.VisibleIn != "" {
		s, err := checkpoint.ParseSnapshot(sel.VisibleIn)
		if err != nil {
			return &operr.Error{Class: operr.Internal, Op: "read the snapshot", Err: err}
		}
		running := make([]int64, len(s.Running))
		for i, x := range s.Running {
			running[i] = int64(x)
		}
		add("%[1]s < %[2]d OR %[1]s < %[3]d AND %[1]s <> ALL(%[4]s::bigint[])", xid, s.Xmin, s.Xmax, q.param(running))
	}
	if sel.NotCovered != "" {
		s, err := checkpoint.ParseSnapshot(sel.NotCovered)
		if err != nil {
			return &operr.Error{Class: operr.Internal, Op: "read the snapshot", Err: err}
		}
		add("%s >= %d", xid, s.Xmin)
	}
	return nil
}

// possible leaves of ids those that the event id's type can hold: no row has the others,
// and the server would refuse to compare with them.
func (t *table) possible(ctx context.Context, tx pgx.Tx, ids []string) ([]string, error) {
	ok, err := t.castable(ctx, tx, ids)
	if err != nil || ok {
		return ids, err
	}
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

// nextXID is the first transaction id that the transaction's snapshot knows nothing of.
func nextXID(ctx context.Context, tx pgx.Tx) (next int64, err error) {
	err = tx.QueryRow(ctx, `SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint`).Scan(&next)
	return next, err
}
