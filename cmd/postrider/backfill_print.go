package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/postrider/postrider/internal/backfill"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/outbox"
)

func (o *backfillOptions) preview(ctx context.Context, b *backfill.Backfill) error {
	p, err := b.DryRun(ctx)
	if err != nil {
		return err
	}
	if o.json {
		return writeJSON(o.app.out, p)
	}
	return o.printPreview(p)
}

func (o *backfillOptions) printPreview(p backfill.Preview) error {
	t := newTable(o.app.out)
	t.row("slot", "%s, made at %s", p.Slot, p.BirthLSN)
	t.row("would publish", "%d events from before it", p.Events)
	if p.Changed > 0 {
		t.row("of these updated since", "%d", p.Changed)
	}
	if p.WithoutID > 0 {
		t.row("without an event id", "%d rows, which cannot be published", p.WithoutID)
	}
	if p.Oldest != nil && p.Newest != nil {
		t.row("from", "%s to %s (%s)", p.Oldest.UTC().Format(time.RFC3339), p.Newest.UTC().Format(time.RFC3339), p.TimeBy)
	}
	t.row("order", "%s", p.Order)
	if p.Unended != nil {
		t.row("not ended", "%s %d: %d of %d events are done; --resume or --cancel comes first", p.Unended.Kind, p.Unended.ID, p.Unended.Done, p.Unended.Total)
	}
	if p.Warning != "" {
		t.row("note", "%s", p.Warning)
	}
	if err := t.flush(); err != nil {
		return err
	}
	return printGroups(o.app.out, p.Groups)
}

// printGroups shows counts by topic and types.
func printGroups(out io.Writer, groups []outbox.Group) error {
	if len(groups) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	list := newGrid(out, "EVENTS", "TOPIC", "AGGREGATE TYPE", "EVENT TYPE", "REFUSED")
	for _, g := range groups {
		list.row(g.Events, textOrDash(g.Topic), textOrDash(g.AggregateType), textOrDash(g.EventType), textOrDash(g.Refused))
	}
	return list.flush()
}

func (o *backfillOptions) print(out backfill.Outcome) error {
	if o.json {
		return writeJSON(o.app.out, out)
	}
	t := newTable(o.app.out)
	t.row("backfill", "%d, %s", out.Task, out.State)
	t.row("published", "%d events now, %d of %d in all", out.Published, out.Done-out.Refused, out.Total)
	if out.Refused > 0 {
		t.row("not published", "%d", out.Refused)
	}
	if out.MayRepeat > 0 {
		t.row("may come twice", "%d at most: on their way when the last attempt was cut off", out.MayRepeat)
	}
	if out.PossibleDuplicates > 0 {
		t.row("may come twice", "%d: the broker had lost the producer's state", out.PossibleDuplicates)
	}
	if out.Changed > 0 {
		t.row("updated since the slot", "%d rows, which do not come on the stream and are among these", out.Changed)
	}
	if out.SharedID > 0 {
		t.row("shared ids", "%d rows have the event id of another one; of these the first is published", out.SharedID)
	}
	if out.WithoutID > 0 {
		t.row("without an event id", "%d rows, left out", out.WithoutID)
	}
	t.row("order", "%s", out.Order)
	if err := t.flush(); err != nil {
		return err
	}
	return printItems(o.app.out, out.Unpublished, out.Refused)
}

// interrupted words an end by a signal.
func interrupted(out backfill.Outcome) error {
	e := &operr.Error{
		Class: operr.DrainIncomplete, Op: "backfill", Err: errors.New("interrupted before anything was published"),
		Hint: "postrider backfill",
	}
	if out.State == reissue.Failed {
		e.Err = fmt.Errorf("interrupted: %d of %d events are done", out.Done, out.Total)
		e.Hint = "postrider backfill --resume"
	}
	return e
}
