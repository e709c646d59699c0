package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/internal/replay"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/publisher"
)

// defaultReplayRate is gentle: consumers do the work of these events once more, beside
// that of the new ones.
const defaultReplayRate = 1000

type replayOptions struct {
	configFlag
	app  *app
	ids  []string
	json bool

	since, until string
	all, yes     bool
	reason       string
	rate         float64
	rateGiven    bool
	resume       int64
	request      replay.Request
}

// replayed is what --json prints.
type replayed struct {
	// Preview is what was chosen; absent with --resume.
	Preview *replay.Preview `json:"preview,omitempty"`
	// Task is absent where nothing was planned.
	Task *reissue.Task `json:"task,omitempty"`
	// Published is the number of the task's events that were published, over all runs.
	Published int64 `json:"published"`
	// Unpublished are the first of those that were not.
	Unpublished []reissue.Item `json:"unpublished"`
}

func replayedTask(task reissue.Task, items []reissue.Item) replayed {
	if items == nil {
		items = []reissue.Item{}
	}
	return replayed{Task: &task, Published: task.Done - task.Refused, Unpublished: items}
}

func newReplayCommand(a *app) *cobra.Command {
	opts := replayOptions{app: a}
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Publish events from the table once more",
		Long: "Publishes events again that were published already: same ids, keys, bytes and headers, and the header " + reissue.ReplayedHeader + "\n" +
			"with the number of the replay. Without --yes it shows what would be published, by topic and type, and changes nothing.\n\n" +
			"It works beside a running relay, and publishes copies only. What the confirmed position does not cover is left out, since\n" +
			"a copy must not come before the event itself; so is what is parked, and what is from before the slot. How many are left\n" +
			"out, and why, is shown. To a key's order a replay does what docs/replay.md draws.\n\n" +
			"A replay of more events than replay.approval_above of the configuration begins when a second person has approved it.\n" +
			"Interrupted at any time, it goes on with --resume. The exit code is 0 when all events were published, 6 when some could\n" +
			"not be, 7 when it was interrupted or waits for approval.",
		Example: "  postrider replay --event-id 0b7f0a3e-4f0e-4d5c-9f8e-2f7f6f0f6a11\n" +
			"  postrider replay --type OrderPaid --since 2026-05-03T10:00:00Z --until 2026-05-03T11:00:00Z\n" +
			"  postrider replay --event-id @lost-ids.txt --yes --reason \"billing lost them on 3 May\"\n" +
			"  postrider replay --resume 7",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.rateGiven = cmd.Flags().Changed("rate")
			if err := opts.validate(os.Stdin, time.Now()); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	opts.addSelection(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&opts.yes, "yes", "y", false, "publish them; wants --reason")
	addReason(cmd, &opts.reason)
	flags.Float64Var(&opts.rate, "rate", defaultReplayRate, "`events` a second; 0 does not limit them")
	flags.Int64Var(&opts.resume, "resume", 0, "begin the approved, or go on with the interrupted replay of this `number`")
	addJSON(cmd, &opts.json)
	cmd.AddCommand(newReplayListCommand(a), newReplayShowCommand(a), newReplayApproveCommand(a), newReplayCancelCommand(a))
	return cmd
}

func (o *replayOptions) addSelection(cmd *cobra.Command) {
	flags, r := cmd.Flags(), &o.request
	flags.StringArrayVar(&o.ids, "event-id", nil, "the event with this `id`; may be repeated. @file reads ids from a file, one a line, @- from standard input")
	flags.StringVar(&o.since, "since", "", "events from this `time` on: 2026-05-03T10:00:00Z, or 90m for so long ago")
	flags.StringVar(&o.until, "until", "", "events before this `time`")
	flags.StringVar(&r.Aggregate, "aggregate", "", "events of this `key`")
	flags.StringVar(&r.AggregateType, "aggregate-type", "", "events of this aggregate `type`")
	flags.StringVar(&r.EventType, "type", "", "events of this event `type`")
	flags.BoolVar(&o.all, "all", false, "all events, where nothing else is given")
	flags.BoolVar(&r.BeforeSlot, "before-slot", false, "rows from before the slot too: another relay has published them")
}

