package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/recovery"
)

// print shows the report. failed is the error that ended the recovery, or nil.
func (o *recoverOptions) print(r recovery.Report, failed error) error {
	if o.json {
		return writeJSON(o.app.out, r)
	}
	p := recoverScreen{out: o.app.out}
	p.evidence(&r)
	p.conclusion(&r)
	p.comparison(&r)
	p.unknown(&r)
	p.ending(&r, failed)
	return p.err
}

// recoverScreen writes a report for people, within 100 columns.
type recoverScreen struct {
	out io.Writer
	err error
}

func (p *recoverScreen) line(format string, args ...any) {
	_ = tell(p, format, args...) // p keeps the error
}

// rows aligns names and values under a title.
func (p *recoverScreen) rows(title string, rows [][2]string) {
	p.line("%s", title)
	t := newTable(p)
	t.widest = 78
	for _, row := range rows {
		t.row("  "+row[0], "%s", row[1])
	}
	_ = t.flush() // p keeps the error
}

// Write is for the tables; the first error stays.
func (p *recoverScreen) Write(b []byte) (int, error) {
	if p.err == nil {
		_, p.err = p.out.Write(b)
	}
	return len(b), p.err
}

func (p *recoverScreen) evidence(r *recovery.Report) {
	e := &r.Evidence
	rows := [][2]string{
		{"stored row", storedRowText(e.Stored)},
		{"slot", slotFactsText(e.Slot)},
		{"server", fmt.Sprintf("system %s, timeline %d, WAL up to %s", e.Server.SystemID, e.Server.Timeline, e.Server.WALEnd)},
	}
	for _, h := range e.Server.History {
		rows = append(rows, [2]string{"", fmt.Sprintf("timeline %d ended at %s", h.Timeline, h.End)})
	}
	rows = append(rows, [2]string{"parked", fmt.Sprintf("%d events", e.Parked)})
	if t := e.OpenTask; t != nil {
		rows = append(rows, [2]string{"recovery", fmt.Sprintf("%d, begun %s by %s, is open: %s, %d of %d published",
			t.ID, t.CreatedAt.UTC().Format(time.RFC3339), t.CreatedBy, t.Step, t.Done, t.Total)})
	}
	p.rows("Evidence", rows)
}

func storedRowText(s *recovery.StoredFacts) string {
	if s == nil {
		return "none"
	}
	text := fmt.Sprintf("slot %s, system %s, timeline %d, confirmed %s", s.Slot, s.SystemID, s.Timeline, s.Confirmed)
	if s.CommitTime != nil {
		text += ", last event committed " + s.CommitTime.UTC().Format(time.RFC3339)
	}
	if s.Idle {
		text += ", idle"
	}
	return text + ", written " + s.UpdatedAt.UTC().Format(time.RFC3339)
}

func slotFactsText(s recovery.SlotFacts) string {
	if !s.Exists {
		return s.Name + " does not exist"
	}
	text := fmt.Sprintf("%s, confirmed %s, WAL %s", s.Name, s.Confirmed, s.WALStatus)
	if s.Reason != "" {
		text += " (" + s.Reason + ")"
	}
	if s.Failover {
		text += ", failover"
	}
	if s.ActivePID != 0 {
		text += fmt.Sprintf(", held by pid %d", s.ActivePID)
	}
	return text
}

func (p *recoverScreen) conclusion(r *recovery.Report) {
	d := r.Diagnosis
	rows := [][2]string{{"case", string(d.Case)}, {"says", d.Says}}
	if r.Comparison != nil || d.Needed {
		candidates := "rows that the stored snapshot does not cover"
		if d.Scope == recovery.AllRows {
			candidates = "all rows of the outbox"
		}
		method := "a new one is made under the same name"
		if d.Method == recovery.KeepSlot {
			method = "it is kept"
		}
		rows = append(rows, [2]string{"candidates", candidates + ": " + d.ScopeWhy}, [2]string{"slot", method + ": " + d.MethodWhy})
	}
	if r.Order != "" {
		rows = append(rows, [2]string{"order", r.Order})
	}
	p.rows("Conclusion", rows)
}

