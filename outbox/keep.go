package outbox

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

// setTable is where Keep puts a set.
func setTable(name string) string { return "pg_temp." + ident("postrider_set_"+name) }

// Keep takes a set of event ids into the session's temporary tables under a name, for
// Selection.Only and Selection.Except. One of the same name is replaced. An id is of
// whatever table has it.
func (r *Reader) Keep(ctx context.Context, name string, ids iter.Seq[string]) (n int64, err error) {
	return r.keep(ctx, name, func(yield func(rowID) bool) {
		for id := range ids {
			if !yield(rowID{id: id}) {
				return
			}
		}
	})
}

// rowID is an event id of a table: two tables may have the same ids. The table is as task
// items name it, or "" for any.
type rowID struct{ table, id string }

func (r *Reader) keep(ctx context.Context, name string, ids iter.Seq[rowID]) (n int64, err error) {
	err = r.inTx(ctx, readWrite, func(tx pgx.Tx) error {
		table := setTable(name)
		if _, err := tx.Exec(ctx, fmt.Sprintf("DROP TABLE IF EXISTS %[1]s; CREATE TEMPORARY TABLE %[2]s (source_table text NOT NULL, event_id text NOT NULL)",
			table, ident("postrider_set_"+name)), pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		next, stop := iter.Pull(ids)
		defer stop()
		n, err = tx.CopyFrom(ctx, pgx.Identifier{"pg_temp", "postrider_set_" + name}, []string{"source_table", "event_id"}, pgx.CopyFromFunc(func() ([]any, error) {
			id, ok := next()
			if !ok {
				return nil, nil
			}
			return []any{id.table, id.id}, nil
		}))
		if err != nil {
			return err
		}
		// A hash index has no limit to the length of an id.
		_, err = tx.Exec(ctx, fmt.Sprintf("CREATE INDEX ON %[1]s USING hash (event_id); ANALYZE %[1]s", table), pgx.QueryExecModeSimpleProtocol)
		return err
	})
	return n, sqlError("keep a list of event ids in", "the session", err)
}

// inSet holds for a row of the table whose event id, as SQL, is in a kept set.
func (t *table) inSet(name, id string) string {
	return fmt.Sprintf("EXISTS (SELECT FROM %s i WHERE i.event_id = %s AND i.source_table IN ('', %s))", setTable(name), id, literal(t.name))
}

// Missing hands on the ids of a kept set that no row of the sources has, in the order of their text.
func (r *Reader) Missing(ctx context.Context, name string, yield func(id string) error) error {
	if len(r.tables) == 0 {
		return &operr.Error{Class: operr.Internal, Op: "compare with the tables", Err: errors.New("there are none")}
	}
	sql := "SELECT DISTINCT i.event_id FROM " + setTable(name) + " i WHERE true"
	for _, t := range r.tables {
		id := t.text(t.src.Mapping.EventID)
		sql += fmt.Sprintf(" AND NOT EXISTS (SELECT FROM %s t WHERE %s = i.event_id)", t.from, id)
	}
	return sqlError("compare event ids with", "the tables", r.inTx(ctx, readOnly, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql+" ORDER BY 1")
		if err != nil {
			return err
		}
		var id string
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error { return yield(id) })
		return err
	}))
}
