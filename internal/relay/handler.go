package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/roots"
	"github.com/postrider/postrider/replication"
)

// handler takes decoded transactions from one link's stream, routes them and
// appends them to the lanes, all on the stream's goroutine. No channel, no copy but
// the publisher's.
type handler struct {
	gen    *generation
	gate   *checkpoint.Gate
	intake *intake
	// committed is when the open transaction was.
	committed time.Time
	// crowded paces what is said about a full ledger.
	crowded standbyLog
	// ctx ends when the link is given up: it releases an Append that waits for room.
	ctx context.Context
	// unplaced are relations of which nobody knows whose they are: an error at the first
	// row that is new, and none where all is published already (a partition that was
	// purged since).
	unplaced map[uint32]error
	// roots finds the source behind a leaf of a partitioned table.
	roots *roots.Finder
	msg   event.Message
}

var (
	_ replication.Handler     = (*handler)(nil)
	_ replication.RowRefuser  = (*handler)(nil)
	_ replication.TypeDefiner = (*handler)(nil)
)

// DefineType tells the router what a domain or another named type is based on.
func (h *handler) DefineType(oid uint32, schema, name string) {
	h.gen.router.DefineType(oid, schema, name)
}

// Relation binds the mapping to the table as it is described now. A mapping that no
// longer fits is not an error of the stream: the first row of the table is refused.
func (h *handler) Relation(rel *event.Relation) error {
	delete(h.unplaced, rel.OID)
	schema, table, err := h.roots.SourceOf(h.ctx, rel)
	if errors.Is(err, roots.ErrUnplaced) {
		if h.unplaced == nil {
			h.unplaced = make(map[uint32]error)
		}
		h.unplaced[rel.OID] = err
		return nil
	}
	if err != nil {
		return err
	}
	if err := h.gen.router.BindAs(rel, schema, table); err != nil {
		h.gen.log.Error().Err(err).Str("table", rel.String()).Msg("the mapping does not fit the table any more; its next event will be refused")
	}
	return nil
}

func (h *handler) Begin(commit event.LSN, commitTime time.Time, _ uint32) error {
	if err := h.intake.pass(); err != nil {
		return err
	}
	h.committed = commitTime
	_, err := h.gate.Begin(commit, commitTime)
	return err
}

func (h *handler) Insert(row *event.Row) error {
	if err := h.intake.pass(); err != nil {
		return err
	}
	if !h.gate.Insert(row.Position.Index) {
		return nil
	}
	if err := h.unplaced[row.Relation.OID]; err != nil {
		return err
	}
	if h.gen.park.seen(row.Position) {
		return h.settled()
	}
	routed, refusal := h.gen.router.Route(row, &h.msg)
	if refusal == nil && !routed {
		h.gen.ledger.Pass()
		h.gen.metrics.unrouted.Inc()
		return nil
	}
	if err := h.enter(); err != nil {
		return err
	}
	if refusal != nil {
		return h.refused(row, refusal)
	}
	if held, full, err := h.parkHeld(); err != nil || full != nil {
		return h.haltOr(full, err)
	} else if held {
		return nil
	}
	h.gen.ledger.Add()
	if err := h.gen.publisher.Append(h.ctx, &h.msg, h.gate.Txn()); err != nil {
		h.gen.ledger.Retract()
		return fmt.Errorf("hand event over at %s: %w", row.Position, err)
	}
	if h.gen.doubt != nil {
		h.gen.doubt.seen(h.msg.EventID)
	}
	return nil
}

// enter lets the first event of a transaction in.
func (h *handler) enter() error {
	if h.gen.entered {
		return nil
	}
	if err := h.room(); err != nil {
		return err
	}
	h.gen.waiting.Store(h.committed.UnixMicro())
	err := h.intake.enter()
	h.gen.waiting.Store(0)
	if err != nil {
		return err
	}
	h.gen.entered = true
	return nil
}

// settled counts an event that was parked by an earlier run, whatever became of it since.
func (h *handler) settled() error {
	if err := h.enter(); err != nil {
		return err
	}
	h.gen.ledger.Add()
	h.gen.ledger.Resolve(h.gate.Txn(), 1)
	return nil
}

// refused parks the row, or halts at it.
func (h *handler) refused(row *event.Row, refusal *event.Refusal) error {
	return h.haltOr(h.parkRow(row, refusal))
}

func (h *handler) haltOr(refusal *event.Refusal, err error) error {
	if err != nil || refusal == nil {
		return err
	}
	return h.halt(refusal)
}

// crowdedLook is how often a crowded ledger is looked at.
const crowdedLook = 20 * time.Millisecond

// room waits while the ledger holds too many transactions behind one that is not
// acknowledged: like a full window, that stops reading and not feedback.
func (h *handler) room() error {
	for h.gen.ledger.Crowded() {
		h.gen.publisher.Flush()
		if h.crowded.due(h.gen.cfg.Timers.StandbyLog) {
			oldest, _ := h.gen.ledger.Oldest()
			h.gen.log.Warn().Time("oldest_committed_at", oldest).
				Msg("reading waits: a million transactions stand behind one whose events are not acknowledged")
		}
		select {
		case <-h.ctx.Done():
			return context.Cause(h.ctx)
		case <-time.After(crowdedLook):
		}
	}
	return nil
}

// RowTooLarge halts at a row that is above max_row_bytes, if its table is a source.
func (h *handler) RowTooLarge(refusal *event.Refusal, rel *event.Relation) error {
	if err := h.intake.pass(); err != nil {
		return err
	}
	if !h.gate.Insert(refusal.Position.Index) {
		return nil
	}
	if err := h.unplaced[rel.OID]; err != nil {
		return err
	}
	if _, _, ok := h.roots.Source(rel); !ok {
		h.gen.ledger.Pass()
		return nil
	}
	return h.halt(refusal)
}

func (h *handler) Ignored(op string) { h.gen.metrics.ignored(op) }

func (h *handler) Commit(_, end event.LSN, _ time.Time) error {
	if err := h.intake.pass(); err != nil {
		return err
	}
	if err := h.gate.Commit(end); err != nil {
		return err
	}
	if h.gen.entered && !h.gate.Skipping() {
		h.gen.entered = false
		h.intake.end()
	}
	h.gen.progressed(end)
	return nil
}

func (h *handler) KeepAlive(walEnd event.LSN) {
	// Not behind the tap: a keepalive says nothing about events that were not
	// handed on, since it counts only when nothing is open.
	h.gate.KeepAlive(walEnd)
	h.gen.progressed(walEnd)
}

func (h *handler) InputDrained() { h.gen.publisher.Flush() }

// halt stops the pipeline at a refused event: nothing after it is handed over. The
// call blocks until the link is given up, while what was handed over drains.
func (h *handler) halt(refusal *event.Refusal) error {
	h.intake.close()
	h.gen.publisher.Flush()
	h.gen.halt(refusal)
	return h.intake.pass()
}
