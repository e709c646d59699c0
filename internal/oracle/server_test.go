package oracle_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/oracle"
	"github.com/postrider/postrider/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outbox makes a small table with its publication.
func outbox(t *testing.T) *testkit.DB {
	t.Helper()
	db := testkit.Postgres(t)
	db.Exec(t, `CREATE TABLE outbox (id text PRIMARY KEY, key text, payload jsonb);
		CREATE TABLE other (id int);
		CREATE PUBLICATION `+db.Publication+` FOR TABLE outbox WITH (publish = 'insert')`)
	return db
}

func eventOf(r oracle.Row) (oracle.Event, bool) {
	id := r.Get("id")
	return oracle.Event{
		ID: string(id), Key: r.Get("key"), Value: r.Get("payload"),
		Headers: []event.Header{{Name: "id", Value: id}},
	}, true
}

// Commit order, not the order of writing: the transaction that began first and
// committed last comes last. Rolled-back rows do not come.
func TestCommitReaderFollowsCommitOrder(t *testing.T) {
	t.Parallel()
	db := outbox(t)
	require.NoError(t, oracle.CreateSlot(t.Context(), db.DSN, db.Slot))
	late, early := db.Conn(t), db.Conn(t)
	ctx := t.Context()
	must := func(_ any, err error) { t.Helper(); require.NoError(t, err) }
	must(late.Exec(ctx, "BEGIN"))
	must(late.Exec(ctx, `INSERT INTO outbox VALUES ('late', 'k', '{"n":1}')`))
	must(early.Exec(ctx, `INSERT INTO outbox VALUES ('early', 'k', '{"b":1, "a":2}')`))
	must(early.Exec(ctx, "BEGIN"))
	must(early.Exec(ctx, `INSERT INTO outbox VALUES ('gone', 'k', NULL)`))
	must(early.Exec(ctx, "ROLLBACK"))
	must(late.Exec(ctx, "COMMIT"))

	o := oracle.New(oracle.Config{})
	reader := &oracle.CommitReader{DSN: db.DSN, Slot: db.Slot, Publication: db.Publication, Map: eventOf}
	require.NoError(t, reader.ReadAll(ctx, o))
	deliver := func(offset int64, id, value string) {
		o.Delivered(oracle.Record{
			Topic: "t", Offset: offset, Key: []byte("k"), Value: []byte(value),
			Headers: []event.Header{{Name: "id", Value: []byte(id)}},
		})
	}
	deliver(0, "early", `{"a": 2, "b": 1}`)
	deliver(1, "late", `{"n": 1}`)
	require.NoError(t, o.Verdict().Err())
	committed, _ := o.Progress()
	require.Equal(t, 2, committed)

	// A second call goes on where the first ended, also past foreign WAL.
	db.Exec(t, `INSERT INTO outbox VALUES ('more', 'k', '[]'); INSERT INTO other SELECT generate_series(1, 1000)`)
	require.NoError(t, reader.ReadAll(ctx, o))
	require.NoError(t, reader.ReadAll(ctx, o))
	committed, _ = o.Progress()
	require.Equal(t, 3, committed)
	require.Equal(t, 1, o.Verdict().Lost)
	require.Zero(t, o.Verdict().CommittedTwice)
}

// publish plays a relay that confirms as it is told to.
func publish(t *testing.T, b *testkit.Broker, topic string, n int) {
	t.Helper()
	c := b.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range n {
		id := fmt.Sprint(i)
		require.NoError(t, c.ProduceSync(t.Context(), &kgo.Record{
			Topic: topic, Key: []byte("k"), Value: []byte(`"v"`), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}},
		}).FirstErr())
	}
}

func insert(t *testing.T, db *testkit.DB, n int) {
	t.Helper()
	conn := db.Conn(t)
	for i := range n {
		_, err := conn.Exec(t.Context(), `INSERT INTO outbox VALUES ($1, 'k', '"v"')`, fmt.Sprint(i))
		require.NoError(t, err)
	}
}

// advance confirms everything on the relay's slot.
func advance(t *testing.T, db *testkit.DB) {
	t.Helper()
	_, err := db.Conn(t).Exec(t.Context(), "SELECT pg_replication_slot_advance($1, pg_current_wal_insert_lsn())", db.Slot)
	require.NoError(t, err)
}

// O4 with real servers: the same relay is judged safe when it confirms after
// publishing, and found out when it confirms before.
func TestWitnessTellsSafeFromUnsafeConfirmation(t *testing.T) {
	t.Parallel()
	for _, safe := range []bool{true, false} {
		t.Run(fmt.Sprintf("safe=%v", safe), func(t *testing.T) {
			t.Parallel()
			db := outbox(t)
			broker := testkit.Kafka(t)
			topic := broker.NewTopic(t, 1, nil)
			require.NoError(t, oracle.CreateSlot(t.Context(), db.DSN, db.Slot))
			w := testkit.NewWitness(t, db, db.Publication, broker, []string{topic}, eventOf)
			sampled := func() int { return w.Oracle.Verdict().Samples }
			awaitSample := func() {
				now := sampled()
				testkit.EventuallyTrue(t, 20*time.Second, "another sample", func() bool { return sampled() > now+1 })
			}
			insert(t, db, 5)
			if safe {
				publish(t, broker, topic, 5)
				advance(t, db)
				awaitSample()
			} else {
				advance(t, db)
				awaitSample()
				publish(t, broker, topic, 5)
			}
			v := w.Verdict(t)
			require.Equal(t, 5, v.Committed)
			require.Equal(t, 5, v.Delivered)
			if safe {
				require.NoError(t, v.Err())
			} else {
				require.Equal(t, 5, v.UnsafeAcks, v.Details)
				require.Equal(t, 5, v.Faults())
			}
		})
	}
}

func TestReadTopicSaysWhichTopicIsMissing(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	newClient := func(opts ...kgo.Opt) (*kgo.Client, error) {
		return kgo.NewClient(append(opts, kgo.SeedBrokers(b.Bootstrap()...))...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := oracle.ReadTopic(ctx, newClient, testkit.Unique(t), false, func(*kgo.Record) {})
	require.Error(t, err)
}

// The end-to-end tests judge half a million events; the long run shows what that costs.
func TestHalfAMillionEvents(t *testing.T) {
	t.Parallel()
	rows := 20_000
	if os.Getenv("POSTRIDER_TEST_LONG") == "1" {
		rows = 500_000
	}
	db := outbox(t)
	require.NoError(t, oracle.CreateSlot(t.Context(), db.DSN, db.Slot))
	db.Exec(t, fmt.Sprintf(`INSERT INTO outbox SELECT 'event-' || i, 'key-' || i %% 10000, jsonb_build_object('n', i, 'pad', repeat('x', 200))
		FROM generate_series(1, %d) AS i`, rows))
	o := oracle.New(oracle.Config{})
	reader := &oracle.CommitReader{DSN: db.DSN, Slot: db.Slot, Publication: db.Publication, Map: func(r oracle.Row) (oracle.Event, bool) {
		e, ok := eventOf(r)
		o.Delivered(oracle.Record{Topic: "t", Offset: int64(len(e.ID)), Key: e.Key, Value: e.Value, Headers: e.Headers})
		return e, ok
	}}
	began := time.Now()
	require.NoError(t, reader.ReadAll(t.Context(), o))
	read := time.Since(began)
	v := o.Verdict()
	require.NoError(t, v.Err())
	require.Equal(t, rows, v.Delivered)
	t.Logf("%d events read in %s, judged in %s", rows, read, time.Since(began)-read)
}
