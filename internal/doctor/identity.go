package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/replication"
)

// identitySQL lists, for the tables that rows of $1.$2 are stored in, each publication of
// the database that publishes updates or deletes of it, ours or not: the columns that
// identify a row, those of its row filter, and those of its column list (NULL: all).
// A filter is a node tree; its columns are those by which it was defined.
const identitySQL = `WITH root AS (
  SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2),
rel AS (SELECT oid FROM root UNION SELECT t.relid::oid FROM root, pg_catalog.pg_partition_tree(root.oid) t),
member AS (
  SELECT rel.oid AS relid, r.prpubid AS pubid, r.prrelid, pg_catalog.to_jsonb(r) ->> 'prqual' AS qual, pg_catalog.to_jsonb(r) -> 'prattrs' AS attrs
    FROM rel JOIN pg_catalog.pg_publication_rel r ON r.prrelid = rel.oid OR r.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(rel.oid))
  UNION ALL SELECT rel.oid, p.oid, NULL, NULL, NULL FROM rel, pg_catalog.pg_publication p WHERE p.puballtables %s)
SELECT p.pubname, c.oid::regclass::text, p.pubupdate, p.pubdelete, c.relreplident = 'f',
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)
              WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
       ARRAY(SELECT DISTINCT a.attname::text FROM pg_catalog.regexp_matches(coalesce(m.qual, ''), ':varattno (\d+)', 'g') v
               JOIN pg_catalog.pg_attribute a ON a.attrelid = m.prrelid AND a.attnum = v[1]::int),
       (SELECT pg_catalog.array_agg(a.attname::text) FROM pg_catalog.pg_attribute a
         WHERE a.attrelid = m.prrelid AND m.attrs @> pg_catalog.to_jsonb(a.attnum))
  FROM member m JOIN pg_catalog.pg_class c ON c.oid = m.relid JOIN pg_catalog.pg_publication p ON p.oid = m.pubid
 WHERE c.relkind = 'r' AND (p.pubupdate OR p.pubdelete) ORDER BY 1, 2`

// schemaMembersSQL adds to it, since 15, the membership by way of the schema.
const schemaMembersSQL = `UNION ALL SELECT rel.oid, s.pnpubid, NULL, NULL, NULL FROM rel JOIN pg_catalog.pg_class c ON c.oid = rel.oid
    JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = c.relnamespace`

// identified is one publication's view of one table.
type identified struct {
	publication, table string
	update, remove     bool
	full               bool // REPLICA IDENTITY FULL
	// key are the columns that identify a row, filter those of the row filter, columns those
	// of the column list, nil where all are published.
	key, filter, columns []string
}

// wrong says why PostgreSQL refuses the published statements, "" where it does not.
func (i identified) wrong() string {
	switch outside := minus(i.filter, i.key); {
	case !i.full && len(i.key) == 0:
		return "the table has no replica identity"
	case !i.full && len(outside) > 0:
		return fmt.Sprintf("its row filter looks at %s, which is not in the replica identity", strings.Join(outside, ", "))
	}
	if i.columns == nil {
		return ""
	}
	if unlisted := minus(i.key, i.columns); i.full || len(unlisted) > 0 {
		return "its column list leaves out a part of the replica identity"
	}
	return ""
}

func minus(all, known []string) (rest []string) {
	for _, x := range all {
		if !slices.Contains(known, x) {
			rest = append(rest, x)
		}
	}
	return rest
}

// statements names those that fail.
func (i identified) statements() string {
	switch {
	case i.update && i.remove:
		return "UPDATE and DELETE"
	case i.update:
		return "UPDATE"
	default:
		return "DELETE"
	}
}

// checkReplicaIdentity: PostgreSQL refuses the application's own statements, purge's too,
// where a publication of any relay publishes them and cannot (rule 21).
func checkReplicaIdentity(ctx context.Context, e *exam) (found []answer) {
	for _, t := range e.tables() {
		all, err := e.identities(ctx, t)
		if err != nil {
			return append(found, unanswered(err)...)
		}
		for _, i := range all {
			if cause := i.wrong(); cause != "" {
				found = append(found, fail(fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert'), which is all that an outbox needs", ident(i.publication)),
					"every %s of %s fails: publication %q publishes it, and %s", i.statements(), i.table, i.publication, cause)...)
			}
		}
	}
	return orOK(found, "no publication makes an UPDATE or DELETE of %s fail", tableList(e.tables()))
}

func (e *exam) identities(ctx context.Context, t replication.Table) ([]identified, error) {
	conn, err := e.sql(ctx)
	if err != nil {
		return nil, err
	}
	bySchema := ""
	if e.server.major >= 15 {
		bySchema = schemaMembersSQL
	}
	rows, err := conn.Query(ctx, fmt.Sprintf(identitySQL, bySchema), t.Schema, t.Name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (i identified, err error) {
		err = row.Scan(&i.publication, &i.table, &i.update, &i.remove, &i.full, &i.key, &i.filter, &i.columns)
		return i, err
	})
}
