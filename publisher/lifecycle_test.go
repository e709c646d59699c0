package publisher

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// trap 20: while frozen no new request starts, retries included; answers still count.
func TestFreeze(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(2, "t"), kfake.SleepOutOfOrder())
	var started atomic.Int64
	var hold atomic.Pointer[chan struct{}]
	c.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		started.Add(1)
		if ch := hold.Load(); ch != nil {
			c.SleepControl(func() { <-*ch })
		}
		return nil, nil, false
	})
	r := newRig(t, c.ListenAddrs(), nil)
	at := func(p int32, n int) {
		m := message("t", "k", n)
		m.Partition = p
		r.append(m, uint64(100*p+int32(n)))
		r.p.Flush()
	}
	at(0, 0)
	r.drain()
	answer := make(chan struct{})
	hold.Store(&answer)
	at(0, 1)
	until(t, "the request on its way", func() bool { return started.Load() == 2 })
	// Partition 1 is in a back-off when the freeze comes: its retry must not start.
	r.p.Freeze()
	hold.Store(nil)
	at(0, 2)
	at(1, 0)
	close(answer)
	until(t, "the answer", func() bool { return r.ackedOf(1) == 1 })
	if err := r.tryDrain(100 * time.Millisecond); err == nil {
		t.Fatal("drained while frozen")
	}
	if got := started.Load(); got != 2 {
		t.Fatalf("%d requests, want 2", got)
	}
	f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: -1})
	r.p.Thaw()
	until(t, "retries", func() bool { return f.Hits() > 3 })
	r.p.Freeze()
	f.Remove()
	if err := r.tryDrain(100 * time.Millisecond); err == nil {
		t.Fatal("a retry started while frozen")
	}
	r.p.Thaw()
	r.drain()
	if r.ackedOf(2) != 1 || r.ackedOf(100) != 1 {
		t.Fatal("not all came")
	}
}

// case C26: Close at any moment ends within the deadline, leaves no goroutine (goleak)
// and nothing is sent after it; it tolerates twice and never started.
func TestCloseAtAnyMoment(t *testing.T) {
	t.Parallel()
	for name, broker := range map[string]func(*kfake.Cluster){
		"healthy": func(*kfake.Cluster) {},
		"silent": func(c *kfake.Cluster) {
			c.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) { c.KeepControl(); return nil, nil, true })
		},
		"code 19": func(c *kfake.Cluster) {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.SeedTopics(3, "t"))
			broker(c)
			for range 10 {
				r := newRig(t, c.ListenAddrs(), nil)
				for n := range 50 {
					r.append(message("t", keyName(n%5), n), 1)
					r.p.Flush()
				}
				start := time.Now()
				if err := r.p.Close(); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took > 2*time.Second {
					t.Fatalf("Close took %s", took)
				}
				m := message("t", "k", 0)
				if err := r.p.Append(context.Background(), &m, 1); err == nil && name != "healthy" {
					m.Value = make([]byte, 64<<20)
					if err := r.p.Append(context.Background(), &m, 1); err == nil {
						t.Fatal("accepts for ever after Close")
					}
				}
				if err := r.p.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	p, err := New(Config{Brokers: []string{"b:1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p.Start(context.Background())
}

// Wakes are hints: events of a caller that forgets Flush go all the same.
func TestForgottenFlush(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	r := newRig(t, c.ListenAddrs(), nil)
	for n := range 3 {
		r.append(message("t", "k", n), uint64(n))
		until(t, "the event", func() bool { return r.ackedOf(uint64(n)) == 1 })
	}
}

// case C47: a single event does not wait for others: each that comes alone is a batch and a request of its own.
func TestIdleLaneSendsAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	r := newRig(t, c.ListenAddrs(), nil)
	const events = 200
	for n := range events {
		r.append(message("t", "k", n), uint64(n))
		r.drain()
	}
	if s := r.p.Stats(); s.AckedBatches != events || s.Requests != events {
		t.Fatalf("%d batches in %d requests for %d events that came one by one", s.AckedBatches, s.Requests, events)
	}
	wantOrder(t, consume(t, c.ListenAddrs(), events, "t"), "k", events)
}

// case C47: batches grow with load: what comes while one is in flight travels together in the next, whatever the
// number of hints, and in order.
func TestBatchesGrowWhileTheBrokerIsBusy(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	flying, land := make(chan struct{}), make(chan struct{})
	var first sync.Once
	c.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		first.Do(func() {
			close(flying)
			c.SleepControl(func() { <-land })
		})
		return nil, nil, false
	})
	r := newRig(t, c.ListenAddrs(), nil)
	const events = 2000
	r.append(message("t", "k", 0), 0)
	r.p.Flush()
	<-flying
	for n := 1; n < events; n++ {
		r.append(message("t", "k", n), uint64(n))
		r.p.Flush()
	}
	close(land)
	r.drain()
	if s := r.p.Stats(); s.AckedBatches != 2 {
		t.Fatalf("%d batches, want the first event and then all others", s.AckedBatches)
	}
	wantOrder(t, consume(t, c.ListenAddrs(), events, "t"), "k", events)
}
