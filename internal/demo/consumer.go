package demo

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// consume tells the tally every record of the topics, until ctx ends. A broker
// that is away is waited for: that is the client's own business.
func consume(ctx context.Context, b broker, t *tally) error {
	client, err := b.Client(append(quick(),
		kgo.ConsumeTopics(topics()...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(200*time.Millisecond),
	)...)
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		now := time.Now()
		fetches.EachRecord(func(r *kgo.Record) { t.arrived(arrivalOf(r, now)) })
	}
}

func arrivalOf(r *kgo.Record, now time.Time) arrival {
	a := arrival{At: now, Key: string(r.Key), Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}
	for _, h := range r.Headers {
		switch h.Key {
		case "id":
			a.ID = string(h.Value)
		case "event_type":
			a.Type = string(h.Value)
		case versionHeader:
			a.Version = string(h.Value)
		}
	}
	return a
}
