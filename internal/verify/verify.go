// Package verify holds a publisher's stored position against its slot, the server and
// the table (rules 2 to 4), as a run does at its start and more: it tells everything that
// it looked at, changes nothing, and works while a relay runs.
package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/facts"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/internal/tickoff"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/replication"
)

// Options say how far it looks.
type Options struct {
	// Quick leaves the table and the stream out.
	Quick bool
	// Names is how many rows that may be missing are named.
	Names int
	// Progress is as in peek.Options.
	Progress func(at, until event.LSN)
}

// Report is what was found. The JSON fields are a documented contract.
type Report struct {
	Publisher string             `json:"publisher" doc:"whose position it is"`
	Slot      string             `json:"slot" doc:"the configured slot"`
	OK        bool               `json:"ok" doc:"nothing is wrong"`
	Stored    *event.LSN         `json:"stored_lsn" doc:"the stored position"`
	Confirmed *event.LSN         `json:"confirmed_lsn" doc:"where the slot stands"`
	Current   event.LSN          `json:"current_lsn" doc:"the end of the WAL"`
	Checks    []checkpoint.Check `json:"checks" doc:"everything that was looked at"`
	Table     *TickOff           `json:"table" doc:"the table against the ticked-off snapshot; null where it was not looked at"`

	// Standing is what the checks were made of.
	Standing Standing `json:"-"`
}

// Wrong gives the checks that are.
func (r Report) Wrong() []checkpoint.Check {
	var wrong []checkpoint.Check
	for _, c := range r.Checks {
		if c.Verdict == checkpoint.VerdictWrong {
			wrong = append(wrong, c)
		}
	}
	return wrong
}

// Proved says that a run would start: at once, or after a proof that the table check has
// made already.
func (r Report) Proved() bool {
	if r.Standing.Refusal != nil || !r.Standing.Start.Doubtful {
		return r.Standing.Refusal == nil
	}
	for _, c := range r.Checks {
		if c.Name == tableCheck {
			return c.Verdict == checkpoint.VerdictOK
		}
	}
	return false
}

// Err is the error of class Findings where something is wrong; nil where nothing is.
func (r Report) Err() error {
	wrong := r.Wrong()
	if len(wrong) == 0 {
		return nil
	}
	return &operr.Error{
		Class: operr.Findings, Op: "verify", Subject: fmt.Sprintf("the position of publisher %q", r.Publisher),
		Err:  fmt.Errorf("%d of %d checks are wrong, the first: %s: %s", len(wrong), len(r.Checks), wrong[0].Name, wrong[0].Detail),
		Hint: wrong[0].Fix,
	}
}

// TickOff is the table against the ticked-off snapshot (rule 4): rows that it does not
// cover, less those that come on the stream and those that are parked. Rows that were
// deleted cannot be looked at.
type TickOff struct {
	Snapshot string `json:"snapshot" doc:"the ticked-off snapshot"`
	// Uncovered are the rows that it does not prove to be published.
	Uncovered int `json:"uncovered" doc:"rows that the snapshot does not prove to be published"`
	// Left of them are neither on the stream nor parked.
	Left int `json:"left" doc:"those of them that are neither on the stream nor parked"`
	// Names are event ids of some of those, with their tables.
	Names []string `json:"names" doc:"some of those, by event id and table"`
}

// Standing is what a run would decide by, and what it would decide.
type Standing struct {
	State   checkpoint.State
	History []checkpoint.TimelineSwitch
	// Start is where a run would begin; Refusal the error with which it would end instead.
	Start   checkpoint.Start
	Refusal error
}

// Hint is what to do about rows that may be missing. Where a run would not refuse at once
// it looks further than is looked here.
func (s Standing) Hint() string {
	if s.Refusal == nil && s.Start.Doubtful {
		return "postrider run, which looks for these rows in their topics; where it refuses: " + checkpoint.HintGap
	}
	return checkpoint.HintGap
}

