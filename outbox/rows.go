package outbox

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// What Reader.TimeBy says.
const (
	ByCommit = "time of commit"
	ByMapped = "mapped timestamp"
)

// Row is a row with what the server knows of its transaction. Message and what it refers to
// are valid until the call that received it returns.
type Row struct {
	// Table is the source's, as task items name it.
	Table string
	// XID is the 64-bit id of the transaction that wrote the row, or of its subtransaction,
	// Command the number of the command in it. An UPDATE hides those of the insert.
	XID     uint64
	Command uint32
	// CommitTime is zero where the server does not keep it. At is what Selection.Since and
	// Until go by, zero where it is not known or infinite.
	CommitTime, At time.Time
	// Message is the event as it would be published; where Refusal is set, what of it could be
	// found. Its time is 0 where neither mapping nor server know it.
	Message *event.Message
	Refusal *event.Refusal
}

const rowsSQL = `SELECT %s, t.cmin::text, %s, %s, %s FROM %s t WHERE %s`

// Rows hands on the selected rows in no order, those without an event id included. A
// snapshot is open meanwhile: yield does not wait for a broker.
func (r *Reader) Rows(ctx context.Context, sel Selection, yield func(*Row) error) error {
	for _, t := range r.tables {
		err := r.inTx(ctx, readOnly, func(tx pgx.Tx) error {
			next, err := nextXID(ctx, tx)
			if err != nil {
				return err
			}
			q := &query{}
			where, err := r.where(ctx, tx, q, t, sel, next)
			if err != nil {
				return err
			}
			at := r.timeSQL(t)
			if r.TimeBy() == ByCommit {
				at = "NULL" // asked for once: the server looks each one up
			}
			sql := fmt.Sprintf(rowsSQL, xidSQL(next), r.commitTimeSQL(), at, t.columns(), t.from, where)
			rows, err := tx.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, q.args...)...)
			if err != nil {
				return err
			}
			defer rows.Close()
			return r.rows(rows, t, yield)
		})
		if err != nil {
			return sqlError("read the rows of", "table "+t.name, err)
		}
	}
	return nil
}

func (r *Reader) rows(rows pgx.Rows, t *table, yield func(*Row) error) error {
	row := event.Row{Relation: t.rel, Values: make([]event.Value, len(t.rel.Columns))}
	var msg event.Message
	out := &Row{Table: t.name, Message: &msg}
	byCommit := r.TimeBy() == ByCommit
	for rows.Next() {
		raw := rows.RawValues()
		if err := out.server(raw[:4], byCommit); err != nil {
			return err
		}
		if row.CommitTime = out.CommitTime; row.CommitTime.IsZero() {
			row.CommitTime = time.UnixMilli(0)
		}
		for i, v := range raw[4:] {
			row.Values[i] = event.Value{Kind: event.Null}
			if v != nil {
				row.Values[i] = event.Value{Kind: event.Text, Data: v}
			}
		}
		_, out.Refusal = r.router.Route(&row, &msg)
		if err := yield(out); err != nil {
			return err
		}
	}
	return rows.Err()
}

// server takes what is before the columns.
func (o *Row) server(raw [][]byte, byCommit bool) error {
	xid, err := strconv.ParseUint(string(raw[0]), 10, 64)
	if err != nil {
		return err
	}
	command, err := strconv.ParseUint(string(raw[1]), 10, 32)
	if err != nil {
		return err
	}
	o.XID, o.Command = xid, uint32(command)
	o.CommitTime = parseTime(raw[2])
	if o.At = o.CommitTime; !byCommit {
		o.At = parseTime(raw[3])
	}
	return nil
}

// parseTime reads a timestamptz in the pinned settings' form. NULL, and what no clock shows
// (infinity, years before Christ or after 9999), is the zero time.
func parseTime(text []byte) time.Time {
	at, err := time.Parse("2006-01-02 15:04:05.999999-07", string(text))
	if err != nil {
		return time.Time{}
	}
	return at
}

// StaticTopics are those that the routes name without looking at a row.
func (r *Reader) StaticTopics() []string { return r.router.StaticTopics() }

// KnowsCommits says that the server keeps the times of commits.
func (r *Reader) KnowsCommits() bool { return r.commitTimes }

// updatedSQL counts updates as far back as the server's statistics go, of a table and its partitions.
const updatedSQL = `SELECT coalesce(sum(s.n_tup_upd), 0) > 0 FROM pg_catalog.pg_stat_all_tables s
 WHERE s.relid = $1 OR s.relid IN (SELECT relid FROM pg_catalog.pg_partition_tree($1))`

// Updated names the tables of which rows were updated, so that their transaction ids are
// not those of their inserts.
func (r *Reader) Updated(ctx context.Context) (map[string]bool, error) {
	updated := map[string]bool{}
	for _, t := range r.tables {
		var found bool
		if err := r.conn.QueryRow(ctx, updatedSQL, t.rel.OID).Scan(&found); err != nil {
			return nil, sqlError("read the statistics of", "table "+t.name, err)
		}
		updated[t.name] = found
	}
	return updated, nil
}

// EventIDs hands on the event ids of all rows, in no order, as the stream has them, with their
// tables as task items name them.
func (r *Reader) EventIDs(ctx context.Context, yield func(table string, id []byte) error) error {
	for _, t := range r.tables {
		err := r.inTx(ctx, readOnly, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, fmt.Sprintf("SELECT %s FROM %s t", t.text(t.src.Mapping.EventID), t.from))
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				if id := rows.RawValues()[0]; len(id) > 0 {
					if err := yield(t.name, id); err != nil {
						return err
					}
				}
			}
			return rows.Err()
		})
		if err != nil {
			return sqlError("read the event ids of", "table "+t.name, err)
		}
	}
	return nil
}
