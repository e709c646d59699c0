package testkit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Record is one record as a consumer got it. Nil and empty are told apart.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Value     []byte
	Headers   []kgo.RecordHeader
	Timestamp time.Time
	// ProducerID and ProducerEpoch are -1 for a producer that is not idempotent.
	ProducerID    int64
	ProducerEpoch int16
}

// Header gives the value of the first header of that name.
func (r Record) Header(name string) (value []byte, ok bool) {
	for _, h := range r.Headers {
		if h.Key == name {
			return h.Value, true
		}
	}
	return nil, false
}

// ReadOption changes what ReadAll and Read see.
type ReadOption func(*readOptions)

type readOptions struct{ committed bool }

// ReadCommitted leaves out records of aborted and open transactions.
func ReadCommitted() ReadOption { return func(o *readOptions) { o.committed = true } }

// ReadAll gives every record that the topic holds now, each partition in offset order.
func (b *Broker) ReadAll(t testing.TB, topic string, opts ...ReadOption) []Record {
	t.Helper()
	var all []Record
	b.Read(t, topic, func(r Record) { all = append(all, r) }, opts...)
	return all
}

// Read is ReadAll for topics that are too large to hold. It fails the test when
// nothing arrives for a long time before the end.
func (b *Broker) Read(t testing.TB, topic string, each func(Record), opts ...ReadOption) {
	t.Helper()
	var o readOptions
	for _, opt := range opts {
		opt(&o)
	}
	if err := b.read(context.Background(), topic, o, each); err != nil {
		t.Fatalf("testkit: read topic %s: %v", topic, err)
	}
}

func (b *Broker) read(ctx context.Context, topic string, o readOptions, each func(Record)) error {
	level := kgo.ReadUncommitted()
	if o.committed {
		level = kgo.ReadCommitted()
	}
	// Markers are kept so that a partition which ends in one is seen to end.
	c, err := b.newClient(kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(), kgo.FetchMaxWait(250*time.Millisecond))
	if err != nil {
		return err
	}
	defer c.Close()
	left, err := consumeWhatIsThere(ctx, c, topic, o.committed)
	if err != nil {
		return err
	}
	for len(left) > 0 {
		if err := poll(ctx, c, left, each); err != nil {
			return err
		}
	}
	return nil
}

// consumeWhatIsThere points the client at the beginning of every partition that
// holds something, and returns where each ends.
func consumeWhatIsThere(ctx context.Context, c *kgo.Client, topic string, committed bool) (map[int32]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	admin := kadm.NewClient(c)
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, err
	}
	list := admin.ListEndOffsets
	if committed {
		list = admin.ListCommittedOffsets
	}
	ends, err := list(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	left := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	for p, end := range ends[topic] {
		if start := starts[topic][p].Offset; start < end.Offset {
			left[p] = end.Offset
			from[p] = kgo.NewOffset().At(start)
		}
	}
	c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	return left, nil
}

// poll hands on one fetch and strikes out the partitions that are read to their end.
func poll(ctx context.Context, c *kgo.Client, left map[int32]int64, each func(Record)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("nothing came for %s, and these partitions have not ended: %v", patience, left))
	defer cancel()
	fetches := c.PollFetches(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := fetches.Err(); err != nil {
		return err
	}
	fetches.EachRecord(func(r *kgo.Record) {
		end, ok := left[r.Partition]
		if !ok || r.Offset >= end {
			return // it came after we had looked
		}
		if !r.Attrs.IsControl() {
			each(Record{
				Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value,
				Headers: r.Headers, Timestamp: r.Timestamp, ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch,
			})
		}
		if r.Offset == end-1 {
			delete(left, r.Partition)
		}
	})
	return nil
}
