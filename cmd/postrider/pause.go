package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/control"
	"github.com/postrider/postrider/internal/operr"
)

// pauseOptions are those of pause and of resume.
type pauseOptions struct {
	configFlag
	verb    control.Verb
	out     io.Writer
	reason  string
	timeout time.Duration
	noWait  bool
	json    bool
}

// paused is what --json prints of either command.
type paused struct {
	Publisher string        `json:"publisher" doc:"its name"`
	State     control.State `json:"state" doc:"paused, pausing (what was handed over is not all acknowledged yet) or running"`
	Changed   bool          `json:"changed" doc:"false where it was asked for before"`
	PausedAt  *time.Time    `json:"paused_at" doc:"since when"`
	PausedBy  *string       `json:"paused_by" doc:"by whom"`
	Relay     *string       `json:"relay" doc:"the relay that holds the slot; null: none does, and the next one starts so"`
	Answered  bool          `json:"answered" doc:"the relay has said that it is done"`
	Unacked   int           `json:"unacknowledged_events" doc:"handed over and not resolved, by the relay's last word"`
	Stored    *string       `json:"stored_lsn" doc:"all that was acknowledged up to here is confirmed"`
	Behind    *int64        `json:"bytes_behind" doc:"WAL that is not confirmed"`
	Held      *int64        `json:"bytes_held" doc:"WAL that the slot holds back"`
	Safe      *int64        `json:"safe_wal_size" doc:"bytes that may be written before the slot is in danger; null: nothing limits it"`
	WALStatus string        `json:"wal_status" doc:"of the slot"`
}

func newPauseCommand(a *app) *cobra.Command {
	opts := &pauseOptions{verb: control.Pause, out: a.out}
	cmd := opts.command("pause", "Let the relay hold the slot and publish nothing", "consumers are down for an upgrade")
	cmd.Long = "Asks the running relay to pause, and waits until it has: it begins no further transaction, publishes what it has\n" +
		"begun, and confirms what was acknowledged. Then nothing is published, parked events neither, until postrider resume.\n" +
		"A transaction that does not end within half of publisher.shutdown_timeout is held in its middle. What publishes by\n" +
		"itself, such as postrider replay, is not stopped by it.\n\n" +
		"The slot stays held and feedback goes on, so PostgreSQL keeps all WAL from here on: the command shows how much that\n" +
		"is, and how much may still be written where max_slot_wal_keep_size limits it. Give it again to see it grow.\n\n" +
		"A pause outlives the relay: one that starts meanwhile starts paused. Where none runs, the next one will. When the\n" +
		"time runs out, or the command is interrupted, the pause stands; the exit code is 7 and the relay is still draining."
	return cmd
}

func newResumeCommand(a *app) *cobra.Command {
	opts := &pauseOptions{verb: control.Resume, out: a.out}
	cmd := opts.command("resume", "Let a paused relay publish again", "the upgrade is done")
	cmd.Long = "Ends what postrider pause began, and waits until the relay says that it publishes again. What was committed meanwhile\n" +
		"follows in its order. Where no relay runs, the next one will not start paused."
	return cmd
}

func (o *pauseOptions) command(name, short, why string) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: short,
		Example: fmt.Sprintf("  postrider %[1]s --reason %[2]q\n  postrider %[1]s --timeout 10m --json", name, why),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return usageError(cmd, err)
			}
			return o.run(cmd.Context())
		},
	}
	o.add(cmd)
	addReason(cmd, &o.reason)
	cmd.Flags().DurationVar(&o.timeout, "timeout", time.Minute, "wait at most this `time` for the relay; 0s waits for ever")
	cmd.Flags().BoolVar(&o.noWait, "no-wait", false, "ask, and do not wait for the relay")
	addJSON(cmd, &o.json)
	return cmd
}

// Validate checks the flags before anything is read or connected to.
func (o *pauseOptions) Validate() error {
	if o.timeout < 0 {
		return fmt.Errorf("--timeout is %s; must be 0s or more", o.timeout)
	}
	return nil
}

func (o *pauseOptions) run(ctx context.Context) error {
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	cfg, err := o.load()
	if err != nil {
		return err
	}
	return withSQL(ctx, cfg, string(o.verb), func(conn *pgx.Conn) error {
		desk := control.NewDesk(conn, cfg.Publisher.Name, actor())
		asked, err := desk.Ask(ctx, o.verb, o.reason)
		if err != nil {
			return err
		}
		result := paused{Publisher: cfg.Publisher.Name, State: control.Running, Changed: asked.Changed}
		if asked.Pausing.On() {
			result.State, result.PausedAt, result.PausedBy = control.Paused, &asked.Pausing.Since, &asked.Pausing.By
		}
		waited := o.await(ctx, desk, asked, &result)
		if err := result.measure(context.WithoutCancel(ctx), conn, cfg); err != nil {
			return errors.Join(waited, err)
		}
		return errors.Join(waited, o.print(result))
	})
}

