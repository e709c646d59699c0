package peek

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/roots"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// reader does with the stream what the relay's handler does, but for publishing.
type reader struct {
	//nolint:containedctx // the Handler's calls carry none, as in the relay's
	ctx    context.Context
	opts   Options
	router *router.Router
	roots  *roots.Finder
	held   *parking.Held
	parked map[event.Position]parking.Known
	msg    event.Message
	rel    *event.Relation // of the row before, for Each
	table  string          // its source

	report  Report
	kinds   tally
	commit  event.LSN
	at      time.Time
	outside bool // the transaction is published already, or past the end
	counted bool // an event of the open transaction was counted
}

var (
	_ replication.Handler     = (*reader)(nil)
	_ replication.RowRefuser  = (*reader)(nil)
	_ replication.TypeDefiner = (*reader)(nil)
)

func newReader(ctx context.Context, p *Peek, o Options, rt *router.Router, finder *roots.Finder, parked parking.Loaded) *reader {
	r := &reader{
		ctx: ctx, opts: o, router: rt, roots: finder, held: parking.NewHeld(p.cfg.Limits), kinds: tally{},
		parked: make(map[event.Position]parking.Known, len(parked.Known)),
		report: Report{
			Publisher: p.cfg.Publisher, Slot: p.cfg.Replication.Slot, From: o.Skip, Until: o.Until, SlotAt: p.copy.From,
			Complete: true, First: []Event{}, Notes: []string{},
		},
	}
	r.held.Load(parked.Units, parked.Singles)
	for _, known := range parked.Known {
		r.parked[known.Position] = known
	}
	return r
}

func (r *reader) finish() Report {
	r.report.Counts = r.kinds.sorted()
	return r.report
}

// DefineType implements replication.TypeDefiner.
func (r *reader) DefineType(oid uint32, schema, name string) { r.router.DefineType(oid, schema, name) }

// Relation binds the mapping; a mapping that does not fit refuses the table's rows.
func (r *reader) Relation(rel *event.Relation) error {
	schema, table, err := r.roots.SourceOf(r.ctx, rel)
	if err != nil {
		return err
	}
	if err := r.router.BindAs(rel, schema, table); err != nil {
		r.note(fmt.Sprintf("the mapping does not fit %s as it was when its rows were written: %v", rel, err))
	}
	return nil
}

func (r *reader) note(text string) {
	const most = 20
	if len(r.report.Notes) < most {
		r.report.Notes = append(r.report.Notes, text)
	}
}

// Begin: "end LSN <= skip" is "commit LSN < skip", as in checkpoint.Ledger.Expect.
func (r *reader) Begin(commit event.LSN, at time.Time, _ uint32) error {
	r.commit, r.at, r.counted = commit, at, false
	r.outside = commit < r.opts.Skip || commit >= r.opts.Until
	return nil
}

// Insert implements replication.Handler.
func (r *reader) Insert(row *event.Row) error {
	if r.outside && r.opts.Each == nil {
		return nil
	}
	routed, refusal := r.router.Route(row, &r.msg)
	if !routed && refusal == nil {
		return nil
	}
	if r.opts.Each != nil && r.msg.EventID != nil {
		if row.Relation != r.rel {
			schema, table, _ := r.roots.Source(row.Relation)
			r.rel, r.table = row.Relation, replication.Table{Schema: schema, Name: table}.String()
		}
		r.opts.Each(r.table, r.msg.EventID)
	}
	return r.count(refusal)
}

// RowTooLarge counts a row that the relay halts at.
func (r *reader) RowTooLarge(refusal *event.Refusal, rel *event.Relation) error {
	if _, _, ok := r.roots.Source(rel); !ok {
		return nil
	}
	r.msg = event.Message{Position: refusal.Position, Partition: event.NoPartition, TimestampMillis: r.at.UnixMilli()}
	return r.count(refusal)
}

