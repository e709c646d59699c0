package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/internal/verify"
)

// skippedIDs is how many of the skipped events the audit keeps by id.
const skippedIDs = 1000

type checkpointAdvanceOptions struct {
	configFlag
	app       *app
	lsn       string
	now       bool
	yes       bool
	uncounted bool
	reason    string
	dry       bool
	json      bool

	target event.LSN
}

// advanceResult is what `checkpoint advance --json` prints.
type advanceResult struct {
	DryRun bool      `json:"dry_run" doc:"nothing was to be changed"`
	Target event.LSN `json:"target_lsn" doc:"where the position is to go"`
	// Skipped is null where it could not be counted; Uncounted says why.
	Skipped   *peek.Report         `json:"skipped" doc:"what is not published and lies before the target, as in checkpoint peek; null where it could not be counted"`
	Uncounted string               `json:"uncounted,omitempty" doc:"why it could not be counted"`
	Advanced  *checkpoint.Advanced `json:"advanced" doc:"what was changed; null where nothing was"`
}

func newCheckpointAdvanceCommand(a *app) *cobra.Command {
	opts := checkpointAdvanceOptions{app: a}
	cmd := &cobra.Command{
		Use:   "advance",
		Short: "Move the position forward, over what is not published",
		Long: "Moves the stored position and the slot forward to a position, for what must not, or can not, be published from the stream. It\n" +
			"shows how many events of which types are skipped; to skip any it takes --yes. They stay in the table, and `postrider replay`\n" +
			"publishes them; `purge` counts them as done. A slot cannot go back. Nothing is moved while a relay holds the slot. Who, when,\n" +
			"why, from, to and what was skipped are kept in the audit.",
		Example: "  postrider checkpoint advance --now --dry-run\n" +
			"  postrider checkpoint advance --lsn 16/B374D848 --yes --reason \"bulk import, published by hand, INC-812\"",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.Validate(cmd.Flags().Changed("lsn")); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&opts.lsn, "lsn", "", "move to this `position`, such as 16/B374D848: the end of a transaction")
	flags.BoolVar(&opts.now, "now", false, "move to the end of the WAL")
	flags.BoolVar(&opts.yes, "yes", false, "skip events that are not published")
	flags.BoolVar(&opts.uncounted, "uncounted", false, "with --yes: go on also where what is skipped can not be counted")
	addReason(cmd, &opts.reason)
	addDryRun(cmd, &opts.dry)
	addJSON(cmd, &opts.json)
	return cmd
}

// Validate checks the flags before anything is read or connected to.
func (o *checkpointAdvanceOptions) Validate(lsnGiven bool) error {
	var problems []error
	switch {
	case o.now == lsnGiven:
		problems = append(problems, errors.New("wants either --lsn or --now"))
	case lsnGiven:
		// Strictly: a pasted position with a stray character must not become another one (case C40).
		target, err := event.ParseLSN(o.lsn)
		if err != nil {
			problems = append(problems, fmt.Errorf("--lsn: %w", err))
		} else if target == 0 {
			problems = append(problems, errors.New("--lsn 0/0 is no position"))
		}
		o.target = target
	}
	if !o.dry {
		problems = append(problems, needReason(o.reason))
	}
	if o.uncounted && !o.yes {
		problems = append(problems, errors.New("--uncounted is for --yes"))
	}
	return errors.Join(problems...)
}

func (o *checkpointAdvanceOptions) run(ctx context.Context) error {
	return o.withPosition(ctx, "advance", func(ctx context.Context, p *position) error {
		if err := checkpoint.LockPublisher(ctx, p.conn, p.cfg.Publisher.Name); err != nil {
			return err
		}
		result := advanceResult{DryRun: o.dry, Target: o.target}
		err := o.advance(ctx, p, &result)
		if result.Skipped == nil && result.Uncounted == "" && result.Advanced == nil && err != nil {
			return err // refused before anything was counted
		}
		return errors.Join(err, o.print(result))
	})
}

func (o *checkpointAdvanceOptions) advance(ctx context.Context, p *position, result *advanceResult) error {
	standing, err := verify.Look(ctx, p.desk, p.peek.Replication)
	if err != nil {
		return err
	}
	st := standing.State
	if o.now {
		result.Target = st.WALEnd
	}
	due, err := checkpoint.CheckAdvance(st, standing.Start, result.Target)
	switch {
	case standing.Refusal != nil:
		return standing.Refusal
	case err != nil:
		return err
	case !due:
		result.Advanced = &checkpoint.Advanced{From: standing.Start.Skip, To: standing.Start.Skip, SlotFrom: st.Slot.Confirmed, SlotTo: st.Slot.Confirmed}
		return nil
	}
	// Without it the stream would end at the next row of any table, this command's own in
	// the audit first.
	if _, err := peek.Publications(ctx, p.conn, p.peek); err != nil {
		return err
	}
	if err := o.proved(ctx, p, standing); err != nil {
		return err
	}
	if err := o.count(ctx, p, result); err != nil {
		return err
	}
	if o.dry {
		return nil
	}
	advanced, err := p.desk.Advance(ctx, st, standing.Start, result.Target, o.detail(*result))
	if err == nil || advanced.To > advanced.From {
		result.Advanced = &advanced
	}
	return err
}

