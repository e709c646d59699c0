package replication

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Table is a table by its exact catalog names, without SQL quotes.
type Table struct{ Schema, Name string }

// String is for messages to people.
func (t Table) String() string { return t.Schema + "." + t.Name }

func (t Table) sql() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// PublishedTable is one table of a publication.
type PublishedTable struct {
	Table
	// RowFilter is the WHERE clause as the catalog has it; empty where there is
	// none, and before 15.
	RowFilter string
	// Columns is the column list, sorted, as a JSON array: names may hold any
	// character. Empty where all columns are published, also after one was added.
	Columns string
	// ByLeaves marks a partitioned table whose rows come under the names of its
	// partitions, because the publication does not go by the root.
	ByLeaves bool
	// Membership are the catalog rows by which it belongs to the publication; a
	// table that was taken out and put in again has another one. Empty where all
	// tables belong.
	Membership string
}

// Publication is what the catalog says of one publication.
type Publication struct {
	Name      string
	OID       uint32
	AllTables bool
	// Version changes with every ALTER PUBLICATION that is not about tables.
	Version string
	// Insert, Update, Delete and Truncate are the published operations.
	Insert, Update, Delete, Truncate bool
	// ViaRoot is publish_via_partition_root.
	ViaRoot bool
	// Tables are those that rows come from, sorted. Where ViaRoot is false, a
	// partitioned table stands beside its leaves, marked ByLeaves.
	Tables []PublishedTable
}

// Covers finds a table.
func (p *Publication) Covers(t Table) (PublishedTable, bool) {
	i, ok := slices.BinarySearchFunc(p.Tables, t, func(a PublishedTable, t Table) int { return compareTables(a.Table, t) })
	if !ok {
		return PublishedTable{}, false
	}
	return p.Tables[i], true
}

func compareTables(a, b Table) int {
	return cmp.Or(cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Name, b.Name))
}

// Publications is a snapshot of those publications that exist.
type Publications []Publication

// Find gives a publication by its exact name.
func (p Publications) Find(name string) (*Publication, bool) {
	for i := range p {
		if p[i].Name == name {
			return &p[i], true
		}
	}
	return nil, false
}

const publicationsSQL = `SELECT pubname, oid, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, xmin::text
  FROM pg_catalog.pg_publication WHERE pubname = ANY($1) ORDER BY pubname`

// publishedSQL gives "" for a column list that names every column there is:
// since 15 the view lists them all where no list was given.
const publishedSQL = `SELECT t.pubname, t.schemaname, t.tablename, coalesce(j.t ->> 'rowfilter', ''),
       CASE WHEN NOT j.t ? 'attnames' OR list.names @> ARRAY(
              SELECT a.attname::text FROM pg_catalog.pg_attribute a
               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '')
            THEN '' ELSE pg_catalog.to_jsonb(list.names)::text END, false,
       coalesce((SELECT pg_catalog.string_agg(m.oid::text, ',' ORDER BY m.oid) FROM (
         SELECT r.oid FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid
            AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid))) %s) m), '')
  FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 CROSS JOIN LATERAL (SELECT pg_catalog.to_jsonb(t) AS t) j
 CROSS JOIN LATERAL (SELECT ARRAY(SELECT x FROM pg_catalog.jsonb_array_elements_text(j.t -> 'attnames') x ORDER BY x) AS names) list
 WHERE t.pubname = ANY($1)`

// schemaMemberSQL adds to it, since 15, the membership by way of the schema.
const schemaMemberSQL = `UNION ALL SELECT s.oid FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid`

// byLeavesSQL finds partitioned tables that are published by their leaves: named
// themselves (or below one that is), or with every leaf named.
const byLeavesSQL = `SELECT p.pubname, n.nspname, c.relname, '', '', true,
       coalesce((SELECT pg_catalog.string_agg(r.oid::text, ',' ORDER BY r.oid) FROM pg_catalog.pg_publication_rel r
                  JOIN pg_catalog.pg_partition_ancestors(c.oid) a ON a.relid = r.prrelid WHERE r.prpubid = p.oid), '')
  FROM pg_catalog.pg_publication p
 CROSS JOIN pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = ANY($1) AND NOT p.pubviaroot AND c.relkind = 'p'
   AND (p.puballtables
     OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_partition_ancestors(c.oid) a ON a.relid = r.prrelid
                 WHERE r.prpubid = p.oid)
     OR (EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) WHERE isleaf)
         AND NOT EXISTS (
           SELECT FROM pg_catalog.pg_partition_tree(c.oid) l
             JOIN pg_catalog.pg_class lc ON lc.oid = l.relid JOIN pg_catalog.pg_namespace ln ON ln.oid = lc.relnamespace
            WHERE l.isleaf AND NOT EXISTS (
              SELECT FROM pg_catalog.pg_publication_tables t
               WHERE t.pubname = p.pubname AND t.schemaname = ln.nspname AND t.tablename = lc.relname))))`

