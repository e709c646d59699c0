package oracle

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/event"
)

// stalled is how long a topic may give nothing before its end is reached.
const stalled = 30 * time.Second

// NewClient makes a franz-go client for the cluster: another code than the one
// that is judged.
type NewClient func(...kgo.Opt) (*kgo.Client, error)

// FromKgo converts a consumed record.
func FromKgo(r *kgo.Record) Record {
	headers := make([]event.Header, len(r.Headers))
	for i, h := range r.Headers {
		headers[i] = event.Header{Name: h.Key, Value: h.Value}
	}
	return Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, Headers: headers}
}

// ReadTopic hands on every record that the topic holds now, each partition in
// offset order. With committed set, records of aborted and open transactions are
// left out.
func ReadTopic(ctx context.Context, newClient NewClient, topic string, committed bool, each func(*kgo.Record)) error {
	level := kgo.ReadUncommitted()
	if committed {
		level = kgo.ReadCommitted()
	}
	// Markers are kept so that a partition which ends in one is seen to end.
	c, err := newClient(kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(), kgo.FetchMaxWait(250*time.Millisecond))
	if err != nil {
		return err
	}
	defer c.Close()
	left, err := consumeWhatIsThere(ctx, c, topic, committed)
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
	ctx, cancel := context.WithTimeout(ctx, stalled)
	defer cancel()
	admin := kadm.NewClient(c)
	starts, err := offsets(ctx, admin.ListStartOffsets, topic)
	if err != nil {
		return nil, err
	}
	list := admin.ListEndOffsets
	if committed {
		list = admin.ListCommittedOffsets
	}
	ends, err := offsets(ctx, list, topic)
	if err != nil {
		return nil, err
	}
	left := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	for p, end := range ends {
		if start := starts[p]; start < end {
			left[p.ID] = end
			from[p.ID] = kgo.NewOffset().At(start)
		}
	}
	c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	return left, nil
}

type listOffsets func(context.Context, ...string) (kadm.ListedOffsets, error)

func offsets(ctx context.Context, list listOffsets, topics ...string) (map[Partition]int64, error) {
	listed, err := list(ctx, topics...)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, err
	}
	found := map[Partition]int64{}
	listed.Each(func(o kadm.ListedOffset) { found[Partition{o.Topic, o.Partition}] = o.Offset })
	return found, nil
}

// KafkaEnds reads the high watermarks of topics, for SlotSampler. The topics
// must exist.
func KafkaEnds(c *kgo.Client, topics ...string) func(context.Context) (map[Partition]int64, error) {
	admin := kadm.NewClient(c)
	return func(ctx context.Context) (map[Partition]int64, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return offsets(ctx, admin.ListEndOffsets, topics...)
	}
}

// poll hands on one fetch and strikes out the partitions that are read to their end.
func poll(ctx context.Context, c *kgo.Client, left map[int32]int64, each func(*kgo.Record)) error {
	why := fmt.Errorf("topic gave nothing for %s, though these partitions end later: %v", stalled, left)
	ctx, cancel := context.WithTimeoutCause(ctx, stalled, why)
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
			each(r)
		}
		if r.Offset == end-1 {
			delete(left, r.Partition)
		}
	})
	return nil
}
