package publisher

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/event"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// newCluster starts an in-process broker with the given topics of 12 partitions.
func newCluster(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// rig is a publisher with everything that it reported.
type rig struct {
	t *testing.T
	p *Publisher

	mu       sync.Mutex
	acked    map[uint64]int
	refusals []*event.Refusal
	refused  []uint64
	given    []*Refused
	// dispose says what becomes of a refused event; nil stops the partition.
	dispose func(*Refused) Disposal
}

// newRig starts a publisher with quick timers.
func newRig(t *testing.T, brokers []string, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, acked: map[uint64]int{}}
	cfg := Config{
		Brokers: brokers, RetryBackoff: time.Millisecond, RetryBackoffMax: 20 * time.Millisecond,
		MetadataMaxAge: time.Minute, OnAck: r.onAck, OnRefused: r.onRefused,
	}
	if os.Getenv("POSTRIDER_TEST_LOG") != "" {
		cfg.Log = zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: time.StampMilli}).With().Timestamp().Logger()
	}
	if change != nil {
		change(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.p = p
	p.Start(context.Background())
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) onAck(runs []Run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range runs {
		r.acked[run.Txn] += run.Count
	}
}

func (r *rig) onRefused(refused *Refused) Disposal {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusals = append(r.refusals, refused.Refusal)
	r.refused = append(r.refused, refused.Txn)
	r.given = append(r.given, refused)
	if r.dispose == nil {
		return Stop
	}
	return r.dispose(refused)
}

func (r *rig) refusalsSoFar() []*event.Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.refusals)
}

func (r *rig) ackedOf(txn uint64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked[txn]
}

// append accepts a message or fails the test.
func (r *rig) append(msg event.Message, txn uint64) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.p.Append(ctx, &msg, txn); err != nil {
		r.t.Fatalf("append: %v", err)
	}
}

// drain waits until everything is acknowledged.
func (r *rig) drain() {
	r.t.Helper()
	if err := r.tryDrain(patience); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) tryDrain(d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	r.p.Flush()
	return r.p.Drain(ctx)
}

// message is event number n of a key.
func message(topic, key string, n int) event.Message {
	id := fmt.Sprintf("%s-%06d", key, n)
	return event.Message{
		Topic: topic, EventID: []byte(id), Key: []byte(key), Value: []byte(fmt.Sprintf(`{"n": %d}`, n)),
		Headers:         []event.Header{{Name: "id", Value: []byte(id)}},
		TimestampMillis: time.Now().UnixMilli(), Partition: event.NoPartition,
		Position: event.Position{Commit: event.LSN(0x1000 + n), Index: uint64(n)},
	}
}

// until polls external state until it holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited %s for: %s", patience, what)
		}
	}
}

// consume reads at least n records of topics with another client, then what else is there at once.
func consume(t *testing.T, brokers []string, n int, topics ...string) []*kgo.Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
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
	extra, stop := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer stop()
	for extra.Err() == nil {
		list = append(list, cl.PollFetches(extra).Records()...)
	}
	return list
}

// idsByPartition lists the event ids of each partition in offset order.
func idsByPartition(records []*kgo.Record) map[string][]string {
	ids := map[string][]string{}
	for _, r := range records {
		k := fmt.Sprintf("%s/%d", r.Topic, r.Partition)
		ids[k] = append(ids[k], header(r, "id"))
	}
	return ids
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// firstOccurrences drops repeats.
func firstOccurrences(ids []string) []string {
	seen := map[string]bool{}
	var list []string
	for _, id := range ids {
		if !seen[id] {
			seen[id] = true
			list = append(list, id)
		}
	}
	return list
}

// wantOrder checks that the records of one key are 0..n-1 in first-occurrence order.
func wantOrder(t *testing.T, records []*kgo.Record, key string, n int) {
	t.Helper()
	var ids []string
	partition := int32(-1)
	for _, r := range records {
		if string(r.Key) != key {
			continue
		}
		if partition >= 0 && r.Partition != partition {
			t.Fatalf("key %s is in partitions %d and %d", key, partition, r.Partition)
		}
		partition = r.Partition
		ids = append(ids, header(r, "id"))
	}
	ids = firstOccurrences(ids)
	if len(ids) != n {
		t.Fatalf("key %s: %d distinct events, want %d", key, len(ids), n)
	}
	for i, id := range ids {
		if want := fmt.Sprintf("%s-%06d", key, i); id != want {
			t.Fatalf("key %s: event %d is %s, want %s", key, i, id, want)
		}
	}
}

// observeRetries sums retries_total over all causes.
func observeRetries(p *Publisher) int {
	ch := make(chan prometheus.Metric, 20)
	p.metrics.retries.Collect(ch)
	close(ch)
	total := 0.0
	for m := range ch {
		var d dto.Metric
		if m.Write(&d) == nil {
			total += d.GetCounter().GetValue()
		}
	}
	return int(total)
}

// admin is another client, for what a test does to the cluster.
func admin(t *testing.T, brokers []string) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}