func (o *replayOptions) validate(in io.Reader, now time.Time) error {
	var problems []error
	var err error
	if o.request.EventIDs, err = readIDs(o.ids, in); err != nil {
		problems = append(problems, err)
	}
	if o.request.Since, err = timeFlag("since", o.since, now); err != nil {
		problems = append(problems, err)
	}
	if o.request.Until, err = timeFlag("until", o.until, now); err != nil {
		problems = append(problems, err)
	}
	if s, u := o.request.Since, o.request.Until; s != nil && u != nil && !s.Before(*u) {
		problems = append(problems, errors.New("--since is not before --until"))
	}
	if !isRate(o.rate) {
		problems = append(problems, fmt.Errorf("--rate is %g; must be 0 or more", o.rate))
	}
	o.request.PerSecond = o.rate
	return errors.Join(append(problems, o.validateChoice())...)
}

// validateChoice: no selection must not mean everything.
func (o *replayOptions) validateChoice() error {
	chosen := len(o.ids) > 0 || o.since != "" || o.until != "" || o.request.Aggregate != "" || o.request.AggregateType != "" || o.request.EventType != ""
	switch {
	case o.resume < 0:
		return fmt.Errorf("--resume is %d; it wants the number of a replay, as `replay list` shows them", o.resume)
	case o.resume > 0 && (chosen || o.all || o.request.BeforeSlot || o.reason != ""):
		return errors.New("--resume goes on with what was chosen then: no event can be chosen, and no reason given, beside it")
	case o.resume > 0:
		return nil
	case !chosen && !o.all:
		return errors.New("wants --event-id, a time, a filter, or --all")
	case chosen && o.all:
		return errors.New("--all is given together with what it would take in; keep one")
	case o.yes:
		return needReason(o.reason)
	}
	return nil
}

// readIDs reads those of @file and @- too.
func readIDs(given []string, in io.Reader) (ids []string, err error) {
	for _, id := range given {
		name, file := strings.CutPrefix(id, "@")
		if !file {
			ids = append(ids, id)
			continue
		}
		more, err := readIDFile(name, in)
		if err != nil {
			return nil, err
		}
		if len(more) == 0 {
			return nil, fmt.Errorf("--event-id %s: it holds no event id", id)
		}
		ids = append(ids, more...)
	}
	return ids, nil
}

func readIDFile(name string, in io.Reader) (ids []string, err error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("--event-id: %w", err)
		}
		defer f.Close()
		in = f
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if id := strings.TrimSpace(lines.Text()); id != "" {
			ids = append(ids, id)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("--event-id @%s: %w", name, err)
	}
	return ids, nil
}

// timeFlag reads a time, or how long ago; nil where it is not given.
func timeFlag(name, text string, now time.Time) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		at := now.Add(-ago).UTC()
		return &at, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil, fmt.Errorf("--%s: %q is neither a time such as 2026-05-03T10:00:00Z nor a duration such as 90m", name, text)
	}
	return &at, nil
}

// withReplayer opens the sessions that a replay needs.
func withReplayer(ctx context.Context, cfg *config.Config, kafka publisher.Config, use func(*replay.Replayer, *reissue.Desk) error) error {
	return withSQL(ctx, cfg, "replay", func(conn *pgx.Conn) error {
		r, err := replay.Open(ctx, replay.Config{
			Publisher: cfg.Publisher.Name, Slot: cfg.Postgres.Slot, Actor: actor(), ApprovalAbove: int64(cfg.Replay.ApprovalAbove),
			Outbox: outbox.Config{
				ConnString: cfg.Postgres.ConnString(), AppName: "postrider replay", Publications: cfg.Postgres.Publication, Router: cfg.Router(),
			},
			Kafka: kafka,
		}, conn)
		if err != nil {
			return err
		}
		defer r.Close(ctx)
		return use(r, reissue.NewDesk(conn, cfg.Publisher.Name, actor()))
	})
}

