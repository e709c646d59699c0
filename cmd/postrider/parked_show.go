package main

import (
	"context"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/parking"
)

type parkedShowOptions struct {
	configFlag
	parkedFilter
	out     io.Writer
	payload bool
	json    bool
}

func newParkedShowCommand(a *app) *cobra.Command {
	opts := parkedShowOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "show number",
		Short: "Show one parked event",
		Long: "Shows all that is known of a parked event. Key, headers and payload are shown only with --payload: they may be private.\n" +
			"--json prints an object with the fields of `parked list`, and with --payload those of `parked export --payload`.",
		Example: "  postrider parked show 42\n  postrider parked show 42 --payload --json | jq -r .value | base64 -d",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError(cmd, fmt.Errorf("wants the number of one event"))
			}
			if err := opts.finish(args, true); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.configFlag.add(cmd)
	cmd.Flags().BoolVar(&opts.payload, "payload", false, "show key, headers and payload as well")
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *parkedShowOptions) run(ctx context.Context) error {
	o.States = []parking.State{parking.Parked, parking.Retry, parking.Publishing, parking.Published, parking.Discarded}
	return o.withDesk(ctx, "show", func(ctx context.Context, desk *parking.Desk) error {
		var found *parking.Detail
		err := desk.Each(ctx, o.Filter, func(e *parking.Detail) error {
			found = e
			if !o.payload {
				found.Key, found.Value, found.Headers = nil, nil, nil
			}
			return nil
		})
		switch {
		case err != nil:
			return err
		case found == nil:
			return parking.NoEvents(o.IDs)
		case o.json:
			return writeJSON(o.out, found)
		}
		return printParked(o.out, found, o.payload)
	})
}

func printParked(out io.Writer, e *parking.Detail, payload bool) error {
	t := newTable(out)
	t.row("number", "%d", e.ID)
	t.row("state", "%s", e.State)
	t.row("reason", "%s", e.Reason)
	t.row("error", "%s", e.Error)
	t.row("attempts", "%d", e.Attempts)
	t.row("event id", "%s", orDash(e.EventID))
	t.row("event type", "%s", orDash(e.EventType))
	t.row("aggregate", "%s %s, version %s", orDash(e.AggregateType), orDash(e.AggregateID), orDash(e.AggregateVersion))
	t.row("topic", "%s", orDash(e.Topic))
	t.row("holds its key", "%t", e.Holds)
	t.row("transaction", "%s, event %d", e.CommitLSN, e.EventIndex)
	t.row("parked", "%s", e.ParkedAt.UTC().Format(time.RFC3339))
	t.row("last try", "%s", timeText(e.TriedAt))
	t.row("done", "%s", timeText(e.FinishedAt))
	t.row("owner", "%s", orDash(e.Owner))
	t.row("repaired", "%t", e.Repaired)
	if e.DeadLetterTopic != nil {
		t.row("copy in "+*e.DeadLetterTopic, "%s", timeText(e.DeadLetterAt))
	}
	if e.DeadLetterError != nil {
		t.row("no whole copy", "%s", *e.DeadLetterError)
	}
	if payload {
		t.bytes("key", e.Key)
		for _, h := range e.Headers {
			t.bytes("header "+h.Name, h.Value)
		}
		t.bytes("payload", e.Value)
	}
	return t.flush()
}

func timeText(at *time.Time) string {
	if at == nil {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}

func bytesShown(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case utf8.Valid(b):
		return shown(string(b))
	}
	return fmt.Sprintf("%x", b)
}
