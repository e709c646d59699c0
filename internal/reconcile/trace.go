package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/topic"
)

// Where is the verdict of a trace.
type Where string

// The verdicts. Those that are as they should be come first.
const (
	// Published: its topic has it, as it should be.
	Published Where = "published"
	// Waiting: the checkpoint does not cover its row yet.
	Waiting Where = "waiting"
	// IsParked: it waits in postrider.parked.
	IsParked Where = "parked"
	// IsDiscarded: somebody gave it up there.
	IsDiscarded Where = "discarded"
	// BeforeSlot: its row is from before the slot, and no backfill has published it.
	BeforeSlot Where = "before_slot"
	// OnlyInTopic: its row is purged or deleted, or was never here.
	OnlyInTopic Where = "only_in_topic"
	// Different: its topic has it, and not as it should be.
	Different Where = "different"
	// Missing: it should be in its topic and is not.
	Missing Where = "missing"
	// Nowhere: neither table, nor parked store, nor topics have it.
	Nowhere Where = "nowhere"
)

// AsItShould says that nobody has to act for want of the event.
func (w Where) AsItShould() bool { return w != Different && w != Missing && w != Nowhere }

// Trail is where an event is. Its fields are the contract of --json.
type Trail struct {
	EventID string `json:"event_id"`
	// State is the verdict, Words the same in a sentence.
	State Where  `json:"state"`
	Words string `json:"words"`
	// Row is null where no table has it.
	Row *TracedRow `json:"row"`
	// Stored is the confirmed position; Covered says whether it covers the row, null where
	// nothing says, and NotProved why not.
	Stored    *string `json:"stored_lsn"`
	Covered   *bool   `json:"covered"`
	NotProved string  `json:"not_proved,omitempty"`
	// Parked has its history in the parked store.
	Parked []parking.Info `json:"parked"`
	// Receipts say where it was acknowledged, the first one first; empty where none is kept.
	Receipts []TracedReceipt `json:"receipts"`
	// Records are those that were found, oldest first in each partition.
	Records []TracedRecord `json:"records"`
	// Searched says where records were looked for.
	Searched []string `json:"searched"`
}

// TracedRow is the event as the table has it.
type TracedRow struct {
	Table string `json:"table"`
	// Partition is the table's partition that holds the row.
	Partition string `json:"table_partition"`
	// XID is the transaction that wrote the row last.
	XID        uint64     `json:"xid"`
	CommitTime *time.Time `json:"commit_time"`
	Topic      string     `json:"topic"`
	// Refused says why the router does not take the row as it is.
	Refused string `json:"refused,omitempty"`
	// Rows have this event id; the first by transaction is meant.
	Rows int `json:"rows"`
}

// TracedRecord is a record of the event.
type TracedRecord struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Time      time.Time `json:"time"`
	// Marks are our own headers, with their values.
	Marks []string `json:"marks"`
	// Differs names what is not as the row would give it now.
	Differs []string `json:"differs"`
}

// mostRecords of an event are listed.
const mostRecords = 50

// trace is one search.
type trace struct {
	cfg       Config
	topics    *topic.Reader
	reader    *outbox.Reader
	idHeaders []string
	id        []byte
	found     *outbox.Found
	trail     *Trail
	// older says that the row is from before the slot, and that nothing has published those.
	older bool
}

// Trace looks for an event by its id. more are topics to search besides the event's own.
// Where receipts say where it is, no other topic is searched.
func Trace(ctx context.Context, cfg Config, eventID string, more []string) (*Trail, error) {
	t := &trace{cfg: cfg, id: []byte(eventID), trail: &Trail{EventID: eventID, Parked: []parking.Info{}, Receipts: []TracedReceipt{}, Records: []TracedRecord{}, Searched: []string{}}}
	var err error
	if t.idHeaders, err = idHeaders(cfg.Router.Sources); err != nil {
		return nil, err
	}
	if t.topics, err = topic.NewReader(cfg.Kafka); err != nil {
		return nil, err
	}
	defer t.topics.Close()
	t.reader, err = outbox.Open(ctx, outbox.Config{ConnString: cfg.ConnString, AppName: cfg.AppName, Publications: cfg.Publications, Router: cfg.Router})
	if err != nil {
		return nil, err
	}
	defer t.reader.Close(ctx)
	// The checkpoint before the topics: what it covers is there by then.
	for _, step := range []func(context.Context) error{t.readRow, t.readCheckpoint, t.readParked, t.readReceipts} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	if err := t.followReceipts(ctx); err != nil {
		return nil, err
	}
	if err := t.search(ctx, more); err != nil {
		return nil, err
	}
	t.conclude()
	return t.trail, nil
}

