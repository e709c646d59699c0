package publisher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/event"
)

// takeKeys parks a refused event together with its key.
func takeKeys(*Refused) Disposal { return TakenWithKey }

// rules 14 and 20, trap 13: of one partition's batch with a poisoned record the
// neighbours of other keys go out, in order; the records of its key behind it are given
// back, in order and as they were appended, and so is what is appended while another
// goroutine finds the first one guilty.
func TestARefusedRecordTakesItsKeyAlong(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{false, true} {
		t.Run(fmt.Sprintf("named %v", named), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.SeedTopics(1, "t"))
			poisoned(t, c, 87, named)
			r := newRig(t, c.ListenAddrs(), nil)
			r.dispose = takeKeys
			r.append(message("t", "warm", 0), 1)
			r.drain()
			sent := map[int]event.Message{}
			for n := range 60 {
				for _, key := range []string{"a", "b", "c"} {
					m := message("t", key, n)
					if key == "b" && n == 20 {
						m.Value = []byte("poison")
						m.Headers = []event.Header{{Name: "h", Value: nil}, {Name: "e", Value: []byte{}}, {Name: "x", Value: []byte("y")}}
						m.AggregateType, m.EventType, m.AggregateVersion, m.OnRefusal = []byte("order"), []byte("Paid"), []byte("7"), event.ParkAggregate
					}
					if key == "b" {
						sent[n] = m
					}
					r.append(m, uint64(n+10))
				}
			}
			r.drain()
			records := consume(t, c.ListenAddrs(), 141, "t")
			if len(records) != 141 {
				t.Fatalf("%d records, want 60 of a, 20 of b, 60 of c and one more", len(records))
			}
			wantOrder(t, records, "a", 60)
			wantOrder(t, records, "b", 20)
			wantOrder(t, records, "c", 60)
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.given) != 40 {
				t.Fatalf("%d given back", len(r.given))
			}
			for i, g := range r.given {
				reason := event.ReasonHeld
				if i == 0 {
					reason = event.ReasonInvalidRecord
					m := g.Message
					if string(m.Value) != "poison" || len(m.Headers) != 3 || m.Headers[0].Value != nil || m.Headers[1].Value == nil ||
						string(m.Headers[2].Value) != "y" || string(m.AggregateType) != "order" || string(m.EventType) != "Paid" ||
						string(m.AggregateVersion) != "7" || m.OnRefusal != event.ParkAggregate || m.Partition != event.NoPartition {
						t.Errorf("given back as %+v", m)
					}
				}
				want := sent[20+i]
				if g.Refusal.Reason != reason || g.Txn != uint64(30+i) || string(g.Message.Key) != "b" ||
					string(g.Message.EventID) != string(want.EventID) || g.Message.TimestampMillis != want.TimestampMillis || g.Message.Position != want.Position {
					t.Fatalf("number %d given back: %+v %+v", i, g.Refusal, g.Message)
				}
			}
			if s := r.p.Stats(); s.PendingEvents != 0 || s.StuckEvents != 0 || s.StoppedLanes != 0 || s.WindowBytes != 0 {
				t.Errorf("left: %+v", s)
			}
		})
	}
}

// Events that are taken one by one leave the rest of their key alone (park_event).
func TestARefusedRecordAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	poisoned(t, c, 10, false)
	r := newRig(t, c.ListenAddrs(), nil)
	r.dispose = func(*Refused) Disposal { return Taken }
	for n := range 100 {
		m := message("t", "k", n)
		if n%10 == 3 {
			m.Value = []byte("poison")
		}
		if n%20 == 3 {
			m.DeadLetter, m.OnRefusal = "dead", event.ParkEvent
		}
		r.append(m, uint64(n))
	}
	r.drain()
	if n := len(consume(t, c.ListenAddrs(), 90, "t")); n != 90 || len(r.refusalsSoFar()) != 10 {
		t.Fatalf("%d records, %d refused", n, len(r.refusalsSoFar()))
	}
	for i, g := range r.given {
		want, policy := "", event.Halt
		if i%2 == 0 {
			want, policy = "dead", event.ParkEvent
		}
		if g.Message.DeadLetter != want || g.Message.OnRefusal != policy {
			t.Errorf("given back %d: %+v", i, g.Message)
		}
	}
}