// Look reads it. repl is the relay's; a replication connection is made only after a
// change of the timeline.
func Look(ctx context.Context, desk *checkpoint.Desk, repl replication.Config) (Standing, error) {
	var s Standing
	var err error
	if s.State, err = desk.Look(ctx); err != nil {
		return s, err
	}
	if s.History, err = facts.History(ctx, repl, s.State.Row, s.State.System); err != nil {
		return s, err
	}
	s.Start, s.Refusal = checkpoint.Decide(s.State.Row, s.State.Slot, s.State.System, s.History)
	return s, nil
}

// Run looks at everything. The error is one of looking: what is wrong is in the report.
func Run(ctx context.Context, conn *pgx.Conn, cfg peek.Config, desk *checkpoint.Desk, o Options) (Report, error) {
	r := Report{Publisher: cfg.Publisher, Slot: cfg.Replication.Slot, OK: true}
	// The copy comes before the row and the row before the table: what is committed later
	// than the row's snapshot tells is then on the stream, also beside a running relay.
	var stream *peek.Peek
	var blind error
	if !o.Quick {
		if stream, blind = peek.Open(ctx, conn, cfg, 0); stream != nil {
			defer stream.Close(ctx)
		}
	}
	var err error
	if r.Standing, err = Look(ctx, desk, cfg.Replication); err != nil {
		return r, err
	}
	r.describe()
	r.Checks = append(checkpoint.Examine(r.Standing.State, r.Standing.History), publications(ctx, conn, cfg)...)
	if !o.Quick {
		t := table{cfg: cfg, conn: conn, desk: desk, opts: o, report: &r}
		check, err := t.check(ctx, stream, blind)
		if err != nil {
			return r, err
		}
		r.Checks = append(r.Checks, check)
	}
	r.OK = len(r.Wrong()) == 0
	return r, nil
}

func (r *Report) describe() {
	st := r.Standing.State
	r.Current = st.WALEnd
	if st.Row != nil {
		r.Stored = &st.Row.Confirmed
	}
	if st.Slot.Exists {
		r.Confirmed = &st.Slot.Confirmed
	}
}

// publications asks what a run asks at its start: without one the stream is silent (rule 7).
func publications(ctx context.Context, conn *pgx.Conn, cfg peek.Config) []checkpoint.Check {
	problems := replication.CheckPublications(ctx, conn, replication.CheckConfig{Publications: cfg.Replication.Publications, Tables: cfg.Tables()})
	if len(problems) == 0 {
		return []checkpoint.Check{{Name: "publication", Verdict: checkpoint.VerdictOK, Detail: fmt.Sprintf("%q has the inserts of all sources", cfg.Replication.Publications)}}
	}
	var checks []checkpoint.Check
	for _, p := range problems {
		c := checkpoint.WrongCheck("publication", p)
		c.Detail = p.Error()
		checks = append(checks, c)
	}
	return checks
}

// table is the tick-off.
type table struct {
	cfg    peek.Config
	conn   *pgx.Conn
	desk   *checkpoint.Desk
	opts   Options
	report *Report
}

const tableCheck = "table against snapshot"

// check gives the verdict and fills the report's Table. blind says why there is no stream.
func (t *table) check(ctx context.Context, stream *peek.Peek, blind error) (checkpoint.Check, error) {
	unknown := func(why string) checkpoint.Check {
		return checkpoint.Check{Name: tableCheck, Verdict: checkpoint.VerdictUnknown, Detail: why}
	}
	st := t.report.Standing
	if st.State.Row == nil {
		return unknown("nothing is stored yet"), nil
	}
	snapshot, err := st.State.Row.TickedOff(st.State.System, st.State.Slot.WALEnd, st.History)
	switch {
	case err != nil && st.Start.Doubtful:
		return t.wrong("that the slot passed over nothing cannot be proved: " + err.Error()), nil
	case err != nil:
		return unknown(err.Error()), nil
	}
	suspects, err := t.collect(ctx, snapshot)
	if errors.Is(err, tickoff.ErrTooMany) {
		return unknown(err.Error()), nil
	}
	if err != nil {
		return checkpoint.Check{}, err
	}
	found := &TickOff{Snapshot: st.State.Row.Snapshot, Uncovered: suspects.Len()}
	t.report.Table = found
	if stream != nil {
		if blind, err = t.settle(ctx, suspects, stream); err != nil {
			return checkpoint.Check{}, err
		}
	}
	found.Left, found.Names = suspects.Len(), suspects.Names(t.opts.Names)
	return t.judge(found, blind), nil
}

