package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// table is one source's table as it is now.
type table struct {
	src  *router.Source
	name string // schema.table, as task items name it
	from string // quoted
	rel  *event.Relation
	// published is a condition for rows that the stream brings, or "".
	published string
	// idType is the type of the event id's column, as SQL.
	idType string
	// unique says that no two rows can have the same event id.
	unique bool
}

// lookAt describes a table as the stream would, and binds the mapping to it.
func (r *Reader) lookAt(ctx context.Context, src *router.Source, pubs replication.Publications) (*table, error) {
	at := replication.Table{Schema: src.Schema, Name: src.Table}
	subject := "table " + at.String()
	t := &table{src: src, name: at.String(), from: pgx.Identifier{src.Schema, src.Table}.Sanitize()}
	var err error
	if t.rel, err = replication.DescribeTable(ctx, r.conn, at, pubs); err != nil {
		return nil, err
	}
	if len(t.rel.Columns) == 0 {
		return nil, &operr.Error{
			Class: operr.Postgres, Op: "find", Subject: subject, Err: fmt.Errorf("it does not exist in this database"),
			Hint: "write schema and name exactly as the catalog has them, without SQL quotes",
		}
	}
	types, err := replication.DescribeTypes(ctx, r.conn, t.rel)
	if err != nil {
		return nil, err
	}
	for _, named := range types {
		r.router.DefineType(named.OID, named.Schema, named.Name)
	}
	if err := r.router.Bind(t.rel); err != nil {
		return nil, &operr.Error{
			Class: operr.Config, Op: "check mapping of", Subject: subject, Err: err,
			Hint: "correct the source's mapping, or give the table its column back; names are compared exactly",
		}
	}
	if t.published, err = replication.PublishedSQL(ctx, r.conn, t.rel.OID, pubs); err != nil {
		return nil, sqlError("read the partitions of", subject, err)
	}
	return t, sqlError("read the event id of", subject, t.lookAtID(ctx, r.conn))
}

// idSQL: the index must be of the column alone, for all rows. A unique index of a
// partition does not reach beyond it.
const idSQL = `SELECT pg_catalog.format_type(a.atttypid, a.atttypmod), EXISTS (
         SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
            AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)
     AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h JOIN pg_catalog.pg_class c ON c.oid = h.inhparent
                      WHERE h.inhparent = a.attrelid AND c.relkind <> 'p')
  FROM pg_catalog.pg_attribute a WHERE a.attrelid = $1 AND a.attname = $2 AND a.attnum > 0`

func (t *table) lookAtID(ctx context.Context, conn *pgx.Conn) error {
	return conn.QueryRow(ctx, idSQL, t.rel.OID, t.src.Mapping.EventID).Scan(&t.idType, &t.unique)
}

// columns lists the relation's columns in its order.
func (t *table) columns() string {
	names := make([]string, len(t.rel.Columns))
	for i := range t.rel.Columns {
		names[i] = "t." + ident(t.rel.Columns[i].Name)
	}
	return strings.Join(names, ", ")
}
