package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/recovery"
)

type recoverOptions struct {
	configFlag
	recovery.Options
	app *app

	yes, resume, abandon bool
	since, scanFrom      string
	conflicts, expired   string
	topicOnly            string
	json, rateGiven      bool
}

func newRecoverCommand(a *app) *cobra.Command {
	opts := recoverOptions{app: a}
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Bring table, topics and position together after a slot was lost or a database restored",
		Long: "For a slot that was lost, dropped, recreated, advanced or not failed over, and for a database that was restored from a\n" +
			"backup or moved: what `run` refuses to start on. Without --yes it shows the evidence, what it concludes, what it would\n" +
			"publish with counts, and what it cannot know; nothing is changed.\n\n" +
			"Candidates are the rows of the outbox that the stored snapshot does not prove to be published, late commits included;\n" +
			"where it says nothing about this server (moved, or past the fork of a promotion), all rows. What is parked, and what\n" +
			"the topics have by event id (compared by key and value), is settled. The rest is published in commit order as well as\n" +
			"it can be known, with the same ids, keys and bytes and the header postrider-recovered. A slot that can be used is kept;\n" +
			"else a new one is made under its name, so that stream and table meet without gap or overlap. `run` does not start\n" +
			"meanwhile. After Ctrl-C or a crash: --resume.\n\n" +
			"Events that the topics have and the table does not are counted, and listed by --topic-only. They are not repaired.",
		Example: "  postrider recover\n  postrider recover --yes --reason \"slot lost in the disk incident\" --topic-only only.jsonl\n" +
			"  postrider recover --resume --conflicts publish",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.rateGiven = cmd.Flags().Changed("rate")
			if err := opts.validate(); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.configFlag.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&opts.yes, "yes", false, "do it")
	flags.BoolVar(&opts.resume, "resume", false, "go on with a recovery that was cut off, or that waited for a decision")
	flags.BoolVar(&opts.abandon, "abandon", false, "give a recovery up that has not ended; what it published stays published")
	flags.StringVar(&opts.since, "since", "", "leave out rows that are older: a `time` (RFC 3339), or how long ago (48h)")
	flags.StringVar(&opts.scanFrom, "scan-from", "", "read the topics from this `time` on (RFC 3339, or how long ago) instead of the one that proves most")
	flags.BoolVar(&opts.WithoutTopics, "without-topics", false, "do not compare with the topics: all candidates are published, many of them again")
	flags.StringSliceVar(&opts.Topics, "topic", nil, "read these `topics`, too: those to which no row of the table goes any more")
	flags.StringVar(&opts.conflicts, "conflicts", "", "what becomes of rows whose id a record with another key or value has: `settle` or publish")
	flags.StringVar(&opts.expired, "expired", "", "what becomes of rows from before their topic's first record: `settle` or publish")
	flags.BoolVar(&opts.Anyway, "anyway", false, "also where run would start: the database came back together with its slot, as a copy of its disks does")
	flags.BoolVar(&opts.NewSlot, "new-slot", false, "make a new slot, also where the one that is there can be used: its publication is younger than it, for one")
	flags.BoolVar(&opts.Failover, "failover", false, "make a new slot that standbys keep a copy of (PostgreSQL 17 and later)")
	flags.Float64Var(&opts.PerSecond, "rate", 0, "publish at most so many events a second; 0 does not limit")
	flags.DurationVar(&opts.LockTimeout, "lock-timeout", defaultLockTimeout, "how long to wait for open transactions when the slot is made")
	flags.StringVar(&opts.topicOnly, "topic-only", "", "write the records whose events the table does not have to this `file`, as JSON lines")
	addReason(cmd, &opts.Reason)
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *recoverOptions) validate() error {
	var problems []error
	if n := boolCount(o.yes, o.resume, o.abandon); n > 1 {
		problems = append(problems, errors.New("--yes, --resume and --abandon exclude each other"))
	}
	o.Conflicts, o.Expired = recovery.Decision(o.conflicts), recovery.Decision(o.expired)
	for name, d := range map[string]recovery.Decision{"--conflicts": o.Conflicts, "--expired": o.Expired} {
		if d != "" && d != recovery.Settle && d != recovery.Publish {
			problems = append(problems, fmt.Errorf("%s is %q; must be settle or publish", name, d))
		}
	}
	var err error
	if o.Since, err = momentOf("--since", o.since); err != nil {
		problems = append(problems, err)
	}
	if o.ScanFrom, err = momentOf("--scan-from", o.scanFrom); err != nil {
		problems = append(problems, err)
	}
	if !isRate(o.PerSecond) {
		problems = append(problems, fmt.Errorf("--rate is %g; must be 0 or more", o.PerSecond))
	}
	if o.resume && o.rateGiven && o.PerSecond == 0 {
		o.PerSecond = math.Inf(1) // not the rate that the recovery was begun with
	}
	if o.LockTimeout < time.Millisecond || o.LockTimeout > time.Hour {
		problems = append(problems, fmt.Errorf("--lock-timeout is %s; must be from 1ms to 1h", o.LockTimeout))
	}
	if o.resume && (o.Since != nil || o.ScanFrom != nil || o.WithoutTopics || len(o.Topics) > 0 || o.Anyway || o.NewSlot || o.Failover) {
		problems = append(problems, errors.New("--resume goes on with the options of the recovery; only --conflicts, --expired, --rate and --topic-only may be given anew"))
	}
	return errors.Join(problems...)
}

