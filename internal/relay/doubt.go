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
	"github.com/postrider/postrider/replication"
)

// doubt is the tick-off of a doubtful start (rule 4): rows of the table that the
// stored snapshot does not prove to be published, and that must therefore come on
// the stream before it passes the WAL end of the start. Nothing is stored or
// confirmed until then.
type doubt struct {
	// end is the WAL end at the start.
	end event.LSN

	// mu covers suspects, passed and search.
	mu       sync.Mutex
	suspects *tickoff.Suspects
	passed   bool
	// search runs, or has run, for those that did not come on the stream; nil before.
	search *search
	// snapshot is the one that leaves them in doubt, in text form.
	snapshot string
}

// newDoubt reads the suspects: the rows that the stored snapshot does not cover. Rows that
// were deleted meanwhile cannot be checked.
func (l *link) newDoubt(ctx context.Context, stored *checkpoint.Row, snapshot checkpoint.Snapshot) (*doubt, error) {
	// The end after which no suspect may still be on its way is read after the rows.
	d := &doubt{suspects: tickoff.New(), snapshot: stored.Snapshot}
	for _, s := range l.gen.cfg.Router.Sources {
		err := d.suspects.Collect(ctx, l.sql.conn, s, l.gen.publications, snapshot)
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
	l.gen.log.Info().Int("suspects", d.suspects.Len()).Stringer("until", d.end).Msg("proving that nothing lies between the stored position and the slot's; rows that were deleted meanwhile cannot be checked")
	return d, nil
}

// seen clears a suspect that came on the stream, or is parked.
func (d *doubt) seen(table string, id []byte) {
	d.mu.Lock()
	if !d.passed {
		d.suspects.Settle(table, id)
	}
	d.mu.Unlock()
}

// seen tells a doubtful start of the row that was routed last, now that its event is on its
// way, or goes to be parked.
func (h *handler) seen(rel *event.Relation) {
	if h.gen.doubt == nil || h.msg.EventID == nil {
		return
	}
	if rel != h.doubtRel {
		schema, table, _ := h.roots.Source(rel)
		h.doubtRel, h.doubtTable = rel, replication.Table{Schema: schema, Name: table}.String()
	}
	h.gen.doubt.seen(h.doubtTable, h.msg.EventID)
}

// settleDoubt says whether storing may go on. The error lists what neither the
// snapshot nor the stream nor a topic accounts for.
func (g *generation) settleDoubt() (bool, error) {
	if g.doubt == nil {
		return true, nil
	}
	settled, now, err := g.judgeDoubt(g.doubt)
	if now {
		g.log.Info().Msg("proved: nothing lies between the stored position and the slot's")
		g.reachTarget()
	}
	return settled, err
}

// judgeDoubt looks whether all suspects are settled; now says that it is the first time.
func (g *generation) judgeDoubt(d *doubt) (settled, now bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.passed:
		return true, false, nil
	case event.LSN(g.handedOn.Load()) < d.end:
		return false, false, nil
	case d.search != nil && !d.search.over():
		return false, false, nil
	case d.suspects.Len() > 0:
		return false, false, g.settleByTopic(d)
	}
	d.passed = true
	d.suspects = nil
	return true, true, nil
}

// inDoubt says that a doubtful start is not proved yet.
func (g *generation) inDoubt() bool {
	if g.doubt == nil {
		return false
	}
	g.doubt.mu.Lock()
	defer g.doubt.mu.Unlock()
	return !g.doubt.passed
}

// gapError is the end of a start that cannot be proved; why says what became of the search.
func (d *doubt) gapError(hint string, why error) error {
	return &operr.Error{
		Class: operr.Slot, Op: "prove that the slot skipped nothing",
		Err:  fmt.Errorf("%d rows are neither covered by the stored snapshot nor came on the stream: %s; %w", d.suspects.Len(), d.sample(5), why),
		Hint: hint,
	}
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
