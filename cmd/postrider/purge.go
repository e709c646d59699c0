package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/outbox"
)

type purgeOptions struct {
	configFlag
	out        io.Writer
	errs       io.Writer
	olderThan  time.Duration
	given      bool // --older-than
	tables     []string
	beforeSlot bool
	partitions bool
	batch      int
	pause      time.Duration
	dry        bool
	json       bool
}

func newPurgeCommand(a *app) *cobra.Command {
	opts := purgeOptions{out: a.out, errs: a.err}
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Delete confirmed rows from the outbox",
		Long: "Deletes rows that are older than the retention and that the checkpoint proves to be published: written by a\n" +
			"transaction that had ended before the checkpoint's ticked-off snapshot was taken. No id and no time of a row decides\n" +
			"that. Events that are outstanding among the parked ones or in a task stay, and so do rows from before the slot, unless\n" +
			"--before-slot says that they were published otherwise. Where several publishers have a checkpoint in the database,\n" +
			"the one that is furthest behind decides.\n\n" +
			"It deletes in small batches with pauses, and looks through each table once; nothing is published by it. Begin with\n" +
			"--dry-run, which counts what would go, and what stays and why. VACUUM, or autovacuum, makes the room usable again.\n\n" +
			"With --partitions, tables that are partitioned by range of time lose whole partitions: those that end before the\n" +
			"retention and of which every row may go. A partition is detached concurrently, locked, looked through again, and\n" +
			"dropped; or attached again. The role must own the table.\n\n" +
			"Interrupted, it ends behind the batch at hand; the exit code is 7.",
		Example: "  postrider purge --older-than 168h --dry-run\n  postrider purge\n  postrider purge --partitions --older-than 720h --table public.outbox",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.given = cmd.Flags().Changed("older-than")
			if err := opts.Validate(); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&opts.olderThan, "older-than", 0, "instead of the configured retention: rows of at least this `age`; 0s takes all that is confirmed")
	flags.StringSliceVar(&opts.tables, "table", nil, "only these `tables`, written schema.table")
	flags.BoolVar(&opts.beforeSlot, "before-slot", false, "rows from before the slot, too: a backfill or another relay has published them")
	flags.BoolVar(&opts.partitions, "partitions", false, "drop whole partitions instead of deleting rows")
	flags.IntVar(&opts.batch, "batch", 0, "delete this `number` of rows at once (default the configured one, 1000)")
	flags.DurationVar(&opts.pause, "pause", -1, "`time` between two batches (default the configured one, 100ms)")
	flags.Lookup("pause").DefValue = ""
	flags.Lookup("batch").DefValue = ""
	addDryRun(cmd, &opts.dry)
	addJSON(cmd, &opts.json)
	return cmd
}

// Validate checks the flags before anything is read or connected to.
func (o *purgeOptions) Validate() error {
	var problems []error
	if o.olderThan < 0 {
		problems = append(problems, fmt.Errorf("--older-than is %s; must be 0s or more", o.olderThan))
	}
	if o.batch < 0 || o.batch > 10_000 {
		problems = append(problems, fmt.Errorf("--batch is %d; must be from 1 to 10000", o.batch))
	}
	if o.pause != -1 && (o.pause < 0 || o.pause > time.Minute) {
		problems = append(problems, fmt.Errorf("--pause is %s; must be from 0s to 1m", o.pause))
	}
	return errors.Join(problems...)
}

func (o *purgeOptions) run(ctx context.Context) error {
	graceful, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := o.load()
	if err != nil {
		return err
	}
	purgeCfg, err := o.purgeConfig(cfg)
	if err != nil {
		return err
	}
	line := newProgressLine(o.errs)
	purgeCfg.Graceful = graceful
	purgeCfg.Progress = func(p outbox.PurgeProgress) {
		line.show(fmt.Sprintf("purging %s: %d rows deleted, looked through", p.Table, p.Deleted), int64(p.Looked), 100)
	}
	purge, err := outbox.OpenPurge(graceful, purgeCfg)
	if err != nil {
		return err
	}
	defer purge.Close(context.WithoutCancel(ctx))
	work := map[bool]map[bool]func(context.Context) (outbox.PurgeResult, error){
		false: {false: purge.Run, true: purge.DryRun},
		true:  {false: purge.RunPartitions, true: purge.DryRunPartitions},
	}[o.partitions][o.dry]
	if o.dry {
		ctx = graceful // nothing to bring to an end
	}
	result, worked := work(ctx)
	line.close()
	if errors.Is(graceful.Err(), context.Canceled) && worked != nil && operr.ClassOf(worked) != operr.DrainIncomplete {
		worked = &operr.Error{Class: operr.DrainIncomplete, Op: "purge", Err: errors.Join(errors.New("interrupted"), worked), Hint: "the same command goes on"}
	}
	return errors.Join(worked, o.print(result))
}

