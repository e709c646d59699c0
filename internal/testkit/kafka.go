package testkit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/devstack"
)

// Broker is how a test sees a Kafka: through franz-go, never through the code
// under test.
type Broker struct {
	// Real is false for kfake, which enforces less (KafkaReal skips then).
	Real bool

	bootstrap []string
	opts      []kgo.Opt
}

// Kafka gives the shared broker.
func Kafka(t testing.TB) *Broker {
	t.Helper()
	brokers := sharedKafka.need(t, kafkaEnv)
	return &Broker{
		Real:      sharedKafka.need(t, kafkaKindEnv) == "real",
		bootstrap: strings.Split(brokers, ","),
	}
}

// KafkaReal is Kafka for a test of what kfake does not do; it skips the test
// where there is no real broker.
func KafkaReal(t testing.TB) *Broker {
	t.Helper()
	b := Kafka(t)
	if !b.Real {
		t.Skip("needs a real Kafka; this run has kfake")
	}
	return b
}

// Bootstrap lists the brokers' addresses.
func (b *Broker) Bootstrap() []string { return b.bootstrap }

// Client is a franz-go client that closes at cleanup.
func (b *Broker) Client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := b.newClient(opts...)
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

func (b *Broker) newClient(opts ...kgo.Opt) (*kgo.Client, error) {
	base := append([]kgo.Opt{kgo.SeedBrokers(b.bootstrap...)}, b.opts...)
	return kgo.NewClient(append(base, opts...)...)
}

// NewTopic makes a topic with a name of its own, deleted at cleanup, and
// returns when every partition has a leader.
func (b *Broker) NewTopic(t testing.TB, partitions int32, configs map[string]string) string {
	t.Helper()
	name := Unique(t)
	b.CreateTopic(t, name, partitions, configs)
	return name
}

// CreateTopic is NewTopic for a name that the test decides, such as the one
// that its routing gives.
func (b *Broker) CreateTopic(t testing.TB, name string, partitions int32, configs map[string]string) {
	t.Helper()
	c, err := b.newClient(kgo.MetadataMinAge(10 * time.Millisecond))
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	defer c.Close()
	admin := kadm.NewClient(c)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	values := make(map[string]*string, len(configs))
	for k, v := range configs {
		values[k] = &v
	}
	if _, err := admin.CreateTopic(ctx, partitions, -1, values, name); err != nil {
		t.Fatalf("testkit: create topic %s: %v", name, err)
	}
	t.Cleanup(func() { b.deleteTopic(name) })
	Eventually(t, patience, func() error {
		offsets, err := admin.ListEndOffsets(ctx, name)
		if err == nil {
			err = offsets.Error()
		}
		if err == nil && len(offsets[name]) != int(partitions) {
			err = errors.New("not all partitions are known yet")
		}
		return err
	})
}

// Trim deletes the first records of each partition, those before the offset, as retention does.
func (b *Broker) Trim(t testing.TB, topic string, before int64) {
	t.Helper()
	c, err := b.newClient()
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ends, err := kadm.NewClient(c).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatalf("testkit: list offsets of %s: %v", topic, err)
	}
	offsets := kadm.Offsets{}
	ends.Each(func(o kadm.ListedOffset) { offsets.AddOffset(topic, o.Partition, min(before, o.Offset), -1) })
	res, err := kadm.NewClient(c).DeleteRecords(ctx, offsets)
	if err == nil {
		err = res.Error()
	}
	if err != nil {
		t.Fatalf("testkit: delete records of %s: %v", topic, err)
	}
}

// deleteTopic is best effort: the broker may be down, and ends with the run.
func (b *Broker) deleteTopic(name string) {
	c, err := b.newClient()
	if err != nil {
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, _ = kadm.NewClient(c).DeleteTopic(ctx, name)
}

// EndOffsets gives the offset after the last record of each partition.
func (b *Broker) EndOffsets(ctx context.Context, topic string) (map[int32]int64, error) {
	c, err := b.newClient()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	offsets, err := kadm.NewClient(c).ListEndOffsets(ctx, topic)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return nil, err
	}
	ends := map[int32]int64{}
	for p, o := range offsets[topic] {
		ends[p] = o.Offset
	}
	return ends, nil
}

// PrivateBroker is a cluster for one test, which may stop, kill and pause it.
type PrivateBroker struct {
	*Broker
	Server *devstack.Kafka
}

// PrivateKafka starts a real cluster. It skips the test on a machine that
// cannot, or fails it where the real thing is required.
func PrivateKafka(t testing.TB, opts devstack.KafkaOptions) *PrivateBroker {
	t.Helper()
	k, err := devstack.StartKafka(context.Background(), opts)
	if errors.Is(err, devstack.ErrNoKafka) && !requireReal() {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	t.Cleanup(func() {
		if err := k.Stop(); err != nil {
			t.Errorf("testkit: %v", err)
		}
	})
	security, err := k.ClientOptions()
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	return &PrivateBroker{Broker: &Broker{Real: true, bootstrap: k.Bootstrap(), opts: security}, Server: k}
}

// FakeBroker is a kfake for one test, for scripted faults.
type FakeBroker struct {
	*Broker
	Server *devstack.Kfake
}

// Kfake starts one.
func Kfake(t testing.TB, opts devstack.KfakeOptions) *FakeBroker {
	t.Helper()
	k, err := devstack.StartKfake(opts)
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	t.Cleanup(func() {
		if err := k.Stop(); err != nil {
			t.Errorf("testkit: %v", err)
		}
	})
	return &FakeBroker{Broker: &Broker{bootstrap: k.Bootstrap()}, Server: k}
}
