package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/parking"
)

type parkedListOptions struct {
	configFlag
	parkedFilter
	out   io.Writer
	limit int
	json  bool
}

func newParkedListCommand(a *app) *cobra.Command {
	opts := parkedListOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "list [number...]",
		Short: "List parked events",
		Long: "Lists parked events, oldest first, with what they wait for. No key, header or payload is shown but the aggregate's id:\n" +
			"they may be private. It reads only, and works whether or not a relay runs.",
		Example: "  postrider parked list --reason-is too_large --older-than 1h\n  postrider parked list --no-owner --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opts.finish(args, false); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.configFlag.add(cmd)
	opts.parkedFilter.add(cmd)
	opts.addStates(cmd, "those not done: parked, retry, publishing")
	cmd.Flags().IntVar(&opts.limit, "limit", 100, "list at most this `number` of events; 0 lists all")
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *parkedListOptions) run(ctx context.Context) error {
	return o.withDesk(ctx, "list", func(ctx context.Context, desk *parking.Desk) error {
		list, err := desk.List(ctx, o.Filter, o.limit)
		if err != nil {
			return err
		}
		if o.json {
			return writeJSON(o.out, list)
		}
		return printListing(o.out, list)
	})
}

func printListing(out io.Writer, list parking.Listing) error {
	if list.Total == 0 {
		_, err := fmt.Fprintln(out, "nothing is parked")
		return err
	}
	g := newGrid(out, "NUMBER", "STATE", "REASON", "TYPE", "AGGREGATE", "TOPIC", "TRIES", "FOR", "OWNER", "EVENT ID")
	for i := range list.Events {
		e := &list.Events[i]
		g.row(e.ID, e.State, e.Reason, orDash(e.EventType), orDash(e.AggregateID), orDash(e.Topic), e.Attempts, ageText(e.ParkedAt), orDash(e.Owner), orDash(e.EventID))
	}
	if err := g.flush(); err != nil {
		return err
	}
	var reasons []string
	for reason, n := range list.Reasons {
		reasons = append(reasons, fmt.Sprintf("%s %d", reason, n))
	}
	slices.Sort(reasons)
	return tell(out, "%d events (%s), %d keys are held", list.Total, strings.Join(reasons, ", "), list.Keys)
}
