package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/reconcile"
)

func printReconciled(out io.Writer, r reconciled) error {
	t := newTable(out)
	t.row("window", "%s", windowText(&r.Report))
	t.row("rows", "%d, of which %d agree", r.Rows, r.Agreed)
	t.row("missing", "%d", r.Missing)
	t.row("different", "%d%s", r.Different, byField(r.DifferentBy))
	t.row("duplicates", "%d events, %d records too many%s", r.Duplicates, r.DuplicateRecords, allowedText(r.MostDuplicates))
	t.row("out of order", "%d (told by %s)", r.OutOfOrder, r.OrderBy)
	if r.TopicOnly != nil {
		t.row("only in a topic", "%d", *r.TopicOnly)
	}
	t.row("not due yet", "%s", notDueText(&r.Report))
	t.row("parked", "%d, discarded %d", r.Parked, r.Discarded)
	for _, other := range []struct {
		n    int64
		name string
		text string
	}{
		{r.BeforeSlot, "before the slot", "no stream has brought them: postrider backfill publishes them"},
		{r.Expired, "expired", "older than what their topic still has"},
		{r.Compacted, "compacted", "followed by a later record of their key"},
		{r.Held, "held back", "behind a transaction that is open in their topic: look again later"},
		{r.WithoutID, "without id", "nothing can be said about them"},
		{r.Shared, "shared id", "another row has their event id: nothing can be said about them"},
		{r.Healed, "healed", "were different once, and have a right copy"},
		{r.Repaired, "repaired", "carry a payload that was repaired while they were parked"},
	} {
		if other.n > 0 {
			t.row(other.name, "%d: %s", other.n, other.text)
		}
	}
	c := r.Copies
	t.row("copies", "%d replayed, %d backfilled, %d recovered", c.Replayed, c.Backfilled, c.Recovered)
	for i := range r.Topics {
		t.row("topic", "%s", topicText(&r.Topics[i]))
	}
	t.row("took", "%.1f s, %d %s", r.Seconds, r.Passes, plural(r.Passes, "pass", "passes"))
	if err := t.flush(); err != nil {
		return err
	}
	printFindings(out, "missing", r.Findings.Missing, func(f reconcile.Finding) string { return f.Why })
	printFindings(out, "different", r.Findings.Different, func(f reconcile.Finding) string { return strings.Join(f.Fields, ", ") })
	printFindings(out, "more than once", r.Findings.Duplicates, func(f reconcile.Finding) string { return fmt.Sprintf("%d records", f.Records) })
	printFindings(out, "out of order", r.Findings.OutOfOrder, func(f reconcile.Finding) string { return "after " + f.After })
	printFindings(out, "only in a topic", r.Findings.TopicOnly, func(reconcile.Finding) string { return "" })
	if p := r.Repair; p != nil {
		fmt.Fprintln(out)
		if err := tell(out, "replay %d is planned, %d events%s; begin it with", p.Task, p.Events, approvalText(p)); err != nil {
			return err
		}
		fmt.Fprintf(out, "  %s\n", p.Command)
	}
	return nil
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func approvalText(p *repairPlan) string {
	if p.NeedsApproval {
		return ", which a second person has to approve"
	}
	return ""
}

func windowText(r *reconcile.Report) string {
	text := "all rows"
	switch {
	case r.Since != nil && r.Until != nil:
		text = shortTime(*r.Since) + " to " + shortTime(*r.Until)
	case r.Since != nil:
		text = "since " + shortTime(*r.Since)
	case r.Until != nil:
		text = "until " + shortTime(*r.Until)
	}
	if r.Since != nil || r.Until != nil {
		text += ", by " + r.TimeBy
	}
	if r.LateSince != nil {
		text += "; and what has committed since " + shortTime(*r.LateSince)
	}
	return text
}

func shortTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

func byField(counts map[string]int64) string {
	var list []string
	for name, n := range counts {
		list = append(list, fmt.Sprintf("%s %d", name, n))
	}
	if len(list) == 0 {
		return ""
	}
	slices.Sort(list)
	return " (" + strings.Join(list, ", ") + ")"
}

func allowedText(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d allowed)", n)
}

func notDueText(r *reconcile.Report) string {
	text := fmt.Sprint(r.NotDue)
	if r.OldestNotDue != nil {
		text += ", the oldest from " + shortTime(*r.OldestNotDue)
	}
	if r.NotProved != "" {
		text += "; no row is due: " + r.NotProved
	}
	return text
}

func topicText(t *reconcile.TopicRead) string {
	if !t.Exists {
		return t.Topic + ": does not exist"
	}
	text := fmt.Sprintf("%s: %d records, %d partitions", t.Topic, t.Records, t.Partitions)
	if t.WithoutID > 0 {
		text += fmt.Sprintf(", %d without event id", t.WithoutID)
	}
	if t.From != nil {
		text += ", begins at " + shortTime(*t.From)
	}
	if t.Compacted {
		text += ", compacted"
	}
	if t.OpenTransaction {
		text += ", its end held back by a transaction"
	}
	return text
}

// printFindings lists findings of a kind.
func printFindings(out io.Writer, title string, list []reconcile.Finding, what func(reconcile.Finding) string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s:\n", title)
	g := newGrid(out, "", "", "")
	g.indent = 2
	for _, f := range list {
		where := f.Topic
		if f.Offset != nil {
			where = fmt.Sprintf("%s[%d]@%d", f.Topic, *f.Partition, *f.Offset)
		}
		g.row(f.EventID, where, what(f))
	}
	_ = g.flush() // like the lines around it
}
