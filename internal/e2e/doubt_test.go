package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// TestDoubtfulStartLooksIntoTheTopic: a row that neither the snapshot covers nor the stream
// brings is settled where its topic has its event, by event id, wherever in the topic it
// stands. A record that was aborted, or is another event's, settles nothing (rules 4 and 17).
func TestDoubtfulStartLooksIntoTheTopic(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		aborted bool
		at      time.Time // of the record
		id, key string    // of the record; "" are the row's
		proved  bool
	}{
		"published": {at: now, proved: true},
		// In a partition of its own, where nothing is as young as the row.
		"published, old record": {at: now.Add(-30 * time.Hour), key: "elsewhere", proved: true},
		"aborted":               {at: now, aborted: true},
		"another event":         {at: now, id: "another"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.idleUntilCrash(nil)
			f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
			f.insert("order", "k", "2")
			f.db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", f.db.Slot))
			f.insert("order", "k", "3")
			id := c.id
			if id == "" {
				id = f.scalar("SELECT id::text FROM outbox WHERE payload = '2'")
			}
			f.publishByHand(&kgo.Record{
				Topic: f.topic("order"), Key: []byte(cmp.Or(c.key, "k")), Value: []byte("2"), Timestamp: c.at,
				Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}},
			}, c.aborted)
			if !c.proved {
				requireRefusedStart(t, f.drain(), operr.Slot, f.scalar("SELECT id::text FROM outbox WHERE payload = '2'"), "their topics do not have them")
				return
			}
			f.mustDrain()
			got := values(f.broker.ReadAll(t, f.topic("order")))
			if slices.Sort(got); strings.Join(got, " ") != "1 2 3" {
				t.Errorf("published %v", got)
			}
			// Proved once, and stored: the next start has no doubt.
			f.insert("order", "k", "4")
			f.mustDrain()
		})
	}
}

// publishByHand sends a record in a transaction, which it commits or aborts.
func (f *fixture) publishByHand(rec *kgo.Record, abort bool) {
	f.t.Helper()
	c := f.broker.Client(f.t, kgo.TransactionalID(rec.Topic), kgo.TransactionTimeout(time.Minute))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(f.t, c.BeginTransaction())
	must(f.t, c.ProduceSync(ctx, rec).FirstErr())
	must(f.t, c.EndTransaction(ctx, kgo.TransactionEndTry(!abort)))
}

// TestDoubtfulStartBesideAnotherPublisher: rows that the publication's filter leaves out are another publisher's, and
// no suspects, neither for the relay nor for checkpoint verify (rules 4 and 21).
func TestDoubtfulStartBesideAnotherPublisher(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	if db.VersionNum(t) < 150000 {
		t.Skip("row filters came with 15")
	}
	f := newFixture(t, db, testkit.Kafka(t))
	db.Exec(t, fmt.Sprintf("ALTER PUBLICATION %s SET TABLE outbox WHERE (aggregate_type = 'order')", quoted(db.Publication)))
	f.idleUntilCrash(nil)
	f.insert("refund", "k", "2")
	f.insert("order", "k", "3")
	if out, err := exec.Command(built(t), "checkpoint", "verify", "--config", f.yaml("")).CombinedOutput(); err != nil {
		t.Errorf("checkpoint verify: %v\n%s", err, out)
	}
	log := f.keepLog()
	f.mustDrain()
	log.await(t, "proving that nothing lies between", `"suspects":1`)
	if got := values(f.broker.ReadAll(t, f.topic("order"))); strings.Join(got, " ") != "1 3" {
		t.Errorf("published %v", got)
	}
}
