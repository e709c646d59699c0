package sizing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The reader judges bytes that the server has made: both must make the same of key and version.
func TestServerAndReaderAgreeOnThePayload(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	table, err := migrations.OutboxTableSQL(migrations.Table(outbox), migrations.JSONB)
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(t, table)
	db.Exec(t, loadSQL)
	conn := db.Conn(t)
	for _, size := range []int{minPayload, 200, 1011} {
		db.Exec(t, "TRUNCATE public.outbox")
		cfg := Config{Rows: 2003, PerTx: 7, Payload: size}
		if _, _, err := load(t.Context(), conn, cfg, func(int) {}); err != nil {
			t.Fatal(err)
		}
		rows, err := conn.Query(t.Context(), "SELECT aggregate_id, aggregate_version, payload::text FROM public.outbox")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		n := 0
		for ; rows.Next(); n++ {
			var key, text string
			var version int64
			if err := rows.Scan(&key, &version, &text); err != nil {
				t.Fatal(err)
			}
			if want := payload(key, version, size); text != want || len(text) != size {
				t.Fatalf("%s/%d: the server wrote %s, want %s", key, version, text, want)
			}
		}
		if err := rows.Err(); err != nil || n != cfg.Rows {
			t.Errorf("%d rows, want %d: %v", n, cfg.Rows, err)
		}
		if got := text(t, db, "SELECT count(DISTINCT xmin::text) FROM public.outbox"); got != fmt.Sprint((cfg.Rows+cfg.PerTx-1)/cfg.PerTx) {
			t.Errorf("%s transactions", got)
		}
	}
}

func text(t *testing.T, db *testkit.DB, sql string) (got string) {
	t.Helper()
	if err := db.Conn(t).QueryRow(t.Context(), "SELECT ("+sql+")::text").Scan(&got); err != nil {
		t.Fatal(err)
	}
	return got
}

func record(key, version, value string) *kgo.Record {
	return &kgo.Record{Key: []byte(key), Value: []byte(value), Headers: []kgo.RecordHeader{
		{Key: versionHeader, Value: []byte(version)}, {Key: "event_type", Value: []byte(eventType)},
	}}
}

func TestReaderFindsEachFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		versions []int64
		want     arrivals
	}{
		"in order":                 {[]int64{0, 1, 2}, arrivals{Delivered: 3}},
		"a rewind after a crash":   {[]int64{0, 1, 0, 1, 2}, arrivals{Delivered: 3, Duplicates: 2}},
		"overtaken":                {[]int64{0, 2, 1}, arrivals{Delivered: 3, OutOfOrder: 1}},
		"one is missing":           {[]int64{0, 2}, arrivals{Delivered: 2}},
		"far apart, of many words": {[]int64{0, 1000, 63, 64}, arrivals{Delivered: 4, OutOfOrder: 2}},
	} {
		r := &reader{size: 40, keys: map[string]*keyState{}}
		for _, v := range c.versions {
			r.take(record("b1", fmt.Sprint(v), payload("b1", v, 40)), time.Now())
			r.take(record("b2", fmt.Sprint(v), payload("b2", v, 40)), time.Now()) // keys do not disturb each other
		}
		want := arrivals{Delivered: 2 * c.want.Delivered, Duplicates: 2 * c.want.Duplicates, OutOfOrder: 2 * c.want.OutOfOrder, records: 2 * len(c.versions)}
		if got := r.snapshot(); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	r := &reader{size: 40, keys: map[string]*keyState{}}
	good := payload("b1", 0, 40)
	for _, wrong := range []*kgo.Record{
		record("b2", "0", good), record("b1", "1", good), record("b1", "", good), record("b1", "-1", good),
		record("b1", "99999999999", payload("b1", 99999999999, 40)), record("b1", "0", strings.Replace(good, ": ", ":", 1)),
		{Key: []byte("b1"), Value: []byte(good), Headers: []kgo.RecordHeader{{Key: versionHeader, Value: []byte("0")}}},
	} {
		r.take(wrong, time.Now())
	}
	if got := r.snapshot(); got.WrongBytes != 7 || got.Delivered != 0 {
		t.Errorf("wrong bytes: %+v", got)
	}
}

func TestScheduleSharesOutEveryEvent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rate, seconds, writers int }{{1, 1, 1}, {99, 1, 1}, {1000, 1, 10}, {50_000, 1, 16}, {333, 7, 3}} {
		s := newSchedule(Config{Rate: c.rate, For: time.Duration(c.seconds) * time.Second})
		total := 0
		for w := range s.writers {
			for n := range s.share(w) {
				key, version := writerKey(w, n)
				if gotW, gotN, ok := writerEvent(key, version); !ok || gotW != w || gotN != n {
					t.Fatalf("%s/%d is %d.%d, want %d.%d", key, version, gotW, gotN, w, n)
				}
				total++
			}
		}
		if s.writers != c.writers || total != c.rate*c.seconds {
			t.Errorf("rate %d: %d writers, %d events", c.rate, s.writers, total)
		}
	}
	for _, foreign := range []string{"b1", "w", "w1", "wx.1", "w1.x", ""} {
		if _, _, ok := writerEvent(foreign, 0); ok {
			t.Errorf("%q counts as a writer's", foreign)
		}
	}
}

