package shadow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/internal/roots"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
	"github.com/postrider/postrider/topic"
)

const (
	// lookEvery is how often stream and topics are looked at.
	lookEvery = 250 * time.Millisecond
	// foundLate is how much older than its topic's first sight a record may be: the other publisher is faster than our look.
	foundLate = time.Minute
	// settleAtOnce strangers are looked up in the table by one statement.
	settleAtOnce = 1000
	// scanAtOnce is how many offsets of a partition are read at a look, so that what waits is bounded.
	scanAtOnce = 2000
	// rest is how much longer than work that loads the server the pause after it is. To read the stream is to decode again what the
	// oldest open transaction holds.
	rest = 4
)

// The ways in which a record is told to be an event's.
const (
	// MatchID goes by a header.
	MatchID = "id"
	// MatchContent goes by key and value together, for publishers that send no id.
	MatchContent = "content"
)

// Config says whose events are compared with what.
type Config struct {
	// Peek is whose events they are: connection, publications, mapping.
	Peek  peek.Config
	Kafka publisher.Config
	// Say hears of a step that may take long; may be nil.
	Say func(text string)
	// Progress hears how it goes, a few times a second; may be nil.
	Progress func(*Report)
}

// Options of a comparison.
type Options struct {
	// For is how long the stream is followed, from when the slot is ready. 0: until the context ends.
	For time.Duration
	// Patience is how long an event may wait for its record. Default a minute.
	Patience time.Duration
	// Match is MatchID (default) or MatchContent.
	Match string
	// IDHeader is the header of the other publisher that holds the event id. Default: that of the mapping.
	IDHeader string
	// IgnoreHeaders are patterns (path.Match) of headers that are not compared.
	IgnoreHeaders []string
	// Samples of each kind are kept.
	Samples int
	// Payload shows values in samples.
	Payload bool
}

// DefaultPatience and DefaultSamples are those of Options.
const (
	DefaultPatience = time.Minute
	DefaultSamples  = 5
)

// Validate finds what cannot hold together.
func (o *Options) Validate() error {
	var problems []error
	if o.For < 0 {
		problems = append(problems, fmt.Errorf("a duration of %s lies in the past", o.For))
	}
	if o.Patience <= 0 {
		problems = append(problems, fmt.Errorf("a patience of %s leaves no time", o.Patience))
	}
	if o.Match != MatchID && o.Match != MatchContent {
		problems = append(problems, fmt.Errorf("%q is no way to match, want %s or %s", o.Match, MatchID, MatchContent))
	}
	if o.Match == MatchContent && o.IDHeader != "" {
		problems = append(problems, errors.New("a header for the id goes with matching by id"))
	}
	for _, pattern := range o.IgnoreHeaders {
		if _, err := path.Match(pattern, ""); err != nil {
			problems = append(problems, fmt.Errorf("%q is no pattern for headers: %w", pattern, err))
		}
	}
	if o.Samples < 0 {
		problems = append(problems, errors.New("the number of samples is below 0"))
	}
	return errors.Join(problems...)
}

// comparison is one run. For one goroutine.
type comparison struct {
	cfg     Config
	o       Options
	conn    *pgx.Conn
	slot    *replication.SlotCopy
	topics  *topic.Reader
	sources *router.Router
	rows    *outbox.Reader           // opened when it is needed
	at, to  map[string]topic.Offsets // read up to there; to be read up to there
	aimed   time.Time                // when to was the end
	read    time.Time                // what was on the topics then has been read
	streams pace
	settles pace
	// streamed is when what has been read of the stream was all that there was.
	streamed time.Time

	missing map[string]bool  // topics that do not exist yet
	counts  map[string]int32 // partitions by topic
	match   matcher
	book    *book
	stream  *stream
	report  *Report

	interrupts <-chan struct{}
}

// Run compares for the time that o says, then waits until what was streamed is found, at most the patience. Each interrupt ends what
// goes on: the comparison, the wait, the look into the table for what is left; ctx ends everything. With an error the report is
// what was found until then, or nil where nothing was compared.
func Run(ctx context.Context, cfg Config, o Options, interrupts <-chan struct{}) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, &operr.Error{Class: operr.Config, Op: "shadow", Err: err}
	}
	report := newReport(time.Now())
	c := &comparison{
		cfg: cfg, o: o, report: report, book: newBook(o, report), at: map[string]topic.Offsets{}, to: map[string]topic.Offsets{},
		missing: map[string]bool{}, counts: map[string]int32{}, match: newMatcher(o, cfg.Peek.Router), interrupts: interrupts,
	}
	defer c.close(context.WithoutCancel(ctx))
	opening, cancel := c.untilInterrupt(ctx, 0)
	defer cancel()
	if err := c.open(opening); err != nil {
		if opening.Err() != nil {
			err = &operr.Error{
				Class: operr.DrainIncomplete, Op: "run --shadow", Err: fmt.Errorf("interrupted before anything was compared: %w", err),
				Hint: "a slot waits for open transactions to end: SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start",
			}
		}
		return nil, err
	}
	cancel()
	err := c.follow(ctx)
	if err == nil {
		err = c.finish(ctx)
	}
	if err != nil {
		c.book.end()
		report.note("it ended early; see the error")
	}
	report.Ended = time.Now().UTC()
	return report, err
}

