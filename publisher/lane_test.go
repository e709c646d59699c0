package publisher

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"
	"pgregory.net/rapid"
)

// modelLog is one partition with the broker's rules for idempotent producers.
type modelLog struct {
	t      *rapid.T
	events []string
	known  bool // the broker has state for the producer
	id     int64
	epoch  int16
	next   int32
	recent []appended // the last five batches
}

type appended struct {
	sequence, count int32
	base            int64
}

// append applies the rules: a repeat answers its first base offset, a gap 45, an
// older epoch 47; without state any sequence is taken.
func (m *modelLog) append(raw []byte) (base int64, code int16) {
	b, records := decode(m.t2(), raw)
	for _, r := range records {
		if string(r.Value) == "poison" {
			return -1, int16(kafka.InvalidRecord) // content is checked before sequences
		}
	}
	switch {
	case !m.known:
		m.known, m.id, m.epoch, m.next, m.recent = true, b.ProducerID, b.ProducerEpoch, b.FirstSequence, nil
	case b.ProducerEpoch < m.epoch:
		return -1, int16(kafka.InvalidProducerEpoch)
	case b.ProducerEpoch > m.epoch || b.ProducerID != m.id:
		if b.FirstSequence != 0 {
			return -1, int16(kafka.OutOfOrderSequenceNumber)
		}
		m.id, m.epoch, m.next, m.recent = b.ProducerID, b.ProducerEpoch, 0, nil
	}
	for _, a := range m.recent {
		if a.sequence == b.FirstSequence && a.count == b.NumRecords {
			return a.base, 0
		}
	}
	if b.FirstSequence != m.next {
		return -1, int16(kafka.OutOfOrderSequenceNumber)
	}
	base = int64(len(m.events))
	for _, r := range records {
		m.events = append(m.events, string(r.Value))
	}
	m.recent = append(m.recent, appended{b.FirstSequence, b.NumRecords, base})
	if len(m.recent) > 5 {
		m.recent = m.recent[1:]
	}
	s := producerState{identity: identity{sequence: b.FirstSequence}}
	s.advance(b.NumRecords)
	m.next = s.identity.sequence
	return base, 0
}

// t2 lets decode fail the property.
func (m *modelLog) t2() testing.TB { return failer{rapidT: m.t} }

type failer struct {
	testing.TB
	rapidT *rapid.T
}

func (f failer) Helper()                   {}
func (f failer) Fatalf(s string, a ...any) { f.rapidT.Fatalf(s, a...) }
func (f failer) Fatal(a ...any)            { f.rapidT.Fatal(a...) }

