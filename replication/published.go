package replication

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// HoldersSQL gives the tables $1 that hold rows of a table: itself and what inherits from it, each with the tables above it up
// to the first: those whose publication may stand for it. Only what holds rows counts.
const HoldersSQL = `
WITH RECURSIVE down AS (
	SELECT $1::oid AS rel, ARRAY[]::oid[] AS above
	UNION ALL
	SELECT i.inhrelid, down.above || down.rel FROM pg_catalog.pg_inherits i JOIN down ON i.inhparent = down.rel
)
SELECT down.rel, n.nspname, c.relname, coalesce(a.schemas, '{}'), coalesce(a.names, '{}')
  FROM down JOIN pg_catalog.pg_class c ON c.oid = down.rel JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT pg_catalog.array_agg(an.nspname::text) AS schemas, pg_catalog.array_agg(ac.relname::text) AS names
    FROM pg_catalog.pg_class ac JOIN pg_catalog.pg_namespace an ON an.oid = ac.relnamespace WHERE ac.oid = ANY(down.above) AND ac.relkind = 'p') a
 WHERE c.relkind = 'r' ORDER BY down.rel`

// PublishedSQL gives the condition for rows that the publications publish: their row
// filters, and which of the tables below this one belong to them. It is empty where
// they publish everything, and where they do not know the table at all. The table is t in it.
func PublishedSQL(ctx context.Context, conn *pgx.Conn, root uint32, pubs Publications) (string, error) {
	rows, err := conn.Query(ctx, HoldersSQL, root)
	if err != nil {
		return "", err
	}
	byCondition := map[string][]string{}
	var oid uint32
	var own Table
	var schemas, names []string
	_, err = pgx.ForEachRow(rows, []any{&oid, &own.Schema, &own.Name, &schemas, &names}, func() error {
		candidates := []Table{own}
		for i := range names {
			candidates = append(candidates, Table{Schema: schemas[i], Name: names[i]})
		}
		c := publishedIf(pubs, candidates)
		byCondition[c] = append(byCondition[c], fmt.Sprint(oid))
		return nil
	})
	if err != nil {
		return "", err
	}
	return joinConditions(byCondition), nil
}

// publishedIf is the condition under which rows of the first of tables are published, by
// its own name or those of the tables above it.
func publishedIf(pubs Publications, tables []Table) string {
	var filters []string
	for i := range pubs {
		for n, t := range tables {
			p, ok := pubs[i].Covers(t)
			switch {
			case !ok || n > 0 && p.ByLeaves:
				continue
			case p.RowFilter == "":
				return "true"
			}
			filters = append(filters, p.RowFilter)
		}
	}
	if len(filters) == 0 {
		return "false"
	}
	slices.Sort(filters)
	return "(" + strings.Join(slices.Compact(filters), ") OR (") + ")"
}

func joinConditions(byCondition map[string][]string) string {
	if len(byCondition) == 1 {
		for c := range byCondition {
			if c == "true" || c == "false" {
				return "" // all, or none: a publication that is gone is no reason to see nothing
			}
			return c
		}
	}
	var parts []string
	for c, oids := range byCondition {
		parts = append(parts, fmt.Sprintf("t.tableoid IN (%s) AND (%s)", strings.Join(oids, ", "), c))
	}
	slices.Sort(parts)
	return strings.Join(parts, " OR ")
}
