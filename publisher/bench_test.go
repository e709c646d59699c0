package publisher

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/testkit"
)

// BenchmarkDrain publishes to a real broker: 200-byte events, flushed as a coalesced
// reader would (every 300 events). It reports events/s, the process's CPU per
// event and the mean batch.
func BenchmarkDrain(b *testing.B) {
	broker := testkit.KafkaReal(b)
	for _, partitions := range []int32{1, 6, 96} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			topic := broker.NewTopic(b, partitions, nil)
			var acked atomic.Int64
			p, err := New(Config{Brokers: broker.Bootstrap(), OnAck: func(runs []Run) {
				for _, r := range runs {
					acked.Add(int64(r.Count))
				}
			}})
			if err != nil {
				b.Fatal(err)
			}
			p.Start(context.Background())
			defer func() { _ = p.Close() }()
			value := bytes.Repeat([]byte(`{"a": 1, "b": 2} `), 12)
			keys := make([][]byte, 1000)
			for i := range keys {
				keys[i] = []byte(fmt.Sprintf("order-%d", i))
			}
			m := event.Message{
				Topic: topic, EventID: []byte("550e8400-e29b-41d4-a716-446655440000"), Value: value, Partition: event.NoPartition,
				Headers:         []event.Header{{Name: "id", Value: []byte("550e8400-e29b-41d4-a716-446655440000")}, {Name: "event_type", Value: []byte("OrderCreated")}},
				TimestampMillis: time.Now().UnixMilli(),
			}
			m.Key = keys[0]
			_ = p.Append(context.Background(), &m, 0)
			_ = p.Drain(context.Background())
			before := cpu()
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				m.Key = keys[i%len(keys)]
				if err := p.Append(context.Background(), &m, uint64(i)); err != nil {
					b.Fatal(err)
				}
				if i%300 == 299 {
					p.Flush()
				}
			}
			if err := p.Drain(context.Background()); err != nil {
				b.Fatal(err)
			}
			s := p.Stats()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N), "cpu-ns/event")
			b.ReportMetric(float64(s.AckedEvents)/float64(s.AckedBatches), "events/batch")
			b.ReportMetric(float64(s.AckedBatches)/float64(s.Requests), "batches/request")
			var mem runtime.MemStats
			runtime.ReadMemStats(&mem)
			b.ReportMetric(float64(mem.Sys)/(1<<20), "sys-MiB")
		})
	}
}

func cpu() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
