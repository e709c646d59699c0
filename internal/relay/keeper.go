package relay

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

// keeper is the one place where a position becomes durable and is confirmed, in this
// order: acknowledged (the ledger says so), stored (the row), confirmed (the slot).
type keeper struct {
	link *link
	gen  *generation
	tick checkpoint.TickOff
	// verified is the WAL position at the last look that found the publication
	// unchanged. Event-free WAL past it is not confirmed: on 18 a dropped publication
	// is silent, and what looks free of events may not be (rule 7).
	verified event.LSN
	// lastEvent is the position of the last resolved event that tick knows of.
	lastEvent event.LSN
	// quietSince is zero while something is unresolved.
	quietSince time.Time
	failures   int

	halt chan struct{} // closed by stop
	done chan struct{} // closed when run has returned
}

func newKeeper(l *link) *keeper {
	return &keeper{link: l, gen: l.gen, halt: make(chan struct{}), done: make(chan struct{})}
}

// stop ends run after its current round.
func (k *keeper) stop() {
	close(k.halt)
	<-k.done
}

func (k *keeper) run(ctx context.Context) error {
	defer close(k.done)
	save := time.NewTicker(k.gen.cfg.Timers.Save)
	defer save.Stop()
	watch := time.NewTicker(k.gen.cfg.Timers.Watch)
	defer watch.Stop()
	if err := k.tolerate(k.look(ctx)); err != nil {
		return err
	}
	var last time.Time
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-k.halt:
			return nil
		case <-k.gen.acked:
			// After a pause the first progress is stored at once: where events are
			// rare, a crash then repeats none.
			if time.Since(last) < k.gen.cfg.Timers.Save {
				continue
			}
			last = time.Now()
			err = k.keep(ctx)
		case <-save.C:
			last = time.Now()
			err = k.keep(ctx)
		case <-watch.C:
			if err = k.look(ctx); err == nil {
				err = k.showWaiting(ctx)
			}
		}
		if err := k.tolerate(err); err != nil {
			return err
		}
	}
}

// tolerate lets a failed statement pass while the session lives: a full disk or a
// lock on the row holds the position, it does not cost the stream.
func (k *keeper) tolerate(err error) error {
	if err == nil {
		k.failures = 0
		return nil
	}
	alive := k.link.sql.do(func(conn *pgx.Conn) error {
		if conn.IsClosed() {
			return errors.New("closed")
		}
		return nil
	}) == nil
	if errors.Is(err, checkpoint.ErrFenced) || errors.Is(err, replication.ErrSlotTaken) || !alive || isShutdown(err) || !operr.IsTransient(err) {
		if isShutdown(err) {
			return errors.Join(replication.ErrServerShutdown, err)
		}
		return err
	}
	k.failures++
	if k.failures == 1 || k.failures%30 == 0 {
		k.gen.log.Warn().Err(err).Int("consecutive_errors", k.failures).Msg("the position could not be stored; nothing is confirmed past the stored one")
	}
	return nil
}

// keep stores and confirms what is resolved.
func (k *keeper) keep(ctx context.Context) error {
	if settled, err := k.gen.settleDoubt(); err != nil || !settled {
		return err
	}
	pos := k.position()
	idle := k.idleDue(pos)
	if err := k.offerTick(ctx, pos, idle); err != nil {
		return err
	}
	if at := k.tick.Pending(); idle && k.verified < at {
		// Only a look stands between the quiet and its latch.
		if err := k.look(ctx); err != nil {
			return err
		}
	}
	k.tick.Snapshot(pos.EventFree)
	if err := k.save(ctx, pos, idle && k.tick.Proved()); err != nil {
		return err
	}
	k.confirm(pos)
	return k.gen.misfitDue()
}

// position is the ledger's, with event-free WAL cut at what the last look verified.
func (k *keeper) position() checkpoint.Position {
	pos := k.gen.ledger.Position()
	pos.EventFree = max(pos.Confirmed, min(pos.EventFree, k.verified))
	return pos
}

// offerTick takes a snapshot where one is wanted: never under the latch, whose own
// snapshot proves all there is.
func (k *keeper) offerTick(ctx context.Context, pos checkpoint.Position, idle bool) error {
	if !pos.Quiet || pos.Confirmed > k.lastEvent {
		k.lastEvent = pos.Confirmed
		k.tick.Event()
	}
	if idle {
		k.tick.Discard()
	}
	if !k.tick.Wants() || k.gen.row().Idle && pos.Confirmed <= k.gen.row().Confirmed {
		return nil
	}
	return k.link.sql.do(func(*pgx.Conn) error {
		tick, err := k.link.store.TakeTick(ctx)
		if err == nil {
			k.tick.Offer(tick)
		}
		return err
	})
}

// idleDue says whether everything has been quiet for long enough.
func (k *keeper) idleDue(pos checkpoint.Position) bool {
	if !pos.Quiet {
		k.quietSince = time.Time{}
		return false
	}
	if k.quietSince.IsZero() {
		k.quietSince = time.Now()
	}
	return time.Since(k.quietSince) >= k.gen.cfg.Timers.Idle
}

