package checkpoint

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Listing is every publisher of a database.
type Listing struct {
	Publishers []Listed `json:"publishers"`
}

// Listed is one of them.
type Listed struct {
	Status
	// PausedAt is since when its relay is paused; null where it is not.
	PausedAt *time.Time `json:"paused_at"`
	// Parked is the number of events that were refused and not published since.
	Parked int64 `json:"parked"`
	// TasksOpen is the number of backfills, recoveries and replays that are not done.
	TasksOpen int64 `json:"tasks_open"`
}

// List reads them, by name.
func List(ctx context.Context, conn *pgx.Conn) (Listing, error) {
	list := Listing{Publishers: []Listed{}}
	rows, err := conn.Query(ctx, `
		SELECT publisher, slot, paused_at,
		       (SELECT count(*) FROM postrider.parked p WHERE p.publisher = c.publisher AND p.state IN ('parked', 'retry', 'publishing')),
		       (SELECT count(*) FROM postrider.task t WHERE t.publisher = c.publisher AND t.state NOT IN ('done', 'cancelled'))
		FROM postrider.checkpoint c ORDER BY publisher`)
	if err == nil {
		var l Listed
		_, err = pgx.ForEachRow(rows, []any{&l.Publisher, &l.Slot, &l.PausedAt, &l.Parked, &l.TasksOpen}, func() error {
			list.Publishers = append(list.Publishers, l)
			return nil
		})
	}
	if err != nil {
		return list, storeError("list", "publishers", err)
	}
	for i := range list.Publishers {
		l := &list.Publishers[i]
		if l.Status, err = ReadStatus(ctx, conn, l.Publisher, l.Slot); err != nil {
			return list, err
		}
	}
	return list, nil
}
