package parking

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// Asked is what commands asked of the relay since it looked last.
type Asked struct {
	// Left has the discarded events by unit; LeftSingles is the number of those that held nothing.
	Left        map[Unit]*Left
	LeftSingles int
	// Units have an event that is to be published, Singles are such events themselves.
	Units   []Unit
	Singles []int64
}

// Left is what was discarded of a unit.
type Left struct {
	Topic  string
	Key    []byte
	Events int
}

// askedMost bounds one look; what is left is found by the next.
const askedMost = 2000

// Asked reads it. Discarded events are noted with it: they are reported once.
func (s *Store) Asked(ctx context.Context) (Asked, error) {
	var a Asked
	err := s.write(ctx, "look for requests about parked events", func(ctx context.Context, tx pgx.Tx) error {
		a = Asked{Left: map[Unit]*Left{}}
		rows, err := tx.Query(ctx, `UPDATE postrider.parked SET noted = true WHERE publisher = $1 AND state = 'discarded' AND NOT noted
			RETURNING unit, coalesce(topic, ''), key`, s.cfg.Publisher)
		if err != nil {
			return err
		}
		var (
			unit, key []byte
			topic     string
		)
		if _, err := pgx.ForEachRow(rows, []any{&unit, &topic, &key}, func() error {
			if unit == nil {
				a.LeftSingles++
				return nil
			}
			left := a.Left[Unit(unit)]
			if left == nil {
				left = &Left{Topic: topic, Key: key}
				a.Left[Unit(unit)] = left
			}
			left.Events++
			return nil
		}); err != nil {
			return err
		}
		return s.wanted(ctx, tx, &a)
	})
	return a, err
}

func (s *Store) wanted(ctx context.Context, tx pgx.Tx, a *Asked) error {
	rows, err := tx.Query(ctx, `SELECT id, unit FROM postrider.parked WHERE publisher = $1 AND state = 'retry'
		ORDER BY commit_lsn, event_index LIMIT $2`, s.cfg.Publisher, askedMost)
	if err != nil {
		return err
	}
	var (
		id   int64
		unit []byte
		seen = map[Unit]bool{}
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &unit}, func() error {
		switch {
		case unit == nil:
			a.Singles = append(a.Singles, id)
		case !seen[Unit(unit)]:
			seen[Unit(unit)] = true
			a.Units = append(a.Units, Unit(unit))
		}
		return nil
	})
	return err
}

// errMoved says that a command changed a row while it was being claimed.
var errMoved = errors.New("a row was changed while it was being claimed")

// claimTries bounds how often a claim begins anew.
const claimTries = 5

// claimSQL finds, for each unit, its first outstanding rows, and marks those at and
// behind one that nobody asked for, and those that the stream has not passed. held ones
// follow by themselves. $5 bounds the bytes of a unit, but for its first row.
const claimSQL = `
	SELECT id, u.unit, blocked, ahead FROM unnest($2::bytea[]) AS u (unit) CROSS JOIN LATERAL (
	  SELECT id, sum(bytes) OVER (ORDER BY commit_lsn, event_index) - bytes AS before, bool_or(state = 'publishing' OR state = 'parked' AND reason <> 'held') OVER (ORDER BY commit_lsn, event_index) AS blocked,
	    CASE WHEN commit_lsn >= $4::text::pg_lsn THEN commit_lsn::text END AS ahead
	  FROM (
	    SELECT id, state, reason, commit_lsn, event_index, coalesce(octet_length(value), 0) + coalesce(pg_column_size(row_values), 0) AS bytes
	    FROM postrider.parked p WHERE publisher = $1 AND p.unit = u.unit AND state IN ('parked', 'retry', 'publishing')
	    ORDER BY commit_lsn, event_index LIMIT $3) first) run WHERE before <= $5::bigint`

// claimBytes bounds what one claim reads, but for the first event of each unit.
const claimBytes = 32 << 20

// Claimed is what a claim gave.
type Claimed struct {
	// Events are in order of position.
	Events []*Event
	// Blocked are units that cannot go on: somebody has to look at an event of theirs.
	Blocked map[Unit]bool
	// Ahead are units with events that the stream has to pass first, and the first one's
	// position.
	Ahead map[Unit]event.LSN
}

// ClaimUnits takes up to most events of each unit, in order, for publishing. passed is
// where the stream is: what stands before an event in its key may come again after a
// restart, so that it must not go before the stream has passed it.
func (s *Store) ClaimUnits(ctx context.Context, units []Unit, most int, passed event.LSN) (Claimed, error) {
	digests := make([][]byte, len(units))
	for i := range units {
		digests[i] = units[i][:]
	}
	return s.claim(ctx, claimSQL, s.cfg.Publisher, digests, most, passed.String(), claimBytes/max(len(units), 1))
}

