package parking

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Copies gives up to most events, oldest first, of which a copy is still to go to a
// dead-letter topic. It always gives one; more only while their values are small.
func (s *Store) Copies(ctx context.Context, topic string, most int, bytes int64) (events []*Event, err error) {
	err = s.write(ctx, "look for copies of parked events", func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+eventColumns+` FROM postrider.parked WHERE id IN (
			SELECT id FROM (
			  SELECT id, row_number() OVER (ORDER BY id) AS n, sum(octet_length(value)) OVER (ORDER BY id) AS size FROM (
			    SELECT id, value FROM postrider.parked
			    WHERE publisher = $1 AND dead_letter_topic = $2 AND dead_letter_at IS NULL ORDER BY id LIMIT $3) first) sized
			WHERE n = 1 OR coalesce(size, 0) <= $4)
			ORDER BY id`, s.cfg.Publisher, topic, most, bytes)
		if err != nil {
			return err
		}
		events, err = collectEvents(rows)
		return err
	})
	return events, err
}

// LostCopy is a copy that is given up.
type LostCopy struct {
	ID    int64
	Error string
}

// doneWithCopy also takes the value away that a published event kept for its copy.
const doneWithCopy = `dead_letter_at = clock_timestamp(), value = CASE WHEN state = 'published' THEN NULL ELSE value END`

// Copied notes copies that were acknowledged, and those that are given up.
func (s *Store) Copied(ctx context.Context, sent []int64, lost []LostCopy) error {
	return s.write(ctx, "note copies of parked events", func(ctx context.Context, tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`UPDATE postrider.parked SET `+doneWithCopy+` WHERE id = ANY($1)`, sent)
		for _, l := range lost {
			batch.Queue(`UPDATE postrider.parked SET dead_letter_error = $2, `+doneWithCopy+` WHERE id = $1`, l.ID, clean(l.Error))
		}
		return tx.SendBatch(ctx, batch).Close()
	})
}

// KeepCopies gives up copies for other topics than these, and says how many: they are
// configured no more.
func (s *Store) KeepCopies(ctx context.Context, topics []string) (n int64, err error) {
	err = s.write(ctx, "give up copies of parked events", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE postrider.parked SET dead_letter_error = 'the topic is no dead_letter_topic any more', `+doneWithCopy+`
			WHERE publisher = $1 AND dead_letter_topic IS NOT NULL AND dead_letter_at IS NULL AND dead_letter_topic <> ALL($2)`,
			s.cfg.Publisher, append([]string{}, topics...))
		n = tag.RowsAffected()
		return err
	})
	return n, err
}
