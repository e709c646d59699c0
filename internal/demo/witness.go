package demo

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/oracle"
)

// witnessSlot is older than the first event, and read at the end.
const witnessSlot = "demo_witness"

// witness is the oracle with its eyes: commits from a slot of its own, the
// relay's slot sampled against the broker, and at the end the topics.
type witness struct {
	*oracle.Oracle

	stack   *stack
	client  *kgo.Client
	cancel  context.CancelFunc
	sampler sync.WaitGroup
}

// newWitness begins to watch.
func newWitness(ctx context.Context, s *stack) (*witness, error) {
	if err := oracle.CreateSlot(ctx, s.dsn(), witnessSlot); err != nil {
		return nil, fmt.Errorf("create the slot of the witness: %w", err)
	}
	client, err := s.broker.Client(quick()...)
	if err != nil {
		return nil, err
	}
	sampling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &witness{Oracle: oracle.New(oracle.Config{Details: examples}), stack: s, client: client, cancel: cancel}
	sampler := oracle.SlotSampler{DSN: s.dsn(), Slot: relaySlot, Ends: oracle.KafkaEnds(client, topics()...)}
	w.sampler.Go(func() { sampler.Run(sampling, w.Oracle) })
	return w, nil
}

// stop ends the sampling; it may be called twice.
func (w *witness) stop() {
	w.cancel()
	w.sampler.Wait()
	w.client.Close()
}

// verdict reads what was committed and what stands in the topics, and judges.
// The relay must have ended.
func (w *witness) verdict(ctx context.Context) (oracle.Verdict, error) {
	w.stop()
	commits := oracle.CommitReader{DSN: w.stack.dsn(), Slot: witnessSlot, Publication: publication, Map: expected}
	if err := commits.ReadAll(ctx, w.Oracle); err != nil {
		return oracle.Verdict{}, err
	}
	for _, topic := range topics() {
		err := oracle.ReadTopic(ctx, w.stack.broker.Client, topic, false, func(r *kgo.Record) {
			w.Delivered(oracle.FromKgo(r))
		})
		if err != nil {
			return oracle.Verdict{}, fmt.Errorf("read topic %s: %w", topic, err)
		}
	}
	return w.Oracle.Verdict(), nil
}

// expected is the record that a row has to become, by the demo's configuration.
func expected(row oracle.Row) (oracle.Event, bool) {
	return oracle.Event{
		ID:    string(row.Get("event_id")),
		Topic: topicPrefix + string(row.Get("aggregate_type")),
		Key:   row.Get("aggregate_id"),
		Value: row.Get("payload"),
		Headers: []event.Header{
			{Name: "id", Value: row.Get("event_id")},
			{Name: "event_type", Value: row.Get("event_type")},
			{Name: versionHeader, Value: row.Get("aggregate_version")},
		},
	}, true
}
