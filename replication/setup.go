package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

// PublicationSpec is a publication to be made.
type PublicationSpec struct {
	Name string
	// Tables must exist. At least one.
	Tables []Table
}

// PublicationSQL is the plain SQL that makes the publication. FOR TABLE, so that
// other tables cost nothing; inserts only, since nothing else is an event.
// partitioned says that one of the tables is: its rows then come under its own
// name rather than their partition's.
func PublicationSQL(spec PublicationSpec, partitioned bool) string {
	names := make([]string, len(spec.Tables))
	for i, t := range spec.Tables {
		names[i] = t.sql()
	}
	options := "publish = 'insert'"
	if partitioned {
		options += ", publish_via_partition_root = true"
	}
	return fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (%s)", quoteIdent(spec.Name), strings.Join(names, ", "), options)
}

// SlotSQL is the plain SQL that makes the slot; after the publication, or the
// stream fails at the rows between (trap 22). failover needs 17 or newer.
func SlotSQL(slot string, failover bool) string {
	args := quoteLiteral(slot) + ", " + quoteLiteral(Plugin)
	if failover {
		args += ", false, false, true"
	}
	return fmt.Sprintf("SELECT pg_catalog.pg_create_logical_replication_slot(%s)", args)
}

// EnsurePublication makes the publication, or adds to an existing one what is
// missing of the tables; changed tells whether it did anything. It never
// changes what an existing publication publishes of a table: others may read
// it. That is an error whose hint is the SQL.
func EnsurePublication(ctx context.Context, conn *pgx.Conn, spec PublicationSpec) (changed bool, err error) {
	subject := fmt.Sprintf("publication %q", spec.Name)
	partitioned, err := anyPartitioned(ctx, conn, spec.Tables)
	if err != nil {
		return false, classify("read tables of", subject, err)
	}
	pubs, err := ReadPublications(ctx, conn, []string{spec.Name})
	if err != nil {
		return false, err
	}
	if len(pubs) == 0 {
		_, err = conn.Exec(ctx, PublicationSQL(spec, partitioned))
		return err == nil, classify("create", subject, err)
	}
	p := &pubs[0]
	if !p.Insert {
		return false, &operr.Error{
			Class: operr.Postgres, Op: "use", Subject: subject, Err: errors.New("it exists and does not publish inserts"),
			Hint: fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert')", quoteIdent(p.Name)),
		}
	}
	return addMissing(ctx, conn, p, spec.Tables)
}

func addMissing(ctx context.Context, conn *pgx.Conn, p *Publication, tables []Table) (changed bool, err error) {
	for _, t := range tables {
		if _, ok := p.Covers(t); ok {
			continue
		}
		_, err := conn.Exec(ctx, fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s", quoteIdent(p.Name), t.sql()))
		if err != nil {
			return changed, classify("add table to", fmt.Sprintf("publication %q", p.Name), err)
		}
		changed = true
	}
	return changed, nil
}

// anyPartitioned also finds tables that do not exist.
func anyPartitioned(ctx context.Context, conn *pgx.Conn, tables []Table) (bool, error) {
	found := false
	for _, t := range tables {
		var partitioned bool
		var persistence string
		err := conn.QueryRow(ctx, tableSQL, t.Schema, t.Name).Scan(&partitioned, &persistence)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, &operr.Error{
				Class: operr.Postgres, Op: "find table", Subject: t.String(), Err: errors.New("it does not exist in this database"),
				Hint: "create it first; write schema and name exactly as the catalog has them, without SQL quotes",
			}
		}
		if err != nil {
			return false, err
		}
		found = found || partitioned
	}
	return found, nil
}
