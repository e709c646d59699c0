package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
	"github.com/postrider/postrider/topic"
)

// Config names what is recovered.
type Config struct {
	Publisher   string
	Replication replication.Config
	Router      router.Config
	Kafka       publisher.Config
	// Actor is who does it, for the audit: "user@host".
	Actor string
	// Progress is told of long work; nil: nobody asks.
	Progress func(Progress)
}

// Progress is for people. Total is 0 where nobody knows.
type Progress struct {
	Phase       string
	Done, Total int64
	// AwaitedTopics do not exist: events wait for them.
	AwaitedTopics []string
}

// Decision is what a person says about events of which nothing can be proved.
type Decision string

// The decisions. "" is none yet.
const (
	Settle  Decision = "settle"
	Publish Decision = "publish"
)

func (d Decision) fate() fate {
	if d == Publish {
		return missing
	}
	return inTopic
}

// Options is what is asked for.
type Options struct {
	// Since leaves out rows that are older, as outbox.Reader.TimeBy has it.
	Since *time.Time `json:"since,omitempty"`
	// ScanFrom is the time from which topics are read; nil: see the package comment.
	ScanFrom *time.Time `json:"scan_from,omitempty"`
	// WithoutTopics publishes all candidates.
	WithoutTopics bool `json:"without_topics,omitempty"`
	// Topics are read besides those that the table's rows go to.
	Topics []string `json:"topics,omitempty"`
	// Conflicts and Expired decide about candidates of which the topic proves nothing.
	Conflicts Decision `json:"conflicts,omitempty"`
	Expired   Decision `json:"expired,omitempty"`
	// Anyway recovers where `run` would start: a database that came back with its slot, as
	// a copy of its disks does.
	Anyway bool `json:"anyway,omitempty"`
	// NewSlot gives the slot up, also where it can be used: its stream cannot be decoded, since
	// its publication is younger, for one.
	NewSlot bool `json:"new_slot,omitempty"`
	// Failover makes the new slot one that standbys keep a copy of (17+).
	Failover bool `json:"failover,omitempty"`
	// PerSecond bounds publishing; 0 does not.
	PerSecond float64 `json:"per_second,omitempty"`
	// Reason is why, in words.
	Reason string `json:"reason,omitempty"`
	// LockTimeout bounds the making of the slot. 0: 10 s.
	LockTimeout time.Duration `json:"-"`
	// TopicOnly is called with each record whose event the table does not have; may be nil.
	TopicOnly func(rec *topic.Record, eventID []byte) error `json:"-"`
}

// apply puts what a person wants into the diagnosis.
func (o *Options) apply(d Diagnosis) Diagnosis {
	if o.NewSlot && d.Method != NewSlot {
		d.Method, d.MethodWhy = NewSlot, "that was asked for"
	}
	return d
}

// Recovery works on one publisher. It is for one goroutine. Errors are *operr.Error.
type Recovery struct {
	cfg   Config
	conn  *pgx.Conn
	store *checkpoint.Store
}

// Open connects.
func Open(ctx context.Context, cfg Config) (*Recovery, error) {
	r := &Recovery{cfg: cfg}
	var err error
	if r.conn, err = replication.ConnectSQL(ctx, cfg.Replication.ConnString, r.appName()); err != nil {
		return nil, err
	}
	// A role's time-out is not meant for a list of many events.
	if _, err := r.conn.Exec(ctx, `SELECT set_config('statement_timeout', '0', false)`); err != nil {
		r.Close(ctx)
		return nil, sqlError("prepare", "the session", err)
	}
	r.store = checkpoint.NewStore(r.conn, checkpoint.StoreConfig{Publisher: cfg.Publisher, Slot: cfg.Replication.Slot, Holder: cfg.Actor})
	return r, nil
}

// Close ends the session, and with it the lock.
func (r *Recovery) Close(ctx context.Context) { replication.CloseSQL(ctx, r.conn) }

func (r *Recovery) appName() string { return "postrider recover " + r.cfg.Publisher }

