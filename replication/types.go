package replication

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

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
	var types []NamedType
	if err == nil {
		types, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t NamedType, err error) {
			err = row.Scan(&t.OID, &t.Schema, &t.Name)
			return t, err
		})
	}
	return types, classify("read the types of", "table "+rel.String(), err)
}
