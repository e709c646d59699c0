package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/parking"
)

// readCheckpoint finds what says which rows are due, and which rows committed late.
func (c *comparison) readCheckpoint(ctx context.Context) error {
	v, err := readVouch(ctx, c.cfg, c.reader.Conn())
	if err != nil {
		return err
	}
	c.vouch, c.report.NotProved = v, v.notProved
	if c.covered != nil {
		c.report.Covered = v.stored.Snapshot
	}
	if err := c.reader.Conn().QueryRow(ctx, `SELECT pg_current_snapshot()::text`).Scan(&c.began); err != nil {
		return sqlError("take", "a snapshot", err)
	}
	return c.findLate(ctx)
}

// lateSQL: the last run that looked before the window begins.
const lateSQL = `SELECT detail ->> 'snapshot', at FROM postrider.audit
 WHERE publisher = $1 AND action = 'reconcile' AND at <= $2 AND detail ->> 'system_id' = $3 AND (detail ->> 'timeline')::int = $4
 ORDER BY at DESC LIMIT 1`

func (c *comparison) findLate(ctx context.Context) error {
	if c.o.Since.IsZero() || c.reader.TimeBy() == outbox.ByCommit {
		return nil // every row is read; or its time is that of its commit
	}
	err := c.reader.Conn().QueryRow(ctx, lateSQL, c.cfg.Publisher, c.o.Since, c.system.ID, c.system.Timeline).Scan(&c.late, &c.report.LateSince)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return sqlError("read", "the audit", err)
}

// leaveSnapshot is for later runs. A role that may not write the audit does without.
func (c *comparison) leaveSnapshot(ctx context.Context) error {
	r := c.report
	_, err := c.reader.Conn().Exec(ctx, `INSERT INTO postrider.audit (publisher, actor, action, detail) VALUES ($1, $2, 'reconcile', $3)`,
		c.cfg.Publisher, c.cfg.Actor, map[string]any{
			"snapshot": c.began, "system_id": c.system.ID, "timeline": c.system.Timeline, "since": r.Since, "until": r.Until,
			"rows": r.Rows, "missing": r.Missing, "different": r.Different, "duplicates": r.Duplicates, "out_of_order": r.OutOfOrder,
		})
	if err = sqlError("write", "the audit", err); isDenied(err) {
		return nil
	}
	return err
}

// readTable takes the rows of the pass.
func (c *comparison) readTable(ctx context.Context) error {
	total, err := c.takeRows(ctx)
	if err != nil {
		return err
	}
	if most := int64(c.o.MostRows); c.pass == 0 && total > most {
		// More than is kept at once: from the beginning, in parts that leave room for rows to come.
		c.passes = int(total/(most-most/8)) + 1
		if _, err := c.takeRows(ctx); err != nil {
			return err
		}
	}
	c.report.Passes = c.passes
	c.set.seal()
	updated, err := c.reader.Updated(ctx)
	if err != nil {
		return err
	}
	c.ordered = map[uint32]bool{}
	for i, name := range c.set.tables.list {
		c.ordered[uint32(i)] = !updated[name]
	}
	return nil
}

// takeRows reads the window; total counts the rows of all passes.
func (c *comparison) takeRows(ctx context.Context) (total int64, err error) {
	c.set.reset()
	phase := "read the table"
	if c.passes > 1 {
		phase = fmt.Sprintf("read the table, pass %d of %d", c.pass+1, c.passes)
	}
	var without int64
	take := func(row *outbox.Row) error {
		if len(row.Message.EventID) == 0 {
			without++
			return nil
		}
		if total++; total%progressEvery == 0 {
			c.progress(phase, total, 0)
		}
		e := c.set.entryOf(row)
		idHash := c.set.idHash(&e)
		if c.set.part(row.Message.Key, idHash)%uint64(c.passes) == uint64(c.pass) && (c.passes > 1 || int(c.set.count) < c.o.MostRows) {
			c.set.add(e, row.Message.EventID)
		}
		return nil
	}
	c.progress(phase, 0, 0)
	for _, sel := range c.selections() {
		if err := c.reader.Rows(ctx, sel.Selection, func(row *outbox.Row) error {
			if sel.below != 0 && !row.At.IsZero() && row.At.UnixMilli() >= sel.below {
				return nil // the other selection has it
			}
			return take(row)
		}); err != nil {
			return 0, err
		}
	}
	if c.pass == 0 {
		c.report.WithoutID = without
	}
	return total, nil
}

// selection of rows that are older than below, where that is set, in milliseconds.
type selection struct {
	outbox.Selection
	below int64
}

// selections are the window, and the rows that committed late.
func (c *comparison) selections() []selection {
	window := outbox.Selection{Until: c.o.Until, Aggregate: c.o.Aggregate, AggregateType: c.o.AggregateType, EventType: c.o.EventType}
	late := window
	if !c.o.Since.IsZero() {
		window.Since = c.o.Since.Add(-c.o.Margin)
	}
	list := []selection{{Selection: window}}
	if c.late != "" {
		late.NotCovered = c.late
		list = append(list, selection{Selection: late, below: window.Since.UnixMilli()})
	}
	return list
}

const parkedSQL = `SELECT event_id, state, coalesce(topic, ''), coalesce(row_shape ->> 'as_schema', '') || '.' || coalesce(row_shape ->> 'as_table', ''), key
  FROM postrider.parked WHERE publisher = $1 AND event_id IS NOT NULL AND state <> 'published'`

// readParked marks the rows whose events are parked.
func (c *comparison) readParked(ctx context.Context) error {
	rows, err := c.reader.Conn().Query(ctx, parkedSQL, c.cfg.Publisher)
	if err != nil {
		return sqlError("read", "the parked events", err)
	}
	var id, state, topic, table string
	var key []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &state, &topic, &table, &key}, func() error {
		mark := isParked
		if parking.State(state) == parking.Discarded {
			mark = isDiscarded
		}
		if e := c.parkedRow([]byte(id), topic, table); e != nil {
			e.flags |= mark
		}
		return nil
	})
	return sqlError("read", "the parked events", err)
}

// parkedRow finds the row of a parked event: by its topic, or, where the router refused
// it, by its table.
func (c *comparison) parkedRow(id []byte, topic, table string) *entry {
	idHash := c.set.bytes(id)
	if topic != "" {
		if number, known := c.set.topics.byID[topic]; known {
			if i := c.set.find(number, idHash); i != none {
				return c.set.row(i)
			}
		}
	}
	for i := range c.set.topics.list {
		at := c.set.find(uint32(i), idHash)
		if at == none {
			continue
		}
		if e := c.set.row(at); c.set.tables.list[e.table] == table || table == "." && len(c.cfg.Router.Sources) == 1 {
			return e
		}
	}
	return nil
}

// isDenied says that the role may not do it, or the server not now.
func isDenied(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "42501" || pg.Code == "25006") // insufficient_privilege, read_only_sql_transaction
}

// sqlError puts an error of the session into an operator's words.
func sqlError(op, subject string, err error) error {
	var known *operr.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &operr.Error{Class: operr.Postgres, Op: op, Subject: subject, Err: err, Hint: "postrider setup, which creates or updates the schema postrider"}
}
