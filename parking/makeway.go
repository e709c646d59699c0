package parking

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// makeWay parks events whose positions have a row of another event, as the ids tell: the
// publications of a relay were changed between two runs, so that its index counts other
// rows, or the row was loaded from a sibling of this database. Those rows move to just before
// their transaction, where no commit record begins, with what stands before them in it.
func (s *Store) makeWay(ctx context.Context, tx pgx.Tx, there []*Event) error {
	strangers, err := s.strangers(ctx, tx, there)
	if err != nil || len(strangers) == 0 {
		return err
	}
	for _, e := range strangers {
		at := e.Message.Position
		// What this very transaction has parked stays, and what moved earlier goes before.
		if _, err := tx.Exec(ctx, `UPDATE postrider.parked SET commit_lsn = $5::text::pg_lsn, event_index = event_index + (
			  SELECT coalesce(max(event_index) + 1, 0) FROM postrider.parked WHERE publisher = $1 AND system_id = $2 AND commit_lsn = $5::text::pg_lsn)
			WHERE publisher = $1 AND system_id = $2 AND commit_lsn = $3::text::pg_lsn AND event_index <= $4 AND xmin <> pg_current_xact_id()::xid`,
			s.cfg.Publisher, s.cfg.SystemID, at.Commit.String(), int64(at.Index), (at.Commit - 1).String()); err != nil {
			return err
		}
	}
	if _, err := s.insert(ctx, tx, strangers); err != nil {
		return err
	}
	return s.audit(ctx, tx, "parked.make_way", parkDetail(strangers))
}

// strangers are the events of which the row that has their position is not theirs.
func (s *Store) strangers(ctx context.Context, tx pgx.Tx, there []*Event) ([]*Event, error) {
	var (
		commits []string
		indexes []int64
		ids     []*string
		found   []*Event
		n       int
	)
	for _, e := range there {
		commits = append(commits, e.Message.Position.Commit.String())
		indexes = append(indexes, int64(e.Message.Position.Index))
		ids = append(ids, text(e.Message.EventID))
	}
	rows, err := tx.Query(ctx, `SELECT e.n FROM unnest($3::text[], $4::bigint[], $5::text[]) WITH ORDINALITY AS e (commit, index, id, n)
		JOIN postrider.parked p ON p.publisher = $1 AND p.system_id = $2 AND p.commit_lsn = e.commit::pg_lsn AND p.event_index = e.index
		WHERE p.event_id <> e.id ORDER BY e.n`, s.cfg.Publisher, s.cfg.SystemID, commits, indexes, ids)
	if err != nil {
		return nil, err
	}
	_, err = pgx.ForEachRow(rows, []any{&n}, func() error {
		found = append(found, there[n-1])
		return nil
	})
	return found, err
}
