package relay

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/facts"
	"github.com/postrider/postrider/replication"
)

// findPosition reads slot and row, decides where to go on, and claims the row.
func (l *link) findPosition(ctx context.Context, sys checkpoint.System) error {
	g := l.gen
	var slot replication.SlotInfo
	err := l.inTime(ctx, func(ctx context.Context) (err error) {
		slot, err = replication.ReadSlot(ctx, l.sql.conn, g.cfg.Replication.Slot)
		return err
	})
	if err != nil {
		return err
	}
	if slot.ActivePID == 0 {
		// The walsender ended right after the start; its last words say why.
		if err := l.stream.EarlyError(ctx); err != nil {
			return l.misplaced(ctx, slot, sys, err)
		}
	}
	if slot.ActivePID != l.session.BackendPID() {
		return &replication.SlotBusyError{Slot: slot.Name, PID: slot.ActivePID}
	}
	l.slot = slot
	// What comes before the stream is read may take long: a doubtful start reads tables.
	if err := l.stream.Hold(slot.ConfirmedFlush); err != nil {
		return err
	}
	stored, err := l.store.Load(ctx)
	if err != nil {
		return err
	}
	state := facts.Slot(slot)
	if state.WALEnd, err = l.store.WALEnd(ctx); err != nil {
		return err
	}
	if g.ledger != nil {
		return l.resume(ctx, stored, state, sys)
	}
	return l.begin(ctx, stored, state, sys)
}

// misplaced gives the reason why a start from the slot is refused, where it is, and else
// why its stream ended at once: of a slot that is not this publisher's, that goes before
// that it cannot be read either.
func (l *link) misplaced(ctx context.Context, slot replication.SlotInfo, sys checkpoint.System, ended error) error {
	stored, err := l.store.Load(ctx)
	if err != nil || stored == nil {
		return ended
	}
	history, err := facts.History(ctx, l.gen.cfg.Replication, stored, sys)
	if err != nil {
		return ended
	}
	if _, err := checkpoint.Decide(stored, facts.Slot(slot), sys, history); err != nil {
		return err
	}
	return ended
}

// begin starts a generation's ledger from the stored position.
func (l *link) begin(ctx context.Context, stored *checkpoint.Row, slot checkpoint.SlotState, sys checkpoint.System) error {
	g := l.gen
	history, err := facts.History(ctx, g.cfg.Replication, stored, sys)
	if err != nil {
		return err
	}
	start, err := checkpoint.Decide(stored, slot, sys, history)
	if err != nil {
		return err
	}
	if err := l.checkMapping(ctx, stored); err != nil {
		return err
	}
	if start.Doubtful {
		snapshot, err := stored.TickedOff(sys, slot.WALEnd, history)
		if err != nil {
			return doubtError(stored, slot.Confirmed, err)
		}
		if g.doubt, err = l.newDoubt(ctx, stored, snapshot); err != nil {
			return err
		}
	}
	row, err := l.store.Claim(ctx, stored, start, sys, l.session.BackendPID())
	if err != nil {
		return err
	}
	tick, err := l.store.TakeTick(ctx)
	if err != nil {
		return err
	}
	switch {
	case g.cfg.Until.LSN != 0:
		g.target = g.cfg.Until.LSN
	case g.cfg.Until.Now && g.target == 0:
		g.target = tick.LSN
	}
	if err := l.loadParked(ctx, start.Skip); err != nil {
		return err
	}
	g.setRow(row)
	g.eventsBefore = row.Events
	g.from = slot.Confirmed
	g.ledger = checkpoint.NewLedger(start.Skip)
	g.passed.Store(uint64(start.Skip))
	g.ledgerSeen.Store(g.ledger)
	g.log.Info().Str(keySlot, slot.Name).Stringer("from", start.Skip).Int32("timeline", start.Timeline).Str("why", start.Why).Msg("holding the slot")
	return nil
}

// resume goes on with the ledger and the lanes of this generation, if nothing that
// they rest on has changed.
func (l *link) resume(ctx context.Context, stored *checkpoint.Row, slot checkpoint.SlotState, sys checkpoint.System) error {
	g := l.gen
	if !g.left(stored) {
		return fmt.Errorf("%w: the checkpoint row is not as this process left it", errAnew)
	}
	held := *stored
	pos := g.ledger.Position()
	// A doubtful start begins past what the ledger knows; what lies behind that never comes.
	pos.EventFree = max(pos.EventFree, g.from)
	if err := checkpoint.Continue(held, pos, slot, sys); err != nil {
		return fmt.Errorf("%w: %w", errAnew, err)
	}
	start := checkpoint.Start{Skip: held.Confirmed, Timeline: held.Timeline, Why: "reconnected; ledger and lanes are kept"}
	g.claiming = l.session.BackendPID()
	row, err := l.store.Claim(ctx, stored, start, sys, l.session.BackendPID())
	if err != nil {
		return err
	}
	g.setRow(row)
	g.log.Info().Str(keySlot, slot.Name).Int("unacknowledged", g.ledger.Unresolved()).Msg("reconnected; holding the slot again")
	return nil
}

// left says that the row is as this process left it. The answer to its last write may
// have been lost with the connection: the row then stands further than is known here,
// or is claimed for a link that did not come up.
func (g *generation) left(stored *checkpoint.Row) bool {
	held := g.row()
	return stored != nil && stored.Holder == g.cfg.Holder && (stored.WalsenderPID == held.WalsenderPID || stored.WalsenderPID == g.claiming) &&
		stored.Confirmed >= held.Confirmed && stored.Confirmed <= max(held.Confirmed, g.ledger.Position().EventFree)
}
