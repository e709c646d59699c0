package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/parking"
)

// retryLook is how often a waiting retry looks at its events.
const retryLook = 200 * time.Millisecond

type parkedRetryOptions struct {
	configFlag
	parkedFilter
	out         io.Writer
	payloadFile string
	reason      string
	timeout     time.Duration
	noWait      bool
	dry         bool
	json        bool
}

// retried is what --json prints.
type retried struct {
	selected
	parking.Outcome
}

func newParkedRetryCommand(a *app) *cobra.Command {
	opts := parkedRetryOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "retry [number...]",
		Short: "Publish parked events, now that the cause is gone",
		Long: "Asks the running relay to publish parked events as they are: same id, key, bytes and headers, in the order of their commits.\n" +
			"What has an order goes with all of its key. The command waits until each event is published or refused again, and says\n" +
			"so: 0 when all are published, 6 when some were refused again, 7 when the time ran out. Interrupted, it takes back what\n" +
			"the relay has not begun.\n\n" +
			"An event whose payload has to be repaired is retried with --payload-file and a reason; the record carries the header\n" +
			parking.RepairedHeader + ".",
		Example: "  postrider parked retry --reason-is too_large --dry-run\n  postrider parked retry --aggregate 4711\n" +
			"  postrider parked retry 42 --payload-file fixed.json --reason \"amount was a text\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opts.validate(args); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.configFlag.add(cmd)
	opts.parkedFilter.add(cmd)
	opts.addAll(cmd)
	cmd.Flags().StringVar(&opts.payloadFile, "payload-file", "", "publish the bytes of this `file` instead of the payload")
	addReason(cmd, &opts.reason)
	cmd.Flags().DurationVar(&opts.timeout, "timeout", 5*time.Minute, "wait at most this `time`; 0s waits for ever")
	cmd.Flags().BoolVar(&opts.noWait, "no-wait", false, "ask, and do not wait for the outcome")
	addDryRun(cmd, &opts.dry)
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *parkedRetryOptions) validate(args []string) error {
	problems := []error{o.finish(args, true)}
	if o.payloadFile != "" {
		if len(o.IDs) != 1 {
			problems = append(problems, errors.New("--payload-file wants the number of one event"))
		}
		problems = append(problems, needReason(o.reason))
	} else if o.reason != "" {
		problems = append(problems, errors.New("--reason is for --payload-file"))
	}
	if o.timeout < 0 {
		problems = append(problems, fmt.Errorf("--timeout is %s; must be 0s or more", o.timeout))
	}
	return errors.Join(problems...)
}

func (o *parkedRetryOptions) run(ctx context.Context) error {
	return o.withDesk(ctx, "retry", func(ctx context.Context, desk *parking.Desk) error {
		if err := o.repair(ctx, desk); err != nil {
			return err
		}
		sel, err := desk.Retry(ctx, o.Filter, o.dry)
		if err != nil {
			return err
		}
		result := retried{selected: selected{DryRun: o.dry, Selection: sel}}
		switch {
		case o.dry:
			return errors.Join(o.print(result, "would be published: %d events, %d of them for the order of %d keys\n", sel.Events, sel.Added, sel.Keys), sel.Unknown())
		case o.noWait:
			return errors.Join(o.print(result, "asked for: %d events, %d of them for the order of %d keys\n", sel.Events, sel.Added, sel.Keys), sel.Unknown())
		}
		outcome, waited := o.await(ctx, desk, sel.IDs)
		result.Outcome = outcome
		printed := o.print(result, "%d published, %d refused again, %d behind a refused one, %d not decided\n",
			outcome.Published, outcome.Refused, outcome.Behind, outcome.Waiting)
		return errors.Join(waited, outcomeError(outcome), sel.Unknown(), printed)
	})
}

func (o *parkedRetryOptions) repair(ctx context.Context, desk *parking.Desk) error {
	if o.payloadFile == "" || o.dry {
		return nil
	}
	payload, err := os.ReadFile(o.payloadFile)
	if err != nil {
		return &operr.Error{Class: operr.Config, Op: "read", Subject: "the payload", Err: err, Hint: "--payload-file with a file that can be read here"}
	}
	return desk.Repair(ctx, o.IDs[0], payload, o.reason)
}

func (o *parkedRetryOptions) print(result retried, format string, args ...any) error {
	if o.json {
		return writeJSON(o.out, result)
	}
	_, err := fmt.Fprintf(o.out, format, args...)
	return err
}

// await looks until all is decided. The error says why it is not.
func (o *parkedRetryOptions) await(ctx context.Context, desk *parking.Desk, ids []int64) (outcome parking.Outcome, err error) {
	waiting := ctx
	if o.timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	look := time.NewTicker(retryLook)
	defer look.Stop()
	for {
		// A look that is interrupted would break the session, which is needed still.
		if outcome, err = desk.Outcome(context.WithoutCancel(ctx), ids); err != nil || outcome.Waiting == 0 {
			return outcome, err
		}
		select {
		case <-look.C:
		case <-waiting.Done():
			return o.takeBack(ctx, desk, ids)
		}
	}
}

func (o *parkedRetryOptions) takeBack(ctx context.Context, desk *parking.Desk, ids []int64) (parking.Outcome, error) {
	ended := fmt.Errorf("not decided within %s", o.timeout)
	if ctx.Err() != nil {
		ended = errors.New("interrupted")
	}
	ctx = context.WithoutCancel(ctx)
	back, err := desk.Cancel(ctx, ids)
	// What nobody tried was not refused again.
	tried := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return slices.Contains(back, id) })
	outcome, looked := desk.Outcome(ctx, tried)
	outcome.Waiting += len(back)
	return outcome, errors.Join(&operr.Error{
		Class: operr.DrainIncomplete, Op: "retry parked events",
		Err:  fmt.Errorf("%w; %d were taken back before the relay began with them", ended, len(back)),
		Hint: "postrider checkpoint show: it says whether a relay runs, and whether it is paused; or a longer --timeout",
	}, err, looked)
}

func outcomeError(o parking.Outcome) error {
	if o.Refused == 0 && o.Behind == 0 {
		return nil
	}
	return &operr.Error{
		Class: operr.Halted, Op: "retry parked events",
		Err:  fmt.Errorf("%d published, %d refused again, %d behind them are parked still", o.Published, o.Refused, o.Behind),
		Hint: "postrider parked list, and postrider parked show NUMBER for the error; docs/refusals.md has the remedies",
	}
}
