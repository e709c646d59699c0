package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// Found is an event as the table has it.
type Found struct {
	// Table is the source's, Partition the one of its partitions that holds the row.
	Table, Partition string
	// XID is the 64-bit id of the transaction that wrote the row, or of its
	// subtransaction. One that has updated the row since hides the one that inserted it.
	XID uint64
	// CommitTime is zero where the server does not keep it.
	CommitTime time.Time
	// Message is the event as it would be published; where Refusal is set, what of it
	// could be found.
	Message event.Message
	Refusal *event.Refusal
	// Rows counts those that have this event id, in all tables; this is the first.
	Rows int
}

const findSQL = `SELECT t.tableoid::pg_catalog.regclass::text, %s, %s, %s FROM %s t WHERE %s ORDER BY %s, t.cmin::text::bigint, t.ctid`

// Find looks for an event by its id; nil where no source has it.
func (r *Reader) Find(ctx context.Context, eventID string) (*Found, error) {
	var found *Found
	for _, t := range r.tables {
		err := r.inTx(ctx, readOnly, func(tx pgx.Tx) error { return r.findIn(ctx, tx, t, eventID, &found) })
		if err != nil {
			return nil, sqlError("look for the event in", "table "+t.name, err)
		}
	}
	return found, nil
}

func (r *Reader) findIn(ctx context.Context, tx pgx.Tx, t *table, eventID string, found **Found) error {
	next, err := nextXID(ctx, tx)
	if err != nil {
		return err
	}
	q := &query{}
	where, err := r.where(ctx, tx, q, t, Selection{EventIDs: []string{eventID}}, next)
	if err != nil {
		return err
	}
	xid := xidSQL(next)
	sql := fmt.Sprintf(findSQL, xid, r.commitTimeSQL(), t.columns(), t.from, where, xid)
	rows, err := tx.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, q.args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if *found != nil {
			(*found).Rows++
			continue
		}
		if *found, err = r.found(rows, t); err != nil {
			return err
		}
	}
	return rows.Err()
}

// found makes a Found of the row; it keeps nothing of the session's memory.
func (r *Reader) found(rows pgx.Rows, t *table) (*Found, error) {
	raw := rows.RawValues()
	f := &Found{Table: t.name, Partition: string(raw[0]), Rows: 1}
	if _, err := fmt.Sscan(string(raw[1]), &f.XID); err != nil {
		return nil, err
	}
	row := event.Row{Relation: t.rel}
	if raw[2] != nil {
		at, err := time.Parse("2006-01-02 15:04:05.999999-07", string(raw[2])) // the pinned settings' form
		if err != nil {
			return nil, err
		}
		f.CommitTime, row.CommitTime = at, at
	}
	for _, v := range raw[3:] {
		if v == nil {
			row.Values = append(row.Values, event.Value{Kind: event.Null})
			continue
		}
		row.Values = append(row.Values, event.Value{Kind: event.Text, Data: append([]byte{}, v...)})
	}
	var msg event.Message
	_, f.Refusal = r.router.Route(&row, &msg)
	f.Message = copyOf(&msg)
	return f, nil
}

// copyOf takes a message out of the router's memory.
func copyOf(m *event.Message) event.Message {
	c := *m
	for _, b := range []*[]byte{&c.EventID, &c.Key, &c.Value, &c.AggregateType, &c.EventType, &c.AggregateVersion} {
		if *b != nil {
			*b = append([]byte{}, *b...)
		}
	}
	c.Headers = make([]event.Header, len(m.Headers))
	for i, h := range m.Headers {
		if h.Value != nil {
			h.Value = append([]byte{}, h.Value...)
		}
		c.Headers[i] = h
	}
	return c
}