// purgeConfig puts flags over the configuration.
func (o *purgeOptions) purgeConfig(cfg *config.Config) (outbox.PurgeConfig, error) {
	out := outbox.PurgeConfig{
		Config: outbox.Config{
			ConnString: cfg.Postgres.ConnString(), AppName: "postrider purge", Publications: cfg.Postgres.Publication,
		},
		Publisher: cfg.Publisher.Name, Actor: actor(), BeforeSlot: o.beforeSlot,
		Batch: cmp.Or(o.batch, cfg.Purge.Batch), Pause: pauseOf(time.Duration(cfg.Purge.Pause)),
	}
	if o.pause >= 0 {
		out.Pause = pauseOf(o.pause)
	}
	sources := cfg.Router().Sources
	found := map[string]bool{}
	for i, rule := range cfg.PurgeRules() {
		name := cfg.Sources[i].Table.String()
		found[name] = true
		if len(o.tables) > 0 && !slices.Contains(o.tables, name) {
			continue
		}
		switch {
		case o.given:
			rule.Retention = &o.olderThan
		case rule.Retention == nil:
			return out, &operr.Error{
				Class: operr.Config, Op: "purge", Subject: "table " + name, Err: errors.New("no retention is configured"),
				Hint: "--older-than, or purge.retention in the configuration",
			}
		}
		out.Router.Sources = append(out.Router.Sources, sources[i])
		out.Rules = append(out.Rules, outbox.PurgeRule{Retention: *rule.Retention, Age: rule.Age})
	}
	for _, name := range o.tables {
		if !found[name] {
			return out, &operr.Error{
				Class: operr.Config, Op: "purge", Subject: "table " + name, Err: errors.New("it is no source of the configuration"),
				Hint: "one of " + strings.Join(slices.Sorted(maps.Keys(found)), ", "),
			}
		}
	}
	return out, nil
}

// pauseOf: none is less than the zero value, which means the default.
func pauseOf(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func (o *purgeOptions) print(result outbox.PurgeResult) error {
	if o.json {
		return writeJSON(o.out, result)
	}
	verb := "deleted"
	if result.DryRun {
		verb = "would be deleted"
	}
	for _, t := range result.Tables {
		fmt.Fprintf(o.out, "%s: %d rows %s%s\n", t.Table, t.Deleted, verb, cutText(t))
		o.printKept(t)
	}
	if result.UpTo == 0 && len(result.Tables) > 0 {
		fmt.Fprintf(o.out, "nothing is proved to be published yet: the relay of publisher %s has stored no snapshot\n", result.HeldBy)
	}
	return nil
}

func cutText(t outbox.PurgedTable) string {
	if t.Before == nil {
		return ", of any age"
	}
	return fmt.Sprintf(", from before %s (%s)", t.Before.UTC().Format(time.RFC3339), t.AgeBy)
}

var keptWords = map[string]string{
	"not_published":    "the publication's row filter leaves them out",
	"not_confirmed":    "not proved to be published by the checkpoint",
	"before_slot":      "from before the slot; --before-slot takes them, once they are published otherwise",
	"age_unknown":      "their age is not known",
	"within_retention": "not old enough",
	"without_id":       "without an event id",
	"parked":           "parked, and not published or discarded since",
	"task":             "a task has still to publish them, or was refused them",
}

func (o *purgeOptions) printKept(t outbox.PurgedTable) {
	for _, reason := range slices.Sorted(maps.Keys(t.Kept)) {
		fmt.Fprintf(o.out, "  %d stay: %s\n", t.Kept[reason], cmp.Or(keptWords[reason], reason))
	}
	if t.Skipped > 0 {
		fmt.Fprintf(o.out, "  %d stay: locked by somebody else\n", t.Skipped)
	}
	for _, part := range t.Partitions {
		switch {
		case part.Kept != "":
			fmt.Fprintf(o.out, "  %s stays: %s\n", part.Name, part.Kept)
		case part.Dropped:
			fmt.Fprintf(o.out, "  %s: %d rows\n", part.Name, part.Rows)
		}
	}
}

// purgeConfig is what a relay purges by itself.
func purgeConfig(cfg *config.Config) relay.Purge {
	p := relay.Purge{Batch: cfg.Purge.Batch, Pause: pauseOf(time.Duration(cfg.Purge.Pause))}
	for _, rule := range cfg.PurgeRules() {
		r := relay.PurgeRule{Every: rule.Every, PurgeRule: outbox.PurgeRule{Age: rule.Age}}
		if rule.Retention != nil {
			r.Retention = *rule.Retention
		}
		p.Rules = append(p.Rules, r)
	}
	return p
}