func (r *Recovery) progress(p Progress) {
	if r.cfg.Progress != nil {
		r.cfg.Progress(p)
	}
}

// DryRun shows what is true and what Run would do. It changes nothing: what it makes of a
// slot that is kept is a temporary copy.
func (r *Recovery) DryRun(ctx context.Context, o Options) (Report, error) {
	f, err := r.look(ctx)
	if err != nil {
		return Report{}, err
	}
	d := o.apply(Diagnose(&f))
	report := Report{DryRun: true, Evidence: evidenceOf(&f), Diagnosis: d, ToPublish: []Group{}, Unknown: []string{}}
	open, _, err := openTasks(ctx, r.conn, r.cfg.Publisher)
	if err != nil {
		return report, err
	}
	if len(open) > 0 {
		report.Evidence.OpenTask = evidenceOfTask(&open[0])
		return report, nil
	}
	if d.Case == CaseHealthy && !o.Anyway && !o.NewSlot {
		return report, nil
	}
	if f.Slot.Active {
		return report, r.errHeld(ctx, f.Slot)
	}
	reader, err := r.openReader(ctx)
	if err != nil {
		return report, err
	}
	defer reader.Close(ctx)
	c, sel := r.newComparison(&f, d.Scope, o), selection(&f, d.Scope, o.Since)
	report.Order = reader.Order()
	if c.result.WithoutID, c.result.Shared, err = reader.Losses(ctx, sel); err != nil {
		return report, err
	}
	if err := r.weigh(ctx, reader, c, 0, sel, d.Method); err != nil {
		return report, err
	}
	report.Compared, report.Comparison, report.ToPublish = !o.WithoutTopics, &c.result, c.c.groups()
	report.Unknown = unknown(&f, d, o, &c.result)
	return report, nil
}

// Run recovers. The report is filled as far as it came. An end of ctx leaves a task that
// Resume takes up.
func (r *Recovery) Run(ctx context.Context, o Options) (Report, error) {
	if err := r.lock(ctx); err != nil {
		return Report{}, err
	}
	open, others, err := openTasks(ctx, r.conn, r.cfg.Publisher)
	switch {
	case err != nil:
		return Report{}, err
	case len(open) > 0:
		return Report{}, &operr.Error{
			Class: operr.Config, Op: "recover", Subject: fmt.Sprintf("publisher %q", r.cfg.Publisher),
			Err:  fmt.Errorf("recovery %d of %s by %s has not ended (%s)", open[0].ID, open[0].CreatedAt.UTC().Format(time.RFC3339), open[0].CreatedBy, open[0].Detail.Step),
			Hint: "postrider recover --resume, or postrider recover --abandon",
		}
	case len(others) > 0:
		return Report{}, &operr.Error{
			Class: operr.Config, Op: "recover", Subject: fmt.Sprintf("publisher %q", r.cfg.Publisher),
			Err: fmt.Errorf("%s has not ended", others[0]), Hint: "postrider backfill --resume, or cancel it",
		}
	}
	f, err := r.look(ctx)
	if err != nil {
		return Report{}, err
	}
	d := o.apply(Diagnose(&f))
	report := Report{Evidence: evidenceOf(&f), Diagnosis: d, ToPublish: []Group{}, Unknown: []string{}}
	if d.Case == CaseHealthy && !o.Anyway && !o.NewSlot {
		return report, nil
	}
	if f.Slot.Active {
		return report, r.errHeld(ctx, f.Slot)
	}
	if f.Slot.Exists && !f.Slot.Logical {
		return report, f.Slot.Problem(f.Database) // a standby may live by it
	}
	t, err := r.beginTask(ctx, &f, d, o)
	if err != nil {
		return report, err
	}
	if err := r.alone(ctx, t); err != nil {
		return report, err
	}
	return r.work(ctx, report, t, &f, o)
}

// alone gives the task up where a relay took the slot before the task was there to keep it
// out: it publishes what the stream brings, and nothing of the table may come between.
func (r *Recovery) alone(ctx context.Context, t *task) error {
	slot, err := replication.ReadSlot(ctx, r.conn, r.cfg.Replication.Slot)
	if err != nil || !slot.Active {
		return err
	}
	return errors.Join(r.errHeld(ctx, slot), r.giveUp(ctx, t, "somebody has taken the slot meanwhile"))
}

