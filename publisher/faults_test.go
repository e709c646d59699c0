package publisher

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const produceKey = int16(kmsg.Produce)

// line is a network whose connections can be made to lose answers.
type line struct {
	// cut decides, for each Produce request written, whether its answer is lost.
	cut  atomic.Pointer[func() bool]
	down atomic.Bool // no connection is made, and those that there are break
	mu   sync.Mutex
	all  []*wireConn
}

func (l *line) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if l.down.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
	}
	nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: nc, line: l}
	l.mu.Lock()
	l.all = append(l.all, c)
	l.mu.Unlock()
	return c, nil
}

// breakAll closes every connection that there is, as a broker does with idle ones:
// the next write still succeeds, the read after it finds the end.
func (l *line) breakAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.all {
		c.broken.Store(true)
		_ = c.Close()
	}
	l.all = nil
}

type wireConn struct {
	net.Conn
	line   *line
	lose   bool
	broken atomic.Bool
}

func (c *wireConn) Write(b []byte) (int, error) {
	if c.broken.Load() {
		return len(b), nil
	}
	if c.line.down.Load() {
		_ = c.Close()
		return 0, io.ErrClosedPipe
	}
	if len(b) > 6 && int16(binary.BigEndian.Uint16(b[4:])) == produceKey {
		if cut := c.line.cut.Load(); cut != nil && (*cut)() {
			c.lose = true
		}
	}
	return c.Conn.Write(b)
}

// SetDeadline works on a connection that only the broker has closed.
func (c *wireConn) SetDeadline(t time.Time) error {
	if c.broken.Load() {
		return nil
	}
	return c.Conn.SetDeadline(t)
}

// Read loses the answer only after it has arrived: the broker has appended.
func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.broken.Load() {
		return 0, io.EOF
	}
	if c.lose {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

// seeds is the number of random runs: few by default, 200 in the long tests.
func seeds(few int) int {
	if os.Getenv("POSTRIDER_TEST_LONG") == "1" {
		return 200
	}
	return few
}

// cases C18, C35, C37, traps 13, 14, 15, 19, rule 15: whatever the brokers and the
// network do, first occurrences keep their order per key, nothing is lost, and no
// retry makes a duplicate, since the brokers keep their producer state.
//
// The interleaving that broke others: batch 1 of a partition fails, batch 2 goes out.
func TestOrderUnderRandomFaults(t *testing.T) {
	t.Parallel()
	for seed := range seeds(12) {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			t.Parallel()
			randomFaults(t, rand.New(rand.NewSource(int64(seed))))
		})
	}
}

func randomFaults(t *testing.T, rnd *rand.Rand) {
	c := newCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(6, "t"))
	codes := []*kerr.Error{
		kerr.RequestTimedOut, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.NotLeaderForPartition,
		kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition, kerr.KafkaStorageError, kerr.UnknownServerError, kerr.CorruptMessage,
	}
	var mu sync.Mutex
	dice := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.Intn(n)
	}
	// Every third request or so meets something.
	c.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		switch dice(8) {
		case 0:
			return nil, errors.New("cut before it is read"), true
		case 1, 2:
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Err: codes[dice(len(codes))], Partitions: []int32{int32(dice(6))}})
		}
		return nil, nil, false
	})
	var l line
	lost := func() bool { return dice(7) == 0 }
	l.cut.Store(&lost)
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) {
		cfg.Dial, cfg.BatchBytes, cfg.MaxRequestBytes = l.dial, 1024, 4096
	})
	const keys, each = 10, 150
	for n := range each {
		for k := range keys {
			r.append(message("t", keyName(k), n), uint64(n))
		}
		if dice(3) == 0 {
			r.p.Flush()
		}
		if dice(25) == 0 {
			_ = c.MoveTopicPartition("t", int32(dice(6)), int32(dice(3)))
		}
	}
	r.drain()
	if got := r.refusalsSoFar(); len(got) > 0 {
		t.Fatalf("refused: %v", got[0])
	}
	records := consume(t, c.ListenAddrs(), keys*each, "t")
	for k := range keys {
		wantOrder(t, records, keyName(k), each)
	}
	if dup := len(records) - keys*each; int64(dup) > r.p.Stats().PossibleDuplicates {
		t.Fatalf("%d duplicates, %d counted", dup, r.p.Stats().PossibleDuplicates)
	}
}

// case C24, trap 15: every Produce request asks for all in-sync replicas.
func TestAcksAreAlwaysAll(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(6, "t"))
	var seen, wrong atomic.Int64
	c.ControlKey(produceKey, func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		seen.Add(1)
		if p := req.(*kmsg.ProduceRequest); p.Acks != -1 || p.TimeoutMillis != 30_000 || p.TransactionID != nil {
			wrong.Add(1)
		}
		return nil, nil, false
	})
	r := newRig(t, c.ListenAddrs(), nil)
	for n := range 100 {
		r.append(message("t", keyName(n%7), n), 1)
		r.p.Flush()
	}
	r.drain()
	if seen.Load() == 0 || wrong.Load() != 0 {
		t.Fatalf("%d requests, %d with other acks or timeout", seen.Load(), wrong.Load())
	}
}

