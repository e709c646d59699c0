package publisher

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// case C37 (a), trap 19: the broker is down. Memory stays within the window, nothing
// is refused, attempts do not burn down, and all comes in order when it is back.
func TestBrokerDown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(6, "t"))
	var l line
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.Dial, cfg.Window = l.dial, 1<<20 })
	const keys = 5
	appended := 0
	for ; appended < 100; appended++ {
		for k := range keys {
			r.append(message("t", keyName(k), appended), 1)
		}
	}
	r.drain()
	l.down.Store(true)
	l.breakAll()
	blocked := false
	for !blocked {
		for k := range keys {
			m := message("t", keyName(k), appended)
			m.Value = make([]byte, 500)
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			err := r.p.Append(ctx, &m, 1)
			cancel()
			if used := r.p.Stats().WindowBytes; used > 1<<20 {
				t.Fatalf("window holds %d", used)
			}
			if err != nil {
				blocked = true
				l.down.Store(false)
				r.append(m, 1)
			}
		}
		r.p.Flush()
		appended++
	}
	back := time.Now()
	r.drain()
	if took := time.Since(back); took > 10*time.Second {
		t.Fatalf("%s after it was back", took)
	}
	if len(r.refusalsSoFar()) != 0 || len(r.p.Fatal()) != 0 {
		t.Fatal("an outage became a refusal or fatal")
	}
	records := consume(t, c.ListenAddrs(), keys*appended, "t")
	if len(records) != keys*appended {
		t.Fatalf("%d records, want %d", len(records), keys*appended)
	}
	for k := range keys {
		wantOrder(t, records, keyName(k), appended)
	}
}

// case C37 (b): brokers close idle connections; the next event takes one retry at
// most, at once, and comes once.
func TestIdleConnectionsAreClosedByTheBroker(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	var l line
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.Dial = l.dial })
	for n := range 20 {
		r.append(message("t", "k", n), 1)
		r.drain()
		l.breakAll()
	}
	if got := testutil.ToFloat64(r.p.metrics.retries.WithLabelValues("idle_connection")); got < 1 || got > 20 {
		t.Fatalf("%v retries of 20 events", got)
	}
	records := consume(t, c.ListenAddrs(), 20, "t")
	if wantOrder(t, records, "k", 20); len(records) != 20 {
		t.Fatalf("%d records", len(records))
	}
}

// case C37 (c), (d): name resolution, TLS, SASL and metadata fail for a while, one
// after the other: nothing is refused.
func TestConnectionTroublesHeal(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]error{
		"name resolution": &net.DNSError{Err: "no such host", Name: "b", IsNotFound: true},
		"TLS":             &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
		"SASL":            kafka.SASLAuthenticationFailed,
		"plain error":     errors.New("metadata call failed"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.SeedTopics(1, "t"))
			var failures atomic.Int64
			r := newRig(t, c.ListenAddrs(), func(cfg *Config) {
				cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if failures.Add(1) < 5 {
						return nil, trouble
					}
					return (&net.Dialer{}).DialContext(ctx, network, addr)
				}
			})
			r.append(message("t", "k", 0), 1)
			r.drain()
			if len(r.refusalsSoFar()) != 0 || len(r.p.Fatal()) != 0 {
				t.Fatal("refused or fatal")
			}
		})
	}
}

// rule 12: a broker's throttle time is honoured.
func TestThrottleTimeIsHonoured(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	const throttle = 300 * time.Millisecond
	times := make(chan time.Time, 10)
	c.ControlKey(produceKey, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		times <- time.Now()
		req := kreq.(*kmsg.ProduceRequest)
		res := req.ResponseKind().(*kmsg.ProduceResponse)
		res.ThrottleMillis = int32(throttle.Milliseconds())
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = "t"
		rt.Partitions = append(rt.Partitions, kmsg.NewProduceResponseTopicPartition())
		rt.Partitions[0].BaseOffset = int64(len(times)) * 10
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	r := newRig(t, c.ListenAddrs(), nil)
	for n := range 3 {
		r.append(message("t", "k", n), 1)
		r.drain()
	}
	last := <-times
	for range 2 {
		next := <-times
		if gap := next.Sub(last); gap < throttle*9/10 {
			t.Fatalf("%s between requests", gap)
		}
		last = next
	}
}

// rule 14: an answer that does not name a partition says nothing about it.
func TestAnswerWithoutThePartition(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(2, "t"))
	var n atomic.Int64
	c.ControlKey(produceKey, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if n.Add(1) > 3 {
			return nil, nil, false
		}
		return kreq.(*kmsg.ProduceRequest).ResponseKind(), nil, true
	})
	r := newRig(t, c.ListenAddrs(), nil)
	for k := range 6 {
		r.append(message("t", keyName(k), 0), 1)
	}
	r.drain()
	if got := len(consume(t, c.ListenAddrs(), 6, "t")); got != 6 {
		t.Fatalf("%d records", got)
	}
}

// rule 14: lanes of one leader share a request, up to its size.
func TestLanesShareRequests(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(12, "t", "u"))
	r := newRig(t, c.ListenAddrs(), nil)
	for _, topic := range []string{"t", "u"} {
		r.append(message(topic, "k", 0), 1)
	}
	r.drain()
	before := r.p.Stats().Requests
	for p := range int32(12) {
		for _, topic := range []string{"t", "u"} {
			m := message(topic, "k", 1)
			m.Partition = p
			r.append(m, 1)
		}
	}
	r.drain()
	if got := r.p.Stats().Requests - before; got > 4 {
		t.Fatalf("%d requests for 24 partitions", got)
	}
}
