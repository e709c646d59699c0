package reissue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Again puts what was refused or withheld at the end of a task's list, in its order, to be tried
// again by the next run; number Done is then the last of those that are settled. All of
// the list must have been tried.
func (d *Desk) Again(ctx context.Context, id int64) error {
	return d.change(ctx, id, "again", []State{Running, Failed}, func(tx pgx.Tx, t *Task) (map[string]any, error) {
		if t.Done < t.Total {
			return nil, d.refuse(id, fmt.Errorf("%d of its %d events were not tried yet", t.Total-t.Done, t.Total))
		}
		// A list may be long.
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0`); err != nil {
			return nil, err
		}
		var again, gone int64
		if err := tx.QueryRow(ctx, `SELECT count(*) FILTER (WHERE outcome NOT LIKE 'gone:%'), count(*) FILTER (WHERE outcome LIKE 'gone:%')
			FROM postrider.task_item WHERE task = $1 AND outcome IS NOT NULL`, id).Scan(&again, &gone); err != nil {
			return nil, err
		}
		if err := renumber(ctx, tx, id); err != nil {
			return nil, err
		}
		t.Detail.Withheld = nil
		_, err := tx.Exec(ctx, `UPDATE postrider.task SET done = total - $2, refused = $3, detail = $4 WHERE id = $1`, id, again, gone, t.Detail)
		return map[string]any{"settled": t.Total - again, "gone": gone, "again": again}, err
	})
}

// renumber moves what is to be tried again behind the rest, by way of negative numbers: none
// may stand twice, not even for a moment.
func renumber(ctx context.Context, tx pgx.Tx, id int64) error {
	_, err := tx.Exec(ctx, `UPDATE postrider.task_item i SET n = -o.place, outcome = CASE WHEN o.again THEN NULL ELSE i.outcome END
		FROM (SELECT n, again, row_number() OVER (ORDER BY again, n) AS place
		        FROM (SELECT n, outcome IS NOT NULL AND outcome NOT LIKE 'gone:%' AS again FROM postrider.task_item WHERE task = $1) a) o
		WHERE i.task = $1 AND i.n = o.n AND (o.again OR i.n <> o.place)`, id)
	if err == nil {
		_, err = tx.Exec(ctx, `UPDATE postrider.task_item SET n = -n WHERE task = $1 AND n < 0`, id)
	}
	return err
}

// tidyAtOnce items are removed by one transaction.
const tidyAtOnce = 100_000

// Tidy removes the published items of a task that is done; those that were not published
// stay, with their reasons.
func (d *Desk) Tidy(ctx context.Context, id, total int64) error {
	for from := int64(0); from < total; from += tidyAtOnce {
		err := d.tx(ctx, "tidy the task", func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `DELETE FROM postrider.task_item i USING postrider.task t
				WHERE t.id = $1 AND t.publisher = $4 AND t.state = 'done' AND i.task = t.id AND i.n > $2 AND i.n <= $3 AND i.outcome IS NULL`,
				id, from, from+tidyAtOnce, d.publisher)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