func (t *table) collect(ctx context.Context, snapshot checkpoint.Snapshot) (*tickoff.Suspects, error) {
	suspects := tickoff.New()
	for _, src := range t.cfg.Router.Sources {
		err := suspects.Collect(ctx, t.conn, src, snapshot)
		if err != nil && !errors.Is(err, tickoff.ErrTooMany) {
			err = &operr.Error{
				Class: operr.Postgres, Op: "read the rows of", Subject: "table " + src.Schema + "." + src.Table, Err: err,
				Hint: "the grants that postrider setup --print shows for the running role, or --quick, which leaves the table out",
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return suspects, nil
}

// settle takes out what is parked, and what comes on the stream up to the end of the WAL
// after the rows were read. blind is why the stream could not be read to its end.
func (t *table) settle(ctx context.Context, suspects *tickoff.Suspects, stream *peek.Peek) (blind, err error) {
	if suspects.Len() == 0 {
		return nil, nil
	}
	if err := parking.NewDesk(t.conn, t.cfg.Publisher, "").EventIDs(ctx, suspects.Settle); err != nil {
		return nil, err
	}
	st, err := t.desk.Look(ctx)
	if err != nil {
		return nil, err
	}
	if err := t.desk.AwaitFlush(ctx, st.WALEnd); err != nil {
		return nil, err
	}
	o := peek.Options{Skip: st.WALEnd, Until: st.WALEnd, SystemID: st.System.ID, Each: suspects.Settle}
	if t.opts.Progress != nil {
		o.Progress = func(at event.LSN) { t.opts.Progress(at, st.WALEnd) }
	}
	_, blind = stream.Read(ctx, o)
	return blind, context.Cause(ctx)
}

func (t *table) wrong(detail string) checkpoint.Check {
	return checkpoint.Check{Name: tableCheck, Verdict: checkpoint.VerdictWrong, Detail: detail, Fix: t.report.Standing.Hint()}
}

// judge: what is left is a gap where the slot stands past what is stored, since then it
// should have come on the stream. Else it was published between the snapshot and the
// stored position, or an UPDATE has given an old row a new transaction: nothing here can
// tell that from a missing one.
func (t *table) judge(found *TickOff, blind error) checkpoint.Check {
	st := t.report.Standing
	counts := fmt.Sprintf("%d rows are not covered by the snapshot, %d of them are neither on the stream nor parked", found.Uncovered, found.Left)
	switch {
	case found.Uncovered == 0:
		return checkpoint.Check{Name: tableCheck, Verdict: checkpoint.VerdictOK, Detail: "every row that is there is proved to be published or parked"}
	case blind != nil && st.State.Slot.Exists && st.State.Slot.WALStatus != replication.WALStatusLost:
		return checkpoint.Check{
			Name: tableCheck, Verdict: checkpoint.VerdictUnknown,
			Detail: fmt.Sprintf("%d rows are not covered by the snapshot, and the stream cannot be read: %v", found.Uncovered, blind),
		}
	case blind != nil:
		return t.wrong(fmt.Sprintf("%d rows are not covered by the snapshot, and nothing comes from the slot: they may be missing from Kafka", found.Uncovered))
	case found.Left == 0:
		return checkpoint.Check{Name: tableCheck, Verdict: checkpoint.VerdictOK, Detail: counts}
	case st.Refusal != nil || st.Start.Doubtful:
		return t.wrong(counts + ": they may be missing from Kafka")
	}
	return checkpoint.Check{Name: tableCheck, Verdict: checkpoint.VerdictOK, Detail: counts + ": published since, or updated since (postrider reconcile tells)"}
}
