package replication

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// describeSQL gives a table's columns as a Relation message would now. Generated ones
// are sent since 18 only, where a publication says so or lists them.
const describeSQL = `SELECT c.oid, a.attname, a.atttypid, a.atttypmod
  FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped
   AND (a.attname IN (SELECT pg_catalog.jsonb_array_elements_text(l::jsonb) FROM pg_catalog.unnest($4::text[]) l)
     OR $5 AND (a.attgenerated = '' OR a.attgenerated = 's' AND EXISTS (
       SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = ANY($3) AND pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's')))
 ORDER BY a.attnum`

// DescribeTable reads from the catalog how the stream would describe a table now:
// without the columns that are not sent. A table that does not exist has none. One that
// no publication lists is described as one without a column list would publish it.
func DescribeTable(ctx context.Context, conn *pgx.Conn, pubs Publications, t Table) (*event.Relation, error) {
	lists, all := columnLists(pubs, t)
	names := make([]string, len(pubs))
	for i := range pubs {
		names[i] = pubs[i].Name
	}
	rel := &event.Relation{Namespace: t.Schema, Name: t.Name}
	rows, err := conn.Query(ctx, describeSQL, t.Schema, t.Name, names, lists, all)
	if err != nil {
		return nil, err
	}
	var c event.Column
	_, err = pgx.ForEachRow(rows, []any{&rel.OID, &c.Name, &c.TypeOID, &c.TypeMod}, func() error {
		rel.Columns = append(rel.Columns, c)
		return nil
	})
	return rel, err
}

// columnLists are the publications' column lists for a table; all says that it is
// published without one.
func columnLists(pubs Publications, t Table) (lists []string, all bool) {
	covered := false
	for i := range pubs {
		p, ok := pubs[i].Covers(t)
		switch {
		case !ok:
			continue
		case p.Columns == "":
			all = true
		default:
			lists = append(lists, p.Columns)
		}
		covered = true
	}
	return lists, all || !covered
}

// NamedType is what a Type message says of a type that is not built in: for a domain
// the type that it is based on, under the domain's OID. Schema is empty for pg_catalog.
type NamedType struct {
	OID          uint32
	Schema, Name string
}

// typesSQL follows domains down, as the server does before it writes a Type message.
const typesSQL = `
WITH RECURSIVE down AS (
	SELECT t.oid AS of, t.oid AS type FROM pg_catalog.pg_type t WHERE t.oid = ANY($1)
	UNION ALL
	SELECT d.of, t.typbasetype FROM down d JOIN pg_catalog.pg_type t ON t.oid = d.type WHERE t.typtype = 'd'
)
SELECT d.of, CASE n.nspname WHEN 'pg_catalog' THEN '' ELSE n.nspname END, t.typname
  FROM down d JOIN pg_catalog.pg_type t ON t.oid = d.type JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
 WHERE t.typtype <> 'd'`

// firstUserOID is the first OID that is not built in (FirstNormalObjectId).
const firstUserOID = 16384

// DescribeTypes names the types of a relation as the Type messages before its Relation
// message would.
func DescribeTypes(ctx context.Context, conn *pgx.Conn, rel *event.Relation) ([]NamedType, error) {
	var oids []uint32
	for i := range rel.Columns {
		if oid := rel.Columns[i].TypeOID; oid >= firstUserOID {
			oids = append(oids, oid)
		}
	}
	if len(oids) == 0 {
		return nil, nil
	}
	rows, err := conn.Query(ctx, typesSQL, oids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t NamedType, err error) {
		err = row.Scan(&t.OID, &t.Schema, &t.Name)
		return t, err
	})
}
