package checkpoint

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// Tick is a snapshot and a WAL position taken after it: once everything up to LSN is
// confirmed, every row that the snapshot sees is published or parked (rule 4).
type Tick struct {
	Snapshot string
	LSN      event.LSN
}

// TakeTick takes one. One statement does, since its snapshot is taken before
// anything in it is computed.
func (s *Store) TakeTick(ctx context.Context) (Tick, error) {
	var t Tick
	err := s.inTx(ctx, "take a snapshot", func(ctx context.Context, tx pgx.Tx) (err error) {
		var w walPosition
		err = tx.QueryRow(ctx, `SELECT pg_current_snapshot()::text, `+walPositionSQL).Scan(&t.Snapshot, &w.insert, &w.block, &w.segment)
		if err == nil {
			t.LSN, err = w.end()
		}
		return err
	})
	return t, err
}

// TickOff keeps the last tick that is ticked off, and knows whether it proves every
// event so far. The zero value is ready. For one goroutine.
type TickOff struct {
	waiting Tick
	done    string
	// bound is above the transactions of all events so far: the end of the first
	// snapshot that was taken after the last of them; 0 while there is none.
	bound  uint64
	proved bool
}

// Wants says that the next tick may be offered: none waits.
func (t *TickOff) Wants() bool { return t.waiting.LSN == 0 }

// Offer hands in a fresh tick. While one waits, it is not replaced: during a long
// backlog a newer one would always come out of reach.
func (t *TickOff) Offer(tick Tick) {
	if !t.Wants() {
		return
	}
	t.waiting = tick
	if s, err := ParseSnapshot(tick.Snapshot); err == nil && t.bound == 0 {
		t.bound = s.Xmax
	}
}

// Event says that an event came: no tick up to now proves it.
func (t *TickOff) Event() { t.bound, t.proved = 0, false }

// Snapshot gives the last ticked-off snapshot ("": none) once everything up to
// confirmed is resolved.
func (t *TickOff) Snapshot(confirmed event.LSN) string {
	if !t.Wants() && confirmed >= t.waiting.LSN {
		t.proved = t.proves(t.waiting)
		t.done, t.waiting = t.waiting.Snapshot, Tick{}
	}
	return t.done
}

// Proved says that the last ticked-off snapshot covers the rows of all events so far.
// It does not while a transaction is open that was so at the time of the last event:
// a row of it, or of one after it, could not be told from a missing one (see Covered).
func (t *TickOff) Proved() bool { return t.proved }

// Discard drops a waiting tick that would not prove the events so far. It is for the
// quiet, in which a newer one does not come out of reach.
func (t *TickOff) Discard() {
	if !t.proves(t.waiting) {
		t.waiting = Tick{}
	}
}

// Pending is up to where everything must be resolved for Proved to hold; 0 where it
// holds, or where the waiting tick will not do.
func (t *TickOff) Pending() event.LSN {
	if t.proved || t.Wants() || !t.proves(t.waiting) {
		return 0
	}
	return t.waiting.LSN
}

func (t *TickOff) proves(tick Tick) bool {
	s, err := ParseSnapshot(tick.Snapshot)
	return err == nil && t.bound != 0 && s.Xmin >= t.bound
}

// walPosition is the WAL's insert position with what is needed to turn it into the
// end of the last record.
type walPosition struct {
	insert         string
	block, segment int64
}

// The insert position, not the write or flush position: an asynchronous commit is
// visible before it is written.
const walPositionSQL = `pg_current_wal_insert_lsn()::text, pg_size_bytes(current_setting('wal_block_size')), pg_size_bytes(current_setting('wal_segment_size'))`

// end is the end of the last record. At a page's border the insert position has the
// next page's header behind it already; the stream reports the border, and on a
// quiet server would never reach the other side.
func (w walPosition) end() (event.LSN, error) {
	insert, err := event.ParseLSN(w.insert)
	if err != nil {
		return 0, err
	}
	return recordEnd(insert, uint64(w.block), uint64(w.segment)), nil
}

func recordEnd(insert event.LSN, block, segment uint64) event.LSN {
	// Sizes of XLogPageHeaderData and XLogLongPageHeaderData, MAXALIGNed.
	const short, long = 24, 40
	switch pos := uint64(insert); {
	case pos%segment == long:
		return insert - long
	case pos%segment > block && pos%block == short:
		return insert - short
	}
	return insert
}
