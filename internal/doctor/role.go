package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/replication"
)

func checkRole(ctx context.Context, e *exam) []answer {
	conn, err := e.sql(ctx)
	if err != nil {
		return unanswered(err)
	}
	if found := problems(replication.CheckRole(ctx, conn)); len(found) > 0 {
		return found
	}
	// The attribute alone does not say it: pg_hba.conf has its own word about such sessions.
	switch _, err := e.identify(ctx); {
	case isState(err, tooManyConnections):
		return unanswered(needs("no walsender is free (see max_wal_senders)"))
	case err != nil:
		return fullProblem(err)
	}
	var name string
	var super bool
	if err := e.row(ctx, `SELECT rolname, rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user`, nil, &name, &super); err != nil {
		return unanswered(err)
	}
	if super {
		return warn("postrider setup --role NAME makes one with the rights that are needed and no more (--print shows them); name it in postgres.user",
			"%q is a superuser: who gets hold of its password owns the whole server", name)
	}
	return ok("%q may stream, and is no superuser", name)
}

const (
	insufficientPrivilege = "42501"
	undefinedTable        = "42P01"
	tooManyConnections    = "53300"
	queryCanceled         = "57014"
)

func isState(err error, code string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == code
}

// missingSQL asks which of the privileges $3 the session's role lacks on table $1.$2;
// no row where there is no such table. It goes by the catalog, since a name cannot be
// looked up in a schema without USAGE.
const missingSQL = `SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       ARRAY(SELECT p FROM pg_catalog.unnest($3::text[]) p WHERE NOT pg_catalog.has_table_privilege(c.oid, p)),
       c.relrowsecurity AND pg_catalog.row_security_active(c.oid)
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')`

type lacking struct {
	usage   bool
	rights  []string
	hidden  bool // row level security keeps rows from the role
	missing bool // there is no such table
}

func (e *exam) lacks(ctx context.Context, schema, table string, privileges []string) (l lacking, err error) {
	err = e.row(ctx, missingSQL, []any{schema, table, privileges}, &l.usage, &l.rights, &l.hidden)
	if errors.Is(err, pgx.ErrNoRows) {
		return lacking{missing: true}, nil
	}
	return l, err
}

func checkGrants(ctx context.Context, e *exam) []answer {
	conn, err := e.sql(ctx)
	if err != nil {
		return unanswered(err)
	}
	role := ident(e.server.user)
	ours, err := e.ownGrants(ctx, role)
	if err != nil {
		return unanswered(err)
	}
	outbox, err := e.outboxGrants(ctx, role)
	if err != nil {
		return unanswered(err)
	}
	found := append(ours, outbox...)
	// The one function of run that not everybody may call everywhere.
	if _, err := e.store(conn).System(ctx); err != nil {
		if !isState(err, insufficientPrivilege) {
			return append(found, unanswered(err)...)
		}
		found = append(found, fail(fmt.Sprintf("GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO %s", role),
			"it may not read the system identifier, without which a position means nothing")...)
	}
	return orOK(found, "all that run needs, and SELECT on the outbox")
}

// ownGrants: on a schema that is not there yet nothing is missing; the check schema says so.
func (e *exam) ownGrants(ctx context.Context, role string) ([]answer, error) {
	var missing, grants []string
	usage := true
	for _, r := range migrations.Rights() {
		schema, table, _ := strings.Cut(r.Table, ".")
		l, err := e.lacks(ctx, schema, table, r.Privileges)
		switch {
		case err != nil:
			return nil, err
		case l.missing:
			continue
		}
		usage = usage && l.usage
		if len(l.rights) > 0 {
			missing = append(missing, fmt.Sprintf("%s on %s", strings.Join(l.rights, ", "), r.Table))
			grants = append(grants, fmt.Sprintf("GRANT %s ON %s TO %s;", strings.Join(l.rights, ", "), r.Table, role))
		}
	}
	if !usage {
		missing = append(missing, "USAGE on schema "+migrations.Schema)
		grants = append(grants, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", migrations.Schema, role))
	}
	if len(missing) == 0 {
		return nil, nil
	}
	return fail(strings.Join(grants, " "), "it lacks %s", strings.Join(missing, ", ")), nil
}

// outboxGrants: the stream needs none; what reads the table does.
func (e *exam) outboxGrants(ctx context.Context, role string) (found []answer, err error) {
	for _, t := range e.tables() {
		l, err := e.lacks(ctx, t.Schema, t.Name, []string{"SELECT"})
		switch {
		case err != nil:
			return nil, err
		case l.missing:
		case !l.usage || len(l.rights) > 0:
			found = append(found, warn(fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %[3]s; GRANT SELECT ON %[2]s TO %[3]s", ident(t.Schema), ident(t.Schema, t.Name), role),
				"it may not read %s: after a crash a start that must prove itself cannot, and backfill, recover, replay, reconcile and purge do not work", t)...)
		case l.hidden:
			found = append(found, warn(fmt.Sprintf("CREATE POLICY postrider ON %s FOR SELECT TO %s USING (true)", ident(t.Schema, t.Name), role),
				"row level security hides rows of %s from it: what reads the table (backfill, recover, reconcile, the proof after a crash) would miss them in silence", t)...)
		}
	}
	return found, nil
}

func checkSchema(ctx context.Context, e *exam) []answer {
	conn, err := e.sql(ctx)
	if err != nil {
		return unanswered(err)
	}
	pending, err := migrations.Pending(ctx, e.cfg.Replication.ConnString)
	switch {
	case isState(err, insufficientPrivilege):
		return unanswered(needs("the role may not read it (see grants)"))
	case err != nil:
		return unanswered(err)
	case len(pending) > 0:
		return fail("postrider setup, which applies them; or the SQL of postrider setup --print, run by a DBA",
			"schema %s lacks %s", migrations.Schema, strings.Join(pending, ", "))
	}
	known, err := migrations.Latest()
	if err != nil {
		return unanswered(err)
	}
	var applied int64
	if err := conn.QueryRow(ctx, `SELECT max(version_id) FROM postrider.goose_db_version WHERE is_applied`).Scan(&applied); err != nil {
		return unanswered(err)
	}
	if applied > known {
		return warn("upgrade this program, or use the version that made the schema",
			"the database is at migration %d, this program knows %d: a newer version has been set up here", applied, known)
	}
	return ok("up to date, migration %d", applied)
}