func (o *replayOptions) run(ctx context.Context) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	limitMemory(cfg)
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	kafka := cfg.PublisherConfig()
	defer keepReceipts(cfg, &kafka, o.app.err)()
	return withReplayer(ctx, cfg, kafka, func(r *replay.Replayer, desk *reissue.Desk) error {
		switch {
		case o.resume > 0:
			return o.publish(ctx, r, desk, o.resume, nil)
		case o.yes:
			return o.start(ctx, r, desk)
		}
		p, err := r.Preview(ctx, o.request)
		if err != nil {
			return err
		}
		if o.json {
			return errors.Join(writeJSON(o.app.out, replayed{Preview: &p, Unpublished: []reissue.Item{}}), p.Unknown())
		}
		return errors.Join(printPreview(o.app.out, p, int64(cfg.Replay.ApprovalAbove)), p.Unknown())
	})
}

// start plans a replay and runs it, unless somebody has to approve it.
func (o *replayOptions) start(ctx context.Context, r *replay.Replayer, desk *reissue.Desk) error {
	task, p, err := r.Plan(ctx, o.request, o.reason)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.app.err, "replay %d: %d events, in the order of %s\n", task.ID, task.Total, task.Detail.Order)
	for _, left := range p.LeftOut {
		fmt.Fprintf(o.app.err, "%d events are left out: %s\n", left.Events, left.Text)
	}
	if task.Detail.NeedsApproval {
		waits := &operr.Error{
			Class: operr.DrainIncomplete, Op: "begin", Subject: fmt.Sprintf("replay %d", task.ID), Err: fmt.Errorf("%d events need the approval of a second person; nothing is published yet", task.Total),
			Hint: fmt.Sprintf("somebody else runs: postrider replay approve %d; then: postrider replay --resume %d", task.ID, task.ID),
		}
		if o.json {
			result := replayedTask(task, nil)
			result.Preview = &p
			return errors.Join(waits, writeJSON(o.app.out, result))
		}
		return waits
	}
	return errors.Join(o.publish(ctx, r, desk, task.ID, &p), p.Unknown())
}

// publish runs a planned replay, and says what became of it.
func (o *replayOptions) publish(ctx context.Context, r *replay.Replayer, desk *reissue.Desk, id int64, p *replay.Preview) error {
	var rate *float64
	if o.rateGiven {
		rate = &o.rate
	}
	bar := newTaskBar(o.app.err, fmt.Sprintf("replay %d", id))
	task, err := r.Run(ctx, id, rate, bar.show)
	bar.close()
	if task.ID == 0 || task.StartedAt == nil {
		return err
	}
	switch {
	case err == nil:
		err = notAllPublished(task)
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		err = &operr.Error{
			Class: operr.DrainIncomplete, Op: "replay", Subject: fmt.Sprint(id), Err: fmt.Errorf("interrupted at %d of %d events", task.Done, task.Total),
			Hint: fmt.Sprintf("postrider replay --resume %d", id),
		}
	}
	items, itemsErr := desk.Items(context.WithoutCancel(ctx), id, unpublishedShown)
	result := replayedTask(task, items)
	result.Preview = p
	return errors.Join(err, itemsErr, o.printResult(result))
}

// unpublishedShown bounds the list of events that were not published.
const unpublishedShown = 20

// notAllPublished is the error of a replay that came to its end without some events.
func notAllPublished(task reissue.Task) error {
	if task.Refused == 0 {
		return nil
	}
	return &operr.Error{
		Class: operr.Halted, Op: "replay", Subject: fmt.Sprint(task.ID),
		Err:  fmt.Errorf("%d of %d events could not be published", task.Refused, task.Total),
		Hint: fmt.Sprintf("postrider replay show %d lists them; heal the cause, and replay them by --event-id", task.ID),
	}
}
