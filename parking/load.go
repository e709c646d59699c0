package parking

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// Loaded is what a start must know of the store before it routes the first event.
type Loaded struct {
	Units []HeldUnit
	// Singles is the number of outstanding events that hold nothing.
	Singles int
	// Known are the events at or after the given position that have a row, in order: what
	// was parked, published or discarded already.
	Known []Known
	// Adopted is the number of events of which the position was of another history.
	Adopted int64
	// Unblocked are units whose first event waits for nobody: they can go on at once.
	Unblocked []Unit
}

// Known is an event that has a row.
type Known struct {
	event.Position
	// id is a digest of the event's id; 0 where the row has none.
	id uint64
}

// NewKnown makes one; id may be empty.
func NewKnown(at event.Position, id []byte) Known { return Known{at, digestID(id)} }

// MayBe says that the row may be that of an event with this id.
func (k *Known) MayBe(id []byte) bool {
	return k.id == 0 || len(id) == 0 || k.id == digestID(id)
}

// loadTimeout bounds each statement of Load: there may be a million rows.
const loadTimeout = time.Minute

// Load reads it, and takes back what an earlier run was publishing. from is where the
// stream begins.
func (s *Store) Load(ctx context.Context, from event.LSN) (Loaded, error) {
	patient := *s
	patient.cfg.Timeout = max(loadTimeout, s.cfg.Timeout)
	return patient.load(ctx, from)
}

func (s *Store) load(ctx context.Context, from event.LSN) (l Loaded, err error) {
	err = s.write(ctx, "load parked events", func(ctx context.Context, tx pgx.Tx) error {
		l = Loaded{}
		if err := s.takeBack(ctx, tx); err != nil {
			return err
		}
		if l.Adopted, err = s.adopt(ctx, tx); err != nil {
			return err
		}
		return l.read(ctx, tx, s.cfg.Publisher, s.cfg.SystemID, from)
	})
	return l, err
}

// Standing is what Load of a relay would find on a system, for commands that look ahead
// of one: it changes nothing.
func (d *Desk) Standing(ctx context.Context, systemID string, from event.LSN) (Loaded, error) {
	var l Loaded
	err := d.tx(ctx, "read parked events", func(ctx context.Context, tx pgx.Tx) error {
		l = Loaded{}
		return l.read(ctx, tx, d.publisher, systemID, from)
	})
	return l, err
}

func (l *Loaded) read(ctx context.Context, tx pgx.Tx, publisher, systemID string, from event.LSN) error {
	if err := l.readUnits(ctx, tx, publisher); err != nil {
		return err
	}
	return l.readKnown(ctx, tx, publisher, systemID, from)
}

func (s *Store) takeBack(ctx context.Context, tx pgx.Tx) error {
	tag, err := tx.Exec(ctx, `UPDATE postrider.parked SET state = 'retry' WHERE publisher = $1 AND state = 'publishing'`, s.cfg.Publisher)
	if err != nil {
		return err
	}
	// Nobody counts discarded ones any more.
	if _, err := tx.Exec(ctx, `UPDATE postrider.parked SET noted = true WHERE publisher = $1 AND state = 'discarded' AND NOT noted`, s.cfg.Publisher); err != nil {
		return err
	}
	if n := tag.RowsAffected(); n > 0 {
		return s.audit(ctx, tx, "parked.take_back", map[string]any{"events": n})
	}
	return nil
}

// adopt takes over what was parked in another history, from which the database was moved:
// in another system, whose positions mean nothing here, or in a sibling of this one, which
// shows where the position lies past the end of this WAL: no row is older than its event.
// The events come before all of this history, in their order. Those of a sibling that are
// done with are moved too: their positions are yet to be given to other events.
func (s *Store) adopt(ctx context.Context, tx pgx.Tx) (int64, error) {
	tag, err := tx.Exec(ctx, `
		WITH strangers AS (
		  SELECT id, row_number() OVER (ORDER BY since, system_id, commit_lsn, event_index) AS nr FROM (
		    SELECT id, system_id, commit_lsn, event_index, min(parked_at) OVER (PARTITION BY system_id) AS since
		    FROM postrider.parked WHERE publisher = $1
		      AND (system_id <> $2 AND state IN ('parked', 'retry') OR system_id = $2 AND commit_lsn >= pg_current_wal_insert_lsn())) f)
		UPDATE postrider.parked p SET system_id = $2, timeline = $3, slot = $4, commit_lsn = '0/0',
		  event_index = f.nr + (SELECT coalesce(max(event_index), 0) FROM postrider.parked WHERE publisher = $1 AND system_id = $2 AND commit_lsn = '0/0')
		FROM strangers f WHERE f.id = p.id`, s.cfg.Publisher, s.cfg.SystemID, s.cfg.Timeline, s.cfg.Slot)
	if err != nil || tag.RowsAffected() == 0 {
		return 0, err
	}
	return tag.RowsAffected(), s.audit(ctx, tx, "parked.adopt", map[string]any{"events": tag.RowsAffected(), "system_id": s.cfg.SystemID})
}

