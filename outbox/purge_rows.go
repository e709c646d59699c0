package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// A stretch is a run of pages that one statement looks through, in the table and in
	// each of its partitions. It grows where few rows are found, up to 8 MiB.
	leastPages = 16
	mostPages  = 1024
	// mostPicked rows of a stretch are kept in memory; where there are more, it is halved.
	mostPicked = 20_000
	// mostRefusals in a row end the work on a table whose rows others hold locked.
	mostRefusals = 5
)

// picked is a row that may go.
type picked struct {
	leaf uint32
	// place is "ctid xmin": this version of the row and no other.
	ctid, place string
	id          string
}

// countRows looks through the table at once, and changes nothing.
func (p *Purge) countRows(ctx context.Context, r *rule, into *PurgedTable) error {
	err := p.atOneMoment(ctx, func(tx pgx.Tx, next int64) error {
		return p.verdicts(ctx, tx, r, r.table.from, next, into)
	})
	return sqlError("look through", "table "+r.table.name, err)
}

// verdicts counts what is to become of the rows of a table or partition.
func (p *Purge) verdicts(ctx context.Context, tx pgx.Tx, r *rule, from string, next int64, into *PurgedTable) error {
	q := &query{}
	sql := fmt.Sprintf("SELECT v.verdict, count(*) FROM (SELECT %s AS verdict FROM %s t) v GROUP BY 1", p.verdictSQL(q, r, next), from)
	rows, err := tx.Query(ctx, sql, q.args...)
	if err != nil {
		return err
	}
	var verdict string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&verdict, &n}, func() error {
		if verdict == deletable {
			into.Deleted += n
			return nil
		}
		into.Kept[verdict] += n
		return nil
	})
	return err
}

