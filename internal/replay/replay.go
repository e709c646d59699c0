package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/publisher"
)

// Config says whose events, from where, to where.
type Config struct {
	Publisher, Slot string
	// Outbox is how the tables are read.
	Outbox outbox.Config
	Kafka  publisher.Config
	// Actor is who asks: "user@host".
	Actor string
	// ApprovalAbove: a replay of more events needs a second person.
	ApprovalAbove int64
}

// Request says which events, and how. What is set must all hold. Its JSON is stored with
// the task.
type Request struct {
	EventIDs      []string   `json:"event_ids,omitempty"`
	Since         *time.Time `json:"since,omitempty"`
	Until         *time.Time `json:"until,omitempty"`
	Aggregate     string     `json:"aggregate,omitempty"`
	AggregateType string     `json:"aggregate_type,omitempty"`
	EventType     string     `json:"type,omitempty"`
	// BeforeSlot takes rows in that are from before the slot.
	BeforeSlot bool `json:"before_slot,omitempty"`
	// PerSecond bounds the rate; 0 does not.
	PerSecond float64 `json:"events_per_second"`
}

// selection is the request without what replay adds by itself.
func (r *Request) selection() outbox.Selection {
	sel := outbox.Selection{EventIDs: r.EventIDs, Aggregate: r.Aggregate, AggregateType: r.AggregateType, EventType: r.EventType}
	if r.Since != nil {
		sel.Since = *r.Since
	}
	if r.Until != nil {
		sel.Until = *r.Until
	}
	return sel
}

// Replayer plans and runs replays, over sessions of its own. It is for one goroutine.
type Replayer struct {
	cfg    Config
	reader *outbox.Reader
	conn   *pgx.Conn
	desk   *reissue.Desk
}

// Open connects. tasks is the session that keeps the tasks; the caller closes it.
func Open(ctx context.Context, cfg Config, tasks *pgx.Conn) (*Replayer, error) {
	reader, err := outbox.Open(ctx, cfg.Outbox)
	if err != nil {
		return nil, err
	}
	return &Replayer{cfg: cfg, reader: reader, conn: tasks, desk: reissue.NewDesk(tasks, cfg.Publisher, cfg.Actor)}, nil
}

// Close ends the session that reads the tables.
func (r *Replayer) Close(ctx context.Context) { r.reader.Close(ctx) }

// Plan makes a task of what the request chooses, and gives it with the preview by which
// it was made. Nothing is published yet. A task that has no events is an error.
func (r *Replayer) Plan(ctx context.Context, req Request, reason string) (task reissue.Task, p Preview, err error) {
	choice, p, err := r.choose(ctx, req)
	if err != nil {
		return task, p, err
	}
	if p.Events == 0 {
		return task, p, errors.Join(&operr.Error{
			Class: operr.Config, Op: "replay", Err: errors.New("the selection has no event that may be published again"), Hint: "postrider replay without --yes says what was left out",
		}, p.Unknown())
	}
	id, err := r.desk.Create(ctx, reissue.NewTask{Kind: reissue.Replay, Params: req, Reason: reason, Snapshot: choice.covered})
	if err != nil {
		return task, p, err
	}
	planned, err := r.reader.Plan(ctx, id, choice.sel)
	if err == nil {
		p.Order, p.NeedsApproval = planned.Order, planned.Items > r.cfg.ApprovalAbove
		err = r.desk.Listed(ctx, id, planned.Items, planned.Order, p.NeedsApproval)
	}
	if err != nil {
		return task, p, errors.Join(err, r.desk.Cancel(context.WithoutCancel(ctx), id, "planning was cut off"))
	}
	task, err = r.desk.Get(ctx, id, reissue.Replay)
	return task, p, err
}

// Run publishes what is left of a task. perSecond beats the rate that was asked for, where it is not
// nil. It returns the task as it is then, also with an error: a run that was interrupted goes
// on with the next call.
func (r *Replayer) Run(ctx context.Context, id int64, perSecond *float64, show func(reissue.Progress)) (reissue.Task, error) {
	if _, err := r.desk.Get(ctx, id, reissue.Replay); err != nil {
		return reissue.Task{}, err
	}
	task, err := r.desk.Begin(ctx, id)
	if err != nil {
		return task, err
	}
	rate, err := rateOf(task, perSecond)
	if err != nil {
		return task, err
	}
	result, err := reissue.Run(ctx, reissue.Config{
		Publisher: r.cfg.Kafka, Mark: event.Header{Name: reissue.ReplayedHeader, Value: fmt.Append(nil, id)},
		PerSecond: rate, Total: task.Total, Refused: task.Refused, Withheld: task.Detail.Withheld,
		Save: r.desk.Saver(id), Progress: show,
	}, task.Done, func(ctx context.Context, from int64, yield reissue.Yield) error {
		return r.reader.Items(ctx, id, from, outbox.Yield(yield))
	})
	ctx = context.WithoutCancel(ctx)
	if err == nil {
		if err = r.desk.Finish(ctx, id, reissue.Done, result); err == nil {
			err = r.desk.Tidy(ctx, id, task.Total)
		}
	}
	now, getErr := r.desk.Get(ctx, id, reissue.Replay)
	if getErr != nil {
		return task, errors.Join(err, getErr)
	}
	return now, err
}

// covered gives the pg_snapshot that the checkpoint has ticked off on this server, and the row.
func (r *Replayer) covered(ctx context.Context) (checkpoint.Snapshot, *checkpoint.Row, error) {
	store := checkpoint.NewStore(r.conn, checkpoint.StoreConfig{Publisher: r.cfg.Publisher, Slot: r.cfg.Slot, Holder: r.cfg.Actor})
	row, err := store.Load(ctx)
	if err != nil {
		return checkpoint.Snapshot{}, nil, err
	}
	if row == nil {
		return checkpoint.Snapshot{}, nil, r.unproved(errors.New("it has no checkpoint"), "postrider setup, then postrider run: only what was published can be replayed")
	}
	sys, err := store.System(ctx)
	if err != nil {
		return checkpoint.Snapshot{}, nil, err
	}
	end, err := store.WALEnd(ctx)
	if err != nil {
		return checkpoint.Snapshot{}, nil, err
	}
	s, err := row.TickedOff(sys, end, nil)
	switch {
	case err == nil:
		return s, row, nil
	case row.Snapshot == "":
		return s, nil, r.unproved(err, "postrider run, and again when it has confirmed everything once")
	}
	return s, nil, r.unproved(err, "postrider checkpoint verify says how database and checkpoint stand to each other")
}

func (r *Replayer) unproved(err error, hint string) error {
	return &operr.Error{
		Class: operr.Slot, Op: "tell what was published by", Subject: fmt.Sprintf("publisher %q", r.cfg.Publisher), Err: err, Hint: hint,
	}
}
