package shadow

import (
	"context"
	"errors"
	"fmt"
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
	// mostStrangers are looked up in the table at the end.
	mostStrangers = 10_000
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
	// For ends the comparison so long after it has begun; 0: only ctx does.
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
	at      map[string]topic.Offsets // read up to there
	missing map[string]bool          // topics that do not exist yet
	counts  map[string]int32         // partitions by topic
	match   matcher
	book    *book
	stream  *stream
	report  *Report
}

// Run compares until ctx ends, or for the time of the options, then waits until what was streamed is found, at most the patience; stop ends that wait. The report
// is complete where the error is nil.
func Run(ctx context.Context, cfg Config, o Options, stop <-chan struct{}) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, &operr.Error{Class: operr.Config, Op: "shadow", Err: err}
	}
	report := newReport(time.Now())
	c := &comparison{
		cfg: cfg, o: o, report: report, book: newBook(o, report), at: map[string]topic.Offsets{}, missing: map[string]bool{},
		counts: map[string]int32{}, match: newMatcher(o, cfg.Peek.Router),
	}
	defer c.close(context.WithoutCancel(ctx))
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	if err := c.followFor(ctx, o.For); err != nil {
		return nil, err
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Patience)
	defer cancel()
	if err := c.finish(last, stop); err != nil {
		return nil, err
	}
	report.Ended = time.Now().UTC()
	return report, nil
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

// followFor counts from where all is open: what it takes to reach the servers is no part of the comparison.
func (c *comparison) followFor(ctx context.Context, d time.Duration) error {
	if d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	return c.follow(ctx)
}

// follow looks at both sides in turn until ctx ends.
func (c *comparison) follow(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if err := c.look(ctx, true); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *comparison) look(ctx context.Context, streaming bool) error {
	if streaming && !c.book.crowded() {
		if err := c.readStream(ctx); err != nil {
			return err
		}
	}
	if err := c.readTopics(ctx); err != nil {
		return err
	}
	c.book.expire(time.Now())
	if c.cfg.Progress != nil {
		c.cfg.Progress(c.report)
	}
	return nil
}

func (c *comparison) readStream(ctx context.Context) error {
	var text string
	if err := c.conn.QueryRow(ctx, "SELECT pg_catalog.pg_current_wal_flush_lsn()::text").Scan(&text); err != nil {
		return &operr.Error{Class: operr.Postgres, Op: "ask for", Subject: "the end of the WAL", Err: err}
	}
	end, err := event.ParseLSN(text)
	if err != nil {
		return err
	}
	c.stream.ctx = ctx
	if err := c.slot.Read(ctx, end, c.stream); err != nil {
		return err
	}
	for name := range c.stream.news {
		if err := c.watch(ctx, name, false); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) readTopics(ctx context.Context) error {
	for name := range c.missing {
		if err := c.watch(ctx, name, false); err != nil {
			return err
		}
	}
	for name, from := range c.at {
		to, err := c.topics.Ends(ctx, name)
		if err != nil {
			return err
		}
		for len(from) < len(to) {
			from = append(from, 0) // partitions that were added
		}
		if err := c.topics.Scan(ctx, name, topic.Span{From: from, To: to}, c.take); err != nil {
			return err
		}
		c.at[name], c.counts[name] = to, int32(len(to))
	}
	return nil
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

// finish waits for the records of what was streamed, then settles what no event was streamed for.
func (c *comparison) finish(ctx context.Context, stop <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for len(c.book.waiting) > 0 {
		if err := c.look(ctx, false); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		break
	}
	c.book.end()
	settling, done := context.WithTimeout(context.WithoutCancel(ctx), DefaultPatience)
	defer done()
	return c.settle(settling)
}

// settle looks the records up whose event was not streamed: those of rows that the table had before are nobody's fault.
func (c *comparison) settle(ctx context.Context) error {
	if len(c.report.strangers) == 0 {
		return nil
	}
	if c.o.Match != MatchID {
		c.report.Before = int64(len(c.report.strangers))
		c.report.note("records without a streamed event were not looked up: that takes an id")
		return nil
	}
	rows, err := outbox.Open(ctx, outbox.Config{
		ConnString: c.cfg.Peek.Replication.ConnString, AppName: "postrider " + c.cfg.Peek.Publisher + " (shadow)",
		Publications: c.cfg.Peek.Replication.Publications, Router: c.cfg.Peek.Router,
	})
	if err != nil {
		return err
	}
	defer rows.Close(ctx)
	for i, s := range c.report.strangers {
		if i >= mostStrangers {
			c.report.note(fmt.Sprintf("only %d of %d records without a streamed event were looked up", mostStrangers, len(c.report.strangers)))
			break
		}
		row, err := rows.Find(ctx, s.Event)
		if err != nil {
			return err
		}
		if row != nil {
			c.report.Before++
			continue
		}
		c.report.Unexpected++
		c.book.sample(s)
	}
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
