package outbox

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/router"
)

// Candidate is a row and what it would be published as. All of it is valid until the call
// that received it returns.
type Candidate struct {
	// Table is the source's, as task items name it.
	Table string
	// N is the item's number.
	N int64
	// CommitTime is that of the transaction that wrote the row last, zero where the server
	// does not keep it: not that of the insert where the row was updated, or loaded.
	CommitTime time.Time
	Row        *event.Row
	// Message is what could be found of the record where Refusal is set. Its time is 0 where
	// the mapping gives none: that of the commit is not the one of the record where a row
	// was updated or loaded since.
	Message *event.Message
	Refusal *event.Refusal
}

// Each hands on rows in no order: those of a task's items, or of a selection where task
// is 0, with the numbers that a plan of it would give them. Unlike Items it keeps a
// snapshot open meanwhile: yield does not wait for a broker. Of rows that share an event
// id all are handed on, under one number.
func (r *Reader) Each(ctx context.Context, task int64, sel Selection, yield func(Candidate) error) error {
	return r.each(ctx, func(ctx context.Context, tx pgx.Tx, q *query, t *table) (string, error) {
		if task != 0 {
			return r.taskRowsSQL(t, task, "true"), nil
		}
		next, err := nextXID(ctx, tx)
		if err != nil {
			return "", err
		}
		numbered, err := r.numberedSQL(ctx, tx, q, sel, next)
		id := t.src.Mapping.EventID
		return fmt.Sprintf(`SELECT p.n, %s, %s FROM (%s) p JOIN %s t ON t.%s = p.id::%s AND %s = p.id WHERE p.name = %s`,
			r.commitMillisSQL(), t.columns(), numbered, t.from, ident(id), t.idType, t.text(id), literal(t.name)), err
	}, yield)
}

// EachNoted is Each for the items of a task that have an outcome.
func (r *Reader) EachNoted(ctx context.Context, task int64, yield func(Candidate) error) error {
	return r.each(ctx, func(_ context.Context, _ pgx.Tx, _ *query, t *table) (string, error) {
		return r.taskRowsSQL(t, task, "i.outcome IS NOT NULL"), nil
	}, yield)
}

// commitMillisSQL is NULL where the server does not know.
func (r *Reader) commitMillisSQL() string {
	return fmt.Sprintf("floor(extract(epoch FROM %s) * 1000)::bigint", r.commitTimeSQL())
}

func (r *Reader) taskRowsSQL(t *table, task int64, condition string) string {
	id := t.src.Mapping.EventID
	return fmt.Sprintf(`SELECT i.n, %s, %s FROM postrider.task_item i JOIN %s t ON t.%s = i.event_id::%s AND %s = i.event_id
		WHERE i.task = %d AND i.source_table = %s AND %s`,
		r.commitMillisSQL(), t.columns(), t.from, ident(id), t.idType, t.text(id), task, literal(t.name), condition)
}

func (r *Reader) each(ctx context.Context, sql func(context.Context, pgx.Tx, *query, *table) (string, error), yield func(Candidate) error) error {
	for _, t := range r.tables {
		err := r.inTx(ctx, readOnly, func(tx pgx.Tx) error {
			q := &query{}
			text, err := sql(ctx, tx, q, t)
			if err != nil {
				return err
			}
			rows, err := tx.Query(ctx, text, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, q.args...)...)
			if err != nil {
				return err
			}
			defer rows.Close()
			return r.route(rows, t, yield)
		})
		if err != nil {
			return sqlError("read the rows of", "table "+t.name, err)
		}
	}
	return nil
}

func (r *Reader) route(rows pgx.Rows, t *table, yield func(Candidate) error) error {
	row := event.Row{Relation: t.rel, Values: make([]event.Value, len(t.rel.Columns)), CommitTime: time.UnixMilli(0)}
	var msg event.Message
	c := Candidate{Table: t.name, Row: &row, Message: &msg}
	for rows.Next() {
		raw := rows.RawValues()
		if err := c.numbers(raw[0], raw[1]); err != nil {
			return err
		}
		for i, v := range raw[2:] {
			row.Values[i] = event.Value{Kind: event.Null}
			if v != nil {
				row.Values[i] = event.Value{Kind: event.Text, Data: v}
			}
		}
		row.Position = event.Position{Index: uint64(c.N)}
		_, c.Refusal = r.router.Route(&row, &msg)
		if err := yield(c); err != nil {
			return err
		}
	}
	return rows.Err()
}

// numbers takes what is before the columns.
func (c *Candidate) numbers(n, commitMillis []byte) (err error) {
	if c.N, err = strconv.ParseInt(string(n), 10, 64); err != nil {
		return err
	}
	c.CommitTime = time.Time{}
	if commitMillis != nil {
		ms, err := strconv.ParseInt(string(commitMillis), 10, 64)
		if err != nil {
			return err
		}
		c.CommitTime = time.UnixMilli(ms)
	}
	return nil
}

// TypeName gives a type that is not built in, for a row that is kept to be routed by
// another router.
func (r *Reader) TypeName(oid uint32) (router.TypeName, bool) { return r.router.TypeName(oid) }
