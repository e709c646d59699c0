package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/tickoff"
	"github.com/postrider/postrider/parking"
)

// doubt is the tick-off of a doubtful start (rule 4): rows of the table that the
// stored snapshot does not prove to be published, and that must therefore come on
// the stream before it passes the WAL end of the start. Nothing is stored or
// confirmed until then.
type doubt struct {
	// end is the WAL end at the start.
	end event.LSN

	// mu covers suspects and passed.
	mu       sync.Mutex
	suspects *tickoff.Suspects
	passed   bool
}

// newDoubt reads the suspects. Rows that were deleted meanwhile cannot be checked.
func (l *link) newDoubt(ctx context.Context, stored *checkpoint.Row) (*doubt, error) {
	if stored.Snapshot == "" {
		return nil, doubtError(stored, l.slot.ConfirmedFlush, errors.New("no snapshot is stored that could prove it"))
	}
	snapshot, err := checkpoint.ParseSnapshot(stored.Snapshot)
	if err != nil {
		return nil, doubtError(stored, l.slot.ConfirmedFlush, err)
	}
	// The end after which no suspect may still be on its way is read after the rows.
	d := &doubt{suspects: tickoff.New()}
	for _, s := range l.gen.cfg.Router.Sources {
		err := d.suspects.Collect(ctx, l.sql.conn, s, snapshot)
		switch {
		case errors.Is(err, tickoff.ErrTooMany):
			return nil, doubtError(stored, l.slot.ConfirmedFlush, err)
		case err != nil:
			// Nothing about the position: a connection that broke, or a missing grant.
			return nil, sqlError("read the rows of", "table "+s.Schema+"."+s.Table, err)
		}
	}
	// What is parked is settled, whatever became of it since.
	if err := l.parking.do(ctx, func(store *parking.Store) error { return store.EventIDs(ctx, d.seen) }); err != nil {
		return nil, err
	}
	tick, err := l.store.TakeTick(ctx)
	if err != nil {
		return nil, err
	}
	d.end = tick.LSN
	l.gen.log.Info().Int("suspects", d.suspects.Len()).Stringer("until", d.end).Msg("proving that nothing lies between the stored position and the slot's")
	return d, nil
}

// seen clears a suspect that came on the stream.
func (d *doubt) seen(id []byte) {
	d.mu.Lock()
	if !d.passed {
		d.suspects.Settle(id)
	}
	d.mu.Unlock()
}

// settleDoubt says whether storing may go on. The error lists what neither the
// snapshot nor the stream accounts for.
func (g *generation) settleDoubt() (bool, error) {
	d := g.doubt
	if d == nil {
		return true, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.passed:
		return true, nil
	case event.LSN(g.handedOn.Load()) < d.end:
		return false, nil
	case d.suspects.Len() > 0:
		return false, &operr.Error{
			Class: operr.Slot, Op: "prove that the slot skipped nothing",
			Err:  fmt.Errorf("%d rows are neither covered by the stored snapshot nor came on the stream: %s", d.suspects.Len(), d.sample(5)),
			Hint: checkpoint.HintGap,
		}
	}
	d.passed = true
	d.suspects = nil
	return true, nil
}

// sample names some that are left; where none has a name, the table is large and the
// stream far behind it.
func (d *doubt) sample(n int) string {
	names := d.suspects.Names(n + 1)
	switch {
	case len(names) == 0:
		return "(too many to name)"
	case len(names) > n:
		names[n] = "…"
	}
	return strings.Join(names, ", ")
}

func doubtError(stored *checkpoint.Row, slot event.LSN, cause error) error {
	return &operr.Error{
		Class: operr.Slot, Op: "prove that the slot skipped nothing",
		Err:  fmt.Errorf("the slot stands at %s, past the stored position %s: %w", slot, stored.Confirmed, cause),
		Hint: checkpoint.HintGap,
	}
}