// ClaimSingles takes events that hold nothing.
func (s *Store) ClaimSingles(ctx context.Context, ids []int64) (Claimed, error) {
	return s.claim(ctx, `SELECT id, NULL::bytea, false, NULL FROM postrider.parked WHERE publisher = $1 AND id = ANY($2) AND state = 'retry' AND unit IS NULL`, s.cfg.Publisher, ids)
}

func (s *Store) claim(ctx context.Context, find string, args ...any) (Claimed, error) {
	for try := 1; ; try++ {
		var c Claimed
		err := s.write(ctx, "claim parked events", func(ctx context.Context, tx pgx.Tx) (err error) {
			c, err = s.claimOnce(ctx, tx, find, args...)
			return err
		})
		if err == nil || try == claimTries || !errors.Is(err, errMoved) {
			return c, err
		}
	}
}

// claimOnce fails where a row was changed meanwhile: without it the next of its unit
// would pass it.
func (s *Store) claimOnce(ctx context.Context, tx pgx.Tx, find string, args ...any) (c Claimed, err error) {
	ids, err := c.find(ctx, tx, find, args...)
	if err == nil && len(c.Blocked) > 0 {
		err = s.giveUpBlocked(ctx, tx, c.Blocked)
	}
	if err != nil || len(ids) == 0 {
		return c, err
	}
	rows, err := tx.Query(ctx, `UPDATE postrider.parked SET state = 'publishing', tried_at = clock_timestamp()
		WHERE id = ANY($1) AND (state = 'retry' OR state = 'parked' AND reason = 'held') RETURNING `+eventColumns, ids)
	if err != nil {
		return c, err
	}
	if c.Events, err = collectEvents(rows); err != nil {
		return c, err
	}
	if len(c.Events) != len(ids) {
		return c, errMoved
	}
	slices.SortFunc(c.Events, func(a, b *Event) int {
		p, q := a.Message.Position, b.Message.Position
		return cmp.Or(cmp.Compare(p.Commit, q.Commit), cmp.Compare(p.Index, q.Index))
	})
	return c, s.audit(ctx, tx, "parked.claim", map[string]any{"ids": ids})
}

// giveUpBlocked takes back what was asked for behind a guilty event that nobody asked
// for: one that came out of its lane after those behind it were asked for. A unit fails together.
func (s *Store) giveUpBlocked(ctx context.Context, tx pgx.Tx, units map[Unit]bool) error {
	var digests [][]byte
	for u := range units {
		digests = append(digests, u[:])
	}
	tag, err := tx.Exec(ctx, `UPDATE postrider.parked p SET state = 'parked' WHERE publisher = $1 AND unit = ANY($2) AND state = 'retry' AND EXISTS (
		SELECT FROM postrider.parked g WHERE g.publisher = p.publisher AND g.unit = p.unit AND g.state = 'parked' AND g.reason <> 'held'
		  AND (g.commit_lsn, g.event_index) < (p.commit_lsn, p.event_index))`, s.cfg.Publisher, digests)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	return s.audit(ctx, tx, "parked.return", map[string]any{"behind": tag.RowsAffected()})
}

// waits notes an event that the stream has not passed. They come in any order.
func (c *Claimed) waits(u Unit, commit string) error {
	at, err := event.ParseLSN(commit)
	if first, ok := c.Ahead[u]; err == nil && (!ok || at < first) {
		c.Ahead[u] = at
	}
	return err
}

// find gives the rows to claim and notes the units that have others.
func (c *Claimed) find(ctx context.Context, tx pgx.Tx, find string, args ...any) ([]int64, error) {
	c.Blocked, c.Ahead = map[Unit]bool{}, map[Unit]event.LSN{}
	rows, err := tx.Query(ctx, find, args...)
	if err != nil {
		return nil, err
	}
	var (
		ids     []int64
		id      int64
		unit    []byte
		blocked bool
		ahead   *string
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &unit, &blocked, &ahead}, func() error {
		switch {
		case ahead != nil:
			return c.waits(Unit(unit), *ahead)
		case blocked:
			c.Blocked[Unit(unit)] = true
		default:
			ids = append(ids, id)
		}
		return nil
	})
	return ids, err
}