func (t *trace) readRow(ctx context.Context) (err error) {
	if t.found, err = t.reader.Find(ctx, t.trail.EventID); err != nil || t.found == nil {
		return err
	}
	f := t.found
	t.trail.Row = &TracedRow{
		Table: f.Table, Partition: f.Partition, XID: f.XID, CommitTime: orNil(f.CommitTime), Topic: f.Message.Topic, Rows: f.Rows,
	}
	if f.Refusal != nil {
		t.trail.Row.Refused = f.Refusal.Error()
	}
	return nil
}

func (t *trace) readCheckpoint(ctx context.Context) error {
	v, err := readVouch(ctx, t.cfg, t.reader.Conn())
	if err != nil || v.stored == nil {
		t.trail.NotProved = v.notProved
		return err
	}
	stored := v.stored.Confirmed.String()
	t.trail.Stored, t.trail.NotProved = &stored, v.notProved
	if v.covered != nil && t.found != nil {
		covered := v.due(t.found.XID)
		t.trail.Covered = &covered
		t.older = v.beforeSlot(t.found.XID)
	}
	return nil
}

func (t *trace) readParked(ctx context.Context) error {
	desk := parking.NewDesk(t.reader.Conn(), t.cfg.Publisher, t.cfg.Actor)
	list, err := desk.List(ctx, parking.Filter{
		EventIDs: []string{t.trail.EventID},
		States:   []parking.State{parking.Parked, parking.Retry, parking.Publishing, parking.Published, parking.Discarded},
	}, 0)
	if err == nil {
		t.trail.Parked = list.Events
	}
	return err
}

