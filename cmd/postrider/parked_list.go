package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

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
		Long: "Lists parked events, oldest first. The table shows what fits a line; `parked show` and --json have all of it. No key, header\n" +
			"or payload is shown but the aggregate's id: they may be private. The fields of --json are in docs/refusals.md.\n" +
			"It reads only, and works whether or not a relay runs.",
		Example: "  postrider parked list --reason-is too_large --older-than 1h\n  postrider parked list --no-owner --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			err := opts.finish(args, false)
			if opts.limit < 0 {
				err = errors.Join(err, fmt.Errorf("--limit is %d; must be 0 or more", opts.limit))
			}
			if err != nil {
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
		if list.Total == 0 {
			_, err := fmt.Fprintln(o.out, o.nothing())
			return err
		}
		return printListing(o.out, list)
	})
}

// nothing words an empty list: what a filter leaves out may be parked.
func (o *parkedListOptions) nothing() string {
	if o.Empty() && len(o.States) == 0 {
		return "nothing is parked"
	}
	return "no event that is asked for is parked"
}

func printListing(out io.Writer, list parking.Listing) error {
	g := newGrid(out, "NUMBER", "STATE", "REASON", "TYPE", "AGGREGATE", "TRIES", "AGE", "OWNER")
	for i := range list.Events {
		e := &list.Events[i]
		g.row(e.ID, e.State, e.Reason, orDash(e.EventType), orDash(e.AggregateID), e.Attempts, shortAge(time.Since(e.ParkedAt)), orDash(e.Owner))
	}
	if err := g.flush(); err != nil {
		return err
	}
	rest := ""
	if n := len(list.Events); int64(n) < list.Total {
		rest = fmt.Sprintf("\nthe oldest %d are listed; --limit 0 lists all", n)
	}
	_, err := fmt.Fprintf(out, "%s%d keys are held%s\n", reasonsText(list), list.Keys, rest)
	return err
}

// reasonsText is "3 events (held 1, too_large 2), ", with the reasons on lines of their own
// where there are many.
func reasonsText(list parking.Listing) string {
	reasons := slices.Sorted(maps.Keys(list.Reasons))
	for i, reason := range reasons {
		reasons[i] = clip(fmt.Sprintf("%s %d", reason, list.Reasons[reason]), 40)
	}
	if len(reasons) <= 2 {
		return fmt.Sprintf("%d events (%s), ", list.Total, strings.Join(reasons, ", "))
	}
	return fmt.Sprintf("%d events:\n  %s\n", list.Total, strings.Join(reasons, "\n  "))
}

// shortAge is an age in one unit, in up to six characters.
func shortAge(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", max(int(d.Seconds()), 0))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
