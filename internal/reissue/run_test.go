package reissue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/publisher"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// list is a source that knows how far it was asked.
type list struct {
	topic string
	keys  int
	total int64
	// change alters an event before it is handed over; may be nil.
	change func(n int64, m *event.Message) *event.Refusal
	gone   map[int64]bool
}

func (l *list) source(ctx context.Context, from int64, yield reissue.Yield) error {
	var msg event.Message
	for n := from + 1; n <= l.total; n++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		msg = event.Message{
			Topic: l.topic, Key: fmt.Appendf(nil, "key-%d", n%int64(l.keys)), Value: fmt.Appendf(nil, `{"n": %d}`, n),
			EventID: fmt.Appendf(nil, "e-%d", n), Partition: event.NoPartition, TimestampMillis: 1_700_000_000_000 + n,
			Headers: append(msg.Headers[:0], event.Header{Name: "id", Value: fmt.Appendf(nil, "e-%d", n)}),
		}
		var refusal *event.Refusal
		if l.change != nil {
			refusal = l.change(n, &msg)
		}
		handed := &msg
		if l.gone[n] {
			handed = nil
		}
		if err := yield(n, handed, refusal); err != nil {
			return fmt.Errorf("item %d: %w", n, err)
		}
	}
	return nil
}

// book is what was saved.
type book struct {
	mu    sync.Mutex
	saved reissue.Saved
	notes map[int64]string
	units []reissue.Unit
	// fail ends the run with an error instead of a Save from this position on.
	fail int64
}

var errSave = errors.New("no disk")

func (b *book) save(_ context.Context, s reissue.Saved) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail > 0 && s.Done >= b.fail {
		return errSave
	}
	if b.notes == nil {
		b.notes = map[int64]string{}
	}
	for _, n := range s.Notes {
		b.notes[n.N] = n.Outcome
	}
	b.saved = s
	b.units = append(b.units, s.Withheld...)
	return nil
}

func config(b *testkit.Broker, book *book, total int64) reissue.Config {
	return reissue.Config{
		Publisher: publisher.Config{Brokers: b.Bootstrap(), RetryBackoff: time.Millisecond, RetryBackoffMax: 20 * time.Millisecond},
		Mark:      event.Header{Name: reissue.ReplayedHeader, Value: []byte("7")},
		Total:     total, SaveEvery: 10 * time.Millisecond, Save: book.save,
	}
}

// numbers gives the events that a topic has, by key in the order of offsets.
func numbers(t *testing.T, b *testkit.Broker, topic string) map[string][]int {
	t.Helper()
	byKey := map[string][]int{}
	for _, r := range b.ReadAll(t, topic) {
		id, _ := r.Header("id")
		n, err := strconv.Atoi(strings.TrimPrefix(string(id), "e-"))
		if err != nil {
			t.Fatal(err)
		}
		byKey[string(r.Key)] = append(byKey[string(r.Key)], n)
	}
	return byKey
}

func count(byKey map[string][]int) (records int, distinct map[int]bool) {
	distinct = map[int]bool{}
	for _, ns := range byKey {
		records += len(ns)
		for _, n := range ns {
			distinct[n] = true
		}
	}
	return records, distinct
}

// Everything is published once, in order per key, as it was handed over and with the mark behind.
func TestRunPublishesInOrder(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	topic := b.NewTopic(t, 6, nil)
	var book book
	var last reissue.Progress
	cfg := config(b, &book, 5000)
	cfg.Window = 300
	cfg.Progress = func(p reissue.Progress) { last = p }
	src := &list{topic: topic, keys: 17, total: 5000, gone: map[int64]bool{40: true, 5000: true}}
	result, err := reissue.Run(t.Context(), cfg, 0, src.source)
	if err != nil {
		t.Fatal(err)
	}
	if result.Done != 5000 || result.Refused != 2 || result.Published != 4998 {
		t.Errorf("result %+v", result)
	}
	if book.saved.Done != 5000 || book.saved.Refused != 2 || len(book.notes) != 2 || !strings.HasPrefix(book.notes[40], "gone") {
		t.Errorf("saved %+v, notes %v", book.saved, book.notes)
	}
	if last.Done != 5000 || last.Total != 5000 || last.Refused != 2 {
		t.Errorf("last progress %+v", last)
	}
	byKey := numbers(t, b, topic)
	if records, distinct := count(byKey); records != 4998 || len(distinct) != 4998 {
		t.Errorf("%d records of %d events", records, len(distinct))
	}
	for key, ns := range byKey {
		if !slices.IsSorted(ns) {
			t.Errorf("%s is out of order", key)
		}
	}
	r := b.ReadAll(t, topic)[0]
	if names := headerNames(r); names != "id postrider-replayed" {
		t.Errorf("headers %s", names)
	}
	if mark, _ := r.Header(reissue.ReplayedHeader); string(mark) != "7" {
		t.Errorf("mark %q", mark)
	}
}

