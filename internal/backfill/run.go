package backfill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// Outcome is what became of a backfill; its JSON fields are a documented contract.
type Outcome struct {
	Task  int64         `json:"task"`
	State reissue.State `json:"state"`
	// Total events are listed. Up to Done they are published, but for Refused of them.
	Total   int64 `json:"total"`
	Done    int64 `json:"done"`
	Refused int64 `json:"refused"`
	// Published counts the acknowledged events of this call.
	Published int64 `json:"published"`
	// MayRepeat is the number of events at most that an attempt before published and this one again.
	MayRepeat int64 `json:"may_repeat"`
	// PossibleDuplicates were sent again after the broker had lost the producer's state.
	PossibleDuplicates int64  `json:"possible_duplicates"`
	Order              string `json:"order"`
	// Changed events look newer than the slot, because their rows were updated since.
	Changed int64 `json:"changed"`
	// WithoutID rows have no event id, and SharedID rows have that of another one: not published.
	WithoutID int64 `json:"without_id"`
	SharedID  int64 `json:"shared_id"`
	// Unpublished are the first of the refused, withheld and vanished events.
	Unpublished []reissue.Item `json:"unpublished"`
}

// mostNamed unpublished events are named.
const mostNamed = 100

// Start lists the events and publishes them.
func (b *Backfill) Start(ctx context.Context) (Outcome, error) {
	if err := b.lock(ctx); err != nil {
		return Outcome{}, err
	}
	row, err := b.standing(ctx)
	if err != nil {
		return Outcome{}, err
	}
	open, cancelled, err := b.earlier(ctx, row)
	if err != nil {
		return Outcome{}, err
	}
	if open != nil {
		return Outcome{}, b.refuse(fmt.Errorf("%s %d is not ended: it is %s, %d of %d events are done", open.Kind, open.ID, open.State, open.Done, open.Total),
			fmt.Sprintf("postrider %[1]s --resume, or postrider %[1]s %s", open.Kind, giveUpFlag(open.Kind)))
	}
	if err := b.ready(ctx); err != nil {
		return Outcome{}, err
	}
	out := Outcome{State: reissue.Planned, Unpublished: []reissue.Item{}}
	if out.Task, err = b.desk.Create(ctx, reissue.NewTask{
		Kind: reissue.Backfill, Snapshot: row.BirthSnapshot,
		Params: params{Slot: row.Slot, BirthLSN: row.SlotBirth.String(), Skip: b.cfg.Skip},
	}); err != nil {
		return out, err
	}
	if err := b.list(ctx, row, cancelled, &out); err != nil {
		out.State = reissue.Cancelled
		return out, errors.Join(err, b.drop(ctx, out.Task, "its listing failed"))
	}
	return out, b.publish(ctx, &out)
}

func giveUpFlag(kind reissue.Kind) string {
	if kind == reissue.Recover {
		return "--abandon"
	}
	return "--cancel"
}

// ready says early what would end in the middle.
func (b *Backfill) ready(ctx context.Context) error {
	var tables []replication.Table
	for _, s := range b.cfg.Router.Sources {
		tables = append(tables, replication.Table{Schema: s.Schema, Name: s.Table})
	}
	problems := replication.Check(ctx, b.conn, replication.CheckConfig{Publications: b.cfg.Replication.Publications, Tables: tables})
	if len(problems) > 0 {
		return problems[0]
	}
	if err := b.open(ctx); err != nil {
		return err
	}
	return b.probeKafka(ctx)
}

func (b *Backfill) probeKafka(ctx context.Context) error {
	cfg := b.cfg.Kafka
	cfg.Registerer = nil
	p, err := publisher.New(cfg)
	if err != nil {
		return err
	}
	defer p.Close() //nolint:errcheck // a prober holds nothing that could be lost
	rt, err := router.New(b.cfg.Router)
	if err != nil {
		return &operr.Error{Class: operr.Config, Op: "read the mapping", Err: err, Hint: "postrider config check"}
	}
	return p.Probe(ctx, rt.StaticTopics())
}

// streamed is the set of what comes on the stream.
const streamed = "streamed"

