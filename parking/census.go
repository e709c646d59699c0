package parking

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// pruneMost bounds one Prune; what is left is found by the next.
const pruneMost = 10_000

// Prune removes rows that are done with: published, or discarded and noted, finished
// longer ago than keep, and passed by the position that the slot has confirmed or of
// another system, so that the event cannot come again (rule 20). One whose copy is still to be sent stays. It
// gives their number.
func (s *Store) Prune(ctx context.Context, keep time.Duration) (n int64, err error) {
	err = s.write(ctx, "remove parked events that are done with", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM postrider.parked WHERE id IN (
			SELECT p.id FROM postrider.parked p JOIN pg_replication_slots s ON s.slot_name = $2
			WHERE p.publisher = $1 AND (p.state = 'published' OR p.state = 'discarded' AND p.noted)
			  AND p.finished_at <= clock_timestamp() - make_interval(secs => $4) AND (p.system_id <> $3 OR p.commit_lsn < s.confirmed_flush_lsn)
			  AND (p.dead_letter_topic IS NULL OR p.dead_letter_at IS NOT NULL)
			LIMIT $5)`, s.cfg.Publisher, s.cfg.Slot, s.cfg.SystemID, keep.Seconds(), pruneMost)
		if n = tag.RowsAffected(); err != nil || n == 0 {
			return err
		}
		return s.audit(ctx, tx, "parked.prune", map[string]any{"events": n})
	})
	return n, err
}

// Census counts the outstanding events of a publisher.
type Census struct {
	Events int
	// Reasons counts them by reason.
	Reasons map[event.Reason]int
	// Ownerless have no name assigned that looks after them.
	Ownerless int
	// Oldest is when the first of them was parked; zero where there is none.
	Oldest time.Time
}

// Census takes one.
func (s *Store) Census(ctx context.Context) (Census, error) {
	c := Census{Reasons: map[event.Reason]int{}}
	err := s.tx(ctx, "count parked events", func(ctx context.Context, tx pgx.Tx) error {
		c = Census{Reasons: map[event.Reason]int{}}
		rows, err := tx.Query(ctx, `SELECT reason, count(*), count(*) FILTER (WHERE owner IS NULL), min(parked_at) FROM postrider.parked
			WHERE publisher = $1 AND state IN ('parked', 'retry', 'publishing') GROUP BY reason`, s.cfg.Publisher)
		if err != nil {
			return err
		}
		var (
			reason       string
			n, ownerless int
			oldest       time.Time
		)
		_, err = pgx.ForEachRow(rows, []any{&reason, &n, &ownerless, &oldest}, func() error {
			c.Reasons[event.Reason(reason)] = n
			c.Events += n
			c.Ownerless += ownerless
			if c.Oldest.IsZero() || oldest.Before(c.Oldest) {
				c.Oldest = oldest
			}
			return nil
		})
		return err
	})
	return c, err
}
