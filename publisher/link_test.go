package publisher

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/operr"
)

// certificate makes a certificate for 127.0.0.1 that is its own authority.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func probe(t *testing.T, cfg Config, topics ...string) error {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return p.Probe(ctx, topics)
}

// rule 13: true errors: unreachable, TLS, SASL and topic rights are four things, and
// each says so, with a hint.
func TestProbeSaysWhatIsTrulyWrong(t *testing.T) {
	t.Parallel()
	cert, pool := certificate(t)
	secure := newCluster(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}}), kfake.EnableSASL(),
		kfake.Superuser("SCRAM-SHA-512", "relay", "right"), kfake.Superuser("SCRAM-SHA-256", "relay", "right"), kfake.Superuser("PLAIN", "relay", "right"))
	plain := newCluster(t, kfake.SeedTopics(1, "t"))
	plain.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "secret", Err: kerr.TopicAuthorizationFailed, Count: -1})
	closed := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		return l.Addr().String()
	}()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	tlsOK := &tls.Config{RootCAs: pool}
	user := func(mechanism, password string) *SASL {
		return &SASL{Mechanism: mechanism, Username: "relay", Password: password}
	}
	for _, c := range []struct {
		name   string
		cfg    Config
		topics []string
		op     string
		is     error
		says   string
	}{
		{name: "right, SCRAM-SHA-512", cfg: Config{Brokers: secure.ListenAddrs(), TLS: tlsOK, SASL: user("SCRAM-SHA-512", "right")}},
		{name: "right, SCRAM-SHA-256", cfg: Config{Brokers: secure.ListenAddrs(), TLS: tlsOK, SASL: user("SCRAM-SHA-256", "right")}},
		{name: "right, PLAIN", cfg: Config{Brokers: secure.ListenAddrs(), TLS: tlsOK, SASL: user("PLAIN", "right")}},
		{name: "wrong password, SCRAM", cfg: Config{Brokers: secure.ListenAddrs(), TLS: tlsOK, SASL: user("SCRAM-SHA-512", "wrong")}, op: "authenticate at", is: kafka.SASLAuthenticationFailed},
		{name: "wrong password, PLAIN", cfg: Config{Brokers: secure.ListenAddrs(), TLS: tlsOK, SASL: user("PLAIN", "wrong")}, op: "authenticate at", is: kafka.SASLAuthenticationFailed},
		{name: "unknown authority", cfg: Config{Brokers: secure.ListenAddrs(), TLS: &tls.Config{}, SASL: user("PLAIN", "right")}, op: "negotiate TLS with"},
		{name: "plain text to a TLS port", cfg: Config{Brokers: secure.ListenAddrs()}, op: "negotiate versions with", says: "wants TLS"},
		{name: "TLS to a plain port", cfg: Config{Brokers: plain.ListenAddrs(), TLS: tlsOK, DialTimeout: time.Second}, op: "negotiate TLS with"},
		{name: "nobody listens", cfg: Config{Brokers: []string{closed}}, op: "connect to"},
		{name: "no such host", cfg: Config{Brokers: []string{"broker.invalid:9092"}}, op: "connect to"},
		{name: "never answers", cfg: Config{Brokers: []string{silent.Addr().String()}, DialTimeout: 50 * time.Millisecond}, op: "negotiate versions with", says: "timed out after 50ms"},
		{name: "no right to a topic", cfg: Config{Brokers: plain.ListenAddrs()}, topics: []string{"t", "secret"}, op: "look up", is: kafka.TopicAuthorizationFailed, says: "secret"},
		{name: "missing topic is no error", cfg: Config{Brokers: plain.ListenAddrs()}, topics: []string{"missing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := probe(t, c.cfg, c.topics...)
			if c.op == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var e *operr.Error
			if !errors.As(err, &e) || e.Class != operr.Kafka || e.Hint == "" || e.Op != c.op {
				t.Fatalf("%v", err)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("%v is not %v", err, c.is)
			}
			if !strings.Contains(err.Error()+e.Hint, c.says) {
				t.Fatalf("%v (%s) does not say %q", err, e.Hint, c.says)
			}
		})
	}
}

// TLS and SASL carry events, not only probes.
func TestPublishesOverTLSAndSCRAM(t *testing.T) {
	t.Parallel()
	cert, pool := certificate(t)
	c := newCluster(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}}), kfake.EnableSASL(),
		kfake.Superuser("SCRAM-SHA-512", "relay", "right"), kfake.SeedTopics(3, "t"))
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) {
		cfg.TLS, cfg.SASL = &tls.Config{RootCAs: pool}, &SASL{Mechanism: "SCRAM-SHA-512", Username: "relay", Password: "right"}
	})
	for n := range 500 {
		m := message("t", "k", n)
		m.Value = make([]byte, 1000)
		r.append(m, 1)
	}
	r.drain()
	if r.ackedOf(1) != 500 {
		t.Fatal(r.ackedOf(1))
	}
}

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

// case C47: a single event does not wait for a batch to fill.
func TestIdleLaneSendsAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	r := newRig(t, c.ListenAddrs(), nil)
	r.append(message("t", "k", 0), 0)
	r.drain()
	start := time.Now()
	for n := 1; n <= 200; n++ {
		r.append(message("t", "k", n), uint64(n))
		r.drain()
	}
	if each := time.Since(start) / 200; each > 20*time.Millisecond {
		t.Fatalf("%s an event", each)
	}
}
