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
	"testing"
	"time"

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
