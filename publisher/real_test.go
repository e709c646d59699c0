package publisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
)

// The tests here run on a real broker where the machine has one: it enforces what
// kfake does not.

// readReal reads at least n records of a topic by another client.
func readReal(t *testing.T, b *testkit.Broker, topic string, n int) []*kgo.Record {
	t.Helper()
	cl := b.Client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var list []*kgo.Record
	for len(list) < n {
		f := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("read back %d of %d records", len(list), n)
		}
		list = append(list, f.Records()...)
	}
	extra, stop := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer stop()
	for extra.Err() == nil {
		list = append(list, cl.PollFetches(extra).Records()...)
	}
	return list
}

// all five compressions on a real broker, which validates what is inside a compressed batch.
func TestRealCompressions(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	for _, codec := range []Compression{NoCompression, Gzip, Snappy, Lz4, Zstd} {
		t.Run(codec.String(), func(t *testing.T) {
			t.Parallel()
			topic := b.NewTopic(t, 12, nil)
			r := newRig(t, b.Bootstrap(), func(cfg *Config) { cfg.Compression = codec })
			const keys, each = 10, 500
			value := func(k, n int) []byte { return bytes.Repeat([]byte(fmt.Sprintf(`{"k": %d, "n": %d} `, k, n)), 1+n%30) }
			for n := range each {
				for k := range keys {
					m := message(topic, keyName(k), n)
					m.Value = value(k, n)
					r.append(m, 1)
				}
				if n%50 == 0 {
					r.p.Flush()
				}
			}
			r.drain()
			records := readReal(t, b, topic, keys*each)
			if len(records) != keys*each {
				t.Fatalf("%d records", len(records))
			}
			for k := range keys {
				wantOrder(t, records, keyName(k), each)
			}
			next := map[string]int{}
			for _, rec := range records {
				k := int(rec.Key[len(rec.Key)-1] - 'a')
				if !bytes.Equal(rec.Value, value(k, next[string(rec.Key)])) {
					t.Fatalf("%s differs", header(rec, "id"))
				}
				next[string(rec.Key)]++
			}
		})
	}
}

// cases C13, C37 (e), rule 19: what a real broker refuses for one record's sake is
// found in the middle of a batch, and what precedes it is published.
func TestRealRefusals(t *testing.T) {
	t.Parallel()
	b := testkit.KafkaReal(t)
	for _, c := range []struct {
		name    string
		configs map[string]string
		spoil   func(*event.Message)
		reason  event.Reason
	}{
		{"null key on a compacted topic", map[string]string{"cleanup.policy": "compact"}, func(m *event.Message) { m.Key = nil }, event.ReasonInvalidRecord},
		{"two hours ahead", nil, func(m *event.Message) { m.TimestampMillis += 2 * time.Hour.Milliseconds() }, event.ReasonTimestamp},
		{"two hours ahead, compressed", map[string]string{"compression.type": "zstd"}, func(m *event.Message) { m.TimestampMillis += 2 * time.Hour.Milliseconds() }, event.ReasonTimestamp},
		{"too large", map[string]string{"max.message.bytes": "10000"}, func(m *event.Message) { m.Value = noise(1, 10001) }, event.ReasonTooLarge},
	} {
		for _, codec := range []Compression{NoCompression, Lz4} {
			t.Run(c.name+", "+codec.String(), func(t *testing.T) {
				t.Parallel()
				topic := b.NewTopic(t, 1, c.configs)
				r := newRig(t, b.Bootstrap(), func(cfg *Config) { cfg.Compression = codec })
				r.append(message(topic, "warm", 0), 1)
				r.drain()
				const at = 23
				for n := range 40 {
					m := message(topic, "k", n)
					m.Partition = 0
					if n == at {
						c.spoil(&m)
					}
					r.append(m, 2)
				}
				var left *DrainError
				if err := r.tryDrain(patience); !errors.As(err, &left) || left.Stuck != 40-at {
					t.Fatalf("drain: %v", err)
				}
				got := r.refusalsSoFar()
				if len(got) != 1 || got[0].Reason != c.reason || got[0].EventID != fmt.Sprintf("k-%06d", at) {
					t.Fatalf("%v", got)
				}
				wantOrder(t, readReal(t, b, topic, at+1), "k", at)
			})
		}
	}
}

