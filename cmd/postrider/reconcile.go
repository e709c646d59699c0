package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reconcile"
)

type reconcileOptions struct {
	configFlag
	app          *app
	since, until string
	reason       string
	repair, json bool
	reconcile.Options
}

func newReconcileCommand(a *app) *cobra.Command {
	opts := reconcileOptions{app: a}
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Compare the table with the topics",
		Long: "Compares the rows of a window of time with the records of the topics, by event id: rows whose event is in no topic, is\n" +
			"there more than once, with another key, value or header, or behind a later event of its key; and records whose event\n" +
			"the table does not have (purged and deleted rows are among those: they are counted, and no finding).\n\n" +
			"A row is missing only if its event had to be there: what the checkpoint does not cover yet is not due, what waits in\n" +
			"postrider.parked is parked. Rows that committed late are compared by the first run that can see them, whatever time\n" +
			"they carry; copies that replay, backfill and recover published say so in a header, and are no duplicates. An event\n" +
			"that was wrong and has a right copy behind it is healed. Only committed records count.\n\n" +
			"It reads only, beside a running relay. The exit code is 0 when they agree and 8 when not, for cron. After a crash the\n" +
			"relay sends again what it had not written down as published: --max-duplicates allows for that.\n\n" +
			"A million rows take about 250 MB of memory and some seconds; of a larger window table and topics are read once\n" +
			"for each million.\n\n" +
			"With --repair and a reason, a replay is planned for what is missing and different; it says how to begin it.",
		Example: "  postrider reconcile\n" +
			"  postrider reconcile --since 90m --aggregate-type order\n" +
			"  postrider reconcile --since 2026-05-03T00:00:00Z --until 2026-05-04T00:00:00Z --json\n" +
			"  postrider reconcile --since all --repair --reason \"broker lost its disk on 3 May\"",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.validate(time.Now()); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	flags, o := cmd.Flags(), &opts.Options
	flags.StringVar(&opts.since, "since", "24h", "rows from this `time` on: 2026-05-03T10:00:00Z, or 90m for so long ago, or all")
	flags.StringVar(&opts.until, "until", "", "rows before this `time`")
	flags.StringVar(&o.Aggregate, "aggregate", "", "events of this `key`")
	flags.StringVar(&o.AggregateType, "aggregate-type", "", "events of this aggregate `type`")
	flags.StringVar(&o.EventType, "type", "", "events of this event `type`")
	flags.StringSliceVar(&o.Topics, "topic", nil, "`topics` to read besides those that the rows lead to")
	flags.Int64Var(&o.MostDuplicates, "max-duplicates", 0, "so many events may be there more than once")
	flags.IntVar(&o.Examples, "examples", reconcile.DefaultExamples, "list so many findings of each kind")
	flags.IntVar(&o.MostRows, "max-rows", reconcile.DefaultMostRows, "keep so many rows in memory at once, at 220 bytes each")
	flags.BoolVar(&opts.repair, "repair", false, "plan a replay of what is missing and different; wants --reason")
	addReason(cmd, &opts.reason)
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *reconcileOptions) validate(now time.Time) error {
	var problems []error
	if o.since != "all" {
		at, err := timeFlag("since", o.since, now)
		if at != nil {
			o.Since = *at
		}
		problems = append(problems, err)
	}
	if o.MostDuplicates < 0 {
		problems = append(problems, fmt.Errorf("--max-duplicates is %d; must be 0 or more", o.MostDuplicates))
	}
	at, err := timeFlag("until", o.until, now)
	if at != nil {
		o.Until = *at
	}
	problems = append(problems, err, o.Options.Validate())
	switch {
	case o.repair:
		problems = append(problems, needReason(o.reason))
	case o.reason != "":
		problems = append(problems, errors.New("--reason is for --repair"))
	}
	return errors.Join(problems...)
}

func (o *reconcileOptions) run(ctx context.Context) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	o.limitMemory()
	line := newProgressLine(o.app.err)
	found, err := reconcile.Run(ctx, reconcileConfig(cfg, func(p reconcile.Progress) { line.show(p.Phase, p.Done, p.Total) }), o.Options)
	line.close()
	switch {
	case ctx.Err() != nil && err != nil:
		return &operr.Error{Class: operr.DrainIncomplete, Op: "reconcile", Err: errors.New("interrupted before all was compared"), Hint: "the same again, or a shorter window (--since)"}
	case err != nil:
		return err
	}
	result := reconciled{Report: found.Report}
	if o.repair && len(found.Repair) > 0 {
		if result.Repair, err = o.plan(ctx, cfg, found.Repair); err != nil {
			return errors.Join(err, o.print(result))
		}
	}
	return errors.Join(o.findings(result, len(found.Repair)), o.print(result))
}

// limitMemory makes the garbage collector keep to what the rows take, unless the
// environment says otherwise.
func (o *reconcileOptions) limitMemory() {
	if _, set := os.LookupEnv("GOMEMLIMIT"); !set {
		debug.SetMemoryLimit(64<<20 + int64(o.MostRows)*reconcile.BytesPerRow)
	}
}

func reconcileConfig(cfg *config.Config, progress func(reconcile.Progress)) reconcile.Config {
	return reconcile.Config{
		ConnString: cfg.Postgres.ConnString(), AppName: "postrider reconcile", Publisher: cfg.Publisher.Name, Slot: cfg.Postgres.Slot,
		Actor: actor(), Replication: cfg.ReplicationConfig(), Publications: cfg.Postgres.Publication, Router: cfg.Router(), Kafka: cfg.PublisherConfig(), Progress: progress,
	}
}

// reconciled is what --json prints.
type reconciled struct {
	reconcile.Report
	// Repair is the replay that was planned; null where none was asked for, or none is needed.
	Repair *repairPlan `json:"repair"`
}

// repairPlan is a planned replay.
type repairPlan struct {
	Task   int64 `json:"task"`
	Events int64 `json:"events"`
	// NeedsApproval says that a second person has to approve it.
	NeedsApproval bool `json:"needs_approval"`
	// Command begins it.
	Command string `json:"command"`
}

func (o *reconcileOptions) print(r reconciled) error {
	if o.json {
		return writeJSON(o.app.out, r)
	}
	return printReconciled(o.app.out, r)
}

// findings is the error of what is not right.
func (o *reconcileOptions) findings(r reconciled, repairable int) error {
	if r.OK {
		return nil
	}
	var what []string
	for _, kind := range []struct {
		n    int64
		text string
	}{
		{r.Missing, "missing"}, {r.Different, "different"}, {r.OutOfOrder, "out of order"}, {max(0, r.Duplicates-r.MostDuplicates), "there more than once"},
	} {
		if kind.n > 0 {
			what = append(what, fmt.Sprintf("%d %s", kind.n, kind.text))
		}
	}
	e := &operr.Error{Class: operr.Findings, Op: "reconcile", Subject: "table and topics", Err: fmt.Errorf("%d rows: %s", r.Rows, strings.Join(what, ", "))}
	switch {
	case r.Repair != nil:
		e.Hint = r.Repair.Command
	case repairable > 0:
		e.Hint = "the same with --repair --reason \"…\", which plans a replay of what is missing and different"
	case r.OutOfOrder > 0 || r.Duplicates > r.MostDuplicates:
		e.Hint = "postrider trace EVENT_ID, for where an event is; was another relay, or a second slot, at work?"
	}
	return e
}
