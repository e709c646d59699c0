package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/internal/verify"
)

// defaultPeekEvents bounds a look: decoding is work for the server.
const defaultPeekEvents = 1_000_000

type checkpointPeekOptions struct {
	configFlag
	app     *app
	events  int
	most    int64
	payload bool
	json    bool
}

func newCheckpointPeekCommand(a *app) *cobra.Command {
	opts := checkpointPeekOptions{app: a}
	cmd := &cobra.Command{
		Use:   "peek",
		Short: "Show what is not published yet",
		Long: "Shows what lies between the position and the end of the WAL: how many events of which type for which topic, what will become\n" +
			"of them, and the first ones as they would be published. It reads a temporary copy of the slot, so that nothing is consumed,\n" +
			"and works while a relay runs; what that has on its way counts still. It needs a free replication slot. Keys, headers' values\n" +
			"and payloads are shown only with --payload: they may be private.",
		Example: "  postrider checkpoint peek\n  postrider checkpoint peek --events 3 --payload\n  postrider checkpoint peek --json | jq .counts",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.Validate(); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	flags := cmd.Flags()
	flags.IntVar(&opts.events, "events", 10, "show this `number` of events, from the first on")
	flags.Int64Var(&opts.most, "max-events", defaultPeekEvents, "stop after this `number` of events; 0 looks at all")
	flags.BoolVar(&opts.payload, "payload", false, "with key, headers and payload")
	addJSON(cmd, &opts.json)
	return cmd
}

// Validate checks the flags before anything is read or connected to.
func (o *checkpointPeekOptions) Validate() error {
	var problems []error
	if o.events < 0 || o.events > 10_000 {
		problems = append(problems, fmt.Errorf("--events is %d; must be from 0 to 10000", o.events))
	}
	if o.most < 0 {
		problems = append(problems, fmt.Errorf("--max-events is %d; must be 0 or more", o.most))
	}
	return errors.Join(problems...)
}

func (o *checkpointPeekOptions) run(ctx context.Context) error {
	return o.withPosition(ctx, "peek", func(ctx context.Context, p *position) error {
		report, err := p.unpublished(ctx, o.app.err, peek.Options{First: o.events, Payload: o.payload, Max: o.most})
		if err != nil {
			return err
		}
		if o.json {
			return writeJSON(o.app.out, report)
		}
		return printPeek(o.app.out, report)
	})
}

// unpublished looks from the position to the end of the WAL, or to o.Until where that is set.
func (p *position) unpublished(ctx context.Context, diagnostics io.Writer, o peek.Options) (peek.Report, error) {
	// The copy first: what is published before the position is read is not counted then.
	look, err := peek.Open(ctx, p.conn, p.peek, o.Page)
	if err != nil {
		return peek.Report{}, err
	}
	defer look.Close(ctx)
	standing, err := verify.Look(ctx, p.desk, p.peek.Replication)
	if err != nil {
		return peek.Report{}, err
	}
	o.SystemID, o.Skip = standing.State.System.ID, standing.Start.Skip
	if standing.Refusal != nil {
		o.Skip = look.From()
	}
	if o.Until == 0 {
		o.Until = standing.State.WALEnd
	}
	if err := p.desk.AwaitFlush(ctx, o.Until); err != nil {
		return peek.Report{}, err
	}
	shown := newWALProgress(diagnostics)
	o.Progress = func(at event.LSN) { shown.reached(at, o.Until) }
	report, err := look.Read(ctx, o)
	shown.done()
	switch {
	case standing.Refusal != nil:
		report.Doubt = standing.Refusal.Error()
	case standing.Start.Doubtful && standing.State.Holder == nil:
		report.Notes = append(report.Notes, standing.Start.Why+" (postrider checkpoint verify does)")
	}
	return report, err
}

func printPeek(out io.Writer, r peek.Report) error {
	t := newTable(out)
	t.row("publisher", "%s", r.Publisher)
	t.row("slot", "%s", r.Slot)
	t.row("published up to", "%s", r.From)
	t.row("looked up to", "%s", lookedText(r))
	t.row("not published", "%s", unpublishedText(r))
	if r.Oldest != nil {
		t.row("committed", "%s to %s", r.Oldest.UTC().Format(time.RFC3339), r.Newest.UTC().Format(time.RFC3339))
	}
	if r.Parked > 0 {
		t.row("parked already", "%d events", r.Parked)
	}
	if err := t.flush(); err != nil {
		return err
	}
	var b strings.Builder
	if r.Doubt != "" {
		fmt.Fprintf(&b, "\nA run would refuse to start here, so that this may not be all:\n  %s\n", r.Doubt)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	printCounts(&b, r.Counts)
	for i := range r.First {
		if i == 0 {
			fmt.Fprintf(&b, "\nThe first %d:\n", len(r.First))
		}
		printPeeked(&b, &r.First[i])
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func lookedText(r peek.Report) string {
	if !r.Complete {
		return fmt.Sprintf("%s, where --max-events ended the look; the WAL ends at %s", *r.StoppedAt, r.Until)
	}
	size := int64(0)
	if r.Until > r.From {
		size = int64(r.Until - r.From)
	}
	return fmt.Sprintf("%s, the end of the WAL, %s on", r.Until, bytesText(&size))
}

func unpublishedText(r peek.Report) string {
	if r.Events == 0 {
		return "nothing"
	}
	more := ""
	if !r.Complete {
		more = " and more"
	}
	return fmt.Sprintf("%d events in %d transactions, %s%s", r.Events, r.Transactions, bytesText(&r.Bytes), more)
}

func printCounts(out io.Writer, counts []peek.Count) {
	if len(counts) == 0 {
		return
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "EVENTS\tSIZE\tTYPE\tTOPIC\tOUTCOME")
	for _, c := range counts {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", c.Events, bytesText(&c.Bytes), clip(textOrDash(c.EventType), 22), clip(textOrDash(c.Topic), 28), outcomeText(c.Outcome, c.Reason))
	}
	_ = w.Flush() // into a buffer
}

func textOrDash(s string) string { return orDash(&s) }

func outcomeText(outcome, reason string) string {
	switch outcome {
	case peek.Held:
		return "parked behind its key"
	case peek.Park:
		return "parked: " + reason
	case peek.Halt:
		return "halts: " + reason
	}
	return "published"
}

func printPeeked(out io.Writer, e *peek.Event) {
	fmt.Fprintf(out, "%s\n", clip(fmt.Sprintf("%s event %d, %s, %s for %s, %d bytes", e.CommitLSN, e.Index, e.CommitTime.Format(time.RFC3339),
		textOrDash(e.EventType), textOrDash(e.Topic), e.ValueBytes), 100))
	fmt.Fprintf(out, "  id %s\n", clip(textOrDash(e.EventID), 95))
	if e.Outcome != peek.Publish {
		fmt.Fprintf(out, "  %s\n", clip(strings.TrimSuffix(outcomeText(e.Outcome, e.Reason)+"; "+e.Detail, "; "), 98))
	}
	if e.Headers == nil && e.Key == nil && e.Value == nil {
		return
	}
	fmt.Fprintf(out, "  key %s\n", bytesShown(e.Key))
	for _, h := range e.Headers {
		fmt.Fprintf(out, "  header %s: %s\n", h.Name, bytesShown(h.Value))
	}
	fmt.Fprintf(out, "  payload %s\n", bytesShown(e.Value))
}

// countedTypes says how many events of which types, for messages and the audit.
func countedTypes(r peek.Report) map[string]int64 {
	types := map[string]int64{}
	for _, c := range r.Counts {
		types[textOrDash(c.EventType)] += c.Events
	}
	return types
}
