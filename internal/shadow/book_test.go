package shadow

import (
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/router"
)

var start = time.Date(2026, 5, 3, 10, 0, 0, 0, time.UTC)

func book4(t *testing.T, samples int) (*book, *Report) {
	t.Helper()
	report := newReport(start)
	return newBook(Options{Patience: time.Minute, Samples: samples}, report), report
}

func rec(key, value string, headers ...string) record {
	r := record{topic: "orders", partition: 3, key: []byte(key), value: []byte(value)}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, "=")
		r.headers = append(r.headers, event.Header{Name: name, Value: []byte(value)})
	}
	return r
}

func TestEqualInWhateverOrderTheSidesAreRead(t *testing.T) {
	t.Parallel()
	b, report := book4(t, 5)
	b.expect("a", rec("k", "1", "id=a"), start)
	b.arrive("a", rec("k", "1", "id=a"), start)
	b.arrive("b", rec("k", "2", "id=b"), start) // before its event
	b.expect("b", rec("k", "2", "id=b"), start)
	b.arrive("a", rec("k", "1", "id=a"), start) // a copy
	if report.Equal != 2 || report.Duplicates != 1 || !report.Agrees() || b.bytes+b.held != 0 {
		t.Fatalf("%+v, %d bytes are left", report, b.bytes+b.held)
	}
}

// Each field is told by its name, and nothing of a payload unless it is asked for.
func TestDifferencesByField(t *testing.T) {
	t.Parallel()
	ours := rec("k", `{"secret": 1}`, "id=a", "event_type=paid", "only=ours")
	for name, tc := range map[string]struct {
		change func(*record)
		want   []string
	}{
		"topic":             {func(r *record) { r.topic = "other" }, []string{"topic"}},
		"partition":         {func(r *record) { r.partition = 4 }, []string{"partition"}},
		"key":               {func(r *record) { r.key = []byte(`"k"`) }, []string{"key"}},
		"null key":          {func(r *record) { r.key = nil }, []string{"key"}},
		"value":             {func(r *record) { r.value = []byte(`{"secret":1}`) }, []string{"value"}},
		"null and empty":    {func(r *record) { r.value = nil }, []string{"value"}},
		"header's value":    {func(r *record) { r.headers[1].Value = []byte("PAID") }, []string{"header event_type"}},
		"header is missing": {func(r *record) { r.headers = r.headers[:2] }, []string{"header only"}},
		"header too many": {func(r *record) {
			r.headers = append(r.headers, event.Header{Name: "x"}, event.Header{Name: "x"})
		}, []string{"header x"}},
		"header twice": {func(r *record) { r.headers = append(r.headers, r.headers[0]) }, []string{"header id"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, report := book4(t, 5)
			theirs := ours
			theirs.headers = cloneHeaders(ours.headers)
			tc.change(&theirs)
			b.expect("a", ours, start)
			b.arrive("a", theirs, start)
			if report.Different != 1 || len(report.DifferentBy) != len(tc.want) || report.DifferentBy[tc.want[0]] != 1 || report.Agrees() {
				t.Fatalf("%+v", report)
			}
			for _, s := range report.Samples {
				if strings.Contains(s.Ours+s.Theirs, "secret") || strings.Contains(s.Ours+s.Theirs, "paid") {
					t.Errorf("a sample shows what is private: %+v", s)
				}
			}
		})
	}
}

func TestHeadersThatAreNotCompared(t *testing.T) {
	t.Parallel()
	report := newReport(start)
	b := newBook(Options{Patience: time.Minute, Samples: 5, IgnoreHeaders: []string{"__debezium.*", "only"}}, report)
	b.expect("a", rec("k", "1", "id=a", "only=ours"), start)
	b.arrive("a", rec("k", "1", "id=a", "__debezium.context.taskId=0"), start)
	if !report.Agrees() || report.Equal != 1 {
		t.Fatalf("%+v", report)
	}
	if err := (&Options{Patience: 1, Match: MatchID, IgnoreHeaders: []string{"[x"}}).Validate(); err == nil {
		t.Error("a pattern that is none was taken")
	}
}

// Only first records count: a rewind is legal, a leapfrog is not (promise 2).
func TestOrderOfAKey(t *testing.T) {
	t.Parallel()
	b, report := book4(t, 5)
	for _, id := range []string{"1", "2", "3"} {
		b.expect(id, rec("k", id), start)
	}
	b.expect("other", rec("j", "x"), start)
	arrive := func(id, key, value string, offset int64) {
		r := rec(key, value)
		r.offset = offset
		b.arrive(id, r, start)
	}
	for offset, id := range []string{"1", "2", "1", "2", "other", "3"} {
		value := id
		key := "k"
		if id == "other" {
			key, value = "j", "x"
		}
		arrive(id, key, value, int64(offset))
	}
	if report.OutOfOrder != 0 || report.Duplicates != 2 {
		t.Fatalf("a rewind: %+v", report)
	}
	b.expect("4", rec("k", "4"), start)
	b.expect("5", rec("k", "5"), start)
	arrive("5", "k", "5", 6)
	arrive("4", "k", "4", 7)
	if report.OutOfOrder != 1 || report.Agrees() {
		t.Fatalf("a leapfrog: %+v", report)
	}
	arrive("7", "k", "7", 8) // before their events
	arrive("6", "k", "6", 9)
	b.expect("6", rec("k", "6"), start)
	b.expect("7", rec("k", "7"), start)
	if report.OutOfOrder != 2 {
		t.Fatalf("a leapfrog of records that were there first: %+v", report)
	}
	arrive("8", "k", "8", 10)
	arrive("9", "k", "9", 11)
	b.expect("8", rec("k", "8"), start)
	b.expect("9", rec("k", "9"), start)
	if report.OutOfOrder != 2 {
		t.Fatalf("records that were there first: %+v", report)
	}
}

