package replication

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	wire "github.com/postrider/postrider/internal/walsendertest"
)

// nopHandler is as cheap as a handler can be.
type nopHandler struct{ rows int }

func (*nopHandler) Relation(*event.Relation) error               { return nil }
func (*nopHandler) Begin(event.LSN, time.Time, uint32) error     { return nil }
func (h *nopHandler) Insert(*event.Row) error                    { h.rows++; return nil }
func (*nopHandler) Ignored(string)                               {}
func (*nopHandler) Commit(event.LSN, event.LSN, time.Time) error { return nil }
func (*nopHandler) KeepAlive(event.LSN)                          {}
func (*nopHandler) InputDrained()                                {}

// loop is a source that gives the same bytes again and again, as many as there is room for.
type loop struct {
	bytes []byte
	at    int
}

func (l *loop) Read(p []byte) (n int, err error) {
	for n < len(p) {
		m := copy(p[n:], l.bytes[l.at:])
		n += m
		l.at = (l.at + m) % len(l.bytes)
	}
	return n, nil
}

// steady is a stream whose transactions of one row never end: what Run does with a message, from the buffer to the handler.
type steady struct {
	st *Stream
	d  *decoder
	h  *nopHandler
}

// messagesPerEvent is a transaction of one row.
const messagesPerEvent = 3

func newSteady(tb testing.TB, payload int) *steady {
	tb.Helper()
	columns := []string{"event_id", "aggregate_type", "aggregate_id", "event_type", "payload", "occurred_at"}
	insert := row("550e8400-e29b-41d4-a716-446655440000", "order", "42", "OrderPlaced", strings.Repeat("x", payload), "2024-03-05 06:07:08+00")
	var frames [][]byte
	for _, m := range [][]byte{wire.Begin(0x10, 1), insert, wire.Commit(0x10, 0x20)} {
		frames = append(frames, frame('d', wire.XLogData(0x10, m)))
	}
	s := &steady{h: &nopHandler{}}
	s.st = &Stream{reader: newWireReader(&loop{bytes: slices.Concat(frames...)}, defaultReadBuffer, defaultMaxRowBytes)}
	s.d = newDecoder(&progress{Handler: s.h, feedback: &feedback{}})
	if err := s.d.message(1, outbox(columns...)); err != nil {
		tb.Fatal(err)
	}
	return s
}

func (s *steady) event(ctx context.Context) error {
	for range messagesPerEvent {
		if err := s.st.step(ctx, s.d); err != nil {
			return err
		}
	}
	return nil
}

// PERFORMANCE: the steady path allocates nothing, neither while messages are taken out of the buffer nor when it is
// filled again.
func TestSteadyPathAllocatesNothing(t *testing.T) {
	s, ctx := newSteady(t, 200), context.Background()
	refill := func() { // some 600 events are in the buffer
		for range 1000 {
			if err := s.event(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	refill()
	const runs = 20
	before := s.h.rows
	if allocs := testing.AllocsPerRun(runs, refill); allocs != 0 {
		t.Fatalf("%v allocations in 1000 events, want none", allocs)
	}
	if got := s.h.rows - before; got != (runs+1)*1000 { // AllocsPerRun warms up once
		t.Fatalf("%d events were handed on", got)
	}
}

// BenchmarkStream is the cost of an event (an operation) from the read buffer to the handler.
func BenchmarkStream(b *testing.B) {
	for _, payload := range []int{200, 2000, 20_000} {
		b.Run(fmt.Sprintf("payload=%d", payload), func(b *testing.B) {
			s, ctx := newSteady(b, payload), context.Background()
			b.ReportAllocs()
			for b.Loop() {
				if err := s.event(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