// DESIGN 6: the border of max.message.bytes is exact on a real broker too.
func TestRealSizeBorder(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	const limit = 20_000
	topic := b.NewTopic(t, 1, map[string]string{"max.message.bytes": fmt.Sprint(limit)})
	r := newRig(t, b.Bootstrap(), nil)
	m := message(topic, "k", 0)
	m.Value = make([]byte, limit)
	bt := newBatch()
	m.Value = m.Value[:limit-(bt.sizeWith(&m)-limit)]
	for bt.sizeWith(&m) > limit {
		m.Value = m.Value[:len(m.Value)-1]
	}
	if bt.sizeWith(&m) != limit {
		t.Fatal(bt.sizeWith(&m))
	}
	bt.recycle()
	r.append(m, 1)
	r.drain()
	m.Value = append(m.Value, 0)
	r.append(m, 2)
	if err := r.tryDrain(patience); err == nil || len(r.refusalsSoFar()) != 1 {
		t.Fatalf("one byte more: %v", err)
	}
	if got := len(readReal(t, b, topic, 1)); got != 1 {
		t.Fatalf("%d records", got)
	}
}

// rule 15 on a real broker, which keeps epochs by partition: a gap raises the epoch
// of one lane, and the other lane's goes on.
func TestRealGapRaisesOneLanesEpoch(t *testing.T) {
	t.Parallel()
	b := testkit.KafkaReal(t)
	topic := b.NewTopic(t, 2, nil)
	r := newRig(t, b.Bootstrap(), nil)
	round := func(n int) {
		for p := range int32(2) {
			m := message(topic, fmt.Sprintf("k%d", p), n)
			m.Partition = p
			r.append(m, 1)
		}
		r.drain()
	}
	round(0)
	lanes := r.p.topicList()[0].lanes
	lanes[0].mu.Lock()
	lanes[0].producer.identity.sequence += 5
	lanes[0].mu.Unlock()
	round(1)
	round(2)
	for p, want := range []int16{1, 0} {
		lanes[p].mu.Lock()
		if got := lanes[p].producer.identity.epoch; got != want {
			t.Errorf("lane %d: epoch %d, want %d", p, got, want)
		}
		lanes[p].mu.Unlock()
	}
	records := readReal(t, b, topic, 6)
	if len(records) != 6 || r.p.Stats().PossibleDuplicates != 0 {
		t.Fatalf("%d records, %d possible duplicates", len(records), r.p.Stats().PossibleDuplicates)
	}
	wantOrder(t, records, "k0", 3)
	wantOrder(t, records, "k1", 3)
}

// case C15 on a real broker.
func TestRealMissingTopic(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	topic := testkit.Unique(t)
	r := newRig(t, b.Bootstrap(), nil)
	for n := range 100 {
		r.append(message(topic, "k", n), 1)
	}
	r.p.Flush()
	until(t, "the awaited topic", func() bool { return len(r.p.Stats().AwaitedTopics) == 1 })
	b.CreateTopic(t, topic, 3, nil)
	r.drain()
	records := readReal(t, b, topic, 100)
	if wantOrder(t, records, "k", 100); len(records) != 100 {
		t.Fatalf("%d records", len(records))
	}
}

func TestRealTopicCreation(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	topic := testkit.Unique(t)
	r := newRig(t, b.Bootstrap(), func(cfg *Config) {
		cfg.CreateTopics = &TopicSpec{Partitions: 4, ReplicationFactor: -1, Configs: map[string]string{"max.message.bytes": "5000"}}
	})
	r.append(message(topic, "k", 0), 1)
	r.drain()
	if got := r.p.Stats().Lanes; got != 4 {
		t.Fatalf("%d partitions", got)
	}
	if got := r.p.topicList()[0].limit.Load(); got != 5000 {
		t.Fatalf("max.message.bytes %d", got)
	}
}

