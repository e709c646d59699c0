package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/internal/verify"
)

// defaultWait is the timeout of `checkpoint wait`: long for a relay that keeps
// up, short for a deploy that hangs on one that does not.
const defaultWait = time.Minute

type checkpointWaitOptions struct {
	configFlag
	out     io.Writer
	lsn     string
	now     bool
	timeout time.Duration
	json    bool

	// target is lsn as parsed; zero with now.
	target event.LSN
}

func newCheckpointWaitCommand(a *app) *cobra.Command {
	opts := checkpointWaitOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until a position is published and stored",
		Long: "Returns 0 when every event of the transactions that ended at or before the position is acknowledged by Kafka\n" +
			"and the position is stored; 5 when the timeout passes first. With --now it is a gate for scripts: all that was\n" +
			"committed before is published. Where the last WAL holds no event, a temporary copy of the slot tells; without a free\n" +
			"replication slot that takes up to ten seconds, until the relay knows.",
		Example: "  postrider checkpoint wait --now --timeout 30s\n  postrider checkpoint wait --lsn 16/B374D848",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.Validate(cmd.Flags().Changed("lsn")); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	cmd.Flags().StringVar(&opts.lsn, "lsn", "", "wait for this `position`, such as 16/B374D848")
	cmd.Flags().BoolVar(&opts.now, "now", false, "wait for the server's current end of WAL")
	cmd.Flags().DurationVar(&opts.timeout, "timeout", defaultWait, "give up after this `time`; 0s waits for ever")
	addJSON(cmd, &opts.json)
	return cmd
}

// Validate checks the flags before anything is read or connected to.
func (o *checkpointWaitOptions) Validate(lsnGiven bool) error {
	var problems []error
	switch {
	case o.now && lsnGiven:
		problems = append(problems, errors.New("--lsn and --now are given together; keep one of them"))
	case !o.now && !lsnGiven:
		problems = append(problems, errors.New("wants --lsn or --now"))
	case !o.now:
		// Strictly: a pasted position with a stray character must not become another one (case C40).
		target, err := event.ParseLSN(o.lsn)
		if err != nil {
			problems = append(problems, fmt.Errorf("--lsn: %w", err))
		} else if target == 0 {
			problems = append(problems, errors.New("--lsn 0/0 is no position"))
		}
		o.target = target
	}
	if o.timeout < 0 {
		problems = append(problems, fmt.Errorf("--timeout is %s; must be 0s or more", o.timeout))
	}
	return errors.Join(problems...)
}

func (o *checkpointWaitOptions) run(ctx context.Context) error {
	return o.withPosition(ctx, "wait", func(ctx context.Context, p *position) error {
		result, err := checkpoint.Wait(ctx, p.conn, checkpoint.WaitConfig{
			Publisher: p.cfg.Publisher.Name, Slot: p.cfg.Postgres.Slot, Target: o.target, Timeout: o.timeout, Empty: p.empty,
		})
		if o.json {
			return errors.Join(err, writeJSON(o.out, result))
		}
		if err != nil {
			return err
		}
		waited := time.Duration(result.WaitedSeconds * float64(time.Second)).Round(time.Millisecond)
		if result.NoEvents {
			_, err = fmt.Fprintf(o.out, "%s is published: confirmed up to %s after %s, and no event lies between\n", result.Target, result.Confirmed, waited)
			return err
		}
		_, err = fmt.Fprintf(o.out, "%s is published: confirmed up to %s after %s\n", result.Target, result.Confirmed, waited)
		return err
	})
}

// empty says that nothing is to be waited for. A slot past the row counts while a relay
// holds it: it has looked itself.
func (p *position) empty(ctx context.Context, until event.LSN) (bool, error) {
	standing, err := verify.Look(ctx, p.desk, p.peek.Replication)
	if err != nil || standing.Refusal != nil || standing.State.Row == nil {
		return false, err
	}
	from := standing.Start.Skip
	if standing.Start.Doubtful {
		if standing.State.Holder == nil {
			return false, nil
		}
		from = standing.State.Slot.Confirmed
	}
	if from >= until {
		return false, nil // the next look sees it
	}
	if err := p.desk.AwaitFlush(ctx, until); err != nil {
		return false, err
	}
	return peek.Empty(ctx, p.conn, p.peek, standing.State.Row, from, until)
}
