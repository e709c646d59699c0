package publisher

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// idle is a publisher of one topic whose sender nobody works for.
func idle(t *testing.T, partitions int, change func(*Config)) (*Publisher, *sender) {
	t.Helper()
	cfg := Config{Brokers: []string{"b:1"}}
	if change != nil {
		change(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	p.session.producerID, p.session.known = 7, true
	s := newSender(p, 0, "b:1")
	p.senders[0] = s
	p.topic("t").open(make([]int32, partitions))
	return p, s
}

// Append wakes the lanes before it blocks at a full window, whether their batches are full or not.
func TestFullWindowWakesTheLanes(t *testing.T) {
	t.Parallel()
	p, s := idle(t, 6, func(cfg *Config) { cfg.Window = minWindow })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	var err error
	for n := 0; err == nil; n++ {
		m := message("t", keyName(n%20), n)
		err = p.Append(ctx, &m, 1)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	for _, l := range p.topicList()[0].lanes {
		if l.events > 0 && l.state != laneReady {
			t.Fatalf("partition %d has %d events and sleeps", l.partition, l.events)
		}
	}
	if len(s.wake) == 0 {
		t.Fatal("nobody was woken")
	}
}

// rule 15: a broker that has forgotten the producer takes a repeat as new. The only
// sign is a base offset that leaves a gap behind the last acknowledged record.
func TestRepeatTakenByAForgetfulBrokerIsCounted(t *testing.T) {
	t.Parallel()
	p, s := idle(t, 1, nil)
	ctx := context.Background()
	send := func(n int, base int64, lost bool) {
		m := message("t", "k", n)
		if err := p.Append(ctx, &m, 1); err != nil {
			t.Fatal(err)
		}
		p.Flush()
		if lost {
			flights, _ := s.collect(ctx)
			s.unanswered(flights, errors.New("no answer"), true)
		}
		flights, _ := s.collect(ctx)
		s.settle(flights, answerOf(base, 0), false)
	}
	send(0, 10, false)
	send(1, 11, true) // recognised: the same base offset as the first time
	if got := p.duplicates.Load(); got != 0 {
		t.Fatalf("%d possible duplicates", got)
	}
	send(2, 13, true) // taken twice: at 12 and at 13
	if got := p.duplicates.Load(); got != 1 {
		t.Fatalf("%d possible duplicates, want 1", got)
	}
	send(3, 20, false) // another writer's records are between, and no attempt was unanswered
	if got := p.duplicates.Load(); got != 1 {
		t.Fatalf("%d possible duplicates, want 1", got)
	}
}

// trap 20: a freeze that comes while a worker connects stops it before it sends.
func TestFreezeWhileConnecting(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	var produced atomic.Int64
	c.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		produced.Add(1)
		return nil, nil, false
	})
	var dials atomic.Int64
	dialing, goOn := make(chan struct{}, 10), make(chan struct{})
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) {
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) > 1 { // the first is for metadata
				dialing <- struct{}{}
				<-goOn
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	r.append(message("t", "k", 0), 1)
	r.p.Flush()
	<-dialing
	r.p.Freeze()
	close(goOn)
	if err := r.tryDrain(100 * time.Millisecond); err == nil || produced.Load() != 0 {
		t.Fatalf("%d requests while frozen, %v", produced.Load(), err)
	}
	r.p.Thaw()
	r.drain()
}
