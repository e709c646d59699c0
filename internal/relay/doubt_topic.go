package relay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/tickoff"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/topic"
)

// searchMargin is how much before a row's time its record is looked for first: what the
// clocks may be apart, and what lies between a row's time and its publication.
const searchMargin = time.Hour

// search looks for the suspects of a doubtful start in their topics: what did not come on
// the stream may have been published before (rule 4). It may take as long as reading the
// topics does, so that it has a goroutine of its own.
type search struct {
	done chan struct{}
	// err may be read once done is closed.
	err error
}

func (s *search) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// settleByTopic goes on where the stream has not settled all. d.mu is held.
func (g *generation) settleByTopic(d *doubt) error {
	switch s := d.search; {
	case s == nil:
		g.log.Info().Int("suspects", d.suspects.Len()).Msg("rows did not come on the stream; looking for their events in the topics")
		d.search = g.startSearch(d)
		return nil
	case s.err != nil && operr.IsTransient(s.err):
		d.search = nil // again at the next round
		return s.err
	case s.err != nil:
		return d.gapError(hintSearch(s.err), fmt.Errorf("whether their topics have them could not be found out: %w", s.err))
	}
	g.log.Error().Int("rows", d.suspects.Len()).Strs("event_ids", d.suspects.Names(mostLogged)).Msg("these events are in the table, and neither on the stream nor in a topic")
	return d.gapError(checkpoint.HintGap, errors.New("their topics do not have them"))
}

func hintSearch(err error) string {
	if hint := operr.HintOf(err); hint != "" {
		return hint
	}
	return checkpoint.HintGap
}

// mostLogged of the missing events are named in the log.
const mostLogged = 200

func (g *generation) startSearch(d *doubt) *search {
	s := &search{done: make(chan struct{})}
	g.searching.Add(1)
	go func() {
		defer g.searching.Done()
		defer close(s.done)
		s.err = g.searchTopics(g.closing, d)
	}()
	return s
}

// searchTopics clears the suspects that their topics have.
func (g *generation) searchTopics(ctx context.Context, d *doubt) error {
	rows, err := outbox.Open(ctx, outbox.Config{
		ConnString: g.cfg.Replication.ConnString, AppName: "postrider " + g.cfg.Publisher + " (doubtful start)",
		Publications: g.cfg.Replication.Publications, Router: g.cfg.Router,
	})
	if err != nil {
		return err
	}
	defer rows.Close(ctx)
	since := map[string]int64{} // by topic: the time of the oldest suspect's record
	there := d.part()
	if err := rows.Rows(ctx, outbox.Selection{NotCovered: d.snapshot}, func(row *outbox.Row) error {
		m := row.Message
		if !d.suspected(m.EventID) {
			return nil
		}
		there.Add(m.EventID)
		if row.Refusal == nil {
			oldest, known := since[m.Topic]
			if !known {
				oldest = math.MaxInt64
			}
			since[m.Topic] = min(oldest, m.TimestampMillis)
		}
		return nil
	}); err != nil {
		return err
	}
	// What is not among them has been deleted, or the publication leaves it out: nobody's events.
	d.keep(there)
	records, err := topic.NewReader(g.cfg.Kafka)
	if err != nil {
		return err
	}
	defer records.Close()
	for name, millis := range since {
		if err := g.searchTopic(ctx, d, records, name, time.UnixMilli(millis).Add(-searchMargin)); err != nil {
			return err
		}
	}
	return nil
}

// searchTopic reads a topic from where the events are likely, and what is before that
// only where some are not found.
func (g *generation) searchTopic(ctx context.Context, d *doubt, records *topic.Reader, name string, since time.Time) error {
	ends, err := records.Ends(ctx, name)
	if errors.Is(err, topic.ErrNoTopic) {
		return nil
	}
	if err != nil {
		return err
	}
	high, err := records.HighWatermarks(ctx, name)
	if err != nil {
		return err
	}
	from, err := records.Offsets(ctx, name, since)
	if err != nil {
		return err
	}
	for _, span := range []topic.Span{{From: from, To: ends}, {To: from}} {
		if err := records.Scan(ctx, name, span, func(rec *topic.Record) error {
			for _, header := range g.idHeaders() {
				if id, ok := rec.Header(header); ok {
					d.seen(id)
				}
			}
			return nil
		}); err != nil || d.left() == 0 {
			return err
		}
	}
	if !slices.Equal(ends, high) {
		return &operr.Error{
			Class: operr.Kafka, Transient: true, Op: "look for events in", Subject: "topic " + name,
			Err: errors.New("a transaction is open there, behind which they may stand"),
		}
	}
	return nil
}

// idHeaders are the headers that carry event ids.
func (g *generation) idHeaders() (names []string) {
	for i := range g.cfg.Router.Sources {
		name := g.cfg.Router.Sources[i].Mapping.EventIDHeader
		if name == "" {
			name = "id"
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// suspected says that a row is neither covered, nor came on the stream, nor was found.
func (d *doubt) suspected(id []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.passed && d.suspects.Has(id)
}

func (d *doubt) part() *tickoff.Suspects {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.suspects.Part()
}

func (d *doubt) keep(part *tickoff.Suspects) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.suspects.Keep(part)
}

func (d *doubt) left() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.passed {
		return 0
	}
	return d.suspects.Len()
}
