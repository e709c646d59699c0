package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/reissue"
)

// replayTaskOptions are those of the commands that look after replays.
type replayTaskOptions struct {
	configFlag
	out    io.Writer
	id     int64
	all    bool
	limit  int
	reason string
	json   bool
}

// taskList is what --json prints of a list.
type taskList struct {
	Tasks []reissue.Task `json:"tasks"`
}

// withTasks opens the session that keeps the tasks. The context that use gets ends with an interrupt.
func (f *configFlag) withTasks(ctx context.Context, command string, use func(context.Context, *reissue.Desk) error) error {
	cfg, err := f.load()
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	return withSQL(ctx, cfg, command, func(conn *pgx.Conn) error {
		return use(ctx, reissue.NewDesk(conn, cfg.Publisher.Name, actor()))
	})
}

// taskArg takes the number of a task.
func taskArg(id *int64) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			n, err := strconv.ParseInt(args[0], 10, 64)
			if err == nil && n > 0 {
				*id = n
				return nil
			}
		}
		return usageError(cmd, errors.New("wants one number, as `postrider "+cmd.Parent().Name()+" list` shows them"))
	}
}

func newReplayListCommand(a *app) *cobra.Command {
	opts := replayTaskOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List replays that are not done",
		Long: "Lists replays, newest first: those that wait for approval, run, or were interrupted; with --all those that are done or\n" +
			"cancelled too.",
		Example: "  postrider replay list --all",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.validateLimit(); err != nil {
				return usageError(cmd, err)
			}
			return opts.withTasks(cmd.Context(), "replay list", func(ctx context.Context, desk *reissue.Desk) error {
				list, err := desk.List(ctx, !opts.all, opts.limit, reissue.Replay)
				if err != nil {
					return err
				}
				if opts.json {
					return writeJSON(opts.out, taskList{list})
				}
				return printTasks(opts.out, list)
			})
		},
	}
	opts.add(cmd)
	cmd.Flags().BoolVar(&opts.all, "all", false, "those that are done or cancelled too")
	cmd.Flags().IntVar(&opts.limit, "limit", 50, "list at most this `number`; 0 lists all")
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *replayTaskOptions) validateLimit() error {
	if o.limit < 0 {
		return fmt.Errorf("--limit is %d; must be 0 or more", o.limit)
	}
	return nil
}

func printTasks(out io.Writer, list []reissue.Task) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "none")
		return err
	}
	g := newGrid(out, "NUMBER", "STATE", "EVENTS", "DONE", "REFUSED", "PLANNED", "BY", "REASON")
	for _, t := range list {
		g.row(t.ID, taskState(t), t.Total, t.Done, t.Refused, ageText(t.CreatedAt)+" ago", t.CreatedBy, t.Reason)
	}
	return g.flush()
}

func newReplayShowCommand(a *app) *cobra.Command {
	opts := replayTaskOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "show number",
		Short: "Show a replay and what it could not publish",
		Long: "Shows who asked for a replay, and why, who approved it, how far it is, and each event that could not be published,\n" +
			"with the reason.",
		Example: "  postrider replay show 7",
		Args:    taskArg(&opts.id),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.validateLimit(); err != nil {
				return usageError(cmd, err)
			}
			return opts.withTasks(cmd.Context(), "replay show", func(ctx context.Context, desk *reissue.Desk) error {
				task, err := desk.Get(ctx, opts.id, reissue.Replay)
				if err != nil {
					return err
				}
				items, err := desk.Items(ctx, opts.id, opts.limit)
				if err != nil {
					return err
				}
				if opts.json {
					return writeJSON(opts.out, replayedTask(task, items))
				}
				return errors.Join(printTask(opts.out, task), printItems(opts.out, items, task.Refused))
			})
		},
	}
	opts.add(cmd)
	cmd.Flags().IntVar(&opts.limit, "limit", 100, "list at most this `number` of events; 0 lists all")
	addJSON(cmd, &opts.json)
	return cmd
}

func printTask(out io.Writer, task reissue.Task) error {
	t := newTable(out)
	t.row(string(task.Kind), "%d, %s", task.ID, taskState(task))
	t.row("reason", "%s", task.Reason)
	t.row("asked for", "%s", task.Params)
	t.row("planned", "%s by %s, database user %s", stamp(task.CreatedAt), task.CreatedBy, task.Detail.DBUser)
	if task.ApprovedAt != nil {
		t.row("approved", "%s by %s, database user %s", stamp(*task.ApprovedAt), orDash(task.ApprovedBy), task.Detail.ApprovedDBUser)
	}
	if task.StartedAt != nil {
		t.row("began", "%s", stamp(*task.StartedAt))
	}
	if task.FinishedAt != nil {
		t.row("ended", "%s", stamp(*task.FinishedAt))
	}
	t.row("order", "%s", dash(task.Detail.Order))
	t.row("events", "%d, of which %d are done: %d published, %d not", task.Total, task.Done, task.Done-task.Refused, task.Refused)
	return t.flush()
}

func newReplayApproveCommand(a *app) *cobra.Command {
	opts := replayTaskOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "approve number",
		Short: "Approve a large replay that somebody else has planned",
		Long: "Lets a replay begin that is larger than replay.approval_above of the configuration. Whoever planned it cannot approve it:\n" +
			"the user of the database or of the operating system has to be another one. Both are recorded, with the host. It does\n" +
			"not begin by itself: `postrider replay --resume` begins it. Look at it before, with `postrider replay show`.",
		Example: "  postrider replay approve 7",
		Args:    taskArg(&opts.id),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.change(cmd.Context(), "approve", "replay %d is approved; it begins with: postrider replay --resume %[1]d\n", func(ctx context.Context, desk *reissue.Desk) error {
				return desk.Approve(ctx, opts.id)
			})
		},
	}
	opts.add(cmd)
	addJSON(cmd, &opts.json)
	return cmd
}

func newReplayCancelCommand(a *app) *cobra.Command {
	opts := replayTaskOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "cancel number",
		Short: "Give a replay up",
		Long: "Gives a replay up that is not done. A process that runs it stops within a second or so; what it has published stays\n" +
			"published.",
		Example: "  postrider replay cancel 7 --reason \"the consumer has caught up by itself\"",
		Args:    taskArg(&opts.id),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needReason(opts.reason); err != nil {
				return usageError(cmd, err)
			}
			return opts.change(cmd.Context(), "cancel", "replay %d is cancelled\n", func(ctx context.Context, desk *reissue.Desk) error {
				return desk.Cancel(ctx, opts.id, opts.reason)
			})
		},
	}
	opts.add(cmd)
	addReason(cmd, &opts.reason)
	addJSON(cmd, &opts.json)
	return cmd
}

// change does something to a replay and shows it.
func (o *replayTaskOptions) change(ctx context.Context, command, done string, change func(context.Context, *reissue.Desk) error) error {
	return o.withTasks(ctx, "replay "+command, func(ctx context.Context, desk *reissue.Desk) error {
		if _, err := desk.Get(ctx, o.id, reissue.Replay); err != nil {
			return err
		}
		if err := change(ctx, desk); err != nil {
			return err
		}
		if !o.json {
			_, err := fmt.Fprintf(o.out, done, o.id)
			return err
		}
		task, err := desk.Get(ctx, o.id, reissue.Replay)
		if err != nil {
			return err
		}
		return writeJSON(o.out, task)
	})
}