// search looks through the topics that were asked for, and, where no receipt says where the
// event is, through its own topic, or, where nothing says which that is, those that are known.
func (t *trace) search(ctx context.Context, more []string) error {
	names := slices.Clone(more)
	if !t.trail.receipted() {
		names = t.likelyTopics(names)
	}
	searched := map[string]bool{}
	for _, name := range names {
		if searched[name] {
			continue
		}
		searched[name] = true
		if err := t.searchTopic(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// likelyTopics adds those where the event may be to those that were asked for.
func (t *trace) likelyTopics(names []string) []string {
	if t.found != nil && t.found.Message.Topic != "" {
		names = append([]string{t.found.Message.Topic}, names...)
	}
	for _, p := range t.trail.Parked {
		if p.Topic != nil && *p.Topic != "" {
			names = append(names, *p.Topic)
		}
	}
	for i := range t.trail.Receipts {
		names = append(names, t.trail.Receipts[i].Topic)
	}
	if t.found == nil || len(names) == 0 {
		names = append(names, t.reader.StaticTopics()...)
	}
	return names
}

// searchTopic goes from where the event is likely to where it is not, until it is found.
func (t *trace) searchTopic(ctx context.Context, name string) error {
	ends, err := t.topics.Ends(ctx, name)
	if errors.Is(err, topic.ErrNoTopic) {
		t.searched("%s: does not exist", name)
		return nil
	}
	if err != nil {
		return err
	}
	starts, err := t.topics.Starts(ctx, name)
	if err != nil {
		return err
	}
	likely, others := t.partitions(name, int32(len(ends)))
	since, known := t.since()
	if known {
		from, err := t.topics.Offsets(ctx, name, since)
		if err != nil {
			return err
		}
		if done, err := t.scan(ctx, name, topic.Span{From: from, To: ends, Partitions: likely}, "since "+show(since)); done || err != nil {
			return err
		}
		ends = earlier(ends, from, likely)
	}
	words := "from the beginning"
	if known {
		words = "before that"
	}
	if done, err := t.scan(ctx, name, topic.Span{From: starts, To: ends, Partitions: likely}, words); done || err != nil {
		return err
	}
	_, err = t.scan(ctx, name, topic.Span{From: starts, To: ends, Partitions: others}, "from the beginning")
	return err
}

// earlier ends the partitions that were read at where that began.
func earlier(ends, from topic.Offsets, partitions []int32) topic.Offsets {
	ends = slices.Clone(ends)
	for _, p := range partitions {
		ends[p] = at(from, int(p))
	}
	return ends
}

// partitions are the one that the event's key leads to, and the others; all are likely
// where nothing says.
func (t *trace) partitions(name string, count int32) (likely, others []int32) {
	own := int32(-1)
	if t.found != nil && t.found.Message.Topic == name {
		switch m := &t.found.Message; {
		case m.Partition >= 0:
			own = m.Partition
		case m.Key != nil && count > 0:
			own = publisher.PartitionOf(m.Key, count)
		}
	}
	for p := range count {
		if own < 0 || p == own {
			likely = append(likely, p)
		} else {
			others = append(others, p)
		}
	}
	return likely, others
}

// since is somewhat before the record's time, where the row tells it.
func (t *trace) since() (time.Time, bool) {
	if t.found == nil {
		return time.Time{}, false
	}
	at := t.found.CommitTime
	if millis := t.found.Message.TimestampMillis; millis != 0 {
		at = time.UnixMilli(millis)
	}
	return at.Add(-DefaultMargin), !at.IsZero()
}

func (t *trace) searched(format string, args ...any) {
	t.trail.Searched = append(t.trail.Searched, fmt.Sprintf(format, args...))
}

// scan looks through a span; done says that something was found.
func (t *trace) scan(ctx context.Context, name string, span topic.Span, words string) (done bool, err error) {
	var total, read int64
	for _, p := range span.Partitions {
		total += max(0, at(span.To, int(p))-at(span.From, int(p)))
	}
	if total == 0 {
		return false, nil
	}
	err = t.topics.Scan(ctx, name, span, func(rec *topic.Record) error {
		if read++; read%progressEvery == 0 && t.cfg.Progress != nil {
			t.cfg.Progress(Progress{Phase: "search topic " + name, Done: read, Total: total})
		}
		if t.isOurs(rec) {
			t.record(rec)
			done = true
		}
		return nil
	})
	which := fmt.Sprintf("partitions %v", span.Partitions)
	if len(span.Partitions) == 1 {
		which = fmt.Sprintf("partition %d", span.Partitions[0])
	}
	t.searched("%s, %s, %s: %d records", name, which, words, read)
	return done, err
}

func (t *trace) record(rec *topic.Record) {
	known := func(r TracedRecord) bool {
		return r.Topic == rec.Topic && r.Partition == rec.Partition && r.Offset == rec.Offset // by its receipt
	}
	if len(t.trail.Records) == mostRecords || slices.ContainsFunc(t.trail.Records, known) {
		return
	}
	r := TracedRecord{Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset, Time: rec.Time.UTC(), Marks: []string{}, Differs: []string{}}
	repaired := false
	for _, h := range rec.Headers {
		if isMark(h.Name) {
			r.Marks = append(r.Marks, fmt.Sprintf("%s: %s", h.Name, h.Value))
			repaired = repaired || h.Name == parking.RepairedHeader
		}
	}
	if t.found != nil && t.found.Refusal == nil {
		r.Differs = append(r.Differs, t.differs(rec, repaired)...)
	}
	t.trail.Records = append(t.trail.Records, r)
}

func (t *trace) differs(rec *topic.Record, repaired bool) (list []string) {
	m := &t.found.Message
	if rec.Topic != m.Topic {
		list = append(list, "topic")
	}
	if !same(rec.Key, m.Key) {
		list = append(list, "key")
	}
	if !repaired && !same(rec.Value, m.Value) {
		list = append(list, "value")
	}
	return append(list, compareHeaders(m.Headers, rec.Headers)...)
}
