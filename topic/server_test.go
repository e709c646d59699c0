package topic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/publisher"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 60 * time.Second

func newReader(t *testing.T, bootstrap []string) *Reader {
	t.Helper()
	r, err := NewReader(publisher.Config{Brokers: bootstrap})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(cancel)
	return ctx
}

// copyOf is a record that lives on, in the form in which the tests' own client gives it.
func copyOf(r *Record) testkit.Record {
	c := testkit.Record{
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Time,
		Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value),
	}
	for _, h := range r.Headers {
		c.Headers = append(c.Headers, kgo.RecordHeader{Key: h.Name, Value: bytes.Clone(h.Value)})
	}
	return c
}

func scan(t *testing.T, r *Reader, topic string, span Span) []testkit.Record {
	t.Helper()
	var list []testkit.Record
	if err := r.Scan(within(t), topic, span, func(rec *Record) error {
		list = append(list, copyOf(rec))
		return nil
	}); err != nil {
		t.Fatalf("scan: %v", err)
	}
	return list
}

func byPartition(list []testkit.Record) map[int32][]testkit.Record {
	m := map[int32][]testkit.Record{}
	for _, r := range list {
		// What the scan has no part in.
		r.ProducerID, r.ProducerEpoch = 0, 0
		if len(r.Headers) == 0 {
			r.Headers = nil
		}
		m[r.Partition] = append(m[r.Partition], r)
	}
	return m
}

func mustEqual(t *testing.T, got, want []testkit.Record) {
	t.Helper()
	g, w := byPartition(got), byPartition(want)
	if len(got) != len(want) || !reflect.DeepEqual(g, w) {
		t.Errorf("scan gave %d records, the other client %d", len(got), len(want))
		for p := range w {
			for i := range min(len(g[p]), len(w[p])) {
				if !reflect.DeepEqual(g[p][i], w[p][i]) {
					t.Fatalf("the first difference: got %+v, want %+v", g[p][i], w[p][i])
				}
			}
		}
	}
}

func produce(t *testing.T, c *kgo.Client, topic string, from, n int) {
	t.Helper()
	var list []*kgo.Record
	for i := from; i < from+n; i++ {
		rec := &kgo.Record{
			Topic: topic, Key: []byte(fmt.Sprintf("key-%d", i%17)), Value: bytes.Repeat([]byte(fmt.Sprintf("value %d ", i)), 1+i%40),
			Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(fmt.Sprint(i))}, {Key: "none", Value: nil}, {Key: "empty", Value: []byte{}}},
		}
		switch i % 7 {
		case 0:
			rec.Key = nil
		case 1:
			rec.Value = nil
		case 2:
			rec.Value = []byte{}
		case 3:
			rec.Headers = nil
		}
		list = append(list, rec)
	}
	if err := c.ProduceSync(within(t), list...).FirstErr(); err != nil {
		t.Fatalf("produce: %v", err)
	}
}

// rule 17: what a transaction aborted, its markers, and what is not committed yet are left
// out, interleaved with what counts, in batches of each codec; keys, values and headers
// come as they are, null apart from empty.
func TestScanGivesCommittedRecordsOnly(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := b.NewTopic(t, 3, nil)
			opts := []kgo.Opt{kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(0), kgo.ProducerBatchMaxBytes(20 << 10)}
			plain := b.Client(t, opts...)
			begin := func(id string) *kgo.Client {
				c := b.Client(t, append(opts, kgo.TransactionalID(topic+id), kgo.TransactionTimeout(time.Minute))...)
				if err := c.BeginTransaction(); err != nil {
					t.Fatal(err)
				}
				return c
			}
			end := func(c *kgo.Client, commit kgo.TransactionEndTry) {
				t.Helper()
				if err := c.EndTransaction(within(t), commit); err != nil {
					t.Fatal(err)
				}
			}
			produce(t, plain, topic, 0, 300)
			good, bad := begin("good"), begin("bad")
			for i := range 5 {
				produce(t, bad, topic, 1000+100*i, 50)
				produce(t, plain, topic, 2000+100*i, 50)
				produce(t, good, topic, 3000+100*i, 50)
			}
			end(bad, kgo.TryAbort)
			produce(t, plain, topic, 4000, 50)
			end(good, kgo.TryCommit)
			// The same producer again: its earlier abort does not count against it.
			if err := bad.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			produce(t, bad, topic, 5000, 50)
			end(bad, kgo.TryCommit)
			produce(t, plain, topic, 6000, 100)

			r := newReader(t, b.Bootstrap())
			settled(t, r, topic)
			want := b.ReadAll(t, topic, testkit.ReadCommitted())
			if len(want) != 300+5*50+50+5*50+50+100 {
				t.Fatalf("the other client gave %d records", len(want))
			}
			mustEqual(t, scan(t, r, topic, Span{}), want)

			// An open transaction ends what is committed, in its partitions.
			stuck := begin("stuck")
			produce(t, stuck, topic, 7000, 50)
			produce(t, plain, topic, 8000, 50)
			ends, err := r.Ends(within(t), topic)
			if err != nil {
				t.Fatal(err)
			}
			high, err := b.EndOffsets(within(t), topic)
			if err != nil {
				t.Fatal(err)
			}
			for p, end := range ends {
				if end >= high[int32(p)] {
					t.Errorf("partition %d: the committed end %d is not before the open transaction, high watermark %d", p, end, high[int32(p)])
				}
			}
			mustEqual(t, scan(t, r, topic, Span{}), want)
			end(stuck, kgo.TryCommit)
			settled(t, r, topic)
			mustEqual(t, scan(t, r, topic, Span{}), b.ReadAll(t, topic, testkit.ReadCommitted()))
		})
	}
}

