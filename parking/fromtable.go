package parking

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// ParkFromTable parks events that were read from the table and do not come on the stream,
// in the caller's transaction, while no relay runs: the caller sees to that, and gives
// each event a position that no event of the stream has. One whose position has a row
// already is left as it is there.
func ParkFromTable(ctx context.Context, tx pgx.Tx, cfg Config, events []*Event) error {
	s := &Store{cfg: cfg}
	for _, e := range events {
		args, err := s.insertArgs(e)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, insertSQL, args...); err != nil {
			return err
		}
	}
	return s.audit(ctx, tx, "parked.park", parkDetail(events))
}
