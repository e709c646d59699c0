package reconcile

import (
	"context"
	"hash/maphash"
	"math"
	"slices"
	"time"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/topic"
)

// progressEvery rows or records the caller hears of it.
const progressEvery = 50_000

// comparison is one run.
type comparison struct {
	cfg       Config
	o         Options
	reader    *outbox.Reader
	topics    *topic.Reader
	idHeaders []string
	report    *Report

	vouch
	// began is the snapshot that the run leaves for later ones, late that of an earlier one.
	began string
	late  string

	pass, passes int
	set          set
	// ordered are the tables in which nothing was updated, so that a row's transaction is that of its insert.
	ordered map[uint32]bool
	bounds  map[uint32]*bounds // by topic

	strangers map[strangerKey]stranger
	lost      []lost
	repair    []Ref
}

// lost is a row that has no record where one should be.
type lost struct {
	entry
	id string
}

// Run compares. The report is complete where the error is nil, whatever it says.
func Run(ctx context.Context, cfg Config, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, &operr.Error{Class: operr.Config, Op: "reconcile", Err: err}
	}
	start := time.Now()
	c := &comparison{
		cfg: cfg, o: o.withDefaults(), set: set{hasher: hasher{maphash.MakeSeed()}}, passes: 1,
		bounds: map[uint32]*bounds{}, strangers: map[strangerKey]stranger{},
	}
	var err error
	if c.idHeaders, err = idHeaders(cfg.Router.Sources); err != nil {
		return nil, err
	}
	if c.topics, err = topic.NewReader(cfg.Kafka); err != nil {
		return nil, err
	}
	defer c.topics.Close()
	c.reader, err = outbox.Open(ctx, outbox.Config{ConnString: cfg.ConnString, AppName: cfg.AppName, Publications: cfg.Publications, Router: cfg.Router})
	if err != nil {
		return nil, err
	}
	defer c.reader.Close(ctx)
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	c.report.Seconds = math.Round(time.Since(start).Seconds()*1000) / 1000
	return &Result{Report: *c.report, Repair: c.repair}, nil
}

func (c *comparison) run(ctx context.Context) error {
	c.begin()
	if err := c.readCheckpoint(ctx); err != nil {
		return err
	}
	// What the checkpoint covers was published by now, and lies before the ends that are read next.
	if err := c.addTopics(ctx); err != nil {
		return err
	}
	for ; c.pass < c.passes; c.pass++ {
		if err := c.compare(ctx); err != nil {
			return err
		}
	}
	if err := c.settle(ctx); err != nil {
		return err
	}
	return c.leaveSnapshot(ctx)
}

func (c *comparison) begin() {
	c.report = &Report{
		Publisher: c.cfg.Publisher, MostDuplicates: c.o.MostDuplicates, TimeBy: c.reader.TimeBy(), Since: orNil(c.o.Since), Until: orNil(c.o.Until), DifferentBy: map[string]int64{},
		Findings: Findings{Missing: []Finding{}, Different: []Finding{}, Duplicates: []Finding{}, OutOfOrder: []Finding{}, TopicOnly: []Finding{}},
	}
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// addTopics numbers the topics that are known without a row.
func (c *comparison) addTopics(ctx context.Context) error {
	c.set.topicIndex(noTopic)
	for _, name := range slices.Concat(c.reader.StaticTopics(), c.o.Topics) {
		if _, err := c.boundsOf(ctx, c.set.topicIndex(name)); err != nil {
			return err
		}
	}
	return nil
}

// compare is one pass.
func (c *comparison) compare(ctx context.Context) error {
	if err := c.readTable(ctx); err != nil {
		return err
	}
	if err := c.readParked(ctx); err != nil {
		return err
	}
	readings, err := c.readTopics(ctx)
	if err != nil {
		return err
	}
	if err := c.lookEarlier(ctx); err != nil {
		return err
	}
	c.set.each(func(e *entry) { c.judge(e, readings) })
	return nil
}

func (c *comparison) progress(phase string, done, total int64) {
	if c.cfg.Progress != nil {
		c.cfg.Progress(Progress{Phase: phase, Done: done, Total: total})
	}
}