// TLS and SCRAM on a real broker, and a wrong password that says so.
func TestRealTLSAndSCRAM(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a broker of its own")
	}
	b := testkit.PrivateKafka(t, devstack.KafkaOptions{Secure: true})
	tlsConfig, err := b.Server.TLS()
	if err != nil {
		t.Fatal(err)
	}
	sasl := &SASL{Mechanism: "SCRAM-SHA-512", Username: b.Server.User, Password: b.Server.Password}
	topic := b.NewTopic(t, 3, nil)
	r := newRig(t, b.Bootstrap(), func(cfg *Config) { cfg.TLS, cfg.SASL = tlsConfig, sasl })
	for n := range 1000 {
		r.append(message(topic, "k", n), 1)
	}
	r.drain()
	wantOrder(t, readReal(t, b.Broker, topic, 1000), "k", 1000)
	wrong := *sasl
	wrong.Password += "x"
	for _, mechanism := range []string{"SCRAM-SHA-512", "PLAIN"} {
		wrong.Mechanism = mechanism
		if err := probe(t, Config{Brokers: b.Bootstrap(), TLS: tlsConfig, SASL: &wrong}); !errors.Is(err, kafka.SASLAuthenticationFailed) {
			t.Errorf("%s: %v", mechanism, err)
		}
	}
	if err := probe(t, Config{Brokers: b.Bootstrap(), TLS: tlsConfig, SASL: sasl}, topic); err != nil {
		t.Error(err)
	}
}

// cases C18, C35 on three real brokers: leaders are killed and come back; order
// holds, nothing is lost and nothing doubled.
func TestRealLeadersDie(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts three brokers of its own")
	}
	b := testkit.PrivateKafka(t, devstack.KafkaOptions{Nodes: 3, MinISR: 2})
	topic := b.NewTopic(t, 6, nil)
	r := newRig(t, b.Bootstrap(), func(cfg *Config) { cfg.RetryBackoffMax = 200 * time.Millisecond })
	const keys, each = 8, 400
	n := 0
	more := func(count int) {
		for range count {
			for k := range keys {
				r.append(message(topic, keyName(k), n), 1)
			}
			n++
			r.p.Flush()
		}
	}
	more(each / 4)
	r.drain()
	for i := range 2 {
		if err := b.Server.Kill(i); err != nil {
			t.Fatal(err)
		}
		more(each / 4)
		before := time.Now()
		r.drain()
		t.Logf("node %d dead: drained after %s, %d retries", i, time.Since(before).Round(time.Millisecond), observeRetries(r.p))
		if err := b.Server.StartNode(context.Background(), i); err != nil {
			t.Fatal(err)
		}
		until(t, "all replicas in sync", func() bool { return inSync(t, b.Broker, topic, 3) })
	}
	more(each - n)
	r.drain()
	records := readReal(t, b.Broker, topic, keys*each)
	for k := range keys {
		wantOrder(t, records, keyName(k), each)
	}
	if dup := len(records) - keys*each; int64(dup) > r.p.Stats().PossibleDuplicates {
		t.Fatalf("%d duplicates, %d counted", dup, r.p.Stats().PossibleDuplicates)
	}
	if len(r.refusalsSoFar()) != 0 {
		t.Fatal("refused")
	}
}

// inSync says that all partitions have their replicas in sync.
func inSync(t *testing.T, b *testkit.Broker, topic string, replicas int) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	topics, err := kadm.NewClient(b.Client(t)).ListTopics(ctx, topic)
	if err != nil {
		return false
	}
	for _, p := range topics[topic].Partitions {
		if len(p.ISR) < replicas {
			return false
		}
	}
	return len(topics[topic].Partitions) > 0
}
