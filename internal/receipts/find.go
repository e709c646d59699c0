package receipts

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/event"
)

// Receipt says that the broker has acknowledged an event. It holds for that moment: what
// retention, compaction or a deletion took away since is not known here.
type Receipt struct {
	Topic     string
	Partition int32
	Offset    int64
	AckedAt   time.Time
	// Position is nil where the event did not come from the stream.
	Position *event.Position
}

// A place that was written twice, since the server's answer to a COPY was lost, is one.
const findSQL = `SELECT topic, partition, kafka_offset, min(acked_at), min(commit_lsn)::text, min(event_index)
	  FROM postrider.receipt WHERE event_id = $2 AND publisher = $1
	 GROUP BY topic, partition, kafka_offset ORDER BY min(acked_at), topic, partition, kafka_offset`

// Find gives the receipts of an event, the earliest first. A schema from before there were
// receipts has none.
func Find(ctx context.Context, conn *pgx.Conn, publisher, eventID string) ([]Receipt, error) {
	found, err := conn.Query(ctx, findSQL, publisher, eventID)
	if err != nil {
		return nil, absent(err)
	}
	list, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (r Receipt, err error) {
		var commit *string
		var index *int64
		if err = row.Scan(&r.Topic, &r.Partition, &r.Offset, &r.AckedAt, &commit, &index); err != nil || commit == nil || index == nil {
			return r, err
		}
		r.Position = &event.Position{Index: uint64(*index)}
		r.Position.Commit, err = event.ParseLSN(*commit)
		return r, err
	})
	return list, absent(err)
}

// absent makes a table that is not there one without rows.
func absent(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000") {
		return nil
	}
	return err
}