// settled waits until no transaction is open: the answer to a commit comes before its markers.
func settled(t *testing.T, r *Reader, topic string) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		ends, err := r.Ends(within(t), topic)
		if err != nil {
			return err
		}
		high, err := r.HighWatermarks(within(t), topic)
		if err == nil && !reflect.DeepEqual(ends, high) {
			err = fmt.Errorf("committed up to %v of %v", ends, high)
		}
		return err
	})
}

// a span begins and ends at any offset, in the middle of batches, and names its partitions.
func TestScanKeepsToTheSpan(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	topic := b.NewTopic(t, 4, nil)
	c := b.Client(t, kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	produce(t, c, topic, 0, 2000)
	r := newReader(t, b.Bootstrap())
	all := byPartition(b.ReadAll(t, topic))
	span := Span{From: Offsets{0, 7, 33, 0}, To: Offsets{9, 8, 400, 500}, Partitions: []int32{2, 1, 0}}
	var want []testkit.Record
	for _, p := range span.Partitions {
		want = append(want, all[p][span.From[p]:min(span.To[p], int64(len(all[p])))]...)
	}
	mustEqual(t, scan(t, r, topic, span), want)
	if err := r.Scan(within(t), topic, Span{Partitions: []int32{4}}, func(*Record) error { return nil }); err == nil {
		t.Error("a partition that does not exist gave no error")
	}
	if n, err := r.Partitions(within(t), topic); n != 4 || err != nil {
		t.Errorf("Partitions = %d, %v", n, err)
	}
}

// offsets by time: the first record at or after it, else the end.
func TestOffsetsByTime(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	topic := b.NewTopic(t, 2, nil)
	c := b.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	base := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	for i := range 100 {
		rec := &kgo.Record{Topic: topic, Partition: 1, Value: []byte("x"), Timestamp: base.Add(time.Duration(i) * time.Second)}
		if err := c.ProduceSync(within(t), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	r := newReader(t, b.Bootstrap())
	for after, want := range map[time.Duration]Offsets{
		-time.Minute: {0, 0}, 0: {0, 0}, time.Millisecond: {0, 1}, 40 * time.Second: {0, 40}, 99 * time.Second: {0, 99}, 100 * time.Second: {0, 100},
	} {
		got, err := r.Offsets(within(t), topic, base.Add(after))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("offsets %s after the first record: %v, %v, want %v", after, got, err, want)
		}
	}
	if got, err := r.Offsets(within(t), topic, time.Time{}); err != nil || !reflect.DeepEqual(got, Offsets{0, 0}) {
		t.Errorf("offsets at the zero time: %v, %v", got, err)
	}
}

// what retention has removed is passed over; the starts say where the topic begins.
func TestScanPassesOverWhatRetentionRemoved(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	topic := b.NewTopic(t, 1, nil)
	c := b.Client(t)
	produce(t, c, topic, 0, 500)
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, 123, -1)
	if res, err := kadm.NewClient(c).DeleteRecords(within(t), offsets); err != nil || res.Error() != nil {
		t.Fatal(err, res.Error())
	}
	r := newReader(t, b.Bootstrap())
	if starts, err := r.Starts(within(t), topic); err != nil || !reflect.DeepEqual(starts, Offsets{123}) {
		t.Errorf("starts %v, %v", starts, err)
	}
	got := scan(t, r, topic, Span{From: Offsets{0}})
	if len(got) != 500-123 || got[0].Offset != 123 {
		t.Errorf("%d records from offset %d on, want %d from 123", len(got), got[0].Offset, 500-123)
	}
	if err := r.Scan(within(t), topic, Span{From: Offsets{900}, To: Offsets{901}}, func(*Record) error { return nil }); err == nil {
		t.Error("a span behind the log's end gave no error")
	}
}

// a topic that is not there, and one that may not be read, are two things.
func TestScanSaysWhatIsTrulyWrong(t *testing.T) {
	t.Parallel()
	b := testkit.Kfake(t, devstack.KfakeOptions{Extra: []kfake.Opt{kfake.SeedTopics(1, "secret")}})
	b.Server.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "secret", Err: kerr.TopicAuthorizationFailed, Count: -1})
	r := newReader(t, b.Bootstrap())
	nothing := func(*Record) error { return nil }
	if err := r.Scan(within(t), "absent", Span{}, nothing); !errors.Is(err, ErrNoTopic) || operr.ClassOf(err) != operr.Kafka {
		t.Errorf("scan of an absent topic: %v", err)
	}
	if _, err := r.Partitions(within(t), "absent"); !errors.Is(err, ErrNoTopic) {
		t.Errorf("partitions of an absent topic: %v", err)
	}
	if err := r.Scan(within(t), "secret", Span{}, nothing); errors.Is(err, ErrNoTopic) || operr.HintOf(err) != hintRights {
		t.Errorf("scan of a forbidden topic: %v, hint %q", err, operr.HintOf(err))
	}
}