// list fills the task.
func (b *Backfill) list(ctx context.Context, row *checkpoint.Row, cancelled []int64, out *Outcome) error {
	// A run that began meanwhile has the slot, or has seen the task and ends, or had ended before
	// that: then it has published, or moved the slot.
	now, err := b.standing(ctx)
	if err != nil {
		return err
	}
	if now.SlotBirth != row.SlotBirth || now.BirthSnapshot != row.BirthSnapshot {
		return b.refuse(fmt.Errorf("slot %q was made anew meanwhile", row.Slot), "postrider backfill")
	}
	upTo, err := b.reader.Hold(ctx)
	if err != nil {
		return err
	}
	defer b.reader.Release(ctx, false) //nolint:errcheck // does nothing after the commit
	sel, err := b.selection(ctx, row, upTo, &out.Changed)
	if err != nil {
		return err
	}
	sel.ExceptTasks = cancelled
	b.cfg.Say("listing the events")
	planned, err := b.reader.Plan(ctx, out.Task, sel)
	if err != nil {
		return err
	}
	out.Total, out.Order, out.WithoutID, out.SharedID = planned.Items, planned.Order, planned.WithoutID, planned.Shared
	if planned.WithoutID > 0 && !b.cfg.Skip {
		return &operr.Error{
			Class: operr.Halted, Op: "backfill", Subject: b.subject(),
			Err:  fmt.Errorf("%d rows from before the slot have no event id and cannot be published; nothing was", planned.WithoutID),
			Hint: "give them ids, or leave them out with --on-refusal skip",
		}
	}
	if err := b.reader.Release(ctx, true); err != nil {
		return err
	}
	return b.desk.Listed(ctx, out.Task, planned.Items, planned.Order, false)
}

// selection is the rows from before the slot. Under the reader's Hold.
func (b *Backfill) selection(ctx context.Context, row *checkpoint.Row, upTo event.LSN, changed *int64) (outbox.Selection, error) {
	later := outbox.Selection{NotVisibleIn: row.BirthSnapshot}
	sel := outbox.Selection{VisibleIn: row.BirthSnapshot}
	some, err := b.reader.Any(ctx, later)
	if err != nil || !some {
		return sel, err
	}
	b.cfg.Say("reading the stream up to %s, to tell new rows from old ones that were updated", upTo)
	if _, err := b.reader.KeepStreamed(ctx, streamed, b.cfg.Replication, upTo); err != nil {
		return sel, err
	}
	sel.Unstreamed, later.Except = streamed, streamed
	*changed, err = b.reader.Number(ctx, later)
	return sel, err
}

// drop gives a task up that never began.
func (b *Backfill) drop(ctx context.Context, task int64, reason string) error {
	return b.desk.Cancel(context.WithoutCancel(ctx), task, reason)
}

// publish works the list off.
func (b *Backfill) publish(ctx context.Context, out *Outcome) error {
	task, err := b.desk.Begin(ctx, out.Task)
	if err != nil {
		return err
	}
	out.State, out.Total, out.Order = task.State, task.Total, task.Detail.Order
	withheld := task.Detail.Withheld
	if b.cfg.Skip {
		withheld = nil
	}
	b.cfg.Say("publishing %d events, ordered by %s", task.Total-task.Done, task.Detail.Order)
	result, err := reissue.Run(ctx, reissue.Config{
		Publisher: b.cfg.Kafka, Mark: event.Header{Name: reissue.BackfilledHeader, Value: []byte(strconv.FormatInt(task.ID, 10))},
		PerSecond: b.cfg.PerSecond, Total: task.Total, Refused: task.Refused, Withheld: withheld, PassRefusedKeys: b.cfg.Skip,
		Save: b.desk.Saver(task.ID), Progress: b.cfg.Progress,
	}, task.Done, func(ctx context.Context, from int64, yield reissue.Yield) error {
		return b.reader.Items(ctx, task.ID, from, outbox.Yield(yield))
	})
	out.Done, out.Refused, out.Published, out.PossibleDuplicates = result.Done, result.Refused, result.Published, result.PossibleDuplicates
	return b.end(context.WithoutCancel(ctx), out, result, err)
}

// end settles the task's state. One whose events were withheld stays open: `run` would
// publish newer events of their keys.
func (b *Backfill) end(ctx context.Context, out *Outcome, result reissue.Result, cause error) error {
	var err error
	if out.Unpublished, err = b.desk.Items(ctx, out.Task, mostNamed); err != nil {
		return errors.Join(cause, err)
	}
	open := cause != nil
	if cause == nil && out.Refused > 0 {
		waiting, err := b.desk.Waiting(ctx, out.Task)
		if err != nil {
			return err
		}
		open = !b.cfg.Skip && waiting > 0
		cause = b.unpublished(out, open)
	}
	out.State = reissue.Done
	if open {
		out.State = reissue.Failed
	}
	if task, err := b.desk.Get(ctx, out.Task); err == nil && task.State == reissue.Cancelled {
		out.State = task.State
		return cause
	}
	if err := b.desk.Finish(ctx, out.Task, out.State, result); err != nil || open {
		return errors.Join(cause, err)
	}
	return errors.Join(cause, b.desk.Tidy(ctx, out.Task, out.Total))
}

func (b *Backfill) unpublished(out *Outcome, open bool) error {
	e := &operr.Error{
		Class: operr.Halted, Op: "backfill", Subject: b.subject(),
		Err: fmt.Errorf("%d of %d events could not be published", out.Refused, out.Total),
	}
	if open {
		e.Err = fmt.Errorf("%w; run does not start before that is settled", e.Err)
		e.Hint = "heal the cause and postrider backfill --resume, which tries these again; or give them up: postrider backfill --resume --on-refusal skip"
	}
	return e
}