// Resume goes on with the open task. Decisions in o replace those of the task.
func (r *Recovery) Resume(ctx context.Context, o Options) (Report, error) {
	if err := r.lock(ctx); err != nil {
		return Report{}, err
	}
	open, _, err := openTasks(ctx, r.conn, r.cfg.Publisher)
	if err != nil {
		return Report{}, err
	}
	if len(open) == 0 {
		return Report{}, &operr.Error{Class: operr.Config, Op: "resume", Subject: "the recovery", Err: errors.New("none is open"), Hint: "postrider recover"}
	}
	t := &open[0]
	f, err := r.look(ctx)
	if err != nil {
		return Report{}, err
	}
	d := Diagnose(&f)
	report := Report{Evidence: evidenceOf(&f), Diagnosis: d, ToPublish: []Group{}, Unknown: []string{}}
	if f.Slot.Active {
		return report, r.errHeld(ctx, f.Slot)
	}
	if o, err = r.optionsOf(ctx, t, o); err != nil {
		return report, err
	}
	if !t.Detail.Vantage.holds(&f) {
		r.begunAnew(t, d)
	}
	if err := r.noteResume(ctx, t); err != nil {
		return report, err
	}
	return r.work(ctx, report, t, &f, o)
}

// begunAnew takes a task back to its beginning: its slot is not there, is not in the task,
// or does not stand where the task has it. A slot of a task that makes one is never
// trusted; one that was to be kept may be gone.
func (r *Recovery) begunAnew(t *task, d Diagnosis) {
	t.Detail.Step, t.Detail.Scope = stepBegun, d.Scope
	if t.Detail.Method == KeepSlot {
		t.Detail.Method = d.Method
	}
}

// optionsOf are those that the task was begun with, and what is decided since.
func (r *Recovery) optionsOf(ctx context.Context, t *task, o Options) (Options, error) {
	var params struct {
		Options Options `json:"options"`
	}
	var doc []byte
	err := r.conn.QueryRow(ctx, `SELECT params FROM postrider.task WHERE id = $1`, t.ID).Scan(&doc)
	if err == nil {
		err = json.Unmarshal(doc, &params)
	}
	if err != nil {
		return o, sqlError("read the options of", fmt.Sprintf("task %d", t.ID), err)
	}
	begun := params.Options
	begun.LockTimeout, begun.TopicOnly = o.LockTimeout, o.TopicOnly
	if o.Conflicts != "" {
		begun.Conflicts = o.Conflicts
	}
	if o.Expired != "" {
		begun.Expired = o.Expired
	}
	if o.PerSecond > 0 {
		begun.PerSecond = o.PerSecond
	}
	return begun, nil
}

func (r *Recovery) noteResume(ctx context.Context, t *task) error {
	t.State = "running"
	return r.inTx(ctx, "resume", func(tx pgx.Tx) error {
		if err := t.save(ctx, tx); err != nil {
			return err
		}
		return r.audit(ctx, tx, "recover.resume", map[string]any{"task": t.ID, "step": t.Detail.Step, "done": t.Done, "total": t.Total})
	})
}

// work takes the steps that are left. The error of a context that ends names the way on.
func (r *Recovery) work(ctx context.Context, report Report, t *task, f *Facts, o Options) (Report, error) {
	report.Task = t.ID
	err := r.steps(ctx, &report, t, f, o)
	if err != nil && ctx.Err() != nil {
		err = &operr.Error{
			Class: operr.DrainIncomplete, Op: "recover", Subject: fmt.Sprintf("task %d", t.ID),
			Err:  fmt.Errorf("%w, after the step %q; nothing is lost, the relay does not start meanwhile", context.Cause(ctx), t.Detail.Step),
			Hint: "postrider recover --resume",
		}
	}
	return report, err
}

