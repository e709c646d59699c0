package relay

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

// rootFinder tells which source a relation of the stream belongs to. A table that
// is published without publish_via_partition_root sends the rows of its leaves
// under the leaves' own names.
type rootFinder struct {
	sources map[replication.Table]bool
	// published are the tables that the catalog lists now; nil where all are published.
	published map[replication.Table]bool
	// leaves says that rows of a source may arrive under another table's name.
	leaves bool
	// query asks the server for a table's name now and for its ancestors, nearest first.
	query func(ctx context.Context, oid uint32) ([]replication.Table, error)
	mu    sync.Mutex
	// known remembers leaves; it is asked once for a relation, not for a row.
	known map[uint32]replication.Table
}

func newRootFinder(tables []replication.Table, pubs replication.Publications, query func(context.Context, uint32) ([]replication.Table, error)) *rootFinder {
	f := &rootFinder{
		sources: make(map[replication.Table]bool), published: make(map[replication.Table]bool),
		query: query, known: make(map[uint32]replication.Table),
	}
	for _, t := range tables {
		f.sources[t] = true
	}
	all := false
	for _, p := range pubs {
		all = all || p.AllTables
		f.leaves = f.leaves || !p.ViaRoot
		for _, t := range p.Tables {
			f.published[t.Table] = true
		}
	}
	if all {
		f.published = nil
	}
	return f
}

// sourceOf gives the name under which rel is to be bound: its own, or that of the
// source that it is a leaf of, or that it is called now: rows from before a table was
// renamed come under its old name. A table that was a leaf when its rows were written
// and is none any more (detached or dropped since) cannot be told from somebody
// else's table; where that is possible it is an error, since passing it over could
// lose events.
func (f *rootFinder) sourceOf(ctx context.Context, rel *event.Relation) (schema, table string, err error) {
	own := replication.Table{Schema: rel.Namespace, Name: rel.Name}
	if f.sources[own] {
		return own.Schema, own.Name, nil
	}
	ancestors, err := f.query(ctx, rel.OID)
	if err != nil {
		return "", "", sqlError("find the partition root of", "table "+rel.String(), err)
	}
	for _, a := range ancestors {
		if f.sources[a] {
			f.mu.Lock()
			f.known[rel.OID] = a
			f.mu.Unlock()
			return a.Schema, a.Name, nil
		}
	}
	if f.leaves && f.published != nil && !f.published[own] {
		return "", "", &operr.Error{
			Class: operr.Postgres, Op: "route rows of", Subject: "table " + rel.String(),
			Err:  errors.New("it came on the stream, is no source, and the publication does not list it now: it may be a partition of an outbox that was detached or dropped before its rows were published"),
			Hint: "add it as a source if it held events, or attach it again; and publish_via_partition_root = true for partitioned outboxes",
		}
	}
	return own.Schema, own.Name, nil
}

// source is sourceOf for a relation that was bound before; ok is false where it is no source's.
func (f *rootFinder) source(rel *event.Relation) (schema, table string, ok bool) {
	own := replication.Table{Schema: rel.Namespace, Name: rel.Name}
	if f.sources[own] {
		return own.Schema, own.Name, true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.known[rel.OID]
	return t.Schema, t.Name, ok
}

// ancestors walks pg_inherits upwards, from the table itself as it is called now.
func ancestors(ctx context.Context, conn *pgx.Conn, oid uint32) ([]replication.Table, error) {
	rows, err := conn.Query(ctx, `
		WITH RECURSIVE up AS (
			SELECT $1::oid AS rel, 0 AS depth
			UNION ALL
			SELECT i.inhparent, up.depth + 1 FROM pg_inherits i JOIN up ON i.inhrelid = up.rel
		)
		SELECT n.nspname, c.relname
		FROM up JOIN pg_class c ON c.oid = up.rel JOIN pg_namespace n ON n.oid = c.relnamespace
		ORDER BY up.depth`, oid)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t replication.Table, err error) {
		err = row.Scan(&t.Schema, &t.Name)
		return t, err
	})
}