func headerNames(r testkit.Record) string {
	var names []string
	for _, h := range r.Headers {
		names = append(names, h.Key)
	}
	return strings.Join(names, " ")
}

// What is refused is noted; later events of its key are withheld, in this run and the next one; all else goes.
func TestRefusedKeyIsWithheld(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	topic := b.NewTopic(t, 3, map[string]string{"max.message.bytes": "4000"})
	var book book
	src := &list{topic: topic, keys: 10, total: 1000, change: func(n int64, m *event.Message) *event.Refusal {
		switch n {
		case 101: // by the broker's limit, in flight
			m.Value = []byte(strings.Repeat("x", 5000))
		case 202: // by the router, as the next one
			return &event.Refusal{Reason: event.ReasonUndecodable, Order: event.OrderKnown}
		case 303: // by the router
			return &event.Refusal{Reason: event.ReasonNullPayload, Column: "payload", Order: event.OrderKnown}
		case 404: // without an order that is known: nothing to hold
			return &event.Refusal{Reason: event.ReasonNullKey, Order: event.OrderUnknown}
		}
		return nil
	}}
	cfg := config(b, &book, 1000)
	result, err := reissue.Run(t.Context(), cfg, 0, src.source)
	if err != nil {
		t.Fatal(err)
	}
	// Of the keys 1, 2 and 3 what is at or behind 101, 202, 303; and 404.
	if want := int64(90 + 80 + 70 + 1); result.Refused != want || result.Published != 1000-want || int64(len(book.notes)) != want {
		t.Errorf("result %+v, %d notes, want %d refused", result, len(book.notes), want)
	}
	for n, prefix := range map[int64]string{
		101: "refused: too_large", 202: "refused: undecodable_value", 303: "refused: null_payload, column payload", 404: "refused: null_key",
		111: "withheld", 991: "withheld", 212: "withheld", 313: "withheld",
	} {
		if !strings.HasPrefix(book.notes[n], prefix) {
			t.Errorf("event %d: %q, want %s", n, book.notes[n], prefix)
		}
	}
	byKey := numbers(t, b, topic)
	if got := byKey["key-1"]; len(got) != 10 || got[9] != 91 {
		t.Errorf("key-1 has %v", got)
	}
	if len(byKey["key-4"]) != 99 || len(byKey["key-5"]) != 100 {
		t.Errorf("key-4 has %d, key-5 %d", len(byKey["key-4"]), len(byKey["key-5"]))
	}

	// The next run knows.
	cfg.Refused, cfg.Withheld = result.Refused, book.units
	more := &list{topic: topic, keys: 10, total: 1010}
	cfg.Total = 1010
	if result, err = reissue.Run(t.Context(), cfg, 1000, more.source); err != nil || result.Published != 7 || result.Refused != 244 {
		t.Errorf("second run %+v, %v", result, err)
	}
}

// Refusals of too many keys are no accident of single events.
func TestTooManyRefusedKeysEndTheRun(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	var book book
	cfg := config(b, &book, 100)
	cfg.MaxHeld = 5
	src := &list{topic: b.NewTopic(t, 1, nil), keys: 100, total: 100, change: func(n int64, _ *event.Message) *event.Refusal {
		if n > 10 {
			return &event.Refusal{Reason: event.ReasonNullPayload, Order: event.OrderKnown}
		}
		return nil
	}}
	_, err := reissue.Run(t.Context(), cfg, 0, src.source)
	if operr.ClassOf(err) != operr.Halted || !strings.Contains(fmt.Sprint(err), "more than 5 keys") {
		t.Errorf("%v", err)
	}
}

