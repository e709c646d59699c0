package testkit_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEachTestHasItsOwnDatabase(t *testing.T) {
	t.Parallel()
	a, b := testkit.Postgres(t), testkit.Postgres(t)
	require.NotEqual(t, a.Name, b.Name)
	a.Exec(t, "CREATE TABLE only_here (id int)")
	var n int
	require.NoError(t, b.Conn(t).QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE tablename = 'only_here'").Scan(&n))
	require.Zero(t, n)
	require.GreaterOrEqual(t, a.VersionNum(t), 140000)
}

func TestCleanupDropsSlotsAndDatabase(t *testing.T) {
	t.Parallel()
	witness := testkit.Postgres(t)
	var gone *testkit.DB
	t.Run("a test that leaves a slot and a session", func(t *testing.T) {
		gone = testkit.Postgres(t)
		_, err := gone.Conn(t).Exec(t.Context(), "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", gone.Slot)
		require.NoError(t, err)
	})
	var left int
	require.NoError(t, witness.Conn(t).QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1)
		+ (SELECT count(*) FROM pg_database WHERE datname = $2)`, gone.Slot, gone.Name).Scan(&left))
	require.Zero(t, left)
}

func TestReadAllGivesWhatWasProduced(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	topic := b.NewTopic(t, 3, nil)
	require.Empty(t, b.ReadAll(t, topic))
	c := b.Client(t)
	require.NoError(t, c.ProduceSync(t.Context(),
		&kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte{}, Headers: []kgo.RecordHeader{{Key: "h", Value: nil}}},
		&kgo.Record{Topic: topic, Key: []byte("k"), Value: nil},
	).FirstErr())
	got := b.ReadAll(t, topic)
	require.Len(t, got, 2)
	require.NotNil(t, got[0].Value, "an empty value is not a null one")
	require.Nil(t, got[1].Value)
	value, ok := got[0].Header("h")
	require.True(t, ok)
	require.Nil(t, value)
	require.Equal(t, got[0].Offset+1, got[1].Offset)
}

func TestReadCommittedLeavesAbortedRecordsOut(t *testing.T) {
	t.Parallel()
	b := testkit.Kafka(t)
	topic := b.NewTopic(t, 1, nil)
	c := b.Client(t, kgo.TransactionalID(testkit.Unique(t)))
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		require.NoError(t, c.BeginTransaction())
		require.NoError(t, c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr())
		require.NoError(t, c.EndTransaction(t.Context(), end))
	}
	require.Len(t, b.ReadAll(t, topic), 3)
	require.Len(t, b.ReadAll(t, topic, testkit.ReadCommitted()), 1)
}
