package relay

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
)

// noOpenTask refuses to publish while rows that are older than the stream's wait to be
// published from the table. It is asked before the slot is taken, so that a waiting standby
// does not take it from under a backfill for nothing, and again when it is ours: a
// backfill makes its task first, and then looks at the slot, so that one of the two
// sees the other.
func (l *link) noOpenTask(ctx context.Context) error {
	return l.sql.do(func(conn *pgx.Conn) error { return checkpoint.NoOpenTask(ctx, conn, l.gen.cfg.Publisher) })
}
