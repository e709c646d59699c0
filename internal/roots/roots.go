// Package roots tells which source a relation of the stream belongs to: the relay and
// the commands that look ahead of it must give the same answer.
package roots

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

// Finder tells which source a relation of the stream belongs to. A table that is
// published without publish_via_partition_root sends the rows of its leaves under the
// leaves' own names. It is for the stream's goroutine. Errors are those of the Catalog,
// with what was being looked for, or an *operr.Error.
type Finder struct {
	sources map[replication.Table]bool
	catalog Catalog
	// known remembers leaves by OID, and outlives the Finder: what was a leaf while the relay
	// ran is still one for the rows that were written before it was detached.
	known map[uint32]replication.Table
	// sharesStream says that tables which are no source may be published, too: all are.
	sharesStream bool
	// leaves says that rows of a source may arrive under another table's name.
	leaves bool
}

// Catalog asks the server. An answer holds for the moment, not for when a row was
// written. Errors are *operr.Error.
type Catalog interface {
	// Ancestors gives rel's name now and the tables that it is a partition or child of,
	// nearest first.
	Ancestors(ctx context.Context, rel *event.Relation) ([]replication.Table, error)
	// Published says whether the publications list the table.
	Published(ctx context.Context, table replication.Table) (bool, error)
	// Descendants gives the partitions and children of the tables by OID, with the
	// nearest of the tables above each.
	Descendants(ctx context.Context, tables []replication.Table) (map[uint32]replication.Table, error)
}

// New makes a Finder for the source tables and the publications that are read. known is
// kept and added to: a caller with several Finders, one after the other, passes the same.
func New(tables []replication.Table, pubs replication.Publications, c Catalog, known map[uint32]replication.Table) *Finder {
	f := &Finder{sources: make(map[replication.Table]bool), catalog: c, known: known}
	for _, t := range tables {
		f.sources[t] = true
	}
	for _, p := range pubs {
		f.sharesStream = f.sharesStream || p.AllTables
		f.leaves = f.leaves || !p.ViaRoot
	}
	return f
}

// Learn notes the leaves that there are now.
func (f *Finder) Learn(ctx context.Context) error {
	found, err := f.catalog.Descendants(ctx, slices.Collect(maps.Keys(f.sources)))
	if err != nil {
		return err
	}
	maps.Copy(f.known, found)
	return nil
}

// ErrUnplaced says that nobody knows whose rows a relation's are.
var ErrUnplaced = errors.New("it came on the stream, is no source, and the publication does not list it now: it may be a partition of an outbox that was detached or dropped before its rows were published")

// SourceOf gives the name under which rel is to be bound: its own, or that of the
// source that it is a leaf of, or that it is called now: rows from before a table was
// renamed come under its old name. A table that was a leaf when its rows were written
// and is none any more (detached or dropped since, while no relay ran) cannot be told
// from somebody else's table; where that is possible it is ErrUnplaced, since passing
// over its rows could lose events.
func (f *Finder) SourceOf(ctx context.Context, rel *event.Relation) (schema, table string, err error) {
	own := replication.Table{Schema: rel.Namespace, Name: rel.Name}
	if f.sources[own] {
		return own.Schema, own.Name, nil
	}
	ancestors, err := f.catalog.Ancestors(ctx, rel)
	if err != nil {
		return "", "", err
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
	listed, err := f.catalog.Published(ctx, own)
	if err != nil {
		return "", "", err
	}
	if !listed {
		return "", "", &operr.Error{
			Class: operr.Postgres, Op: "route rows of", Subject: "table " + rel.String(),
			Err:  ErrUnplaced,
			Hint: "if it held events, attach it again, or make a partition of that name again where it was dropped; and publish_via_partition_root = true for partitioned outboxes",
		}
	}
	return own.Schema, own.Name, nil
}

// Source is SourceOf for a relation that was bound before; ok is false where it is no source's.
func (f *Finder) Source(rel *event.Relation) (schema, table string, ok bool) {
	own := replication.Table{Schema: rel.Namespace, Name: rel.Name}
	if f.sources[own] {
		return own.Schema, own.Name, true
	}
	t, ok := f.known[rel.OID]
	return t.Schema, t.Name, ok
}

// Session is the catalog as an SQL session sees it.
type Session struct {
	// Do lends the session: whoever else uses it waits.
	Do func(func(*pgx.Conn) error) error
	// Failed puts an error of a query into an operator's words.
	Failed func(op, subject string, err error) error
	// Publications are the names of those that are read.
	Publications []string
}

var _ Catalog = Session{}

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

// Ancestors implements Catalog.
func (s Session) Ancestors(ctx context.Context, rel *event.Relation) (tables []replication.Table, err error) {
	err = s.Do(func(conn *pgx.Conn) error {
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
	return tables, s.failed("find the partition root of", "table "+rel.String(), err)
}

// Published implements Catalog.
func (s Session) Published(ctx context.Context, table replication.Table) (listed bool, err error) {
	err = s.Do(func(conn *pgx.Conn) error {
		pubs, err := replication.ReadPublications(ctx, conn, s.Publications)
		for i := range pubs {
			_, ok := pubs[i].Covers(table)
			listed = listed || ok
		}
		return err
	})
	return listed, s.failed("look for table "+table.String()+" in", "the publications", err)
}

const descendantsSQL = `
WITH RECURSIVE down AS (
	SELECT c.oid, 0 AS depth FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
	UNION ALL
	SELECT i.inhrelid, down.depth + 1 FROM pg_inherits i JOIN down ON i.inhparent = down.oid
)
SELECT oid, depth FROM down WHERE depth > 0`

// Descendants implements Catalog.
func (s Session) Descendants(ctx context.Context, tables []replication.Table) (map[uint32]replication.Table, error) {
	found, nearest := map[uint32]replication.Table{}, map[uint32]int{}
	err := s.Do(func(conn *pgx.Conn) error {
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
	return found, s.failed("look for", "partitions", err)
}

func (s Session) failed(op, subject string, err error) error {
	if err == nil {
		return nil
	}
	return s.Failed(op, subject, err)
}