// Resume goes on with the backfill that is not ended. When all of its list was tried,
// it tries again what was refused.
func (b *Backfill) Resume(ctx context.Context) (Outcome, error) {
	if err := b.lock(ctx); err != nil {
		return Outcome{}, err
	}
	row, err := b.standing(ctx)
	if err != nil {
		return Outcome{}, err
	}
	task, err := b.unended(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if !ofSlot(task, row) {
		return Outcome{}, b.refuse(fmt.Errorf("backfill %d was listed for another slot than %q as it is now", task.ID, row.Slot), "postrider backfill --cancel, then postrider backfill")
	}
	if !task.Detail.Listed {
		if err := b.drop(ctx, task.ID, "its listing was cut off"); err != nil {
			return Outcome{}, err
		}
		return b.Start(ctx)
	}
	if err := b.ready(ctx); err != nil {
		return Outcome{}, err
	}
	out := Outcome{Task: task.ID, State: task.State, Unpublished: []reissue.Item{}}
	switch {
	case task.Done >= task.Total && task.Refused > 0:
		if err := b.desk.Again(ctx, task.ID); err != nil {
			return out, err
		}
	case task.State == reissue.Running:
		// Its process did not come to its end: what was on its way is not known.
		out.MayRepeat = min(task.Total-task.Done, reissue.DefaultWindow)
		b.cfg.Say("the last attempt was cut off: up to %d events behind number %d may come twice", out.MayRepeat, task.Done)
	}
	return out, b.publish(ctx, &out)
}

// unended is the newest backfill that has not ended.
func (b *Backfill) unended(ctx context.Context) (*reissue.Task, error) {
	tasks, err := b.desk.List(ctx, true, 1, reissue.Backfill)
	if err != nil {
		return nil, err
	}
	if len(tasks) == 0 {
		return nil, &operr.Error{
			Class: operr.Config, Op: "backfill", Subject: b.subject(), Err: errors.New("there is none that has not ended"),
			Hint: "postrider backfill --dry-run shows what a new one would publish",
		}
	}
	return &tasks[0], nil
}

// ofSlot says that a task was listed for the slot as the row has it.
func ofSlot(t *reissue.Task, row *checkpoint.Row) bool {
	var p params
	err := json.Unmarshal(t.Params, &p)
	return err == nil && p.Slot == row.Slot && p.BirthLSN == row.SlotBirth.String()
}

// Cancel gives the backfill up that is not ended. What it published stays published, and a
// later backfill leaves that out.
func (b *Backfill) Cancel(ctx context.Context, reason string) (reissue.Task, error) {
	task, err := b.unended(ctx)
	if err != nil {
		return reissue.Task{}, err
	}
	if err := b.desk.Cancel(ctx, task.ID, reason); err != nil {
		return reissue.Task{}, err
	}
	return b.desk.Get(ctx, task.ID)
}

// Preview is what a dry run shows; its JSON fields are a documented contract.
type Preview struct {
	Slot     string `json:"slot"`
	BirthLSN string `json:"birth_lsn"`
	outbox.Counts
	// Changed events of these look newer than the slot, because their rows were updated since.
	Changed int64  `json:"changed"`
	Order   string `json:"order"`
	// Unended is the backfill that has to be resumed or cancelled first.
	Unended *reissue.Task `json:"unended"`
	// Warning says what could not be checked.
	Warning string `json:"warning,omitempty"`
}

// DryRun counts what Start would publish.
func (b *Backfill) DryRun(ctx context.Context) (Preview, error) {
	row, err := b.standing(ctx)
	if err != nil {
		return Preview{}, err
	}
	p := Preview{Slot: row.Slot, BirthLSN: row.SlotBirth.String(), Warning: claimed(row)}
	open, cancelled, err := b.earlier(ctx, row)
	if err != nil {
		return Preview{}, err
	}
	p.Unended = open
	if err := b.open(ctx); err != nil {
		return Preview{}, err
	}
	upTo, err := b.reader.Hold(ctx)
	if err != nil {
		return Preview{}, err
	}
	defer b.reader.Release(ctx, false) //nolint:errcheck // there is nothing to keep
	sel, err := b.selection(ctx, row, upTo, &p.Changed)
	if err != nil {
		return Preview{}, err
	}
	sel.ExceptTasks = cancelled
	p.Order = b.reader.Order()
	p.Counts, err = b.reader.Count(ctx, sel)
	return p, err
}

// claimed: a relay that was killed within a second of its first event has stored nothing
// of it.
func claimed(row *checkpoint.Row) string {
	if row.Holder == "" || row.Idle || row.Confirmed > row.SlotBirth {
		return ""
	}
	return fmt.Sprintf("a relay (%s) has held the slot and stored no progress: if it was killed within a second of its first events, those are in the topics already, before the rows from before the slot", row.Holder)
}
