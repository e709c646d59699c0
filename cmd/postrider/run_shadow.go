package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/internal/shadow"
	"github.com/postrider/postrider/parking"
)

const shadowHelp = "With --shadow nothing is published, and neither slot nor position is touched: what would be published is compared with what\n" +
	"another publisher puts on the topics meanwhile, field by field. It ends with --for or Ctrl-C, waits until what it has seen is\n" +
	"on a topic (--patience), and reports. The exit code is 0 when all agrees, and 8 when not."

// shadowFlags are those that mean nothing without --shadow.
var shadowFlags = []string{"for", "patience", "match", "id-header", "ignore-header", "samples", "payload", "json"}

type shadowOptions struct {
	shadow.Options
	on, json bool
}

func (o *shadowOptions) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&o.on, "shadow", false, "publish nothing: compare with what another publisher puts on the topics")
	flags.DurationVar(&o.For, "for", 0, "with --shadow: end after this `time`, counted from when its slot is ready; 0 goes on until Ctrl-C")
	flags.DurationVar(&o.Patience, "patience", shadow.DefaultPatience, "with --shadow: the `time` within which an event has to be on its topic")
	flags.StringVar(&o.Match, "match", shadow.MatchID, "with --shadow: tell a record's event by its `id` header, or by its content")
	flags.StringVar(&o.IDHeader, "id-header", "", "with --shadow: the other publisher's `header` with the event id (default the mapping's)")
	flags.StringSliceVar(&o.IgnoreHeaders, "ignore-header", nil, "with --shadow: do not compare headers of these `names`, such as \"__debezium.*\"")
	flags.IntVar(&o.Samples, "samples", shadow.DefaultSamples, "with --shadow: show so many differences of each kind")
	flags.BoolVar(&o.Payload, "payload", false, "with --shadow: show values and headers in samples; they may be private")
	flags.BoolVar(&o.json, "json", false, "with --shadow: print JSON")
}

func (o *shadowOptions) validate(cmd *cobra.Command) error {
	if o.on {
		problem := o.Options.Validate()
		if cmd.Flags().Changed("until-lsn") {
			problem = errors.Join(problem, errors.New("--until-lsn is for publishing, and --shadow publishes nothing; --for ends it"))
		}
		return problem
	}
	var alone []string
	for _, name := range shadowFlags {
		if cmd.Flags().Changed(name) {
			alone = append(alone, "--"+name)
		}
	}
	if len(alone) > 0 {
		return fmt.Errorf("%s without --shadow", strings.Join(alone, ", "))
	}
	return nil
}

func (o *shadowOptions) run(ctx context.Context, a *app, file *configFlag) error {
	cfg, err := file.load()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	interrupts := make(chan struct{}, 2)
	go func() { // each ends what goes on: the comparison, the wait for its last records; the third one everything
		for n := 0; ; n++ {
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
			if n == cap(interrupts) {
				cancel()
				return
			}
			interrupts <- struct{}{}
		}
	}()
	line := newProgressLine(a.err)
	report, err := shadow.Run(ctx, shadow.Config{
		Peek: peek.Config{
			Publisher: cfg.Publisher.Name, Replication: cfg.ReplicationConfig(), Router: cfg.Router(),
			Limits: parking.Limits{Units: cfg.Parking.MaxHeldKeys, Events: cfg.Parking.MaxEvents},
		},
		Kafka: cfg.PublisherConfig(),
		Say:   func(text string) { fmt.Fprintf(a.err, "run --shadow: %s\n", text) },
		Progress: func(r *shadow.Report) {
			line.show(fmt.Sprintf("%d streamed, %d compared, %d different, %d missing", r.Streamed, r.Compared, r.Different, r.Missing), 0, 0)
		},
	}, o.Options, interrupts)
	line.close()
	switch {
	case report == nil:
		return err
	case err != nil: // what was found until then may have taken hours
		return errors.Join(err, o.print(a.out, report))
	}
	return errors.Join(o.print(a.out, report), shadowFindings(report))
}

func shadowFindings(r *shadow.Report) error {
	switch {
	case r.Agrees() && r.Compared > 0:
		return nil
	case r.Agrees():
		return &operr.Error{
			Class: operr.Findings, Op: "run --shadow", Err: errors.New("nothing was compared: no event was written meanwhile"),
			Hint: "a longer --for, at a time when events are written",
		}
	}
	return &operr.Error{
		Class: operr.Findings, Op: "run --shadow", Err: errors.New("the other publisher's records are not what this configuration would publish"),
		Hint: "the mapping and routes of the configuration, until nothing differs that consumers look at; docs/migrate-from-polling.md and docs/migrate-from-debezium.md",
	}
}

func (o *shadowOptions) print(out io.Writer, r *shadow.Report) error {
	if o.json {
		return writeJSON(out, r)
	}
	t := newTable(out)
	t.row("compared", "%d of %d streamed events, from %s on, for %s", r.Compared, r.Streamed, r.From, r.Ended.Sub(r.Began).Round(time.Second))
	t.row("equal", "%d", r.Equal)
	t.row("different", "%d%s", r.Different, differentText(r.DifferentBy))
	t.row("missing", "%d, of which %d came later, and %d more at the end", r.Missing, r.Late, r.Waiting)
	t.row("out of order", "%d", r.OutOfOrder)
	t.row("unexpected", "%d records without a row, %d without an id", r.Unexpected, r.WithoutID)
	t.row("refused", "%d rows that would not be published", r.Refused)
	t.row("duplicates", "%d records of events that were there already", r.Duplicates)
	t.row("from before", "%d records of rows from before the beginning", r.Before)
	if r.SharedIDs > 0 {
		t.row("shared ids", "%d rows have the event id of another one", r.SharedIDs)
	}
	if err := t.flush(); err != nil {
		return err
	}
	return o.printSamples(out, r)
}

func differentText(by map[string]int64) string {
	var list []string
	for field, n := range by {
		list = append(list, fmt.Sprintf("%s %d", field, n))
	}
	if len(list) == 0 {
		return ""
	}
	slices.Sort(list)
	return " (" + strings.Join(list, ", ") + ")"
}

func (o *shadowOptions) printSamples(out io.Writer, r *shadow.Report) error {
	for _, note := range r.Notes {
		if err := tell(out, "note: %s", note); err != nil {
			return err
		}
	}
	if len(r.Samples) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	g := newGrid(out, "FIELD", "EVENT ID", "RECORD", "OURS", "THEIRS")
	for i := range r.Samples {
		s := &r.Samples[i]
		g.row(s.Field, s.Event, fmt.Sprintf("%s/%d/%d", s.Topic, s.Partition, s.Offset), s.Ours, s.Theirs)
	}
	return g.flush()
}