func (r *Recovery) steps(ctx context.Context, report *Report, t *task, f *Facts, o Options) error {
	reader, err := r.openReader(ctx)
	if err != nil {
		return err
	}
	defer reader.Close(ctx)
	if t.Detail.Step == stepCompared || t.Detail.Step == stepPublished { // of an attempt that was cut off
		if err := r.takeUp(ctx, reader, t, o); err != nil {
			return err
		}
	}
	if t.Detail.Step == stepBegun {
		if err := r.list(ctx, reader, t, f, o); err != nil {
			return err
		}
	}
	if t.Detail.Step == stepListed {
		if err := r.compare(ctx, reader, report, t, f, o); err != nil {
			return err
		}
	}
	report.Comparison, report.Order = t.Detail.Settled, t.Detail.Order
	report.Unknown = unknown(f, Diagnosis{Method: t.Detail.Method, Scope: t.Detail.Scope}, o, t.Detail.Settled)
	if t.Detail.Step == stepCompared {
		if err := r.publish(ctx, reader, report, t, o); err != nil {
			return err
		}
	}
	if t.Detail.Step == stepPublished {
		if err := r.parkLeft(ctx, reader, t); err != nil {
			return err
		}
	}
	report.Published, report.Parked, report.Gone = t.Detail.Published, t.Detail.Parked, t.Detail.Gone
	return r.close(ctx, report, t, f)
}

func (r *Recovery) openReader(ctx context.Context) (*outbox.Reader, error) {
	return outbox.Open(ctx, outbox.Config{
		ConnString: r.cfg.Replication.ConnString, AppName: r.appName() + " (table)", Publications: r.cfg.Replication.Publications, Router: r.cfg.Router,
	})
}

// publish is step 4.
func (r *Recovery) publish(ctx context.Context, reader *outbox.Reader, report *Report, t *task, o Options) error {
	held, err := r.heldUnits(ctx)
	if err != nil {
		return err
	}
	withheld := held
	if len(t.Detail.Withheld) > 0 {
		var more []reissue.Unit
		if err := json.Unmarshal(t.Detail.Withheld, &more); err != nil {
			return &operr.Error{Class: operr.Internal, Op: "read", Subject: "the task's held keys", Err: err}
		}
		withheld = append(withheld, more...)
	}
	result, err := reissue.Run(ctx, reissue.Config{
		Publisher: r.cfg.Kafka, PerSecond: o.PerSecond, Total: t.Total, Refused: t.Refused,
		Mark: mark(t.ID), Withheld: withheld, MaxHeld: len(withheld) + reissue.DefaultMaxHeld,
		Save: reissue.NewDesk(r.conn, r.cfg.Publisher, r.cfg.Actor).Saver(t.ID),
		Progress: func(p reissue.Progress) {
			r.progress(Progress{Phase: "publish", Done: p.Done, Total: p.Total, AwaitedTopics: p.AwaitedTopics})
		},
	}, t.Done, func(ctx context.Context, from int64, yield reissue.Yield) error {
		return reader.Items(ctx, t.ID, from, outbox.Yield(yield))
	})
	report.PossibleDuplicates = result.PossibleDuplicates
	if err != nil {
		return err
	}
	if err := r.reload(ctx, t); err != nil {
		return err
	}
	t.Detail.Step = stepPublished
	return r.inTx(ctx, "note that all is published", func(tx pgx.Tx) error { return t.save(ctx, tx) })
}

// heldUnits are the keys of which an event is parked: later ones wait behind it.
func (r *Recovery) heldUnits(ctx context.Context) ([]reissue.Unit, error) {
	rows, err := r.conn.Query(ctx, `SELECT DISTINCT unit FROM postrider.parked WHERE publisher = $1 AND state IN ('parked', 'retry', 'publishing') AND unit IS NOT NULL`, r.cfg.Publisher)
	if err != nil {
		return nil, sqlError("read", "the held keys", err)
	}
	units, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (u reissue.Unit, err error) {
		var b []byte
		err = row.Scan(&b)
		copy(u[:], b)
		return u, err
	})
	return units, sqlError("read", "the held keys", err)
}
