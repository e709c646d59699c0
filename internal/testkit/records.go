package testkit

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/oracle"
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
	b.read(t, topic, func(r *kgo.Record) {
		all = append(all, Record{
			Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value,
			Headers: r.Headers, Timestamp: r.Timestamp, ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch,
		})
	}, opts...)
	return all
}

// Deliver tells an oracle every record that the topics hold now. Call it once
// for each topic: a record that is told twice counts as a duplicate.
func (b *Broker) Deliver(t testing.TB, o *oracle.Oracle, topics []string, opts ...ReadOption) {
	t.Helper()
	for _, topic := range topics {
		b.read(t, topic, func(r *kgo.Record) { o.Delivered(oracle.FromKgo(r)) }, opts...)
	}
}

// read fails the test when nothing arrives for a long time before the end.
func (b *Broker) read(t testing.TB, topic string, each func(*kgo.Record), opts ...ReadOption) {
	t.Helper()
	var o readOptions
	for _, opt := range opts {
		opt(&o)
	}
	if err := oracle.ReadTopic(context.Background(), b.newClient, topic, o.committed, each); err != nil {
		t.Fatalf("testkit: read topic %s: %v", topic, err)
	}
}
