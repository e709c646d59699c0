package checkpoint

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// WALPosition is the end of the last record in the WAL, which a stream comes to on a
// quiet server too. Whatever was visible before the call was committed before it.
func WALPosition(ctx context.Context, tx pgx.Tx) (event.LSN, error) {
	var w walPosition
	if err := tx.QueryRow(ctx, `SELECT `+walPositionSQL).Scan(&w.insert, &w.block, &w.segment); err != nil {
		return 0, err
	}
	return w.end()
}
