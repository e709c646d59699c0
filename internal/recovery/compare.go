package recovery

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
	"github.com/postrider/postrider/topic"
)

// clockMargin is taken off the time from which a topic is read: what two clocks may be
// apart (see the package comment).
const clockMargin = time.Hour

// Comparison is what became of the candidates. Its fields are part of --json.
type Comparison struct {
	// Candidates are the rows that may be missing. Refused of them the router does not take.
	Candidates int64 `json:"candidates"`
	Refused    int64 `json:"refused"`
	Parked     int64 `json:"parked"`
	InTopic    int64 `json:"in_topic"`
	OnStream   int64 `json:"on_stream"`
	// Replaced are not in their topic, which is compacted and has a later event of their key.
	Replaced int64 `json:"replaced"`
	// Gone rows were deleted since they were listed, and are in no topic.
	Gone int64 `json:"gone"`
	// Conflicts have the id of another event of their topic, Expired are from before the topic's first record.
	Conflicts int64 `json:"conflicts"`
	Expired   int64 `json:"expired"`
	// ToPublish is what is left.
	ToPublish int64 `json:"to_publish"`
	// Late of those come behind later events of LateKeys keys that their topic has already.
	Late     int64 `json:"late"`
	LateKeys int64 `json:"late_keys"`
	// ConflictExamples are some ids of records with another key or value.
	ConflictExamples []string `json:"conflict_examples,omitempty"`
	// Topics says what was read.
	Topics []TopicRead `json:"topics"`
	// TopicOnly are records whose events the table does not have.
	TopicOnly int64 `json:"topic_only"`
	// TopicOnlyExamples are some of their ids.
	TopicOnlyExamples []string `json:"topic_only_examples,omitempty"`
	// Unlisted are rows without an event id, or with one that another row has, too: they
	// are not among the candidates.
	WithoutID int64 `json:"without_id"`
	Shared    int64 `json:"shared_id"`
}

// TopicRead is what was read of a topic.
type TopicRead struct {
	Topic string `json:"topic"`
	// Since is the time from which it was read; null: from its first record.
	Since   *time.Time `json:"since"`
	Records int64      `json:"records"`
	// Trimmed says that the topic's first records are gone, and From when the first is that it has.
	Trimmed bool       `json:"trimmed"`
	From    *time.Time `json:"from"`
	// Compacted says that the topic keeps the last record of a key only.
	Compacted bool `json:"compacted"`
	// Missing says that there is no such topic.
	Missing bool `json:"missing"`
	// WithoutID counts records that carry no event id.
	WithoutID int64 `json:"without_id"`

	from int64 // milliseconds of the first record; MinInt64 where nothing was trimmed
}

// errNoIDs: without an id in the records there is nothing to compare by.
var errNoIDs = errors.New("the mapping leaves the event id out of the records (event_id_header is \"-\")")

// comparison compares candidates with the parked store and the topics.
type comparison struct {
	r     *Recovery
	o     Options
	c     *candidates
	floor int64 // milliseconds: the topics are read from there, or earlier; MaxInt64 where nothing says
	// loaded: the rows were loaded here, and carry the commit of the loading.
	loaded bool
	result Comparison
	// present are the hashes of all event ids of the tables, sorted: what a topic has besides
	// is only there. nil: not asked. tablesOf says which tables' events go to a topic.
	present  []uint64
	tablesOf map[string]map[string]bool
	headers  []string
	// ends are those of the topics when they were read.
	ends map[string][]int64
	only func(*topic.Record, []byte) error
}

// compare settles what it can.
func (c *comparison) compare(ctx context.Context, topics []string) error {
	c.result.Candidates = int64(len(c.c.list))
	if err := c.settleParked(ctx); err != nil {
		return err
	}
	if !c.o.WithoutTopics {
		if len(c.headers) == 0 {
			return &operr.Error{
				Class: operr.Config, Op: "compare", Subject: "table and topics", Err: errNoIDs,
				Hint: "postrider recover --without-topics, which publishes all candidates",
			}
		}
		if err := c.readTopics(ctx, topics); err != nil {
			return err
		}
	}
	c.conclude()
	return nil
}