// deleteRows walks over the table's pages once. No snapshot is kept open between two
// statements, which would keep the whole database from being cleaned up.
func (p *Purge) deleteRows(ctx context.Context, r *rule, into *PurgedTable) error {
	if p.bound.upTo == 0 {
		return nil
	}
	end, err := p.pages(ctx, r.table)
	if err != nil {
		return err
	}
	w := &walk{purge: p, rule: r, into: into, pages: leastPages}
	for from := int64(0); from < end; {
		if err := p.ended(ctx); err != nil {
			return err
		}
		next, err := w.stretch(ctx, from)
		if err != nil {
			return err
		}
		from = next
		if p.cfg.Progress != nil {
			p.cfg.Progress(PurgeProgress{Table: r.table.name, Deleted: into.Deleted, Looked: int(min(100, 100*from/end))})
		}
		if w.refusals >= mostRefusals {
			return nil // somebody works on the whole of it; the next purge looks again
		}
		if from < end {
			if err := p.rest(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// pages is the length of the table, or of the longest of its partitions.
func (p *Purge) pages(ctx context.Context, t *table) (n int64, err error) {
	err = p.conn.QueryRow(ctx, `SELECT coalesce(max(pg_catalog.pg_relation_size(m.rel) / current_setting('block_size')::bigint), 0) FROM (`+membersSQL+`) m`, t.rel.OID).Scan(&n)
	return n, sqlError("measure", "table "+t.name, err)
}

// walk is one pass over a table.
type walk struct {
	purge *Purge
	rule  *rule
	into  *PurgedTable
	// pages is the length of the next stretch.
	pages int64
	// refusals is how many batches in a row met locks.
	refusals int
}

// stretch deletes what may go of some pages and gives where the next stretch begins.
func (w *walk) stretch(ctx context.Context, from int64) (next int64, err error) {
	rows, err := w.pick(ctx, from, from+w.pages)
	if err != nil {
		return 0, sqlError("look through", "table "+w.rule.table.name, err)
	}
	if len(rows) > mostPicked && w.pages > 1 {
		w.pages = max(1, w.pages/2)
		return from, nil
	}
	if rows, err = w.purge.withoutTasks(ctx, w.rule.table, rows); err != nil {
		return 0, err
	}
	next = from + w.pages
	switch batch := w.purge.cfg.Batch; {
	case len(rows) < batch:
		w.pages = min(mostPages, 2*w.pages)
	case len(rows) > 4*batch:
		w.pages = max(1, w.pages/2)
	}
	return next, w.delete(ctx, rows)
}

// pick reads which rows of some pages may go.
func (w *walk) pick(ctx context.Context, from, to int64) (rows []picked, err error) {
	t := w.rule.table
	err = w.purge.atOneMoment(ctx, func(tx pgx.Tx, next int64) error {
		sql := fmt.Sprintf(`SELECT t.tableoid, t.ctid::text, t.ctid::text || ' ' || t.xmin::text, %s FROM %s t
			WHERE t.ctid >= '(%d,0)'::tid AND t.ctid < '(%d,0)'::tid AND (%s) LIMIT %d`,
			t.text(t.src.Mapping.EventID), t.from, from, to, w.purge.pickSQL(w.rule, next), limitOf(to-from))
		found, err := tx.Query(ctx, sql)
		if err != nil {
			return err
		}
		rows, err = pgx.CollectRows(found, func(row pgx.CollectableRow) (r picked, err error) {
			err = row.Scan(&r.leaf, &r.ctid, &r.place, &r.id)
			return r, err
		})
		return err
	})
	return rows, err
}

// limitOf: one row too many tells that the stretch is too long. One page is never so.
func limitOf(pages int64) int {
	if pages <= 1 {
		return 1 << 30
	}
	return mostPicked + 1
}

// withoutTasks leaves out the rows that tasks keep. The tasks are asked each time: one
// may have been planned, or have got on, since.
func (p *Purge) withoutTasks(ctx context.Context, t *table, rows []picked) ([]picked, error) {
	var err error
	if len(rows) == 0 {
		return rows, nil
	}
	if p.keepers, err = p.readKeepers(ctx); err != nil || len(p.keepers) == 0 {
		return rows, err
	}
	ids := make([]string, len(rows))
	for i := range rows {
		ids[i] = rows[i].id
	}
	q := &query{}
	where := p.keptByTasks(q, t)
	found, err := p.conn.Query(ctx, `SELECT i.event_id FROM postrider.task_item i JOIN postrider.task k ON k.id = i.task
		WHERE `+where+` AND i.event_id = ANY(`+q.param(ids)+`::text[])`, q.args...)
	kept := map[string]bool{}
	if err == nil {
		var id string
		_, err = pgx.ForEachRow(found, []any{&id}, func() error {
			kept[id] = true
			return nil
		})
	}
	if err != nil {
		return nil, sqlError("look for", "events that tasks have still to publish", err)
	}
	return slices.DeleteFunc(rows, func(r picked) bool { return kept[r.id] }), nil
}

// delete takes the rows away, batch by batch. A batch is of one partition.
func (w *walk) delete(ctx context.Context, rows []picked) error {
	slices.SortStableFunc(rows, func(a, b picked) int { return int(int64(a.leaf) - int64(b.leaf)) })
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && n < w.purge.cfg.Batch && rows[n].leaf == rows[0].leaf {
			n++
		}
		if err := w.batch(ctx, rows[:n]); err != nil {
			return err
		}
		rows = rows[n:]
		if len(rows) == 0 {
			return nil
		}
		if err := w.purge.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// batch deletes rows as they were picked: one that was updated since is another version,
// and stays, as does whatever may have taken its place.
func (w *walk) batch(ctx context.Context, rows []picked) error {
	t := w.rule.table
	ctids, places := make([]string, len(rows)), make([]string, len(rows))
	for i, r := range rows {
		ctids[i], places[i] = r.ctid, r.place
	}
	var tag pgconn.CommandTag
	opts := pgx.TxOptions{BeginQuery: fmt.Sprintf("begin; set local lock_timeout = %d", w.purge.cfg.LockTimeout.Milliseconds())}
	err := pgx.BeginTxFunc(ctx, w.purge.conn, opts, func(tx pgx.Tx) (err error) {
		tag, err = tx.Exec(ctx, fmt.Sprintf(`DELETE FROM %s t WHERE t.tableoid = $1 AND t.ctid = ANY($2::text[]::tid[]) AND t.ctid::text || ' ' || t.xmin::text = ANY($3::text[])`, t.from),
			rows[0].leaf, ctids, places)
		return err
	})
	var pg *pgconn.PgError
	switch {
	case err == nil:
		w.into.Deleted += tag.RowsAffected()
		w.refusals = 0
	case errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01"): // lock_not_available, deadlock_detected
		w.into.Skipped += int64(len(rows))
		w.refusals++
	case errors.As(err, &pg) && pg.Code == "42501":
		return noRight(t, w.purge.conn.Config().User, err)
	case ctx.Err() != nil:
		return w.purge.ended(ctx)
	default:
		return sqlError("delete from", "table "+t.name, err)
	}
	return nil
}
