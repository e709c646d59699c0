package relay

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

// rootFinder tells which source a relation of the stream belongs to. A table that
// is published without publish_via_partition_root sends the rows of its leaves
// under the leaves' own names. It is for the stream's goroutine.
type rootFinder struct {
	sources map[replication.Table]bool
	catalog catalog
	// known remembers leaves by OID, and outlives links: what was a leaf while the relay
	// ran is still one for the rows that were written before it was detached.
	known map[uint32]replication.Table
	// sharesStream says that tables which are no source may be published, too: all are.
	sharesStream bool
	// leaves says that rows of a source may arrive under another table's name.
	leaves bool
}

// catalog asks the server. An answer holds for the moment, not for when a row was written.
type catalog interface {
	// ancestors gives rel's name now and the tables that it is a partition or child of,
	// nearest first.
	ancestors(ctx context.Context, rel *event.Relation) ([]replication.Table, error)
	// published says whether the publications list the table.
	published(ctx context.Context, table replication.Table) (bool, error)
	// descendants gives the partitions and children of the tables by OID, with the
	// nearest of the tables above each.
	descendants(ctx context.Context, tables []replication.Table) (map[uint32]replication.Table, error)
}

func newRootFinder(tables []replication.Table, pubs replication.Publications, c catalog, known map[uint32]replication.Table) *rootFinder {
	f := &rootFinder{sources: make(map[replication.Table]bool), catalog: c, known: known}
	for _, t := range tables {
		f.sources[t] = true
	}
	for _, p := range pubs {
		f.sharesStream = f.sharesStream || p.AllTables
		f.leaves = f.leaves || !p.ViaRoot
	}
	return f
}

// learn notes the leaves that there are now.
func (f *rootFinder) learn(ctx context.Context) error {
	found, err := f.catalog.descendants(ctx, slices.Collect(maps.Keys(f.sources)))
	if err != nil {
		return sqlError("look for", "partitions", err)
	}
	maps.Copy(f.known, found)
	return nil
}

// sourceOf gives the name under which rel is to be bound: its own, or that of the
// source that it is a leaf of, or that it is called now: rows from before a table was
// renamed come under its old name. A table that was a leaf when its rows were written
// and is none any more (detached or dropped since, while no relay ran) cannot be told
// from somebody else's table; where that is possible it is an error, since passing it
// over could lose events.
func (f *rootFinder) sourceOf(ctx context.Context, rel *event.Relation) (schema, table string, err error) {
	own := replication.Table{Schema: rel.Namespace, Name: rel.Name}
	if f.sources[own] {
		return own.Schema, own.Name, nil
	}
	ancestors, err := f.catalog.ancestors(ctx, rel)
	if err != nil {
		return "", "", sqlError("find the partition root of", "table "+rel.String(), err)
	}
	for _, a := range ancestors {
		if f.sources[a] {
			f.known[rel.OID] = a
			return a.Schema, a.Name, nil
		}
	}
	if root, ok := f.known[rel.OID]; ok {
		return root.Schema, root.Name, nil
	}
	if !f.leaves || f.sharesStream {
		return own.Schema, own.Name, nil
	}
	listed, err := f.catalog.published(ctx, own)
	if err != nil {
		return "", "", sqlError("look for table "+rel.String()+" in", "the publications", err)
	}
	if !listed {
		return "", "", &operr.Error{
			Class: operr.Postgres, Op: "route rows of", Subject: "table " + rel.String(),
			Err:  errors.New("it came on the stream, is no source, and the publication does not list it now: it may be a partition of an outbox that was detached or dropped before its rows were published"),
			Hint: "if it held events, attach it again, or make a partition of that name again where it was dropped; and publish_via_partition_root = true for partitioned outboxes",
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
	t, ok := f.known[rel.OID]
	return t.Schema, t.Name, ok
}

// linkCatalog is the catalog as the link's SQL session sees it.
type linkCatalog struct{ link *link }

var _ catalog = linkCatalog{}

// A table that was dropped since its rows were written stands for the one that has its
// name now: so a partition that went too early can be made again.
const ancestorsSQL = `
WITH RECURSIVE up AS (
	SELECT c.oid AS rel, 0 AS depth FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE c.oid = $1 OR n.nspname = $2 AND c.relname = $3 AND NOT EXISTS (SELECT FROM pg_class WHERE oid = $1)
	UNION ALL
	SELECT i.inhparent, up.depth + 1 FROM pg_inherits i JOIN up ON i.inhrelid = up.rel
)
SELECT n.nspname, c.relname FROM up JOIN pg_class c ON c.oid = up.rel JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY up.depth`

func (c linkCatalog) ancestors(ctx context.Context, rel *event.Relation) (tables []replication.Table, err error) {
	err = c.link.sql.do(func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, ancestorsSQL, rel.OID, rel.Namespace, rel.Name)
		if err != nil {
			return err
		}
		tables, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t replication.Table, err error) {
			err = row.Scan(&t.Schema, &t.Name)
			return t, err
		})
		return err
	})
	return tables, err
}

func (c linkCatalog) published(ctx context.Context, table replication.Table) (listed bool, err error) {
	err = c.link.sql.do(func(conn *pgx.Conn) error {
		pubs, err := replication.ReadPublications(ctx, conn, c.link.gen.cfg.Replication.Publications)
		for i := range pubs {
			_, ok := pubs[i].Covers(table)
			listed = listed || ok
		}
		return err
	})
	return listed, err
}

const descendantsSQL = `
WITH RECURSIVE down AS (
	SELECT c.oid, 0 AS depth FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
	UNION ALL
	SELECT i.inhrelid, down.depth + 1 FROM pg_inherits i JOIN down ON i.inhparent = down.oid
)
SELECT oid, depth FROM down WHERE depth > 0`

func (c linkCatalog) descendants(ctx context.Context, tables []replication.Table) (map[uint32]replication.Table, error) {
	found, nearest := map[uint32]replication.Table{}, map[uint32]int{}
	err := c.link.sql.do(func(conn *pgx.Conn) error {
		for _, t := range tables {
			rows, err := conn.Query(ctx, descendantsSQL, t.Schema, t.Name)
			if err != nil {
				return err
			}
			var oid uint32
			var depth int
			if _, err := pgx.ForEachRow(rows, []any{&oid, &depth}, func() error {
				if before, ok := nearest[oid]; !ok || depth < before {
					found[oid], nearest[oid] = t, depth
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return found, err
}
