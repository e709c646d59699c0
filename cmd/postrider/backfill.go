package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/backfill"
)

type backfillOptions struct {
	configFlag
	app       *app
	dry       bool
	resume    bool
	cancel    bool
	onRefusal string
	rate      float64
	reason    string
	json      bool
}

// The values of --on-refusal.
const (
	refusalWithhold = "withhold"
	refusalSkip     = "skip"
)

func newBackfillCommand(a *app) *cobra.Command {
	opts := backfillOptions{app: a}
	cmd := &cobra.Command{
		Use:   "backfill",
		Short: "Publish the rows that are from before the slot",
		Long: "Publishes the rows of the outbox that were committed before the slot was made: they are not on its stream. setup has\n" +
			"kept the snapshot at the slot's birth, so that each row comes either by backfill or by run, and none by both, late\n" +
			"commits and rows that were updated since included. It comes between setup and the first run: run does not start before\n" +
			"it is ended, and it refuses where events were published already.\n\n" +
			"Records have the same id, key, bytes and headers as the stream would have given them, and the header\n" +
			"postrider-backfilled. Their order is the order of commits as well as the table shows it; the command says what it goes by.\n\n" +
			"Progress is saved each second. After Ctrl-C or a crash --resume goes on; after a crash some of the last events come\n" +
			"twice, and it says how many at most. An event that cannot be published is noted, and later ones of its key are\n" +
			"withheld: exit code 6, and --resume tries them again. With --on-refusal skip they are published without it.",
		Example: "  postrider backfill --dry-run\n  postrider backfill --rate 5000\n  postrider backfill --resume --on-refusal skip",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.validate(); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&opts.dry, "dry-run", false, "count what would be published, by topic and type, and publish nothing")
	flags.BoolVar(&opts.resume, "resume", false, "go on with the backfill that is not ended")
	flags.BoolVar(&opts.cancel, "cancel", false, "give the backfill up that is not ended; what it published stays published")
	flags.StringVar(&opts.onRefusal, "on-refusal", refusalWithhold, "later events of a key of which one cannot be published: `withhold` or skip")
	flags.Float64Var(&opts.rate, "rate", 0, "publish at most so many events a second; 0 does not limit")
	flags.StringVar(&opts.reason, "reason", "", "with --cancel: why, in `words`; kept in the audit")
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *backfillOptions) validate() error {
	var problems []error
	n := 0
	for _, given := range []bool{o.dry, o.resume, o.cancel} {
		if given {
			n++
		}
	}
	if n > 1 {
		problems = append(problems, errors.New("--dry-run, --resume and --cancel exclude each other"))
	}
	if o.onRefusal != refusalWithhold && o.onRefusal != refusalSkip {
		problems = append(problems, fmt.Errorf("--on-refusal is %q; must be withhold or skip", o.onRefusal))
	}
	if !isRate(o.rate) {
		problems = append(problems, fmt.Errorf("--rate is %g; must be 0 or more", o.rate))
	}
	if o.reason != "" && !o.cancel {
		problems = append(problems, errors.New("--reason is for --cancel"))
	}
	return errors.Join(problems...)
}

func (o *backfillOptions) run(ctx context.Context) error {
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	cfg, err := o.load()
	if err != nil {
		return err
	}
	limitMemory(cfg)
	bar := newTaskBar(o.app.err, "backfill")
	kafka := cfg.PublisherConfig()
	kafka.Log = newLogger(o.app.err, cfg.Log)
	defer keepReceipts(cfg, &kafka, o.app.err)()
	b, err := backfill.Open(ctx, backfill.Config{
		Publisher: cfg.Publisher.Name, Replication: cfg.ReplicationConfig(), Router: cfg.Router(), Kafka: kafka, Actor: actor(),
		PerSecond: o.rate, Skip: o.onRefusal == refusalSkip, Say: o.say, Progress: bar.show,
	})
	if err != nil {
		return err
	}
	defer b.Close(ctx)
	switch {
	case o.cancel:
		return o.giveUp(ctx, b)
	case o.dry:
		return o.preview(ctx, b)
	}
	work := b.Start
	if o.resume {
		work = b.Resume
	}
	out, err := work(ctx)
	bar.close()
	if err != nil && ctx.Err() != nil {
		err = interrupted(out) // whatever the end of the context made of it
	}
	if out.Task == 0 {
		return err
	}
	return errors.Join(err, o.print(out))
}

// say tells of a step that may take long.
func (o *backfillOptions) say(format string, args ...any) {
	fmt.Fprintf(o.app.err, "backfill: "+format+"\n", args...)
}

func (o *backfillOptions) giveUp(ctx context.Context, b *backfill.Backfill) error {
	task, err := b.Cancel(ctx, o.reason)
	if err != nil {
		return err
	}
	if o.json {
		return writeJSON(o.app.out, task)
	}
	_, err = fmt.Fprintf(o.app.out, "backfill %d is cancelled: %d of %d events were done; a new backfill goes on behind them\n", task.ID, task.Done, task.Total)
	return err
}