// untilInterrupt gives a context that ends with the next interrupt, or after most where that is not 0.
func (c *comparison) untilInterrupt(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	if most == 0 {
		most = math.MaxInt64
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	go func() {
		select {
		case <-c.interrupts:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// open reads the topics' ends before it makes the slot. An event between the two has a record without a streamed event, which is
// looked up in the table later; the other way round it would have none, and seem to be missing.
func (c *comparison) open(ctx context.Context) (err error) {
	if c.conn, err = replication.ConnectSQL(ctx, c.cfg.Peek.Replication.ConnString, "postrider "+c.cfg.Peek.Publisher+" (shadow)"); err != nil {
		return err
	}
	pubs, err := peek.Publications(ctx, c.conn, c.cfg.Peek)
	if err != nil {
		return err
	}
	if c.topics, err = topic.NewReader(c.cfg.Kafka); err != nil {
		return err
	}
	if c.sources, err = router.New(c.cfg.Peek.Router); err != nil {
		return &operr.Error{Class: operr.Config, Op: "compile the mapping", Err: err, Hint: "postrider config check"}
	}
	for _, name := range c.sources.StaticTopics() {
		if err := c.watch(ctx, name, true); err != nil {
			return err
		}
	}
	if c.cfg.Say != nil {
		c.cfg.Say("making a temporary slot, for which every transaction that is open now has to end")
	}
	c.slot, err = replication.TemporarySlot(ctx, replication.CopyConfig{
		ConnString: c.cfg.Peek.Replication.ConnString, AppName: "postrider " + c.cfg.Peek.Publisher + " (shadow)",
		Publications: c.cfg.Peek.Replication.Publications, MaxRowBytes: c.cfg.Peek.Replication.MaxRowBytes,
	})
	if err != nil {
		return err
	}
	c.report.From = c.slot.From.String()
	finder := roots.New(c.cfg.Peek.Tables(), pubs, c.catalog(), map[uint32]replication.Table{})
	c.stream = &stream{ctx: ctx, c: c, roots: finder}
	return finder.Learn(ctx)
}

func (c *comparison) catalog() roots.Session {
	return roots.Session{
		Do: func(fn func(*pgx.Conn) error) error { return fn(c.conn) },
		Failed: func(op, subject string, err error) error {
			return &operr.Error{Class: operr.Postgres, Op: op, Subject: subject, Err: err}
		},
		Publications: c.cfg.Peek.Replication.Publications,
	}
}

func (c *comparison) close(ctx context.Context) {
	if c.slot != nil {
		c.slot.Close(ctx)
	}
	if c.rows != nil {
		c.rows.Close(ctx)
	}
	if c.topics != nil {
		c.topics.Close()
	}
	if c.conn != nil {
		replication.CloseSQL(ctx, c.conn)
	}
}

// watch begins to read a topic: at its end, or from a time where events of it have been streamed already.
func (c *comparison) watch(ctx context.Context, name string, atEnd bool) error {
	if _, known := c.at[name]; known {
		return nil
	}
	count, err := c.topics.Partitions(ctx, name)
	if errors.Is(err, topic.ErrNoTopic) {
		c.missing[name] = true
		return nil
	}
	if err != nil {
		return err
	}
	var from topic.Offsets
	switch {
	case atEnd && !c.missing[name]:
		from, err = c.topics.Ends(ctx, name)
	case c.missing[name]: // it was made since: all of it is news
		from = make(topic.Offsets, count)
	default:
		from, err = c.topics.Offsets(ctx, name, c.report.Began.Add(-foundLate))
	}
	if err != nil {
		return err
	}
	delete(c.missing, name)
	c.at[name], c.counts[name] = from, count
	return nil
}

// follow looks at both sides in turn. A look is not cut off by an interrupt: what is half read of a slot is lost.
func (c *comparison) follow(ctx context.Context) error {
	following, cancel := c.untilInterrupt(ctx, c.o.For)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if err := c.look(ctx, true); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-following.Done():
			return nil
		}
	}
}

func (c *comparison) take(r *topic.Record) error {
	got := record{topic: r.Topic, partition: r.Partition, offset: r.Offset, key: clone(r.Key), value: clone(r.Value), headers: cloneHeaders(r.Headers)}
	id, ok := c.match.record(&got)
	if !ok {
		c.report.WithoutID++
		c.report.note(fmt.Sprintf("records of %s have no header %q; --id-header names another, --match content does without", r.Topic, c.match.headerNames()))
		return nil
	}
	c.book.arrive(id, got, time.Now())
	return nil
}

func clone(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append([]byte{}, b...)
}

func cloneHeaders(list []event.Header) []event.Header {
	out := make([]event.Header, len(list))
	for i := range list {
		out[i] = event.Header{Name: list[i].Name, Value: clone(list[i].Value)}
	}
	return out
}
