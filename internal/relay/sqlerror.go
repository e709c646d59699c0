package relay

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

// sqlError puts an error of a query of this package into an operator's words. What is
// not the server's word (a connection that broke) heals with the next link, as does
// what the server says of its own state; without the class it would end the run.
func sqlError(op, subject string, err error) error {
	e := &operr.Error{Class: operr.Postgres, Op: op, Subject: subject, Err: err, Transient: true}
	var pg *pgconn.PgError
	switch {
	case isShutdown(err):
		e.Err = fmt.Errorf("%w: %w", replication.ErrServerShutdown, err)
	case errors.As(err, &pg):
		switch pg.Code[:min(2, len(pg.Code))] {
		case "08", "40", "53", "57", "58":
		default:
			e.Transient = false
		}
		if pg.Code == "42501" {
			e.Hint = "the grants that postrider setup --print shows for the running role"
		}
	}
	return e
}