// An interrupted run saves what was acknowledged; the next one goes on there, and repeats nothing since all was drained.
func TestInterruptAndResume(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	topic := b.NewTopic(t, 4, nil)
	var book book
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	src := &list{topic: topic, keys: 9, total: 3000, change: func(n int64, _ *event.Message) *event.Refusal {
		if n == 1500 {
			cancel(interrupted)
		}
		return nil
	}}
	cfg := config(b, &book, 3000)
	result, err := reissue.Run(ctx, cfg, 0, src.source)
	if !errors.Is(err, interrupted) {
		t.Fatalf("%+v, %v", result, err)
	}
	if result.Done < 1400 || result.Done > 1500 || book.saved.Done != result.Done {
		t.Errorf("result %+v, saved %+v", result, book.saved)
	}
	src.change = nil
	if result, err = reissue.Run(t.Context(), cfg, book.saved.Done, src.source); err != nil || result.Done != 3000 {
		t.Fatalf("%+v, %v", result, err)
	}
	if records, distinct := count(numbers(t, b, topic)); records != 3000 || len(distinct) != 3000 {
		t.Errorf("%d records of %d events", records, len(distinct))
	}
}

// A run that dies without a word repeats at most the window (a crash, as far as the saved prefix tells).
func TestCrashRepeatsAtMostTheWindow(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	topic := b.NewTopic(t, 4, nil)
	const total, window = 4000, 250
	book := book{fail: 2000}
	cfg := config(b, &book, total)
	cfg.Window = window
	src := &list{topic: topic, keys: 9, total: total}
	if _, err := reissue.Run(t.Context(), cfg, 0, src.source); !errors.Is(err, errSave) {
		t.Fatal(err)
	}
	book.fail = 0
	if _, err := reissue.Run(t.Context(), cfg, book.saved.Done, src.source); err != nil {
		t.Fatal(err)
	}
	byKey := numbers(t, b, topic)
	records, distinct := count(byKey)
	if len(distinct) != total || records > total+window {
		t.Errorf("%d records of %d events, want at most %d repeated", records, len(distinct), window)
	}
	for key, ns := range byKey {
		if !rewindsOnly(ns) {
			t.Errorf("%s leapfrogs: %v", key, ns)
		}
	}
}

// rewindsOnly is order promise 2: first occurrences rise.
func rewindsOnly(ns []int) bool {
	highest := 0
	seen := map[int]bool{}
	for _, n := range ns {
		if !seen[n] && n < highest {
			return false
		}
		seen[n] = true
		highest = max(highest, n)
	}
	return true
}

// A source that fails ends the run with its error, and what went before is saved.
func TestSourceFails(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	var book book
	src := &list{topic: b.NewTopic(t, 1, nil), keys: 3, total: 100}
	broken := errors.New("connection lost")
	result, err := reissue.Run(t.Context(), config(b, &book, 500), 0, func(ctx context.Context, from int64, yield reissue.Yield) error {
		return errors.Join(src.source(ctx, from, yield), broken)
	})
	if !errors.Is(err, broken) || result.Done != 100 || book.saved.Done != 100 {
		t.Errorf("%+v, %v, saved %+v", result, err, book.saved)
	}
	_, err = reissue.Run(t.Context(), config(b, &book, 500), 0, func(_ context.Context, _ int64, yield reissue.Yield) error {
		return errors.Join(yield(5, nil, nil), yield(5, nil, nil))
	})
	if err == nil || !strings.Contains(err.Error(), "do not rise") {
		t.Errorf("numbers that do not rise: %v", err)
	}
}

// Numbers that a source has no event for count as done at its end.
func TestNumbersWithoutEvents(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	var book book
	src := &list{topic: b.NewTopic(t, 1, nil), keys: 3, total: 100}
	result, err := reissue.Run(t.Context(), config(b, &book, 120), 50, src.source)
	if err != nil || result.Done != 120 || book.saved.Done != 120 || result.Published != 50 {
		t.Errorf("%+v, %v, saved %+v", result, err, book.saved)
	}
}

// The rate's wait ends with the context.
func TestPaceEndsWithTheContext(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	var book book
	cfg := config(b, &book, 100)
	cfg.PerSecond = 0.001
	ctx, cancel := context.WithCancel(t.Context())
	src := &list{topic: b.NewTopic(t, 1, nil), keys: 3, total: 100, change: func(n int64, _ *event.Message) *event.Refusal {
		if n == 2 {
			cancel()
		}
		return nil
	}}
	result, err := reissue.Run(ctx, cfg, 0, src.source)
	if !errors.Is(err, context.Canceled) || result.Done != 1 {
		t.Errorf("%+v, %v", result, err)
	}
}
