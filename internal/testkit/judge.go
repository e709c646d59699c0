package testkit

import (
	"context"
	"sync"
	"testing"

	"github.com/postrider/postrider/internal/oracle"
)

// Witness watches one outbox for an end-to-end test: it reads what is committed
// through a slot of its own and samples the slot of the relay (O1 to O5).
type Witness struct {
	*oracle.Oracle

	broker  *Broker
	topics  []string
	commits *oracle.CommitReader
	stop    func()
}

// NewWitness begins to watch. The publication must exist, the topics too, and
// nothing may have been committed that counts. It samples db.Slot, which may
// come later.
func NewWitness(t testing.TB, db *DB, publication string, broker *Broker, topics []string, mapRow func(oracle.Row) (oracle.Event, bool)) *Witness {
	t.Helper()
	return NewWitnessWith(t, db, publication, broker, topics, mapRow, oracle.Config{})
}

// NewWitnessWith is NewWitness with a judge that knows of marks, for one.
func NewWitnessWith(t testing.TB, db *DB, publication string, broker *Broker, topics []string, mapRow func(oracle.Row) (oracle.Event, bool), cfg oracle.Config) *Witness {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	slot := Unique(t) + "_witness"
	if err := oracle.CreateSlot(ctx, db.DSN, slot); err != nil {
		cancel()
		t.Fatalf("testkit: %v", err)
	}
	w := &Witness{
		Oracle: oracle.New(cfg), broker: broker, topics: topics,
		commits: &oracle.CommitReader{DSN: db.DSN, Slot: slot, Publication: publication, Map: mapRow},
	}
	client, err := broker.newClient()
	if err != nil {
		cancel()
		t.Fatalf("testkit: %v", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer client.Close()
		sampler := oracle.SlotSampler{DSN: db.DSN, Slot: db.Slot, Ends: oracle.KafkaEnds(client, topics...)}
		sampler.Run(ctx, w.Oracle)
	})
	w.stop = func() {
		cancel()
		wg.Wait()
	}
	t.Cleanup(w.stop)
	return w
}

// Verdict ends the sampling, reads what was committed and what was delivered,
// and judges. Call it once, when the relay has drained.
func (w *Witness) Verdict(t testing.TB, opts ...ReadOption) oracle.Verdict {
	t.Helper()
	w.stop()
	if err := w.commits.ReadAll(context.Background(), w.Oracle); err != nil {
		t.Fatalf("testkit: %v", err)
	}
	w.broker.Deliver(t, w.Oracle, w.topics, opts...)
	return w.Oracle.Verdict()
}

// RequireKept fails the test where the promise did not hold, and shows the verdict.
func (w *Witness) RequireKept(t testing.TB, opts ...ReadOption) oracle.Verdict {
	t.Helper()
	v := w.Verdict(t, opts...)
	if err := v.Err(); err != nil {
		t.Fatalf("the promise did not hold: %v", err)
	}
	t.Log(v)
	return v
}