func (l *Loaded) readUnits(ctx context.Context, tx pgx.Tx, publisher string) error {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (unit) unit, commit_lsn::text, event_index, count(*) OVER (PARTITION BY unit), state = 'retry' OR reason = 'held'
		FROM postrider.parked
		WHERE publisher = $1 AND state IN ('parked', 'retry', 'publishing') AND unit IS NOT NULL
		ORDER BY unit, commit_lsn, event_index`, publisher)
	if err != nil {
		return err
	}
	var (
		unit  []byte
		lsn   string
		index int64
		n     int64
		free  bool
	)
	_, err = pgx.ForEachRow(rows, []any{&unit, &lsn, &index, &n, &free}, func() error {
		commit, err := event.ParseLSN(lsn)
		if err != nil {
			return err
		}
		u := HeldUnit{Unit: Unit(unit), First: event.Position{Commit: commit, Index: uint64(index)}, Events: int(n)}
		l.Units = append(l.Units, u)
		if free {
			l.Unblocked = append(l.Unblocked, u.Unit)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return tx.QueryRow(ctx, `SELECT count(*) FROM postrider.parked
		WHERE publisher = $1 AND state IN ('parked', 'retry', 'publishing') AND unit IS NULL`, publisher).Scan(&l.Singles)
}

func (l *Loaded) readKnown(ctx context.Context, tx pgx.Tx, publisher, systemID string, from event.LSN) error {
	rows, err := tx.Query(ctx, `SELECT commit_lsn::text, event_index, event_id FROM postrider.parked
		WHERE publisher = $1 AND system_id = $2 AND commit_lsn >= $3::text::pg_lsn ORDER BY commit_lsn, event_index`,
		publisher, systemID, from.String())
	if err != nil {
		return err
	}
	var (
		lsn   string
		index int64
		id    []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&lsn, &index, &id}, func() error {
		commit, err := event.ParseLSN(lsn)
		l.Known = append(l.Known, NewKnown(event.Position{Commit: commit, Index: uint64(index)}, id))
		return err
	})
	return err
}

// digestID tells the ids of two events apart, as the store has them; 0 stands for none.
func digestID(id []byte) uint64 {
	if len(id) == 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(clean(string(id))))
	return max(h.Sum64(), 1)
}

// EventIDs gives the ids of all events that have a row, with their tables (schema.table)
// where those are known, else "": a doubtful start counts them as settled (rule 4).
func (s *Store) EventIDs(ctx context.Context, seen func(table string, id []byte)) error {
	return s.tx(ctx, "read the ids of parked events", func(ctx context.Context, tx pgx.Tx) error {
		return eachEventID(ctx, tx, s.cfg.Publisher, seen)
	})
}

// EventIDs is Store.EventIDs for commands.
func (d *Desk) EventIDs(ctx context.Context, seen func(table string, id []byte)) error {
	return d.tx(ctx, "read the ids of parked events", func(ctx context.Context, tx pgx.Tx) error {
		return eachEventID(ctx, tx, d.publisher, seen)
	})
}

func eachEventID(ctx context.Context, tx pgx.Tx, publisher string, seen func(table string, id []byte)) error {
	rows, err := tx.Query(ctx, `SELECT coalesce(source_table, ''), event_id FROM postrider.parked WHERE publisher = $1 AND event_id IS NOT NULL`, publisher)
	if err != nil {
		return err
	}
	var table, id string
	_, err = pgx.ForEachRow(rows, []any{&table, &id}, func() error {
		seen(table, []byte(id))
		return nil
	})
	return err
}
