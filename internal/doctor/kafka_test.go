package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// about runs checks with nothing but brokers.
func about(t *testing.T, kafka publisher.Config, now func() time.Time, only ...string) []Finding {
	t.Helper()
	report, err := Run(t.Context(), Config{
		Kafka: kafka, Only: only, Now: now, Timeout: 2 * time.Second,
		Replication: replication.Config{ConnString: "postgres://x@127.0.0.1:1/x?sslmode=disable&connect_timeout=1"},
		Router: router.Config{Sources: []router.Source{{
			Schema: "public", Table: "outbox", Mapping: router.Mapping{EventID: "id", Key: "k", Payload: "p"}, Routes: []router.Route{{Topic: "t"}},
		}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return report.Findings
}

func requireOne(t *testing.T, found []Finding, state State, says, fix string) {
	t.Helper()
	if len(found) != 1 || found[0].State != state || !strings.Contains(found[0].Finding, says) || !strings.Contains(found[0].Fix, fix) {
		t.Errorf("want one finding %s that says %q with a fix that has %q, got %+v", state, says, fix, found)
	}
}

// A bootstrap address that answers is not enough: brokers send us to the addresses that
// they advertise.
func TestAdvertisedAddressThatIsNowhere(t *testing.T) {
	t.Parallel()
	k := testkit.Kfake(t, devstack.KfakeOptions{})
	k.Server.Cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.Server.Cluster.KeepControl()
		res := req.ResponseKind().(*kmsg.MetadataResponse)
		broker := kmsg.NewMetadataResponseBroker()
		broker.NodeID, broker.Host, broker.Port = 1, "127.0.0.1", 1
		res.Brokers = append(res.Brokers, broker)
		return res, nil, true
	})
	found := about(t, publisher.Config{Brokers: k.Bootstrap()}, nil, "brokers")
	requireOne(t, found, Failed, "a broker is known as 127.0.0.1:1, and there: ", "advertised.listeners")
}

// certificate lasts for a while from now.
func certificate(t *testing.T, lasts time.Duration) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lasts),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
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

func TestCertificatesThatEnd(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	long, pool := certificate(t, 90*day)
	k := testkit.Kfake(t, devstack.KfakeOptions{Extra: []kfake.Opt{kfake.TLS(&tls.Config{Certificates: []tls.Certificate{long}})}})
	cfg := publisher.Config{Brokers: k.Bootstrap(), TLS: &tls.Config{RootCAs: pool}}
	in := func(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(d) } }
	requireOne(t, about(t, cfg, nil, "kafka_tls"), OK, "valid until "+time.Now().Add(90*day).UTC().Format(time.DateOnly), "")
	requireOne(t, about(t, cfg, in(61*day), "kafka_tls"), Warning, "the certificate of broker "+k.Bootstrap()[0]+" ends on", "renew it")
	requireOne(t, about(t, cfg, in(91*day), "kafka_tls"), Failed, "ended on", "renew it")
	own, _ := certificate(t, 3*day)
	cfg.TLS.Certificates = []tls.Certificate{own}
	requireOne(t, about(t, cfg, nil, "kafka_tls"), Warning, "our client certificate ends on", "kafka.tls.cert_file")
}

// A partition without a leader, or without a replica that is in sync.
func TestTopicsThatAreNotWell(t *testing.T) {
	t.Parallel()
	k := testkit.Kfake(t, devstack.KfakeOptions{Extra: []kfake.Opt{kfake.SeedTopics(2, "t")}})
	leader := int32(-1)
	k.Server.Cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if len(req.(*kmsg.MetadataRequest).Topics) == 0 {
			return nil, nil, false
		}
		k.Server.Cluster.KeepControl()
		res := req.ResponseKind().(*kmsg.MetadataResponse)
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic = kmsg.StringPtr("t")
		for i := range int32(2) {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Replicas, p.ISR = i, []int32{0, 1, 2}, []int32{0}
			if p.Leader = 0; i == 1 {
				p.Leader = leader
			}
			topic.Partitions = append(topic.Partitions, p)
		}
		res.Topics = append(res.Topics, topic)
		return res, nil, true
	})
	cfg := publisher.Config{Brokers: k.Bootstrap()}
	requireOne(t, about(t, cfg, nil, "topics"), Failed, "1 of 2 partitions have no leader", "start the brokers")
	leader = 0
	requireOne(t, about(t, cfg, nil, "topics"), Warning, "2 of 2 partitions lack a replica", "start the brokers")
}

