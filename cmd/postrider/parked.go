package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/parking"
)

func newParkedCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "parked", Short: "Look after events that could not be published"})
	cmd.AddCommand(
		newParkedListCommand(a), newParkedShowCommand(a), newParkedRetryCommand(a), newParkedDiscardCommand(a),
		newParkedAssignCommand(a), newParkedExportCommand(a), newParkedEraseCommand(a),
	)
	return cmd
}

// parkedFilter is what all parked commands choose events by.
type parkedFilter struct {
	parking.Filter
	all    bool
	states []string
}

func (f *parkedFilter) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Reason, "reason-is", "", "events that were refused with this `reason`, such as too_large")
	flags.StringVar(&f.AggregateType, "aggregate-type", "", "events of this aggregate `type`")
	flags.StringVar(&f.Aggregate, "aggregate", "", "events of this `key`")
	flags.StringVar(&f.EventType, "type", "", "events of this event `type`")
	flags.StringVar(&f.Topic, "topic", "", "events for this `topic`")
	flags.StringVar(&f.Owner, "owner", "", "events that this `name` looks after")
	flags.BoolVar(&f.NoOwner, "no-owner", false, "events that nobody looks after")
	flags.DurationVar(&f.OlderThan, "older-than", 0, "events that were parked at least this `time` ago")
	flags.StringSliceVar(&f.EventIDs, "event-id", nil, "events with these `ids`")
}

// addAll is for commands that change something: no filter must not mean everything.
func (f *parkedFilter) addAll(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.all, "all", false, "all events, where no filter is given")
}

func (f *parkedFilter) addStates(cmd *cobra.Command, standing string) {
	cmd.Flags().StringSliceVar(&f.states, "state", nil, "`states`: parked, retry, publishing, published, discarded, or all (default "+standing+")")
}

// finish takes the arguments, which are numbers of rows, and checks the whole.
func (f *parkedFilter) finish(args []string, wantsSome bool) error {
	var problems []error
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id <= 0 {
			problems = append(problems, fmt.Errorf("%q is no number of a parked event, as `parked list` shows them", arg))
			continue
		}
		f.IDs = append(f.IDs, id)
	}
	for _, s := range f.states {
		if s == "all" {
			f.States = []parking.State{parking.Parked, parking.Retry, parking.Publishing, parking.Published, parking.Discarded}
			break
		}
		f.States = append(f.States, parking.State(s))
	}
	problems = append(problems, f.Validate())
	switch {
	case f.all && (!f.Empty() || len(args) > 0):
		problems = append(problems, errors.New("--all is given together with what it would take in; keep one"))
	case wantsSome && !f.all && f.Empty() && len(args) == 0:
		problems = append(problems, errors.New("wants numbers of events, a filter, or --all"))
	}
	return errors.Join(problems...)
}

// addReason is for what needs a written reason.
func addReason(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "why, in `words`; kept in the audit")
}

func needReason(reason string) error {
	if len(reason) < 3 {
		return errors.New("wants --reason: why, in words, three letters at least; it is kept in the audit")
	}
	return nil
}

// isRate is false for what is no number of events a second; 0 does not limit them.
func isRate(r float64) bool { return r >= 0 && !math.IsInf(r, 0) }

func addDryRun(cmd *cobra.Command, dry *bool) {
	cmd.Flags().BoolVar(dry, "dry-run", false, "say what would be changed, and change nothing")
}

// withDesk opens the session that a parked command needs. The context that use gets ends with an interrupt.
func (f *configFlag) withDesk(ctx context.Context, command string, use func(context.Context, *parking.Desk) error) error {
	cfg, err := f.load()
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	return withSQL(ctx, cfg, "parked "+command, func(conn *pgx.Conn) error {
		return use(ctx, parking.NewDesk(conn, cfg.Publisher.Name, actor()))
	})
}

// actor is who runs the command, for the audit.
func actor() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return name + "@" + host
}

// selected is what --json prints of a change.
type selected struct {
	DryRun bool `json:"dry_run"`
	parking.Selection
}

func ageText(at time.Time) string { return time.Since(at).Round(time.Second).String() }

func orDash(s *string) string {
	if s == nil || *s == "" {
		return "-"
	}
	return *s
}