// the reader logs in as the publisher does.
func TestReaderLogsIn(t *testing.T) {
	t.Parallel()
	b := testkit.Kfake(t, devstack.KfakeOptions{Extra: []kfake.Opt{
		kfake.SeedTopics(2, "t"), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "relay", "right"), kfake.Superuser("PLAIN", "relay", "right"),
	}})
	for password, want := range map[string]bool{"right": true, "wrong": false} {
		r, err := NewReader(publisher.Config{Brokers: b.Bootstrap(), SASL: &publisher.SASL{Mechanism: "SCRAM-SHA-512", Username: "relay", Password: password}})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		n, err := r.Partitions(within(t), "t")
		if (err == nil) != want || want && n != 2 {
			t.Errorf("%s password: %d partitions, %v", password, n, err)
		}
		if err := r.Scan(within(t), "t", Span{}, func(*Record) error { return nil }); (err == nil) != want {
			t.Errorf("%s password: scan: %v", password, err)
		}
	}
	if _, err := NewReader(publisher.Config{}); operr.ClassOf(err) != operr.Config {
		t.Errorf("without brokers: %v", err)
	}
}

// the scan lives through moved leaders, cut connections and throttling, with no record twice.
func TestScanOutlivesTheClustersTroubles(t *testing.T) {
	t.Parallel()
	b := testkit.Kfake(t, devstack.KfakeOptions{Nodes: 3, Extra: []kfake.Opt{kfake.SeedTopics(3, "t")}})
	produce(t, b.Client(t, kgo.ProducerBatchMaxBytes(10<<10)), "t", 0, 3000)
	want := b.ReadAll(t, "t")
	cluster := b.Server.Cluster
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "t", Err: kerr.NotLeaderForPartition, Count: 2})
	fetches := 0
	cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		fetches++
		if fetches == 2 {
			return nil, errors.New("cut"), true
		}
		return nil, nil, false
	})
	r := newReader(t, b.Bootstrap())
	var got []testkit.Record
	moved := false
	if err := r.Scan(within(t), "t", Span{}, func(rec *Record) error {
		if len(got) == 100 && !moved {
			moved = true
			cluster.ShufflePartitionLeaders()
		}
		got = append(got, copyOf(rec))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, got, want)
}

// the scan ends with its context, with the consumer's error and with the reader, at once
// and without leaving anything behind (goleak).
func TestScanEnds(t *testing.T) {
	t.Parallel()
	b := testkit.Kfake(t, devstack.KfakeOptions{Extra: []kfake.Opt{kfake.SeedTopics(2, "t")}})
	produce(t, b.Client(t), "t", 0, 1000)
	r, err := NewReader(publisher.Config{Brokers: b.Bootstrap(), RequestTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()

	mine := errors.New("enough")
	n := 0
	if err := r.Scan(within(t), "t", Span{}, func(*Record) error {
		if n++; n == 10 {
			return mine
		}
		return nil
	}); !errors.Is(err, mine) || n != 10 {
		t.Errorf("scan went on to record %d and gave %v", n, err)
	}

	// The broker does not answer: the context cuts the request.
	asked, answer := make(chan struct{}), make(chan struct{})
	defer close(answer)
	b.Server.Cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(asked)
		b.Server.Cluster.SleepControl(func() { <-answer })
		return nil, nil, false
	})
	ctx, cancel := context.WithCancel(within(t))
	done := make(chan error, 1)
	go func() {
		done <- r.Scan(ctx, "t", Span{}, func(*Record) error { return nil })
	}()
	<-asked
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("scan gave %v", err)
		}
	case <-time.After(soon):
		t.Fatal("scan does not end with its context")
	}
}

// the settings tell which topics keep the last record of a key only.
func TestCompactedTopicsAreKnown(t *testing.T) {
	t.Parallel()
	b := testkit.KafkaReal(t)
	r := newReader(t, b.Bootstrap())
	for policy, want := range map[string]bool{"delete": false, "compact": true, "compact,delete": true} {
		got, err := r.Compacted(within(t), b.NewTopic(t, 1, map[string]string{"cleanup.policy": policy}))
		if err != nil || got != want {
			t.Errorf("cleanup.policy=%s: %t, %v", policy, got, err)
		}
	}
}
