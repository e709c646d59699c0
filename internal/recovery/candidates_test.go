package recovery

import (
	"math"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
)

// message is a candidate's record.
func message(topic, id, key, value string, millis int64) *event.Message {
	return &event.Message{
		Topic: topic, EventID: []byte(id), Key: []byte(key), Value: []byte(value), TimestampMillis: millis,
		AggregateType: []byte("order"), EventType: []byte("placed"),
	}
}

func sealed(t *testing.T, messages ...*event.Message) *candidates {
	t.Helper()
	c := newCandidates()
	for i, m := range messages {
		if err := c.add("public.outbox", int64(i+1), time.Time{}, m, false); err != nil {
			t.Fatal(err)
		}
	}
	c.seal()
	return c
}

// fates gives what became of the candidates, by their numbers.
func fates(c *candidates) map[int64]fate {
	got := map[int64]fate{}
	for _, m := range c.list {
		got[m.n] = m.fate
	}
	return got
}

// A record settles the event of its id in its topic, if it is that event: one with another
// content is a conflict, until a copy with the right one is found.
func TestRecordSettlesItsEvent(t *testing.T) {
	t.Parallel()
	c := sealed(t,
		message("a", "1", "k", "one", 5), message("a", "2", "k", "two", 5), message("a", "3", "k", "three", 5),
		message("b", "1", "k", "one", 5), message("a", "4", "k", "", 5), message("a", "5", "k", "five", 5))
	topic := c.topics.index("a")
	for _, r := range []struct {
		id, key  string
		value    []byte
		repaired bool
		known    bool
	}{
		{"1", "k", []byte("one"), false, true},
		{"2", "k", []byte("other"), false, true},
		{"3", "k", []byte("other"), false, true},
		{"3", "k", []byte("three"), false, true},
		{"4", "k", nil, false, true}, // a tombstone is no empty value
		{"5", "k", []byte("repaired"), true, true},
		{"6", "k", []byte("six"), false, false},
	} {
		if known, _ := c.record(topic, []byte(r.id), []byte(r.key), r.value, r.repaired); known != r.known {
			t.Errorf("record %s: known %t", r.id, known)
		}
	}
	want := map[int64]fate{1: inTopic, 2: conflict, 3: inTopic, 4: missing, 5: conflict, 6: inTopic}
	for n, got := range fates(c) {
		if got != want[n] {
			t.Errorf("candidate %d: fate %d, want %d", n, got, want[n])
		}
	}
}

// What is parked or comes on the stream stays that, whatever the topic has.
func TestRecordLeavesWhatIsSettled(t *testing.T) {
	t.Parallel()
	c := sealed(t, message("a", "1", "k", "one", 5), message("a", "2", "k", "two", 5))
	for m := range c.withID([]byte("1")) {
		m.fate = isParked
	}
	for m := range c.withID([]byte("2")) {
		m.fate = onStream
	}
	for _, id := range []string{"1", "2"} {
		c.record(c.topics.index("a"), []byte(id), []byte("k"), []byte("other"), false)
	}
	if got := fates(c); got[1] != isParked || got[2] != onStream {
		t.Errorf("fates %v", got)
	}
}

// A missing event that comes behind a later one of its key is counted: order is broken
// there, and said so.
func TestLate(t *testing.T) {
	t.Parallel()
	c := sealed(t,
		message("a", "1", "k", "1", 5), message("a", "2", "k", "2", 5), message("a", "3", "k", "3", 5),
		message("a", "4", "l", "4", 5), message("a", "5", "l", "5", 5), message("b", "6", "k", "6", 5))
	c.record(c.topics.index("a"), []byte("2"), []byte("k"), []byte("2"), false)
	c.record(c.topics.index("a"), []byte("4"), []byte("l"), []byte("4"), false)
	var late []int64
	c.late(func(m *candidate) { late = append(late, m.n) })
	if len(late) != 1 || late[0] != 1 {
		t.Errorf("late are %v, want 1 alone", late)
	}
	// A compacted topic has dropped it, and is not given it again.
	compare := &comparison{c: c, floor: math.MaxInt64}
	compare.replace("a")
	compare.conclude()
	if r := compare.result; r.Replaced != 1 || r.Late != 0 || r.ToPublish != 3 {
		t.Errorf("in a compacted topic: %+v", r)
	}
}

// A topic is read from the lowest time of its candidates, and from its beginning where one
// has none.
func TestEarliest(t *testing.T) {
	t.Parallel()
	c := sealed(t, message("a", "1", "k", "1", 900), message("a", "2", "k", "2", 300), message("b", "3", "k", "3", 0))
	if at, known := c.earliest(c.topics.index("a")); at != 300 || !known {
		t.Errorf("topic a from %d, known %t", at, known)
	}
	if _, known := c.earliest(c.topics.index("b")); known {
		t.Error("topic b: a time is known that nobody knows")
	}
	if at, known := c.earliest(c.topics.index("none")); at != math.MaxInt64 || !known {
		t.Errorf("a topic without candidates from %d, known %t", at, known)
	}
}

// Where no timestamp is mapped, the commit tells old rows from new ones: in the history in
// which they were written. Rows that were loaded carry that of the loading.
func TestExpiredByCommit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		loaded  bool
		commit  int64
		floor   int64
		expired int64
	}{
		{false, 300, math.MaxInt64, 1},
		{false, 900, math.MaxInt64, 0},
		{true, 900, math.MaxInt64, 1},
		{false, 0, math.MaxInt64, 1}, // not kept by the server
		{false, 0, 900, 0},           // but the row did not cover it
		{false, 0, 300, 1},
	} {
		c := newCandidates()
		at := time.Time{}
		if tt.commit > 0 {
			at = time.UnixMilli(tt.commit)
		}
		if err := c.add("public.outbox", 1, at, message("a", "1", "k", "1", 0), false); err != nil {
			t.Fatal(err)
		}
		compare := &comparison{c: c, floor: tt.floor, loaded: tt.loaded}
		compare.expire(TopicRead{Topic: "a", Trimmed: true, from: 500})
		compare.conclude()
		if compare.result.Expired != tt.expired {
			t.Errorf("%+v: %d expired", tt, compare.result.Expired)
		}
	}
}

// A candidate from before its topic's first record proves nothing by not being there; a
// person decides.
func TestExpired(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		decision           Decision
		inTopic, toPublish int64
		undecided          bool
	}{{"", 0, 1, true}, {Settle, 1, 1, false}, {Publish, 0, 2, false}} {
		c := &comparison{o: Options{Expired: tt.decision}, c: sealed(t, message("a", "1", "k", "1", 300), message("a", "2", "k", "2", 900)), floor: math.MaxInt64}
		c.expire(TopicRead{Topic: "a", Trimmed: true, from: 500})
		c.conclude()
		if c.result.Expired != 1 || c.result.InTopic != tt.inTopic || c.result.ToPublish != tt.toPublish || (c.undecided() != nil) != tt.undecided {
			t.Errorf("decision %q: %+v, undecided %v", tt.decision, c.result, c.undecided())
		}
	}
}
