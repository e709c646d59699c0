package replication

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// membersSQL gives what a publication was made for: tables, and since 15 schemas.
const membersSQL = `SELECT 'all tables', '', '' FROM pg_catalog.pg_publication WHERE pubname = $1 AND puballtables
 UNION ALL
SELECT 'table', n.nspname, c.relname FROM pg_catalog.pg_publication p
  JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = $1`

const schemaMembersSQL = `
 UNION ALL
SELECT 'schema', n.nspname, '' FROM pg_catalog.pg_publication p
  JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid WHERE p.pubname = $1`

// OtherMembers names what a publication was made for besides the tables, for a person;
// "" where there is nothing, or no such publication.
func OtherMembers(ctx context.Context, conn *pgx.Conn, publication string, tables []Table) (string, error) {
	sql := membersSQL
	if serverMajor(conn) >= 15 {
		sql += schemaMembersSQL
	}
	var others []string
	rows, err := conn.Query(ctx, sql, publication)
	if err == nil {
		var kind string
		var t Table
		_, err = pgx.ForEachRow(rows, []any{&kind, &t.Schema, &t.Name}, func() error {
			if kind != "table" || !slices.Contains(tables, t) {
				others = append(others, strings.Trim(kind+" "+t.String(), " ."))
			}
			return nil
		})
	}
	return strings.Join(others, ", "), classify("read", fmt.Sprintf("publication %q", publication), err)
}