// case C24 (a)-(c): a broker that takes the data and never answers, answers 19,
// or hangs up, acknowledges nothing.
func TestNothingIsAcknowledgedWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	silent := func(c *kfake.Cluster, _ kmsg.Request) (kmsg.Response, error, bool) { return nil, nil, true }
	hangs := func(c *kfake.Cluster, _ kmsg.Request) (kmsg.Response, error, bool) {
		return nil, errors.New("hang up"), true
	}
	for name, misbehave := range map[string]func(*kfake.Cluster, kmsg.Request) (kmsg.Response, error, bool){
		"never answers": silent, "hangs up": hangs, "answers 19": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.SeedTopics(1, "t"))
			var healed atomic.Bool
			attempts := make(chan struct{}, 1000)
			if misbehave == nil {
				f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: 5})
				go func() {
					for range 3 {
						attempts <- struct{}{}
					}
				}()
				t.Cleanup(f.Remove)
			} else {
				c.ControlKey(produceKey, func(req kmsg.Request) (kmsg.Response, error, bool) {
					c.KeepControl()
					attempts <- struct{}{}
					if healed.Load() {
						return nil, nil, false
					}
					return misbehave(c, req)
				})
			}
			r := newRig(t, c.ListenAddrs(), func(cfg *Config) {
				cfg.ProduceTimeout, cfg.RequestTimeout = 20*time.Millisecond, 200*time.Millisecond
			})
			r.append(message("t", "k", 0), 1)
			r.p.Flush()
			for range 3 {
				<-attempts
			}
			if misbehave != nil && r.ackedOf(1) != 0 {
				t.Fatal("acknowledged without an answer")
			}
			healed.Store(true)
			r.drain()
			if n := len(consume(t, c.ListenAddrs(), 1, "t")); n != 1 || r.ackedOf(1) != 1 {
				t.Fatalf("%d records, %d acknowledged", n, r.ackedOf(1))
			}
		})
	}
}

// case C25, rule 14: acknowledgements come out of order; a partition whose broker is
// slow holds up nobody, and its transaction alone stays unresolved.
func TestAcknowledgementsOutOfOrder(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(3, "t"), kfake.SleepOutOfOrder())
	for p := range int32(3) {
		if err := c.MoveTopicPartition("t", p, p); err != nil {
			t.Fatal(err)
		}
	}
	release := make(chan struct{})
	c.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if c.CurrentNode() == 0 {
			c.SleepControl(func() { <-release })
		}
		return nil, nil, false
	})
	r := newRig(t, c.ListenAddrs(), nil)
	for p := range int32(3) {
		m := message("t", "k", int(p))
		m.Partition = p
		r.append(m, uint64(p+1))
	}
	r.p.Flush()
	until(t, "transactions 2 and 3", func() bool { return r.ackedOf(2) == 1 && r.ackedOf(3) == 1 })
	if r.ackedOf(1) != 0 {
		t.Fatal("transaction 1 was acknowledged by nobody")
	}
	var left *DrainError
	if err := r.tryDrain(50 * time.Millisecond); !errors.As(err, &left) || left.Unacknowledged != 1 {
		t.Fatalf("drain: %v", err)
	}
	close(release)
	r.drain()
	if r.ackedOf(1) != 1 {
		t.Fatal("transaction 1")
	}
}

// case C35: leader changes, a leaderless moment, ISR trouble, a lost answer. Nothing
// is refused, nothing lost, and with the brokers' producer state intact nothing doubled.
func TestBrokerFaults(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*kfake.Cluster, *line) (stop func()){
		"a: code 6 while metadata name the leader": func(c *kfake.Cluster, _ *line) func() {
			return c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition, Count: -1}).Remove
		},
		"b: no leader in metadata": func(c *kfake.Cluster, _ *line) func() {
			p := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition, Count: -1})
			m := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "t", Err: kerr.LeaderNotAvailable, Count: -1})
			return func() { p.Remove(); m.Remove() }
		},
		"c: code 19": func(c *kfake.Cluster, _ *line) func() {
			return c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1}).Remove
		},
		"d: code 20, appended": func(c *kfake.Cluster, _ *line) func() {
			return c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicasAfterAppend, Count: -1}).Remove
		},
		"e: cut before the answer": func(_ *kfake.Cluster, l *line) func() {
			cut := func() bool { return true }
			l.cut.Store(&cut)
			return func() { l.cut.Store(nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(3, "t"))
			var l line
			r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.Dial = l.dial })
			const each = 60
			n := 0
			more := func(count int) {
				for range count {
					for k := range 4 {
						r.append(message("t", keyName(k), n), 1)
					}
					n++
					r.p.Flush()
				}
			}
			more(each / 3)
			r.drain()
			retries := observeRetries(r.p)
			stop := fault(c, &l)
			more(each / 3)
			until(t, "five retries", func() bool { return observeRetries(r.p) >= retries+5 })
			stop()
			more(each / 3)
			healed := time.Now()
			r.drain()
			if took := time.Since(healed); took > 5*time.Second {
				t.Errorf("recovery took %s", took)
			}
			if got := r.refusalsSoFar(); len(got) != 0 {
				t.Fatalf("refused: %v", got[0])
			}
			records := consume(t, c.ListenAddrs(), each*4, "t")
			if len(records) != each*4 {
				t.Fatalf("%d records, want %d: duplicates", len(records), each*4)
			}
			for k := range 4 {
				wantOrder(t, records, keyName(k), each)
			}
		})
	}
}

// rule 13: a moved leader is found at once, not after the metadata's age.
func TestMovedLeaderIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(1, "t"))
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.MetadataMaxAge = time.Hour })
	for n := range 30 {
		if err := c.MoveTopicPartition("t", 0, int32(n%3)); err != nil {
			t.Fatal(err)
		}
		r.append(message("t", "k", n), 1)
		start := time.Now()
		r.drain()
		if took := time.Since(start); took > 2*time.Second {
			t.Fatalf("move %d: %s", n, took)
		}
	}
	records := consume(t, c.ListenAddrs(), 30, "t")
	wantOrder(t, records, "k", 30)
	if len(records) != 30 {
		t.Fatalf("%d records", len(records))
	}
}
