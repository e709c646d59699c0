package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

// A task that is planned counts: its rows are chosen, and may be published any moment.
const openTaskSQL = `SELECT id, kind, state, done, total FROM postrider.task
 WHERE publisher = $1 AND kind IN ('backfill', 'recover') AND state IN ('planned', 'approved', 'running', 'failed') ORDER BY id LIMIT 1`

// NoOpenTask says why a publisher may not run: rows that are older than the stream's wait
// to be published from the table, or the process that published them is still there though
// its task was given up, and may have some on their way. Nil where nothing waits.
func NoOpenTask(ctx context.Context, conn *pgx.Conn, publisher string) error {
	var id, done, total int64
	var kind, state string
	err := conn.QueryRow(ctx, openTaskSQL, publisher).Scan(&id, &kind, &state, &done, &total)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nobodyWorks(ctx, conn, publisher)
	case err != nil:
		return storeError("look for", "tasks that publish from the table", err)
	}
	giveUp := "--cancel"
	if kind == "recover" {
		giveUp = "--abandon"
	}
	return &operr.Error{
		Class: operr.Slot, Op: "start", Subject: fmt.Sprintf("publisher %q", publisher),
		Err:  fmt.Errorf("%s %d is not ended: it is %s, %d of %d events are done; what it has left is older than what the stream brings", kind, id, state, done, total),
		Hint: fmt.Sprintf("postrider %[1]s --resume, or postrider %[1]s %[2]s", kind, giveUp),
	}
}
