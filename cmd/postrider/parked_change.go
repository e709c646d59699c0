package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/parking"
)

// parkedChangeOptions are those of discard, assign and erase.
type parkedChangeOptions struct {
	configFlag
	parkedFilter
	out    io.Writer
	reason string
	name   string
	dry    bool
	json   bool

	// change does it; done words it.
	change func(ctx context.Context, o *parkedChangeOptions, desk *parking.Desk) (parking.Selection, error)
	done   string
}

func newParkedDiscardCommand(a *app) *cobra.Command {
	opts := parkedChangeOptions{
		out: a.out, done: "discarded",
		change: func(ctx context.Context, o *parkedChangeOptions, desk *parking.Desk) (parking.Selection, error) {
			return desk.Discard(ctx, o.Filter, o.reason, o.dry)
		},
	}
	cmd := &cobra.Command{
		Use:   "discard [number...]",
		Short: "Give parked events up, for a written reason",
		Long: "Gives parked events up: they will not be published, also not when they are streamed again after a crash. The events of the\n" +
			"same key that stood behind them go out. What is on its way, or asked for by a retry, is not touched.",
		Example: "  postrider parked discard 42 --reason \"test data of 3 May, agreed with billing\"\n" +
			"  postrider parked discard --type TestEvent --dry-run --reason \"test data\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(opts.finish(args, true), needReason(opts.reason)); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context(), "discard")
		},
	}
	opts.addFlags(cmd)
	addReason(cmd, &opts.reason)
	return cmd
}

func newParkedAssignCommand(a *app) *cobra.Command {
	opts := parkedChangeOptions{
		out: a.out, done: "assigned",
		change: func(ctx context.Context, o *parkedChangeOptions, desk *parking.Desk) (parking.Selection, error) {
			return desk.Assign(ctx, o.Filter, o.name, o.dry)
		},
	}
	cmd := &cobra.Command{
		Use:     "assign [number...]",
		Short:   "Name who looks after parked events",
		Long:    "Names who looks after parked events; an empty name takes it away. Metrics count events without one.",
		Example: "  postrider parked assign --type PaymentTaken --to billing\n  postrider parked assign 42 --to \"\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			err := opts.finish(args, true)
			if !cmd.Flags().Changed("to") {
				err = errors.Join(err, errors.New("wants --to"))
			}
			if err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context(), "assign")
		},
	}
	opts.addFlags(cmd)
	cmd.Flags().StringVar(&opts.name, "to", "", "the `name` of a person or team")
	return cmd
}

func newParkedEraseCommand(a *app) *cobra.Command {
	opts := parkedChangeOptions{
		out: a.out, done: "erased",
		change: func(ctx context.Context, o *parkedChangeOptions, desk *parking.Desk) (parking.Selection, error) {
			return desk.Erase(ctx, o.Filter, o.reason, o.dry)
		},
	}
	cmd := &cobra.Command{
		Use:   "erase [number...]",
		Short: "Remove the stored bytes of events and keep the fact",
		Long: "Removes payload, headers and the stored row of events, of whatever state, and keeps that they were: number, id, position, reason and\n" +
			"what became of them. An event that was parked still is discarded with it. What is on its way is not touched.",
		Example: "  postrider parked erase --aggregate customer-17 --reason \"request 2211 of the data protection officer\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(opts.finish(args, true), needReason(opts.reason)); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context(), "erase")
		},
	}
	opts.addFlags(cmd)
	addReason(cmd, &opts.reason)
	return cmd
}

func (o *parkedChangeOptions) addFlags(cmd *cobra.Command) {
	o.configFlag.add(cmd)
	o.parkedFilter.add(cmd)
	o.addAll(cmd)
	addDryRun(cmd, &o.dry)
	addJSON(cmd, &o.json)
}

func (o *parkedChangeOptions) run(ctx context.Context, command string) error {
	return o.withDesk(ctx, command, func(ctx context.Context, desk *parking.Desk) error {
		sel, err := o.change(ctx, o, desk)
		if err != nil {
			return err
		}
		if o.json {
			return errors.Join(writeJSON(o.out, selected{DryRun: o.dry, Selection: sel}), sel.Unknown())
		}
		would := ""
		if o.dry {
			would = "would be "
		}
		_, err = fmt.Fprintf(o.out, "%s%s: %d events of %d held keys\n", would, o.done, sel.Events, sel.Keys)
		return errors.Join(err, sel.Unknown())
	})
}