func TestLatencyIsMeasuredFromCommit(t *testing.T) {
	t.Parallel()
	s := newSchedule(Config{Rate: 100, For: time.Second})
	began := time.Now()
	for n := range 100 {
		committed := began.Add(time.Duration(n) * 10 * time.Millisecond)
		s.commit(0, n, committed)
		s.arrive(0, n, committed.Add(time.Duration(n+1)*time.Millisecond))
		s.arrive(0, n, committed.Add(time.Hour)) // a duplicate
	}
	s.arrive(0, 5000, began) // nobody's
	s.arrived[0][0] = began.Add(-time.Second)
	got, err := s.result()
	want := latency{events: 100, rate: got.rate, p50: 50 * time.Millisecond, p95: 95 * time.Millisecond, p99: 99 * time.Millisecond, max: 100 * time.Millisecond}
	if err != nil || got != want || got.rate < 99.9 || got.rate > 100.1 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := newSchedule(Config{Rate: 100, For: time.Second}).result(); err == nil {
		t.Error("a latency of nothing")
	}
	one, thousand := []time.Duration{7}, make([]time.Duration, 1000)
	for i := range thousand {
		thousand[i] = time.Duration(i + 1)
	}
	if percentile(one, 50) != 7 || percentile(one, 99) != 7 || percentile(thousand, 50) != 500 || percentile(thousand, 99) != 990 {
		t.Error("percentiles are not the nearest rank")
	}
}

func TestLimitIsNamed(t *testing.T) {
	t.Parallel()
	second := time.Second
	for name, c := range map[string]struct {
		rate float64
		d    drained
	}{
		limitBrokers:  {90_000, drained{took: second, forBrokers: 0.5, machine: 1}},
		limitDecoding: {80_000, drained{took: second, forBrokers: 0.1, machine: 1}},
		limitProcess:  {50_000, drained{took: second, cpu: 900 * time.Millisecond, machine: 1}},
		limitMachine:  {50_000, drained{took: second, cpu: 200 * time.Millisecond, machine: 0.97}},
		limitStream:   {50_000, drained{took: second, cpu: 200 * time.Millisecond, machine: 0.4}},
	} {
		if got, words := limit(c.rate, 100_000, c.d); got != name || words == "" {
			t.Errorf("%s is called %s: %s", name, got, words)
		}
	}
}

// What cannot be removed is named with the command for it; a cluster that does not let
// topics be deleted is no error.
func TestClearGoesOnAndNamesWhatIsLeft(t *testing.T) {
	t.Parallel()
	var order []string
	tries := 0
	w := &workbench{made: []made{
		{"database", "DROP DATABASE", func(context.Context) error { order = append(order, "database"); return nil }},
		{"slot", "drop slot", func(context.Context) error {
			if tries++; tries < 3 {
				return errors.New("still held")
			}
			order = append(order, "slot")
			return nil
		}},
		{"topic", "delete topic", func(context.Context) error { return fmt.Errorf("delete: %w", kerr.TopicDeletionDisabled) }},
	}}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	left, err := w.clear(ended)
	if err != nil || len(left) != 1 || !strings.Contains(left[0], "delete topic") || strings.Join(order, " ") != "slot database" {
		t.Errorf("left %q, removed %q: %v", left, order, err)
	}
}

func TestResultTellsWrongFromRight(t *testing.T) {
	t.Parallel()
	good := Result{Rows: 1000, Committed: 1000, Delivered: 1000, EventsPerSecond: 123_456, PeakRSS: 27_300_000}
	var b strings.Builder
	if err := errors.Join(good.Err(), good.Print(&b)); err != nil || !strings.Contains(b.String(), "This machine: 123,000 events/s, 27 MB") ||
		!strings.Contains(b.String(), "Checked: all 1,000 events") || strings.Contains(b.String(), "latency") {
		t.Errorf("%v\n%s", err, b.String())
	}
	for name, bad := range map[string]Result{"1 lost": {Lost: 1}, "1 out of order": {OutOfOrder: 1}, "1 with wrong bytes": {WrongBytes: 1}} {
		err := bad.Err()
		if operr.ClassOf(err) != operr.Internal || !errors.Is(err, errWrong) || !strings.Contains(err.Error(), name) || !strings.Contains(bad.checked(), "WRONG") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		rounded(194_499): "194,000", rounded(999): "999", rounded(1_005): "1,010", rounded(0.4): "0", number(1_234_567): "1,234,567",
		size(999): "999 B", size(64_400_000): "64 MB", size(2_500_000_000): "2.5 GB", counted(1, "row"): "1 row", counted(2000, "row"): "2,000 rows",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