// A topic that is to be made, and that the cluster has too few brokers for.
func TestTopicsThatCannotBeCreated(t *testing.T) {
	t.Parallel()
	k := testkit.Kfake(t, devstack.KfakeOptions{Extra: []kfake.Opt{kfake.NumBrokers(1)}})
	cfg := publisher.Config{Brokers: k.Bootstrap(), CreateTopics: &publisher.TopicSpec{Partitions: 1, ReplicationFactor: 1}}
	requireOne(t, about(t, cfg, nil, "topics"), OK, "t will be created", "")
	cfg.CreateTopics.ReplicationFactor = -1
	requireOne(t, about(t, cfg, nil, "topics"), OK, "t will be created", "")
	cfg.CreateTopics.ReplicationFactor = 3
	requireOne(t, about(t, cfg, nil, "topics"), Failed, "wants 3 replicas, the cluster has 1 broker", "replication_factor of at most 1")
}

func TestDurable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replicas, brokers int
		minISR, unclean   string
		state             State
		says              string
	}{
		"well":                {3, 3, "2", "false", "", ""},
		"one broker":          {1, 1, "1", "false", "", ""},
		"nothing is accepted": {2, 3, "3", "false", Failed, "nothing is ever accepted"},
		"one replica":         {1, 3, "1", "false", Warning, "one replica"},
		"one may acknowledge": {3, 3, "1", "false", Warning, "min.insync.replicas is 1"},
		"unclean":             {3, 3, "2", "true", Warning, "unclean.leader.election.enable"},
	} {
		got := durable(&topic{name: "t", replicas: c.replicas, configs: map[string]string{cfgMinISR: c.minISR, cfgUnclean: c.unclean}}, c.brokers)
		if c.state == "" {
			if len(got) != 0 {
				t.Errorf("%s: %+v", name, got)
			}
			continue
		}
		if len(got) != 1 || got[0].state != c.state || !strings.Contains(got[0].text, c.says) || got[0].fix == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// An address that swallows packets costs a deadline, not more, and hides no other.
func TestSilentBroker(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	k := testkit.Kfake(t, devstack.KfakeOptions{Extra: []kfake.Opt{kfake.SeedTopics(1, "t")}})
	cfg := publisher.Config{Brokers: []string{silent.Addr().String(), k.Bootstrap()[0]}}
	requireOne(t, about(t, cfg, nil, "brokers"), Warning, "timed out after 2s", "take it out of kafka.brokers")
	requireOne(t, about(t, cfg, nil, "topics"), OK, "1 topic of 1 partition", "")
}

// What a broker sends may end anywhere, and must not end us.
func TestQuorumThatIsCut(t *testing.T) {
	t.Parallel()
	whole := []byte{
		0x40, 0, 0, 0, 0, // correlation, no tags
		0, 0, 2, 4, 'a', 'b', 'c', 2, // no error, one topic "abc", one partition
		0, 0, 0, 0, 0, 0, 0, 0, 0, 9, // number, no error, leader 9
		0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, // epoch, high watermark
		3,                                                                                                // two voters
		0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 7, 1, 0, 1, 'x', // another, with a tagged field
		0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 1, 0x93, 0x7b, 0x8a, 0x60, 0, 0, // the leader
		1, 0, 0, 0,
	}
	got, err := readQuorum(whole)
	if err != nil || got.clock.UnixMilli() != 0x01937b8a6000 {
		t.Fatalf("%v, %v", got, err)
	}
	for n := range whole[:len(whole)-4] {
		if _, err := readQuorum(whole[:n]); err == nil {
			t.Errorf("the first %d bytes were accepted", n)
		}
	}
}

// The clock of a real cluster can be asked for.
func TestKafkaClock(t *testing.T) {
	t.Parallel()
	b := testkit.KafkaReal(t)
	k := newCluster(Config{Kafka: publisher.Config{Brokers: b.Bootstrap()}}.withDefaults())
	defer k.close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	msg, err := k.ask(ctx, &describeQuorum{})
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(msg.(*quorum).clock); d.Abs() > 10*time.Second {
		t.Errorf("the cluster's clock is %s off", d)
	}
}

// What leaves the machine in the clear is said, and worse where it is the password.
func TestBrokersInTheClear(t *testing.T) {
	t.Parallel()
	k := testkit.Kfake(t, devstack.KfakeOptions{})
	cfg := publisher.Config{Brokers: k.Bootstrap()}
	requireOne(t, about(t, cfg, nil, "kafka_tls"), OK, "do not leave this machine", "")
	cfg.Brokers = []string{testkit.ProxyOutside(t, k.Bootstrap()[0]).Addr()}
	requireOne(t, about(t, cfg, nil, "kafka_tls"), Warning, "events cross the network in the clear", "SASL_SSL")
	asks := testkit.Kfake(t, devstack.KfakeOptions{Extra: []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("PLAIN", "relay", "right")}})
	cfg.Brokers = []string{testkit.ProxyOutside(t, asks.Bootstrap()[0]).Addr()}
	cfg.SASL = &publisher.SASL{Mechanism: "PLAIN", Username: "relay", Password: "right"}
	requireOne(t, about(t, cfg, nil, "kafka_tls"), Failed, "SASL PLAIN sends the password itself", "SASL_SSL")
}
