package main

import (
	"fmt"
	"io"
	"time"

	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/internal/replay"
)

func printPreview(out io.Writer, p replay.Preview, above int64) error {
	if len(p.Groups) > 0 {
		list := newGrid(out, "TOPIC", "AGGREGATE TYPE", "EVENT TYPE", "EVENTS", "REFUSED")
		for _, g := range p.Groups {
			list.row(dash(g.Topic), dash(g.AggregateType), dash(g.EventType), g.Events, dash(g.Refused))
		}
		if err := list.flush(); err != nil {
			return err
		}
	}
	t := newTable(out)
	t.row("would be published again", "%d events", p.Events)
	if p.Oldest != nil && p.Newest != nil {
		t.row("first", "%s", stamp(*p.Oldest))
		t.row("last", "%s (%s)", stamp(*p.Newest), p.TimeBy)
	}
	if p.Events > 0 {
		t.row("in the order of", "%s", p.Order)
	}
	for _, left := range p.LeftOut {
		t.row("left out", "%d: %s", left.Events, left.Text)
	}
	if p.WithoutID > 0 {
		t.row("left out", "%d: rows without an event id", p.WithoutID)
	}
	if p.NeedsApproval {
		t.row("approval", "needed: more than %d events (replay.approval_above)", above)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if p.Events == 0 {
		return nil
	}
	_, err := fmt.Fprintln(out, "Nothing was published. To publish them, the same with --yes --reason \"...\"")
	return err
}

func dash(s string) string { return orDash(&s) }

func stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z") }

func (o *replayOptions) printResult(r replayed) error {
	if o.json {
		return writeJSON(o.app.out, r)
	}
	fmt.Fprintf(o.app.out, "replay %d is %s: %d of %d events published, %d not\n", r.Task.ID, r.Task.State, r.Published, r.Task.Total, r.Task.Refused)
	return printItems(o.app.out, r.Unpublished, r.Task.Refused)
}

func printItems(out io.Writer, items []reissue.Item, total int64) error {
	if len(items) == 0 {
		return nil
	}
	g := newGrid(out, "NUMBER", "EVENT ID", "OUTCOME")
	for _, i := range items {
		g.row(i.N, i.EventID, i.Outcome)
	}
	if err := g.flush(); err != nil {
		return err
	}
	if more := total - int64(len(items)); more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	return nil
}

// taskState is a state with what it means for somebody who waits.
func taskState(t reissue.Task) string {
	switch {
	case t.Active:
		return "running"
	case t.State == reissue.Running:
		return "interrupted"
	case t.State == reissue.Planned && !t.Detail.Listed:
		return "cut off"
	case t.State == reissue.Planned && t.Detail.NeedsApproval:
		return "needs approval"
	}
	return string(t.State)
}