// settleParked: what is parked is settled, whatever became of it since. A row that the
// router refused is known by its table, a record that the broker refused by its topic.
func (c *comparison) settleParked(ctx context.Context) error {
	rows, err := c.r.conn.Query(ctx, `SELECT event_id, coalesce(topic, ''), coalesce(row_shape ->> 'as_schema', '') || '.' || coalesce(row_shape ->> 'as_table', '')
		FROM postrider.parked WHERE publisher = $1 AND event_id IS NOT NULL`, c.r.cfg.Publisher)
	if err != nil {
		return sqlError("read", "the parked events", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, topicName, table string
		if err := rows.Scan(&id, &topicName, &table); err != nil {
			return sqlError("read", "the parked events", err)
		}
		for m := range c.c.withID([]byte(id)) {
			if c.c.tables.all[m.table] == table || m.topic != noTopic && c.c.topics.all[m.topic] == topicName {
				m.fate = isParked
			}
		}
	}
	return sqlError("read", "the parked events", rows.Err())
}

// readTopics reads each topic from where candidates can stand.
func (c *comparison) readTopics(ctx context.Context, topics []string) error {
	reader, err := topic.NewReader(c.r.cfg.Kafka)
	if err != nil {
		return err
	}
	defer reader.Close()
	for _, name := range topics {
		read, err := c.readTopic(ctx, reader, name)
		if err != nil {
			return err
		}
		c.result.Topics = append(c.result.Topics, read)
		if read.Compacted {
			c.replace(name)
		}
		c.expire(read)
	}
	return nil
}

func (c *comparison) readTopic(ctx context.Context, reader *topic.Reader, name string) (TopicRead, error) {
	read := TopicRead{Topic: name, from: math.MinInt64}
	starts, err := reader.Starts(ctx, name)
	if errors.Is(err, topic.ErrNoTopic) {
		read.Missing = true
		return read, nil
	}
	if err != nil {
		return read, err
	}
	if read.Compacted, err = reader.Compacted(ctx, name); err != nil {
		return read, err
	}
	read.Trimmed = slices.ContainsFunc(starts, func(offset int64) bool { return offset > 0 })
	if read.Trimmed {
		if read.from, err = c.firstTime(ctx, reader, name, starts); err != nil {
			return read, err
		}
		at := time.UnixMilli(read.from)
		read.From = &at
	}
	span := topic.Span{}
	if since, ok := c.since(c.c.topics.index(name)); ok {
		read.Since = &since
		if span.From, err = reader.Offsets(ctx, name, since); err != nil {
			return read, err
		}
	}
	if span.To, err = reader.Ends(ctx, name); err != nil {
		return read, err
	}
	if c.ends == nil {
		c.ends = map[string][]int64{}
	}
	c.ends[name] = span.To
	return read, c.scan(ctx, reader, name, span, &read)
}

func (c *comparison) scan(ctx context.Context, reader *topic.Reader, name string, span topic.Span, read *TopicRead) error {
	phase, number := "read topic "+name, c.c.topics.index(name)
	c.r.progress(Progress{Phase: phase})
	return reader.Scan(ctx, name, span, func(rec *topic.Record) error {
		read.Records++
		if read.Records%100_000 == 0 {
			c.r.progress(Progress{Phase: phase, Done: read.Records})
		}
		return c.record(number, rec, read)
	})
}

// readBehind reads what the topics of the candidates have behind the ends that they had
// when they were compared. What is found there with another content proves nothing.
func (c *comparison) readBehind(ctx context.Context, ends map[string][]int64) error {
	reader, err := topic.NewReader(c.r.cfg.Kafka)
	if err != nil {
		return err
	}
	defer reader.Close()
	for _, name := range c.c.topics.all {
		partitions, err := reader.Partitions(ctx, name)
		if errors.Is(err, topic.ErrNoTopic) {
			continue
		}
		if err != nil {
			return err
		}
		from := make(topic.Offsets, partitions) // partitions that are new since begin at 0
		copy(from, ends[name])
		if err := c.scan(ctx, reader, name, topic.Span{From: from}, &TopicRead{}); err != nil {
			return err
		}
	}
	for i := range c.c.list {
		if m := &c.c.list[i]; m.fate == conflict {
			m.fate = missing
		}
	}
	return nil
}

// firstTime is the time of the youngest of the partitions' first records: what is older
// may have been there and be gone. Of a partition that has lost all of its records nothing
// is known but that retention took none that was younger than it allows.
func (c *comparison) firstTime(ctx context.Context, reader *topic.Reader, name string, starts topic.Offsets) (int64, error) {
	latest := int64(math.MinInt64)
	for p, from := range starts {
		if from == 0 {
			continue
		}
		empty := true
		span := topic.Span{From: starts, Partitions: []int32{int32(p)}}
		err := reader.Scan(ctx, name, span, func(rec *topic.Record) error {
			latest, empty = max(latest, rec.Time.UnixMilli()), false
			return errFirst
		})
		switch {
		case errors.Is(err, errFirst):
		case err != nil:
			return 0, err
		case empty:
			keeps, _, err := reader.Retention(ctx, name) // 0 where it is not known
			if err != nil {
				return 0, err
			}
			latest = max(latest, time.Now().Add(-keeps).UnixMilli())
		}
	}
	return latest, nil
}

var errFirst = errors.New("the first is enough")

// since is the time from which a topic is read; ok is false where that is its beginning.
func (c *comparison) since(number uint32) (time.Time, bool) {
	if c.o.ScanFrom != nil {
		return *c.o.ScanFrom, true
	}
	millis, known := c.c.earliest(number)
	millis = min(millis, c.floor)
	if !known || millis == math.MaxInt64 {
		return time.Time{}, false
	}
	return time.UnixMilli(millis).Add(-clockMargin), true
}

// record takes one record of a topic.
func (c *comparison) record(number uint32, rec *topic.Record, read *TopicRead) error {
	var id []byte
	for _, name := range c.headers {
		if value, ok := rec.Header(name); ok && len(value) > 0 {
			id = value
			break
		}
	}
	if id == nil {
		read.WithoutID++
		return nil
	}
	_, repaired := rec.Header(parking.RepairedHeader)
	known, other := c.c.record(number, id, rec.Key, rec.Value, repaired)
	if other && len(c.result.ConflictExamples) < mostExamples {
		c.result.ConflictExamples = append(c.result.ConflictExamples, string(id))
	}
	if known || c.present == nil {
		return nil
	}
	if c.isPresent(c.c.topics.all[number], id) {
		return nil
	}
	c.result.TopicOnly++
	if len(c.result.TopicOnlyExamples) < mostExamples {
		c.result.TopicOnlyExamples = append(c.result.TopicOnlyExamples, string(id))
	}
	if c.only != nil {
		return c.only(rec, id)
	}
	return nil
}

const mostExamples = 5

// replace: a compacted topic drops events behind which a later one of their key came.
// Published again, they would stand behind it.
func (c *comparison) replace(name string) {
	number := c.c.topics.index(name)
	c.c.late(func(m *candidate) {
		if m.topic == number {
			m.fate = replaced
		}
	})
}

// expire: what the topic does not have, and is from before its first record, may have been
// there. A row's time is the mapped one, else that of its commit, else that of the
// checkpoint that did not cover it; one of which nothing is known counts as old.
func (c *comparison) expire(read TopicRead) {
	if !read.Trimmed {
		return
	}
	number := c.c.topics.index(read.Topic)
	for i := range c.c.list {
		m := &c.c.list[i]
		if m.topic != number || m.fate != missing {
			continue
		}
		at := m.millis
		if at == unknownTime && !c.loaded {
			at = m.commit
		}
		if at == unknownTime && c.floor != math.MaxInt64 {
			at = c.floor
		}
		if at <= read.from { // in the same millisecond, too
			m.fate = expired
		}
	}
}

// conclude counts, after the person's decisions.
func (c *comparison) conclude() {
	decide := func(f fate, count *int64, decision Decision) {
		*count = c.c.count(f)
		if decision != "" {
			for i := range c.c.list {
				if m := &c.c.list[i]; m.fate == f {
					m.fate = decision.fate()
				}
			}
		}
	}
	decide(conflict, &c.result.Conflicts, c.o.Conflicts)
	decide(expired, &c.result.Expired, c.o.Expired)
	c.result.Parked, c.result.OnStream = c.c.count(isParked), c.c.count(onStream)
	c.result.InTopic = c.c.count(inTopic)
	c.result.Replaced, c.result.ToPublish, c.result.Gone = c.c.count(replaced), c.c.count(missing), c.c.count(gone)
	keys := map[uint64]bool{}
	c.c.late(func(m *candidate) {
		c.result.Late++
		keys[m.unit] = true
	})
	c.result.LateKeys = int64(len(keys))
}

// undecided is the error while a person has to decide.
func (c *comparison) undecided() error {
	conflicts, old := c.c.count(conflict), c.c.count(expired)
	if conflicts == 0 && old == 0 {
		return nil
	}
	e := &operr.Error{Class: operr.Slot, Op: "recover", Subject: "the missing events"}
	var problems []error
	if conflicts > 0 {
		problems = append(problems, fmt.Errorf("%d rows have the event id of a record with another key or value", conflicts))
		e.Hint = "postrider recover --conflicts settle (they are the same events under a changed mapping) or --conflicts publish (other events, whose ids were used before the database went back)"
	}
	if old > 0 {
		problems = append(problems, fmt.Errorf("%d rows are from before the first record that their topic still has: that they are not found there proves nothing", old))
		if e.Hint == "" {
			e.Hint = "postrider recover --expired settle (they were published, and retention has removed them) or --expired publish"
		}
	}
	e.Err = errors.Join(problems...)
	return e
}

// idHeaders are the headers that carry event ids.
func idHeaders(sources []router.Source) (headers []string) {
	for i := range sources {
		name := sources[i].Mapping.EventIDHeader
		if name == "" {
			name = "id"
		}
		if name != router.Disabled && !slices.Contains(headers, name) {
			headers = append(headers, name)
		}
	}
	return headers
}

// load reads candidates, and seals them: those of a task's list, or of a selection.
func (c *comparison) load(ctx context.Context, reader *outbox.Reader, task int64, sel outbox.Selection) error {
	c.r.progress(Progress{Phase: "read the table"})
	if err := c.loadRows(ctx, reader, task, sel); err != nil {
		return err
	}
	c.c.seal()
	if task == 0 {
		return nil
	}
	return c.c.addGone(func(yield func(string, int64, []byte) error) error { return reader.Gone(ctx, task, yield) })
}

func (c *comparison) loadRows(ctx context.Context, reader *outbox.Reader, task int64, sel outbox.Selection) error {
	return reader.Each(ctx, task, sel, func(row outbox.Candidate) error {
		if row.Refusal != nil {
			c.result.Refused++
		}
		if n := int64(len(c.c.list)); n%100_000 == 0 && n > 0 {
			c.r.progress(Progress{Phase: "read the table", Done: n})
		}
		return c.c.add(row.Table, row.N, row.CommitTime, row.Message, row.Refusal != nil)
	})
}

// loadPresent reads the ids of all rows.
func (c *comparison) loadPresent(ctx context.Context, reader *outbox.Reader) error {
	c.present = []uint64{}
	err := reader.EventIDs(ctx, func(table string, id []byte) error {
		c.present = append(c.present, c.c.unit(table, id))
		return nil
	})
	slices.Sort(c.present)
	return err
}

// comesFrom notes that events of a table go to a topic.
func (c *comparison) comesFrom(topicName, table string) {
	if c.tablesOf == nil {
		c.tablesOf = map[string]map[string]bool{}
	}
	if c.tablesOf[topicName] == nil {
		c.tablesOf[topicName] = map[string]bool{}
	}
	c.tablesOf[topicName][table] = true
}

// isPresent says that a table whose events go to the topic has the id: any table, where
// that is not known.
func (c *comparison) isPresent(topicName string, id []byte) bool {
	of := c.tablesOf[topicName]
	for _, src := range c.r.cfg.Router.Sources {
		table := replication.Table{Schema: src.Schema, Name: src.Table}.String()
		if of != nil && !of[table] {
			continue
		}
		if _, there := slices.BinarySearch(c.present, c.c.unit(table, id)); there {
			return true
		}
	}
	return false
}