// ReadPublications reads those of names that exist, as one comparable snapshot.
func ReadPublications(ctx context.Context, conn *pgx.Conn, names []string) (Publications, error) {
	pubs, err := readPublications(ctx, conn, names)
	if err != nil {
		return nil, classify("read publications", fmt.Sprintf("%q", names), err)
	}
	return pubs, nil
}

func readPublications(ctx context.Context, conn *pgx.Conn, names []string) (Publications, error) {
	rows, err := conn.Query(ctx, publicationsSQL, names)
	if err != nil {
		return nil, err
	}
	pubs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Publication, err error) {
		err = row.Scan(&p.Name, &p.OID, &p.AllTables, &p.Insert, &p.Update, &p.Delete, &p.Truncate, &p.ViaRoot, &p.Version)
		return p, err
	})
	if err != nil {
		return nil, err
	}
	schemaMember := ""
	if serverMajor(conn) >= 15 {
		schemaMember = schemaMemberSQL
	}
	for _, sql := range []string{fmt.Sprintf(publishedSQL, schemaMember), byLeavesSQL} {
		if err := addTables(ctx, conn, sql, names, pubs); err != nil {
			return nil, err
		}
	}
	for i := range pubs {
		slices.SortFunc(pubs[i].Tables, func(a, b PublishedTable) int { return compareTables(a.Table, b.Table) })
	}
	return pubs, nil
}

// serverMajor is the server's major version, 0 where it does not say.
func serverMajor(conn *pgx.Conn) int {
	digits, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	major, _ := strconv.Atoi(digits) // "19beta1" is none: only a check more is lost
	return major
}

func addTables(ctx context.Context, conn *pgx.Conn, sql string, names []string, pubs Publications) error {
	rows, err := conn.Query(ctx, sql, names)
	if err != nil {
		return err
	}
	var name string
	var t PublishedTable
	_, err = pgx.ForEachRow(rows, []any{&name, &t.Schema, &t.Table.Name, &t.RowFilter, &t.Columns, &t.ByLeaves, &t.Membership}, func() error {
		if p, ok := pubs.Find(name); ok {
			p.Tables = append(p.Tables, t)
		}
		return nil
	})
	return err
}

// Changed compares with a later snapshot and names the first difference that
// could let rows of tables go missing, or "" (rule 7). Other tables may come
// and go.
func (p Publications) Changed(now Publications, tables []Table) string {
	for i := range p {
		later, ok := now.Find(p[i].Name)
		if !ok {
			return fmt.Sprintf("publication %q was dropped", p[i].Name)
		}
		if diff := p[i].changed(later, tables); diff != "" {
			return fmt.Sprintf("publication %q %s", p[i].Name, diff)
		}
	}
	return ""
}

func (p *Publication) changed(now *Publication, tables []Table) string {
	ops := func(p *Publication) [4]bool { return [4]bool{p.Insert, p.Update, p.Delete, p.Truncate} }
	switch {
	case p.OID != now.OID:
		return "was dropped and made again"
	case ops(p) != ops(now):
		return "publishes other operations"
	case p.ViaRoot != now.ViaRoot:
		return "has another publish_via_partition_root"
	}
	for _, t := range tables {
		was, covered := p.Covers(t)
		is, still := now.Covers(t)
		switch {
		case covered && !still:
			return "lost table " + t.String()
		case was.RowFilter != is.RowFilter:
			return "has another row filter for table " + t.String()
		case was.Columns != is.Columns:
			return "has another column list for table " + t.String()
		case covered && was.Membership != is.Membership:
			return "had table " + t.String() + " taken out and put in again"
		}
	}
	if p.Version != now.Version {
		return "was altered, if only for a moment"
	}
	return ""
}