// count takes in the event that was routed last.
func (r *reader) count(refusal *event.Refusal) error {
	switch {
	case r.outside:
		return nil
	case r.isParked():
		r.report.Parked++
		return nil
	case r.opts.Max > 0 && r.report.Events >= r.opts.Max:
		commit := r.commit
		r.report.Complete, r.report.StoppedAt = false, &commit
		return replication.ErrEnough
	}
	outcome, reason := r.outcome(refusal)
	bytes := int64(len(r.msg.Key) + len(r.msg.Value))
	r.kinds.add(kind{outcome, reason, string(r.msg.EventType), r.msg.Topic}, bytes)
	r.report.Events++
	r.report.Bytes += bytes
	if !r.counted {
		r.counted = true
		r.report.Transactions++
		r.extend()
	}
	if len(r.report.First) < r.opts.First {
		r.report.First = append(r.report.First, r.keep(outcome, reason, refusal))
	}
	return nil
}

// isParked says that the event has a row.
func (r *reader) isParked() bool {
	at := r.msg.Position
	known, ok := r.parked[event.Position{Commit: at.Commit, Index: at.Index}]
	return ok && known.MayBe(r.msg.EventID)
}

// extend takes the open transaction into the times; they need not rise.
func (r *reader) extend() {
	at := r.at
	if r.report.Oldest == nil || at.Before(*r.report.Oldest) {
		r.report.Oldest = &at
	}
	if r.report.Newest == nil || at.After(*r.report.Newest) {
		r.report.Newest = &at
	}
}

// outcome is what the relay would do, given all that comes before.
func (r *reader) outcome(refusal *event.Refusal) (outcome, reason string) {
	if refusal == nil {
		if r.msg.Key != nil && !r.held.Empty() && r.held.Arrive(parking.UnitOf(r.msg.Topic, r.msg.Key), r.msg.Position) != parking.Flow {
			return Held, ""
		}
		return Publish, ""
	}
	reason = string(refusal.Reason)
	switch parking.FateOf(refusal, r.msg.Key) {
	case parking.FateUnit:
		r.held.Begin(parking.UnitOf(r.msg.Topic, r.msg.Key), r.msg.Position)
		return Park, reason
	case parking.FateSingle:
		return Park, reason
	}
	return Halt, reason
}

func (r *reader) keep(outcome, reason string, refusal *event.Refusal) Event {
	m := &r.msg
	e := Event{
		CommitLSN: m.Position.Commit, Index: m.Position.Index, CommitTime: r.at.UTC(), Outcome: outcome, Reason: reason,
		Topic: m.Topic, EventID: string(m.EventID), EventType: string(m.EventType), AggregateType: string(m.AggregateType),
		AggregateVersion: string(m.AggregateVersion), Timestamp: time.UnixMilli(m.TimestampMillis).UTC(),
		HeaderNames: []string{}, KeyBytes: len(m.Key), ValueBytes: len(m.Value), Tombstone: refusal == nil && m.Value == nil,
	}
	if refusal != nil {
		e.Detail = refusal.Detail
	}
	if m.Partition != event.NoPartition {
		partition := m.Partition
		e.Partition = &partition
	}
	for _, h := range m.Headers {
		e.HeaderNames = append(e.HeaderNames, h.Name)
	}
	if r.opts.Payload {
		e.Key, e.Value = clone(m.Key), clone(m.Value)
		for _, h := range m.Headers {
			e.Headers = append(e.Headers, Header{h.Name, clone(h.Value)})
		}
	}
	return e
}

// clone keeps nil and empty apart: the one is a null value.
func clone(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append([]byte{}, b...)
}

// Commit implements replication.Handler.
func (r *reader) Commit(commit, end event.LSN, _ time.Time) error {
	if commit < r.opts.Until && r.opts.Until < end {
		r.report.Inside = end
	}
	if r.opts.Progress != nil {
		r.opts.Progress(end)
	}
	return nil
}

// Ignored, KeepAlive and InputDrained say nothing about events.

// Ignored implements replication.Handler.
func (*reader) Ignored(string) {}

// KeepAlive implements replication.Handler.
func (*reader) KeepAlive(event.LSN) {}

// InputDrained implements replication.Handler.
func (*reader) InputDrained() {}