// An event is given up when the topics are read up to its patience's end, a record when the stream is read up to where its row must
// be: not because time goes by.
func TestPatience(t *testing.T) {
	t.Parallel()
	b, report := book4(t, 5)
	b.expect("never", rec("k", "1"), start)
	b.arrive("stranger", rec("k", "2"), start)
	b.expire(start.Add(settleAfter-1), start.Add(time.Minute-1))
	if report.Missing != 0 || len(b.strangers) != 0 {
		t.Fatal("given up before its time")
	}
	b.expire(start.Add(settleAfter), start)
	if report.Missing != 0 || len(b.strangers) != 1 || b.held != 0 {
		t.Fatalf("the topics are not read on: %+v, %d strangers, %d bytes", report, len(b.strangers), b.held)
	}
	b.expire(start, start.Add(time.Minute))
	if report.Missing != 1 || b.bytes != 0 {
		t.Fatalf("%+v, %d bytes are left", report, b.bytes)
	}
	b.arrive("never", rec("k", "1"), start.Add(2*time.Minute))
	b.arrive("never", rec("k", "1"), start.Add(2*time.Minute))
	if report.Late != 1 || report.Duplicates != 1 || len(b.early) != 0 {
		t.Fatalf("it came late: %+v", report)
	}
	b.expect("waits", rec("k", "3"), start)
	b.closed = true
	b.arrive("unstreamed", rec("k", "4"), start) // behind where the stream was left
	b.end()
	if report.Waiting != 1 || report.Agrees() || len(b.strangers) != 1 {
		t.Fatalf("%+v, %d strangers", report, len(b.strangers))
	}
}

func TestSamplesAreFewOfEachKind(t *testing.T) {
	t.Parallel()
	b, report := book4(t, 2)
	for _, id := range []string{"a", "b", "c"} {
		b.expect(id, rec("k"+id, "1"), start)
		b.arrive(id, rec("k"+id, "2"), start)
	}
	if len(report.Samples) != 2 || report.DifferentBy[FieldValue] != 3 {
		t.Fatalf("%+v", report)
	}
}

// While much waits, the stream is not read on: memory is bounded.
func TestCrowded(t *testing.T) {
	t.Parallel()
	b, _ := book4(t, 0)
	big := strings.Repeat("x", 1<<20)
	n := 0
	for ; !b.crowded() && n < 100; n++ {
		b.expect(string(rune('a'+n)), rec("k", big), start)
	}
	if n != 32 {
		t.Fatalf("%d MiB wait", n)
	}
	for n = 0; !b.full() && n < 100; n++ {
		b.arrive("r"+string(rune('a'+n)), rec("k", big), start)
	}
	if n != 32 {
		t.Fatalf("%d MiB of records wait", n)
	}
	b.arrive("a", rec("k", big), start)
	if b.crowded() {
		t.Fatal("room is not given back")
	}
}

func TestMatching(t *testing.T) {
	t.Parallel()
	cfg := router.Config{Sources: []router.Source{{}, {Mapping: router.Mapping{EventIDHeader: "eid"}}}}
	byID := newMatcher(Options{Match: MatchID}, cfg)
	for _, h := range []string{"id=7", "eid=7"} {
		if id, ok := byID.record(&record{headers: rec("", "", h).headers}); !ok || id != "7" {
			t.Errorf("%s: %q %v", h, id, ok)
		}
	}
	if _, ok := byID.record(&record{headers: rec("", "", "uid=7").headers}); ok {
		t.Error("an id out of nothing")
	}
	other := newMatcher(Options{Match: MatchID, IDHeader: "uid"}, cfg)
	if id, ok := other.record(&record{headers: rec("", "", "uid=7").headers}); !ok || id != "7" {
		t.Errorf("--id-header: %q %v", id, ok)
	}
	content := newMatcher(Options{Match: MatchContent}, cfg)
	a, b := rec("ab", "c"), rec("a", "bc")
	first, second, shifted := content.event(nil, &a), content.event(nil, &a), content.event(nil, &b)
	if first == second || shifted == first {
		t.Errorf("events that are not the same: %s %s %s", first, second, shifted)
	}
	if id, _ := content.record(&a); id != first {
		t.Errorf("the first record goes with %s, want %s", id, first)
	}
}
