package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
)

// A task that is planned counts: its rows are chosen, and may be published any moment.
const openTaskSQL = `SELECT id, kind, state, done, total FROM postrider.task
 WHERE publisher = $1 AND kind IN ('backfill', 'recover') AND state IN ('planned', 'approved', 'running', 'failed') ORDER BY id LIMIT 1`

// noOpenTask refuses to publish while rows that are older than the stream's wait to be
// published from the table. It is asked before the slot is taken, so that a waiting standby
// does not take it from under a backfill for nothing, and again when it is ours: a
// backfill makes its task first, and then looks at the slot, so that one of the two
// sees the other.
func (l *link) noOpenTask(ctx context.Context) error {
	var id, done, total int64
	var kind, state string
	err := l.sql.do(func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, openTaskSQL, l.gen.cfg.Publisher).Scan(&id, &kind, &state, &done, &total)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return taskError(err)
	}
	giveUp := "--cancel"
	if kind == "recover" {
		giveUp = "--abandon"
	}
	return &operr.Error{
		Class: operr.Slot, Op: "start", Subject: fmt.Sprintf("publisher %q", l.gen.cfg.Publisher),
		Err:  fmt.Errorf("%s %d is not ended: it is %s, %d of %d events are done; what it has left is older than what the stream brings", kind, id, state, done, total),
		Hint: fmt.Sprintf("postrider %[1]s --resume, or postrider %[1]s %[2]s", kind, giveUp),
	}
}

func taskError(err error) error {
	err = sqlError("look for", "tasks that publish from the table", err)
	var pg *pgconn.PgError
	var known *operr.Error
	if errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000") && errors.As(err, &known) {
		known.Hint = "postrider setup, which creates or updates the schema postrider"
	}
	return err
}