// await waits for the relay's word, if there is one and it is wanted.
func (o *pauseOptions) await(ctx context.Context, desk *control.Desk, asked control.Asked, into *paused) error {
	if asked.Relay == "" {
		return nil
	}
	into.Relay = &asked.Relay
	if o.verb == control.Pause {
		into.State = control.Draining // until the relay says more
	}
	if o.noWait {
		return nil
	}
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("no answer within %s", o.timeout))
		defer cancel()
	}
	reply, err := desk.Await(ctx, asked.Command)
	into.Answered = reply.Done && reply.Problem == ""
	if reply.Answer.State != "" {
		into.State, into.Unacked = reply.Answer.State, reply.Answer.Unacknowledged
	}
	switch {
	case err != nil && ctx.Err() == nil:
		return err
	case reply.Problem != "":
		return o.undone(errors.New(reply.Problem), "postrider checkpoint show tells what holds now")
	case err != nil:
		return o.late(ctx, err, reply)
	}
	return nil
}

// late words a wait that ended before the relay's word.
func (o *pauseOptions) late(ctx context.Context, err error, reply control.Reply) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		err = errors.New("interrupted")
	}
	switch {
	case reply.Relay == "":
		return o.undone(fmt.Errorf("%w; no relay is connected to the slot any more, the next one will obey", err), "postrider run")
	case !reply.Taken:
		return o.undone(fmt.Errorf("%w; the relay has not heard of it yet, and will obey when it does", err), "look at the log of the relay "+reply.Relay)
	case o.verb == control.Pause:
		return o.undone(fmt.Errorf("%w; the relay begins nothing more, and %d events are not acknowledged yet", err, reply.Answer.Unacknowledged),
			"look at Kafka; the pause stands, postrider pause waits on, postrider resume takes it back")
	default:
		return o.undone(err, "postrider resume, which waits on")
	}
}

func (o *pauseOptions) undone(err error, hint string) error {
	return &operr.Error{Class: operr.DrainIncomplete, Op: string(o.verb), Subject: "the relay", Err: err, Hint: hint}
}

// measure adds what the pause costs.
func (p *paused) measure(ctx context.Context, conn *pgx.Conn, cfg *config.Config) error {
	s, err := checkpoint.ReadStatus(ctx, conn, cfg.Publisher.Name, cfg.Postgres.Slot)
	if err != nil {
		return err
	}
	p.Stored, p.Behind, p.Held, p.Safe, p.WALStatus = s.Stored, s.BytesBehind, s.BytesHeld, s.SafeWALSize, s.WALStatus
	return nil
}

func (o *pauseOptions) print(p paused) error {
	if o.json {
		return writeJSON(o.out, p)
	}
	t := newTable(o.out)
	t.row("publisher", "%s", p.Publisher)
	t.row("state", "%s", p.stateText())
	if p.PausedAt != nil {
		t.row("since", "%s by %s", p.PausedAt.UTC().Format(time.RFC3339), *p.PausedBy)
	}
	t.row("relay", "%s", p.relayText())
	t.row("stored", "%s", lsnText(p.Stored))
	t.row("behind", "%s", bytesText(p.Behind))
	t.row("WAL held back", "%s", bytesText(p.Held))
	switch {
	case p.Safe != nil:
		t.row("until lost", "%s (WAL %s)", bytesText(p.Safe), p.WALStatus)
	case p.PausedAt != nil && p.Held != nil:
		t.row("until lost", "no limit: it grows until the disk is full")
	}
	return t.flush()
}

func (p *paused) stateText() string {
	switch {
	case p.State == control.Draining && p.Unacked > 0:
		return fmt.Sprintf("pausing: %d events are not acknowledged yet", p.Unacked)
	case p.State == control.Paused && p.Answered:
		return "paused: what was published is confirmed"
	default:
		return string(p.State)
	}
}

func (p *paused) relayText() string {
	switch {
	case p.Relay != nil:
		return *p.Relay
	case p.PausedAt != nil:
		return "none holds the slot; the next one starts paused"
	default:
		return "none holds the slot; the next one publishes"
	}
}