// proved: past a slot in doubt, the gap that may lie before it would never be looked for.
func (o *checkpointAdvanceOptions) proved(ctx context.Context, p *position, standing verify.Standing) error {
	if !standing.Start.Doubtful {
		return nil
	}
	report, err := p.verify(ctx, o.app.err, verify.Options{Names: 5})
	if err != nil {
		return err
	}
	if report.Proved() {
		return nil
	}
	last := report.Checks[len(report.Checks)-1]
	return &operr.Error{
		Class: operr.Slot, Op: "advance", Subject: "publisher " + p.cfg.Publisher.Name,
		Err: fmt.Errorf("what lies before the slot is in doubt: %s", last.Detail), Hint: standing.Hint(),
	}
}

// count sees to it that nothing is skipped unasked.
func (o *checkpointAdvanceOptions) count(ctx context.Context, p *position, result *advanceResult) error {
	report, err := p.unpublished(ctx, o.app.err, peek.Options{Until: result.Target, First: skippedIDs})
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		result.Uncounted = err.Error()
		if o.dry || o.yes && o.uncounted {
			return nil
		}
		return &operr.Error{
			Class: operr.ClassOf(err), Op: "count what would be skipped", Err: err,
			Hint: "heal that; or --yes --uncounted, which skips whatever lies before " + result.Target.String(),
		}
	}
	result.Skipped = &report
	switch {
	case report.Inside != 0:
		return &operr.Error{
			Class: operr.Config, Op: "advance to", Subject: result.Target.String(),
			Err:  fmt.Errorf("it lies inside the commit record of a transaction that ends at %s", report.Inside),
			Hint: fmt.Sprintf("--lsn %s, which skips that transaction too", report.Inside),
		}
	case report.Events > 0 && !o.yes && !o.dry:
		return &operr.Error{
			Class: operr.Config, Op: "advance to", Subject: result.Target.String(),
			Err:  fmt.Errorf("nothing was changed: %d events that are not published would be skipped", report.Events),
			Hint: "--yes, if they are to be skipped; or postrider run, which publishes them",
		}
	}
	return nil
}

// detail is what the audit keeps.
func (o *checkpointAdvanceOptions) detail(r advanceResult) map[string]any {
	d := map[string]any{"reason": o.reason}
	if r.Skipped == nil {
		d["skipped"] = "not counted: " + r.Uncounted
		return d
	}
	ids := []string{}
	for i := range r.Skipped.First {
		ids = append(ids, r.Skipped.First[i].EventID)
	}
	d["skipped"] = map[string]any{
		"events": r.Skipped.Events, "types": countedTypes(*r.Skipped), "first_event_ids": ids,
		"oldest_commit_time": r.Skipped.Oldest, "newest_commit_time": r.Skipped.Newest,
	}
	return d
}

func (o *checkpointAdvanceOptions) print(r advanceResult) error {
	if o.json {
		return writeJSON(o.app.out, r)
	}
	var b strings.Builder
	switch {
	case r.Skipped != nil && r.Skipped.Events > 0:
		fmt.Fprintf(&b, "not published before %s: %d events, committed %s to %s\n", r.Target, r.Skipped.Events,
			r.Skipped.Oldest.UTC().Format(time.RFC3339), r.Skipped.Newest.UTC().Format(time.RFC3339))
		printCounts(&b, r.Skipped.Counts)
	case r.Skipped != nil:
		fmt.Fprintf(&b, "not published before %s: nothing\n", r.Target)
	case r.Uncounted != "":
		fmt.Fprintf(&b, "not published before %s: not known: %s\n", r.Target, r.Uncounted)
	}
	switch a := r.Advanced; {
	case a == nil:
	case a.From == a.To && a.SlotFrom == a.SlotTo:
		fmt.Fprintf(&b, "the position is there already: %s\n", a.To)
	default:
		fmt.Fprintf(&b, "the position moved from %s to %s, the slot from %s to %s\n", a.From, a.To, a.SlotFrom, a.SlotTo)
		if r.Skipped != nil && r.Skipped.Events > 0 {
			fmt.Fprintf(&b, "the skipped events are in the table still: postrider replay publishes them; postrider checkpoint history has their ids\n")
		}
	}
	_, err := io.WriteString(o.app.out, b.String())
	return err
}
