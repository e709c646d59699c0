package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/checkpoint"
)

type checkpointHistoryOptions struct {
	configFlag
	out          io.Writer
	all          bool
	actions      []string
	actor        string
	since, until string
	limit        int
	json         bool

	filter checkpoint.HistoryFilter
}

func newCheckpointHistoryCommand(a *app) *cobra.Command {
	opts := checkpointHistoryOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show who changed what, when and why",
		Long: "Shows the audit: what claimed or moved a position, what was done to parked events, which tasks ran; the oldest first, of those\n" +
			"chosen the latest. With --json each line is one object. It reads only, and works whether or not a relay runs.",
		Example: "  postrider checkpoint history --action advance --action accept\n  postrider checkpoint history --since 24h --json | jq -r .actor\n" +
			"  postrider checkpoint history --action parked. --actor alice",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.Validate(time.Now()); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&opts.all, "all-publishers", false, "of every publisher of the database, not of the configured one only")
	flags.StringSliceVar(&opts.actions, "action", nil, "`actions` such as advance; with a dot at the end all that begin so, such as parked.")
	flags.StringVar(&opts.actor, "actor", "", "lines whose actor or database user has this `text` in it")
	flags.StringVar(&opts.since, "since", "", "from this `time` on: 2026-01-31T12:00:00Z, or 24h for that long ago")
	flags.StringVar(&opts.until, "until", "", "before this `time`")
	flags.IntVar(&opts.limit, "limit", 100, "show at most this `number` of lines, the latest; 0 shows all")
	addJSON(cmd, &opts.json)
	return cmd
}

// Validate checks the flags before anything is read or connected to.
func (o *checkpointHistoryOptions) Validate(now time.Time) error {
	since, errSince := parseMoment("--since", o.since, now)
	until, errUntil := parseMoment("--until", o.until, now)
	problems := []error{errSince, errUntil}
	if o.limit < 0 {
		problems = append(problems, fmt.Errorf("--limit is %d; must be 0 or more", o.limit))
	}
	if !since.IsZero() && !until.IsZero() && !since.Before(until) {
		problems = append(problems, fmt.Errorf("--since %s is not before --until %s", o.since, o.until))
	}
	o.filter = checkpoint.HistoryFilter{Actions: o.actions, Actor: o.actor, Since: since, Until: until, Most: o.limit}
	return errors.Join(problems...)
}

// parseMoment takes a time, or how long ago it was; "" is none.
func parseMoment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%s is %q; must be a time such as 2026-01-31T12:00:00Z, or how long ago, such as 24h", flag, text)
	}
	return at, nil
}

func (o *checkpointHistoryOptions) run(ctx context.Context) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	if !o.all {
		o.filter.Publisher = cfg.Publisher.Name
	}
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	return withSQL(ctx, cfg, "checkpoint history", func(conn *pgx.Conn) error {
		show := o.line
		if o.json {
			enc := json.NewEncoder(o.out)
			enc.SetEscapeHTML(false)
			show = func(e checkpoint.Entry) error { return enc.Encode(e) }
		}
		return checkpoint.History(ctx, conn, o.filter, show)
	})
}

// line is one entry for people: who and what, below it from where to where and why, and the
// other detail as far as it fits.
func (o *checkpointHistoryOptions) line(e checkpoint.Entry) error {
	publisher := ""
	if o.all {
		publisher = e.Publisher + "  "
	}
	head := fmt.Sprintf("%s  %s%s  %s (%s)", e.At.UTC().Format(time.RFC3339), publisher, e.Action, e.Actor, e.DBUser)
	moved, rest := changeText(e.Detail)
	if err := tell(o.out, "%s", head); err != nil {
		return err
	}
	if moved != "" {
		if err := tell(o.out, "    %s", moved); err != nil {
			return err
		}
	}
	if rest == "{}" {
		return nil
	}
	_, err := fmt.Fprintf(o.out, "    %s\n", clip(rest, screenWidth-4))
	return err
}

// changeText takes from a detail what everybody asks for first: "0/16B3748 → 0/16B3A00: the
// reason". The rest stays in the database's order, which has short fields first.
func changeText(detail json.RawMessage) (moved, rest string) {
	var from, to, reason string
	first := map[string]*string{"from": &from, "from_lsn": &from, "to": &to, "to_lsn": &to, "reason": &reason}
	var others []string
	err := eachField(detail, func(name string, value json.RawMessage) {
		if into := first[name]; into != nil && json.Unmarshal(value, into) == nil {
			return
		}
		others = append(others, fmt.Sprintf("%q: %s", name, value))
	})
	if err != nil {
		return "", string(detail)
	}
	switch {
	case from != "" && to != "":
		moved = from + " → " + to
	case to != "":
		moved = "to " + to
	case from != "":
		moved = "from " + from
	}
	if moved != "" && reason != "" {
		moved += ": "
	}
	return moved + reason, "{" + strings.Join(others, ", ") + "}"
}

// eachField visits the fields of an object in their order.
func eachField(object json.RawMessage, visit func(name string, value json.RawMessage)) error {
	dec := json.NewDecoder(bytes.NewReader(object))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return fmt.Errorf("%s is no object: %w", object, err)
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		visit(fmt.Sprint(name), value)
	}
	return nil
}
