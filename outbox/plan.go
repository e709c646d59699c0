package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/router"
)

// Planned is what a plan lists, and what it cannot.
type Planned struct {
	// Items are numbered from 1 in the order in which they are to be published.
	Items int64
	// Order says what that order rests on.
	Order string
	// WithoutID are selected rows whose event id is NULL or empty. They are not listed.
	WithoutID int64
	// Shared are selected rows that have the event id of another one, which is listed.
	Shared int64
}

// Plan lists the selected rows in postrider.task_item, by one statement at one snapshot.
// The task exists and has no items yet.
func (r *Reader) Plan(ctx context.Context, task int64, sel Selection) (Planned, error) {
	planned := Planned{Order: r.Order()}
	err := r.inTx(ctx, readWrite, func(tx pgx.Tx) error {
		next, err := nextXID(ctx, tx)
		if err != nil {
			return err
		}
		if err := r.planLosses(ctx, tx, sel, next, &planned); err != nil {
			return err
		}
		q := &query{}
		place := q.param(task)
		numbered, err := r.numberedSQL(ctx, tx, q, sel, next)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, fmt.Sprintf(`INSERT INTO postrider.task_item (task, n, source_table, event_id)
			SELECT %s, p.n, p.name, p.id FROM (%s) p ORDER BY p.n`, place, numbered), q.args...)
		planned.Items = tag.RowsAffected()
		return err
	})
	if err != nil {
		return Planned{}, sqlError("list the events of", fmt.Sprintf("task %d", task), err)
	}
	return planned, nil
}

// Losses counts what a plan of the selection would leave out.
func (r *Reader) Losses(ctx context.Context, sel Selection) (withoutID, shared int64, err error) {
	var planned Planned
	err = r.inTx(ctx, readOnly, func(tx pgx.Tx) error {
		next, err := nextXID(ctx, tx)
		if err != nil {
			return err
		}
		return r.planLosses(ctx, tx, sel, next, &planned)
	})
	return planned.WithoutID, planned.Shared, sqlError("count the rows of", "the tables", err)
}

// planLosses counts what the plan leaves out.
func (r *Reader) planLosses(ctx context.Context, tx pgx.Tx, sel Selection, next int64, planned *Planned) error {
	for _, t := range r.tables {
		q := &query{}
		where, err := r.where(ctx, tx, q, t, sel, next)
		if err != nil {
			return err
		}
		id := t.text(t.src.Mapping.EventID)
		shared := "0"
		if !t.unique {
			shared = fmt.Sprintf("count(nullif(%[1]s, '')) - count(DISTINCT nullif(%[1]s, ''))", id)
		}
		var without, doubles int64
		err = tx.QueryRow(ctx, fmt.Sprintf("SELECT count(*) - count(nullif(%s, '')), %s FROM %s t WHERE %s", id, shared, t.from, where), q.args...).Scan(&without, &doubles)
		if err != nil {
			return err
		}
		planned.WithoutID += without
		planned.Shared += doubles
	}
	return nil
}

// numberedSQL gives the rows' table and event id with their numbers. g is the place in the
// whole order. Inside a key whose rows all have a version, the same places are filled in
// the order of versions.
func (r *Reader) numberedSQL(ctx context.Context, tx pgx.Tx, q *query, sel Selection, next int64) (string, error) {
	var parts []string
	unique := true
	for i, t := range r.tables {
		where, err := r.where(ctx, tx, q, t, sel, next)
		if err != nil {
			return "", err
		}
		parts = append(parts, r.candidatesSQL(t, i, where, next))
		unique = unique && t.unique
	}
	candidates := strings.Join(parts, "\nUNION ALL\n")
	if !unique {
		candidates = fmt.Sprintf(`SELECT * FROM (SELECT c.*, row_number() OVER (PARTITION BY c.source, c.id ORDER BY %s) AS copy FROM (%s) c) c WHERE c.copy = 1`, OrderSQL, candidates)
	}
	placed := fmt.Sprintf("SELECT c.*, row_number() OVER (ORDER BY %s) AS g FROM (%s) c", OrderSQL, candidates)
	if r.mapped(func(m *router.Mapping) string { return m.AggregateVersion }) == 0 {
		return fmt.Sprintf("SELECT g AS n, name, id FROM (%s) g", placed), nil
	}
	return fmt.Sprintf(`
WITH g AS MATERIALIZED (%s),
w AS (SELECT g.*, key IS NOT NULL AND count(version) OVER u = count(*) OVER u AS whole, row_number() OVER (u ORDER BY g) AS nth
        FROM g WINDOW u AS (PARTITION BY source, kind, key)),
v AS MATERIALIZED (SELECT w.*, row_number() OVER (PARTITION BY source, kind, key ORDER BY CASE WHEN whole THEN version END, g) AS place FROM w)
SELECT n.g AS n, v.name, v.id
  FROM v JOIN v n ON n.source = v.source AND coalesce(n.kind, '') = coalesce(v.kind, '') AND (n.kind IS NULL) = (v.kind IS NULL)
   AND coalesce(n.key, '') = coalesce(v.key, '') AND (n.key IS NULL) = (v.key IS NULL) AND n.nth = v.place`, placed), nil
}

// candidatesSQL gives a table's rows with what orders them.
func (r *Reader) candidatesSQL(t *table, source int, where string, next int64) string {
	m := &t.src.Mapping
	id := t.text(m.EventID)
	return fmt.Sprintf(`SELECT %d AS source, %s::text AS name, %s AS id, %s AS cts, %s AS mts, %s AS xid, t.cmin::text::bigint AS cid, t.ctid AS tid,
       %s AS version, %s AS kind, %s AS key FROM %s t WHERE %s <> '' AND %s`,
		source, literal(t.name), id, r.commitTimeSQL(), t.mappedTimeSQL(), xidSQL(next),
		t.versionSQL(), t.textOr(m.AggregateType, "NULL::text"), t.text(m.Key), t.from, "("+id+")", where)
}