// traps 13, 14, rules 14, 15: whatever order appends, flushes, answers, lost answers,
// lost requests, lost producer state and refusals come in, the log holds what was
// appended before the first refused event, in order of first occurrence; the
// acknowledged ones are in it; a duplicate is never uncounted; and no batch is split
// that may have been appended.
func TestLaneProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		log := &modelLog{t: rt}
		var acked, refusals int
		p, err := New(Config{
			Brokers: []string{"b:1"}, BatchBytes: 1024, RetryBackoff: time.Hour, RetryBackoffMax: time.Hour,
			OnAck: func(runs []Run) {
				for _, r := range runs {
					acked += r.Count
				}
			},
			OnRefused: func(*Refused) Disposal {
				refusals++
				return Stop
			},
		})
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = p.Close() }()
		p.session.producerID, p.session.known = 7, true
		p.endOffset = func(context.Context, *lane, int32) (int64, error) {
			if rapid.IntRange(0, 3).Draw(rt, "offsets unreadable") == 0 {
				return 0, io.EOF
			}
			return int64(len(log.events)), nil
		}
		s := newSender(p, 0, "b:1")
		p.senders[0] = s
		p.topic("t").open([]int32{0})
		l := p.topicList()[0].lanes[0]
		l.producer.identity.sequence = rapid.SampledFrom([]int32{0, 1<<31 - 20}).Draw(rt, "first sequence")
		ctx := context.Background()
		n, poison := 0, -1
		add := func() {
			m := message("t", "k", n)
			m.Value = fmt.Appendf(nil, "%d", n)
			if poison < 0 && rapid.IntRange(0, 60).Draw(rt, "poison") == 0 {
				poison, m.Value = n, []byte("poison")
			}
			if err := p.Append(ctx, &m, uint64(n)); err != nil {
				rt.Fatal(err)
			}
			n++
		}
		send := func(mishap int) {
			// A back-off is over whenever the property says so.
			l.mu.Lock()
			if l.state == laneWaiting {
				l.state = laneIdle
				l.kick()
			}
			l.mu.Unlock()
			flights, alone := s.collect(ctx)
			defer s.land(alone)
			if len(flights) == 0 {
				return
			}
			f := flights[0]
			raw := wire(failer{rapidT: rt}, f.batch)
			switch mishap {
			case 1: // lost on the way there
				s.unanswered(flights, io.EOF, false)
				return
			case 2: // lost on the way back
				log.append(raw)
				s.unanswered(flights, io.EOF, false)
				return
			case 3: // the broker forgets the producer, as after a day's silence
				// (before the first acknowledgement of a lane nothing could tell a repeat from a first record)
				log.known = log.known && f.batch.uncertain && l.producer.ackedEnd < 0
			case 4: // refused before the append
				s.settle(flights, answerOf(-1, int16(kafka.NotEnoughReplicas)), false)
				return
			case 5: // appended, then an error
				log.append(raw)
				s.settle(flights, answerOf(-1, int16(kafka.NotEnoughReplicasAfterAppend)), false)
				return
			case 6: // the answer lacks the partition
				log.append(raw)
				s.settle(flights, &produce.Response{}, false)
				return
			case 7: // the broker's state went back in time: a gap
				if log.known {
					log.next, log.recent = 1<<20, nil
				}
			}
			base, code := log.append(raw)
			s.settle(flights, answerOf(base, code), false)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(*rapid.T) { add() },
			"flush":  func(*rapid.T) { p.Flush() },
			"send":   func(rt *rapid.T) { send(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7}).Draw(rt, "mishap")) },
		})
		for range 500 { // everything heals
			p.Flush()
			send(0)
		}
		want := n
		if poison >= 0 {
			want = poison
		}
		undecided := l.flight != nil && l.flight.uncertain
		first := firstOccurrences(log.events)
		if !undecided && (len(first) != want || acked != want) {
			rt.Fatalf("%d appended, poison at %d: log has %d, acknowledged %d", n, poison, len(first), acked)
		}
		for i, e := range first {
			if e != fmt.Sprint(i) {
				rt.Fatalf("first occurrences: %v", first)
			}
		}
		if acked > len(first) {
			rt.Fatalf("%d acknowledged, %d in the log", acked, len(first))
		}
		if (poison >= 0) != (refusals == 1) && !undecided {
			rt.Fatalf("poison at %d, %d refusals", poison, refusals)
		}
		if int64(len(log.events)-len(first)) > p.duplicates.Load() {
			rt.Fatalf("%d duplicates, %d counted: %v", len(log.events)-len(first), p.duplicates.Load(), log.events)
		}
	})
}

func answerOf(base int64, code int16) *produce.Response {
	return &produce.Response{Topics: []produce.ResponseTopic{{
		Topic: "t", Partitions: []produce.ResponsePartition{{ErrorCode: code, BaseOffset: base}},
	}}}
}

// rule 14: slow partitions never take a broker's last worker.
func TestSlowLanesLeaveAWorker(t *testing.T) {
	t.Parallel()
	p, err := New(Config{Brokers: []string{"b:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	p.session.producerID, p.session.known = 7, true
	s := newSender(p, 0, "b:1")
	p.senders[0] = s
	p.topic("t").open(slices.Repeat([]int32{0}, 10))
	for i, l := range p.topicList()[0].lanes {
		l.alone = i < 8
		m := message("t", "k", i)
		m.Partition = int32(i)
		if err := p.Append(context.Background(), &m, 1); err != nil {
			t.Fatal(err)
		}
	}
	p.Flush()
	for range p.cfg.MaxInFlight - 1 {
		if flights, alone := s.collect(context.Background()); len(flights) != 1 || !alone {
			t.Fatalf("%d flights, alone %v", len(flights), alone)
		}
	}
	flights, alone := s.collect(context.Background())
	if len(flights) != 2 || alone {
		t.Fatalf("the last worker: %d flights, alone %v", len(flights), alone)
	}
	if s.pending() {
		t.Fatal("a slow lane would take the last worker")
	}
	s.land(true)
	if !s.pending() {
		t.Fatal("a landed one lets the next go")
	}
}

// A timer of an earlier back-off does not end a later one.
func TestStaleTimerDoesNotWake(t *testing.T) {
	t.Parallel()
	p, err := New(Config{Brokers: []string{"b:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	l := &lane{p: p, topic: newTopic(p, "t"), leader: -1, state: laneSending}
	l.wait(time.Hour, -1, false, false)
	l.wake()
	if l.state != laneWaiting {
		t.Fatal("woken early")
	}
	l.retryAt = time.Now()
	l.wake()
	if l.state != laneIdle {
		t.Fatal("not woken")
	}
	l.halt()
}
