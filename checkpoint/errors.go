package checkpoint

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
)

// storeError puts an error of the SQL connection into an operator's words. An
// operr.Error passes as it is.
func storeError(op, subject string, err error) error {
	var known *operr.Error
	if errors.As(err, &known) {
		return err
	}
	e := &operr.Error{Class: operr.Postgres, Op: op, Subject: subject, Err: err}
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg):
		// Not the server's word: the connection broke, or time ran out.
		e.Transient = !errors.Is(err, context.Canceled)
	case pg.Code == "42P01" || pg.Code == "3F000" || pg.Code == "42703":
		// undefined_table, invalid_schema_name, undefined_column
		e.Hint = "postrider setup, which creates or updates the schema postrider"
	case pg.Code == "42501":
		// insufficient_privilege
		e.Hint = "the grants that postrider setup --print shows for the running role"
	case pg.Code == "23505":
		// unique_violation: one slot serves one publisher
		e.Class = operr.Slot
		e.Hint = "a slot of its own for each publisher"
	case pg.Code == "25006" || pg.Code == "55000":
		// read_only_sql_transaction; object_not_in_prerequisite_state, which the WAL
		// functions say in recovery: a standby that may be promoted
		e.Transient = true
		e.Hint = "name the primary in postgres.host, or add target_session_attrs=read-write to postgres.dsn"
	default:
		e.Transient = healsByItself(pg.Code)
	}
	return e
}

// healsByItself goes by SQLSTATE class: connection exceptions, rollbacks for
// serialisation or deadlock, resources, operator intervention (shutdown, statement
// timeout), lock not available.
func healsByItself(code string) bool {
	for _, class := range []string{"08", "40", "53", "57", "55P03"} {
		if strings.HasPrefix(code, class) {
			return true
		}
	}
	return false
}
