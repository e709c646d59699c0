package rig

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// warmEvents are enough for a broker's JVM to have compiled what a step runs through.
const warmEvents = 300_000

// WarmBroker sends records of the steps' kind to a topic that is deleted again, in small batches: without it the first
// contender would pay for the compiler.
func (r *Rig) WarmBroker(ctx context.Context) error {
	const topic, partitions = "warm-up", 6
	if err := CreateTopic(ctx, r.client, topic, partitions); err != nil {
		return err
	}
	producer, err := r.Client(kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.ProducerBatchMaxBytes(16<<10), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(1000))
	if err != nil {
		return err
	}
	defer producer.Close()
	value := make([]byte, 200)
	var failed error
	for i := range warmEvents {
		producer.Produce(ctx, &kgo.Record{Key: []byte(fmt.Sprint(i)), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err // callbacks come one at a time, and Flush waits for them
			}
		})
	}
	if err := producer.Flush(ctx); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	return DeleteTopic(ctx, r.client, topic)
}