func boolCount(flags ...bool) (n int) {
	for _, f := range flags {
		if f {
			n++
		}
	}
	return n
}

// momentOf is parseMoment; nil for none.
func momentOf(flag, text string) (*time.Time, error) {
	at, err := parseMoment(flag, text, time.Now())
	if err != nil || at.IsZero() {
		return nil, err
	}
	return &at, nil
}

func (o *recoverOptions) run(ctx context.Context) error {
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	cfg, err := o.load()
	if err != nil {
		return err
	}
	progress := newProgressLine(o.app.err)
	defer progress.close()
	kafka := cfg.PublisherConfig()
	kafka.Log = newLogger(o.app.err, cfg.Log)
	defer keepReceipts(cfg, &kafka, o.app.err)()
	r, err := recovery.Open(ctx, recovery.Config{
		Publisher: cfg.Publisher.Name, Replication: cfg.ReplicationConfig(), Router: cfg.Router(), Kafka: kafka,
		Actor: actor(), Progress: func(p recovery.Progress) { progress.show(recoverPhase(p), p.Done, p.Total) },
	})
	if err != nil {
		return err
	}
	defer r.Close(ctx)
	if o.abandon {
		return o.giveUp(ctx, r)
	}
	list, err := o.listTopicOnly()
	if err != nil {
		return err
	}
	report, err := o.do(ctx, r)
	progress.close()
	err = errors.Join(err, list.end(report.Compared, o.app.err))
	if report.Evidence.Publisher != "" {
		err = errors.Join(err, o.print(report, err))
	}
	return err
}

// recoverPhase is what the line of progress says.
func recoverPhase(p recovery.Progress) string {
	if len(p.AwaitedTopics) == 0 {
		return p.Phase
	}
	return p.Phase + ", waits for topic " + strings.Join(p.AwaitedTopics, ", ")
}

func (o *recoverOptions) do(ctx context.Context, r *recovery.Recovery) (recovery.Report, error) {
	switch {
	case o.resume:
		return r.Resume(ctx, o.Options)
	case o.yes:
		return r.Run(ctx, o.Options)
	}
	return r.DryRun(ctx, o.Options)
}

func (o *recoverOptions) giveUp(ctx context.Context, r *recovery.Recovery) error {
	id, err := r.Abandon(ctx, o.Reason)
	if err != nil {
		return err
	}
	if o.json {
		return writeJSON(o.app.out, map[string]any{"abandoned": id})
	}
	_, err = fmt.Fprintf(o.app.out, "recovery %d is given up; postrider recover shows what is true now\n", id)
	return err
}