func (p *recoverScreen) comparison(r *recovery.Report) {
	c := r.Comparison
	if c == nil {
		return
	}
	rows := [][2]string{{"candidates", fmt.Sprint(c.Candidates)}}
	count := func(name string, n int64, note string) {
		if n > 0 {
			rows = append(rows, [2]string{name, strings.TrimSpace(fmt.Sprintf("%d  %s", n, note))})
		}
	}
	count("parked", c.Parked, "")
	count("in the topic", c.InTopic, "")
	count("replaced", c.Replaced, "their topic is compacted, and has a later event of their key")
	count("on the stream", c.OnStream, "the relay publishes them")
	count("gone", c.Gone, "deleted since they were listed, and in no topic")
	count("conflicts", c.Conflicts, "have the id of a record with another key or value (--conflicts)")
	count("expired", c.Expired, "are from before their topic's first record (--expired)")
	rows = append(rows, [2]string{"to publish", fmt.Sprint(c.ToPublish)})
	count("too late", c.Late, fmt.Sprintf("of those come behind later events of %d keys that their topic has", c.LateKeys))
	count("refused by router", c.Refused, "they will be parked, or the recovery halts, as the route says")
	count("without an id", c.WithoutID, "left out")
	count("sharing an id", c.Shared, "left out")
	count("only in the topic", c.TopicOnly, "not in the table; --topic-only lists them, nothing repairs them")
	p.rows("Comparison", rows)
	p.groups(r.ToPublish)
	p.topics(c.Topics)
}

func (p *recoverScreen) groups(groups []recovery.Group) {
	if len(groups) == 0 {
		return
	}
	p.line("To publish, by topic and type")
	list := newGrid(p, "", "", "")
	list.indent = 4
	for _, g := range groups {
		list.row(g.Events, cmp.Or(g.Topic, "(refused)"), strings.TrimSpace(g.AggregateType+" "+g.EventType))
	}
	_ = list.flush() // p keeps the error
}

func (p *recoverScreen) topics(topics []recovery.TopicRead) {
	var rows [][2]string
	for _, t := range topics {
		text := fmt.Sprintf("%d records", t.Records)
		switch {
		case t.Missing:
			text = "does not exist"
		case t.Since != nil:
			text += " since " + t.Since.UTC().Format(time.RFC3339)
		default:
			text += " from its beginning"
		}
		if t.Trimmed && t.From != nil {
			text += "; it begins at " + t.From.UTC().Format(time.RFC3339)
		}
		if t.WithoutID > 0 {
			text += fmt.Sprintf("; %d carry no event id", t.WithoutID)
		}
		rows = append(rows, [2]string{t.Topic, text})
	}
	if len(rows) > 0 {
		p.rows("Topics read", rows)
	}
}

func (p *recoverScreen) unknown(r *recovery.Report) {
	if len(r.Unknown) == 0 {
		return
	}
	p.line("What cannot be known")
	for _, text := range r.Unknown {
		for i, part := range wrap(shown(text), screenWidth-4) {
			fmt.Fprintf(p, "  %s %s\n", []string{"-", " "}[min(i, 1)], part)
		}
	}
}

func (p *recoverScreen) ending(r *recovery.Report, failed error) {
	switch {
	case r.Evidence.OpenTask != nil:
		p.line("A recovery is open: postrider recover --resume goes on with it, --abandon gives it up.")
	case failed != nil:
	case r.Diagnosis.Case == recovery.CaseHealthy && r.Comparison == nil:
		p.line("Nothing to recover: postrider run starts.")
	case r.DryRun && r.Diagnosis.Case == recovery.CaseDoubtful:
		p.line("Nothing was changed. postrider run proves this by itself; recover is for where it could not.")
	case r.DryRun:
		p.line("Nothing was changed. postrider recover --yes does it.")
	default:
		text := fmt.Sprintf("Recovered (task %d): %d published", r.Task, r.Published)
		for _, c := range []struct {
			n    int64
			what string
		}{{r.Parked, "parked"}, {r.Gone, "deleted meanwhile"}, {r.PossibleDuplicates, "possibly twice"}} {
			if c.n > 0 {
				text += fmt.Sprintf(", %d %s", c.n, c.what)
			}
		}
		p.line("%s. The position is %s; postrider run goes on from there.", text, r.Position)
	}
}