// case C20: what is injected passes the hold on its key, and goes behind what is in the
// lane; where it is refused again, what was injected behind it comes back; after
// Release the key flows.
func TestInjectedRecordsPassTheHold(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	poisoned(t, c, 87, false)
	r := newRig(t, c.ListenAddrs(), nil)
	r.dispose = takeKeys
	inject := func(n int, value string) {
		t.Helper()
		m := message("t", "k", n)
		if value != "" {
			m.Value = []byte(value)
		}
		if err := r.p.Inject(context.Background(), &m, Injected|uint64(n)); err != nil {
			t.Fatal(err)
		}
	}
	m := message("t", "k", 0)
	m.Value = []byte("poison")
	r.append(m, 1)
	r.append(message("t", "k", 1), 1)
	r.drain()
	inject(0, "poison") // the cause is still there
	inject(1, "")
	r.drain()
	if got := r.given; len(got) != 4 || got[2].Txn != Injected || got[2].Refusal.Reason != event.ReasonInvalidRecord ||
		got[3].Txn != Injected|1 || got[3].Refusal.Reason != event.ReasonHeld {
		t.Fatalf("given back: %+v", got)
	}
	r.p.Readmit("t", []byte("k"))
	inject(0, "")
	r.append(message("t", "k", 2), 2) // the key is held still
	inject(1, "")
	r.drain()
	if len(r.given) != 5 || r.given[4].Txn != 2 {
		t.Fatalf("given back: %+v", r.given)
	}
	inject(2, "")
	r.drain()
	r.p.Release("t", []byte("k"))
	r.append(message("t", "k", 3), 3)
	r.drain()
	records := consume(t, c.ListenAddrs(), 4, "t")
	wantOrder(t, records, "k", 4)
	if len(records) != 4 || len(r.given) != 5 {
		t.Fatalf("%d records, %d given back", len(records), len(r.given))
	}
}

// A topic whose name the cluster refuses gives its events back one by one, for as long
// as it does.
func TestEventsOfAnImpossibleTopic(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	r := newRig(t, c.ListenAddrs(), nil)
	r.dispose = func(*Refused) Disposal { return Taken }
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "bad", Err: kerr.InvalidTopicException, Count: -1})
	for n := range 3 {
		r.append(message("bad", "k", n), 1)
		r.append(message("t", "k", n), 1)
	}
	r.drain()
	for _, g := range r.refusalsSoFar() {
		if g.Reason != event.ReasonInvalidTopic || g.Order != event.OrderNone {
			t.Errorf("refused: %+v", g)
		}
	}
	if n := len(r.refusalsSoFar()); n != 3 {
		t.Fatalf("%d refused", n)
	}
	wantOrder(t, consume(t, c.ListenAddrs(), 3, "t"), "k", 3)
}

// rule 20, trap 13: where an event names a partition that does not exist, and its topic came into being behind it, the later events
// of its key are not let go before it is given back.
func TestAnEventWithoutAPlaceHoldsItsKeyFirst(t *testing.T) {
	t.Parallel()
	const topics, later = 5, 30
	c := newCluster(t, kfake.SeedTopics(3, "there"))
	passed := make(chan struct{})
	var once sync.Once
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) {
		acknowledge, refuse := cfg.OnAck, cfg.OnRefused
		cfg.OnAck = func(runs []Run) {
			acknowledge(runs)
			if slices.ContainsFunc(runs, func(run Run) bool { return run.Txn == 2 }) {
				once.Do(func() { close(passed) })
			}
		}
		cfg.OnRefused = func(refused *Refused) Disposal {
			if refused.Refusal.Reason == event.ReasonPartition { // time for the others to pass, if they are let go
				select {
				case <-passed:
				case <-time.After(200 * time.Millisecond):
				}
			}
			return refuse(refused)
		}
	})
	r.dispose = takeKeys
	name := func(i int) string { return fmt.Sprintf("late-%d", i) }
	for i := range topics {
		guilty := message(name(i), "k", 0)
		guilty.Partition = 99
		r.append(guilty, 1)
		for n := range later {
			r.append(message(name(i), "k", n+1), 2)
		}
		r.append(message(name(i), "free", 0), 3)
	}
	r.p.Flush()
	for i := range topics {
		if err := c.CreateTopic(name(i), 3, nil); err != nil {
			t.Fatal(err)
		}
	}
	r.drain()
	r.mu.Lock()
	given := len(r.given)
	r.mu.Unlock()
	if r.ackedOf(2) != 0 || r.ackedOf(3) != topics || given != topics*(later+1) {
		t.Fatalf("%d later events of the key went out, %d others; %d given back", r.ackedOf(2), r.ackedOf(3), given)
	}
}
