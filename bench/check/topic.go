package check

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/bench/result"
)

// HeaderID is the record header with the event id.
const HeaderID = "id"

// stalled is how long a topic may give nothing before its end is reached.
const stalled = 30 * time.Second

// Topic reads a topic from its beginning to ends and judges it.
func Topic(ctx context.Context, client *kgo.Client, topic string, ends []int64, expected *Expected) (result.Check, error) {
	offsets := map[int32]kgo.Offset{}
	left := 0
	for p, end := range ends {
		if end > 0 {
			offsets[int32(p)] = kgo.NewOffset().At(0)
			left++
		}
	}
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets})
	defer client.PurgeTopicsFromConsuming(topic)
	judge := NewJudge(expected)
	for left > 0 {
		polled, err := poll(ctx, client)
		if err != nil {
			return result.Check{}, fmt.Errorf("read topic %s: %w", topic, err)
		}
		polled.EachRecord(func(r *kgo.Record) {
			if r.Topic != topic || r.Offset >= ends[r.Partition] {
				return
			}
			judge.Record(r.Partition, Header(r), r.Key, r.Value)
			if r.Offset == ends[r.Partition]-1 {
				left--
			}
		})
	}
	return judge.Verdict(), nil
}

func poll(ctx context.Context, client *kgo.Client) (kgo.Fetches, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stalled, fmt.Errorf("nothing came for %s", stalled))
	defer cancel()
	fetches := client.PollFetches(ctx)
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	for _, e := range fetches.Errors() {
		return nil, e.Err
	}
	return fetches, nil
}

// Header is the event id of a record; nil where there is none.
func Header(r *kgo.Record) []byte {
	for _, h := range r.Headers {
		if h.Key == HeaderID {
			return h.Value
		}
	}
	return nil
}