const eventColumns = `id, commit_lsn::text, event_index, commit_time, unit, reason, error, attempts, event_id,
	aggregate_type, aggregate_version, event_type, source_table, topic, partition, record_millis, key, value, header_names, header_values,
	row_shape::text, row_values, repaired, dead_letter_topic`

func collectEvents(rows pgx.Rows) ([]*Event, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Event, error) {
		e := &Event{}
		m := &e.Message
		var (
			lsn, reason                              string
			index                                    int64
			unit                                     []byte
			id, aggregate, version, kind, tab, topic *string
			deadLetter                               *string
			partition                                *int32
			millis                                   *int64
			names, values, rowValues                 [][]byte
			shape                                    *string
			committed                                nullableTime
		)
		err := row.Scan(&e.ID, &lsn, &index, &committed.at, &unit, &reason, &e.Error, &e.Attempts, &id,
			&aggregate, &version, &kind, &tab, &topic, &partition, &millis, &m.Key, &m.Value, &names, &values, &shape, &rowValues, &e.Repaired, &deadLetter)
		if err != nil {
			return nil, err
		}
		m.Position.Index, e.Reason, e.CommitTime = uint64(index), event.Reason(reason), committed.time()
		if m.Position.Commit, err = event.ParseLSN(lsn); err != nil {
			return nil, err
		}
		if unit != nil {
			u := Unit(unit)
			e.Unit = &u
		}
		m.EventID, m.AggregateType, m.AggregateVersion, m.EventType = bytesOf(id), bytesOf(aggregate), bytesOf(version), bytesOf(kind)
		m.Topic, e.SourceTable, m.DeadLetter = deref(topic), deref(tab), deref(deadLetter)
		m.Partition, m.TimestampMillis = event.NoPartition, deref(millis)
		if partition != nil {
			m.Partition = *partition
		}
		for i := range names {
			m.Headers = append(m.Headers, event.Header{Name: string(names[i]), Value: values[i]})
		}
		if shape != nil {
			e.Row, err = decodeRow(*shape, rowValues)
		}
		return e, err
	})
}

// Published says that events were acknowledged. Their bytes leave the row, but for a
// value that a copy still needs.
func (s *Store) Published(ctx context.Context, ids []int64) error {
	return s.write(ctx, "note published events", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE postrider.parked SET state = 'published', finished_at = clock_timestamp(), row_values = NULL,
			value = CASE WHEN dead_letter_topic IS NOT NULL AND dead_letter_at IS NULL THEN value END
			WHERE id = ANY($1) AND state = 'publishing'`, ids)
		if err != nil {
			return err
		}
		return s.audit(ctx, tx, "parked.publish", map[string]any{"ids": ids})
	})
}

// Return is a claimed event that was not published.
type Return struct {
	ID int64
	// Reason is set where it was refused again; empty where it stood behind one that was.
	Reason event.Reason
	Error  string
	// Again: it came back for another event's sake, and is asked for still.
	Again bool
}

// Returned puts events back that were not published.
func (s *Store) Returned(ctx context.Context, events []Return) error {
	return s.write(ctx, "put refused events back", func(ctx context.Context, tx pgx.Tx) error {
		batch := &pgx.Batch{}
		var refused, unsent, again []int64
		for _, r := range events {
			switch {
			case r.Again:
				again = append(again, r.ID)
				continue
			case r.Reason == "":
				unsent = append(unsent, r.ID)
				continue
			}
			refused = append(refused, r.ID)
			batch.Queue(`UPDATE postrider.parked SET state = 'parked', attempts = attempts + 1, reason = $2, error = $3, tried_at = clock_timestamp()
				WHERE id = $1 AND state = 'publishing'`, r.ID, string(r.Reason), clean(r.Error))
		}
		batch.Queue(`UPDATE postrider.parked SET state = 'parked' WHERE id = ANY($1) AND state = 'publishing'`, unsent)
		batch.Queue(`UPDATE postrider.parked SET state = CASE WHEN reason = 'held' THEN 'parked' ELSE 'retry' END WHERE id = ANY($1) AND state = 'publishing'`, again)
		// What was asked for behind a refused one is not asked for any more: a unit fails together.
		batch.Queue(`UPDATE postrider.parked SET state = 'parked' WHERE publisher = $1 AND state = 'retry'
			AND unit IN (SELECT unit FROM postrider.parked WHERE id = ANY($2) AND unit IS NOT NULL)`, s.cfg.Publisher, refused)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return s.audit(ctx, tx, "parked.return", map[string]any{"refused": refused, "unsent": unsent, "again": again})
	})
}