// save writes the row that is due, if one is. latch allows the idle row: it must be
// quiet, and the row's snapshot has to prove every event up to here, since after a
// crash the slot may stand past the row and nothing else tells (rules 3 and 4).
func (k *keeper) save(ctx context.Context, pos checkpoint.Position, latch bool) error {
	row, due := k.gen.row().Next(pos, k.gen.eventsBefore)
	if !due && !pos.Quiet {
		return k.stillHeld(ctx)
	}
	if !due || row.Idle && !latch {
		return nil
	}
	return k.write(ctx, row)
}

// stillHeld asks whether the slot is still ours. Where a row is written its fence tells;
// while events wait and none is resolved, nothing else would: behind a full window
// nobody reads the end of the stream (trap 20).
func (k *keeper) stillHeld(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*k.gen.cfg.Timers.Statement)
	defer cancel()
	ours, err := k.link.stillOurs(ctx)
	if err == nil && !ours {
		err = errNotHeld()
	}
	return err
}

func errNotHeld() error {
	return &operr.Error{Class: operr.Slot, Transient: true, Op: "hold the slot", Err: replication.ErrSlotTaken}
}

func (k *keeper) write(ctx context.Context, row checkpoint.Row) error {
	if s := k.tick.Snapshot(row.Confirmed); s != "" {
		row.Snapshot = s
	}
	row.OldestUnconfirmed, _ = k.gen.oldest()
	err := k.link.sql.do(func(*pgx.Conn) error {
		return k.link.store.Save(ctx, row, k.link.session.BackendPID())
	})
	if err != nil {
		return err
	}
	k.gen.setRow(row)
	k.gen.metrics.stored(row)
	return nil
}

// confirm reports to the slot what the durable row allows.
func (k *keeper) confirm(pos checkpoint.Position) {
	at := k.gen.row().MayConfirm(pos)
	k.link.stream.Confirm(at)
	k.gen.metrics.confirmed(at)
}

// errInDoubt is the end of a run whose start was still to be proved.
var errInDoubt = errors.New("the start was still being proved, so nothing was stored: each start sends the events before it again, do not restart before the cause is gone")

// showWaiting writes the row as it is, but for the age of the oldest unconfirmed
// event, while nothing moves: during an outage "checkpoint show" is what people read.
func (k *keeper) showWaiting(ctx context.Context) error {
	if settled, err := k.gen.settleDoubt(); err != nil || !settled {
		return err
	}
	row := k.gen.row()
	if oldest, waits := k.gen.oldest(); !waits || row.OldestUnconfirmed.Equal(oldest) {
		return nil
	}
	return k.write(ctx, row)
}

// last stores and confirms at the end of a run. The row is brought up to the slot, so
// that a start after a clean stop has nothing to prove.
func (k *keeper) last(ctx context.Context) error {
	switch settled, err := k.gen.settleDoubt(); {
	case err != nil:
		return err
	case !settled:
		return errInDoubt
	}
	pos := k.position()
	row, due := k.gen.row().Next(pos, k.gen.eventsBefore)
	if row.Idle {
		k.tick.Snapshot(pos.EventFree)
		// A latch that stands was proved; a new one has to be.
		row.Idle = k.gen.row().Idle || k.tick.Proved()
		due = due || row.MayConfirm(pos) > row.Confirmed
		row.Confirmed = max(row.Confirmed, pos.EventFree)
	}
	if due {
		if err := k.write(ctx, row); err != nil {
			return err
		}
	}
	k.confirm(pos)
	return nil
}

// look compares the publication with what was accepted, and reads the slot's health.
func (k *keeper) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*k.gen.cfg.Timers.Statement)
	defer cancel()
	return k.link.sql.do(func(conn *pgx.Conn) error {
		// The position first: what is unchanged after it was unchanged up to it.
		tick, err := k.link.store.TakeTick(ctx)
		if err != nil {
			return err
		}
		now, err := replication.ReadPublications(ctx, conn, k.gen.cfg.Replication.Publications)
		if err != nil {
			return err
		}
		if err := k.link.samePublications(now); err != nil {
			return err
		}
		k.verified = tick.LSN
		slot, err := replication.ReadSlot(ctx, conn, k.gen.cfg.Replication.Slot)
		if err != nil {
			return err
		}
		if slot.ActivePID != k.link.session.BackendPID() {
			return errNotHeld()
		}
		k.gen.metrics.slot(slot, tick.LSN)
		k.warn(slot)
		return nil
	})
}

// warn speaks up before PostgreSQL drops the WAL that the slot needs (case C32).
func (k *keeper) warn(slot replication.SlotInfo) {
	if slot.WALStatus == "" || slot.WALStatus == "reserved" {
		return
	}
	e := k.gen.log.Warn().Str(keySlot, slot.Name).Str("wal_status", slot.WALStatus).Stringer("restart_lsn", slot.RestartLSN)
	if slot.HasSafeWALSize {
		e = e.Int64("safe_wal_bytes", slot.SafeWALSize)
	}
	e.Msg("the slot holds back more WAL than PostgreSQL promises to keep")
}
