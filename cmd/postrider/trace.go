package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reconcile"
)

type traceOptions struct {
	configFlag
	app    *app
	topics []string
	json   bool
}

func newTraceCommand(a *app) *cobra.Command {
	opts := traceOptions{app: a}
	cmd := &cobra.Command{
		Use:   "trace event-id",
		Short: "Say where an event is",
		Long: "Looks for an event by its id: in which table and transaction its row is, whether the confirmed position covers it, whether\n" +
			"it is parked and why, and at which topic, partition and offset it was published. The topic is searched by the row's\n" +
			"time, in the partition of its key first, then before that and in the other partitions. Without a row the topics that the\n" +
			"routes name, and those of --topic, are searched from their beginning, which takes as long as reading them. Where receipts\n" +
			"are kept (receipts.keep) and say where it is, that one record is looked at, and besides it the topics of --topic alone.\n\n" +
			"It reads only, beside a running relay. The exit code is 0 when the event is where it should be: published, waiting for\n" +
			"the relay or a backfill, parked or discarded. It is 8 when it is missing, published otherwise than its row says, or nowhere.",
		Example: "  postrider trace 0b7f0a3e-4f0e-4d5c-9f8e-2f7f6f0f6a11\n  postrider trace 4711 --topic outbox.event.order --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usageError(cmd, errors.New("wants the id of one event, as the record's header has it"))
			}
			return opts.run(cmd.Context(), args[0])
		},
	}
	opts.add(cmd)
	cmd.Flags().StringSliceVar(&opts.topics, "topic", nil, "`topics` to search besides the event's own")
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *traceOptions) run(ctx context.Context, id string) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	line := newProgressLine(o.app.err)
	settings := reconcileConfig(cfg, func(p reconcile.Progress) { line.show(p.Phase, p.Done, p.Total) })
	settings.AppName = "postrider trace"
	trail, err := reconcile.Trace(ctx, settings, id, o.topics)
	line.close()
	switch {
	case ctx.Err() != nil && err != nil:
		return &operr.Error{Class: operr.DrainIncomplete, Op: "trace", Err: errors.New("interrupted before all was searched"), Hint: "the same again; nothing was changed"}
	case err != nil:
		return err
	case o.json:
		return errors.Join(trail.Error(), writeJSON(o.app.out, trail))
	}
	return errors.Join(trail.Error(), printTrail(o.app.out, trail))
}

func printTrail(out io.Writer, tr *reconcile.Trail) error {
	t := newTable(out)
	t.row("event", "%s", tr.EventID)
	t.row("state", "%s", tr.Words)
	printRow(t, tr)
	t.row("confirmed", "%s", confirmedText(tr))
	for i := range tr.Parked {
		p := &tr.Parked[i]
		t.row("parked", "number %d, %s since %s: %s %s", p.ID, p.State, p.ParkedAt.UTC().Format(time.RFC3339), p.Reason, p.Error)
	}
	if len(tr.Receipts) > 0 {
		r := &tr.Receipts[0]
		t.row("acknowledged", "%s, %s (receipt%s), %s", r.Place(), r.AckedAt.Format(time.RFC3339Nano), firstOf(len(tr.Receipts)), r.Words())
	}
	for i := range tr.Records {
		r := &tr.Records[i]
		t.row("record", "%s, partition %d, offset %d, %s%s", r.Topic, r.Partition, r.Offset, r.Time.Format(time.RFC3339), recordNotes(r))
	}
	for _, where := range tr.Searched {
		t.row("searched", "%s", where)
	}
	return t.flush()
}

func printRow(t *table, tr *reconcile.Trail) {
	row := tr.Row
	if row == nil {
		t.row("table", "no row")
		return
	}
	table := row.Table
	if row.Rows > 1 {
		table += fmt.Sprintf(" (%d rows have this id; the first is meant)", row.Rows)
	}
	t.row("table", "%s", table)
	commit := "commit time not kept by the server"
	if row.CommitTime != nil {
		commit = "committed " + row.CommitTime.UTC().Format(time.RFC3339Nano)
	}
	t.row("transaction", "%d, %s", row.XID, commit)
	if row.Refused != "" {
		t.row("refused", "%s", row.Refused)
	} else {
		t.row("goes to", "%s", row.Topic)
	}
}

func firstOf(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(", the first of %d", n)
}

func confirmedText(tr *reconcile.Trail) string {
	text := lsnText(tr.Stored)
	switch {
	case tr.NotProved != "":
		text += "; " + tr.NotProved
	case tr.Covered == nil:
	case tr.State == reconcile.BeforeSlot:
		text += "; the row is from before the slot"
	case *tr.Covered:
		text += ", covers the row: it is published or parked"
	default:
		text += ", does not cover the row yet"
	}
	return text
}

func recordNotes(r *reconcile.TracedRecord) string {
	text := ""
	if len(r.Marks) > 0 {
		text += "; " + strings.Join(r.Marks, ", ")
	}
	if len(r.Differs) > 0 {
		text += "; differs: " + strings.Join(r.Differs, ", ")
	}
	return text
}
