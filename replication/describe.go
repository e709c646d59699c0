package replication

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// describeSQL gives a table's columns as a Relation message would now: those that the
// lists $4 (JSON arrays) name and, where $5 says that a publication has no list, all but
// generated ones. Those are sent since 18 only, where a publication says so or lists them.
const describeSQL = `SELECT c.oid, a.attname, a.atttypid, a.atttypmod
  FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped
   AND (EXISTS (SELECT FROM pg_catalog.unnest($4::text[]) l, pg_catalog.jsonb_array_elements_text(l::jsonb) x WHERE x = a.attname)
     OR $5 AND (a.attgenerated = '' OR a.attgenerated = 's' AND EXISTS (
       SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = ANY($3) AND pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's')))
 ORDER BY a.attnum`

// DescribeTable reads a table from the catalog, as a Relation message of the stream
// would describe it now (rule 10). One that no publication lists is described as one
// without a column list would be. A table that does not exist has no columns.
func DescribeTable(ctx context.Context, conn *pgx.Conn, t Table, pubs Publications) (*event.Relation, error) {
	var names []string
	lists := []string{}
	all, covered := false, false
	for i := range pubs {
		names = append(names, pubs[i].Name)
		if p, ok := pubs[i].Covers(t); ok && p.Columns != "" {
			covered, lists = true, append(lists, p.Columns)
		} else if ok {
			covered, all = true, true
		}
	}
	rel := &event.Relation{Namespace: t.Schema, Name: t.Name}
	rows, err := conn.Query(ctx, describeSQL, t.Schema, t.Name, names, lists, all || !covered)
	if err == nil {
		var c event.Column
		_, err = pgx.ForEachRow(rows, []any{&rel.OID, &c.Name, &c.TypeOID, &c.TypeMod}, func() error {
			rel.Columns = append(rel.Columns, c)
			return nil
		})
	}
	return rel, classify("read the columns of", fmt.Sprintf("table %s", t), err)
}
