package devstack_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/devstack"
)

func startKafka(t *testing.T, opts devstack.KafkaOptions) *devstack.Kafka {
	t.Helper()
	k, err := devstack.StartKafka(t.Context(), opts)
	if errors.Is(err, devstack.ErrNoKafka) && os.Getenv("POSTRIDER_TEST_REQUIRE_REAL") != "1" {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.Stop()) })
	return k
}

type clientMaker interface {
	Client(...kgo.Opt) (*kgo.Client, error)
}

func client(t *testing.T, k clientMaker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := k.Client(opts...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func createTopic(t *testing.T, c *kgo.Client, topic string, replicas int16) {
	t.Helper()
	_, err := kadm.NewClient(c).CreateTopic(t.Context(), 1, replicas, nil, topic)
	require.NoError(t, err)
}

func produce(t *testing.T, c *kgo.Client, topic, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, c.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr())
}

// first reads the record at the topic's beginning.
func first(t *testing.T, k clientMaker, topic string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := client(t, k, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	fetches := c.PollFetches(ctx)
	require.NoError(t, fetches.Err0())
	require.NotEmpty(t, fetches.Records())
	return string(fetches.Records()[0].Value)
}

func TestKafkaKeepsRecordsOverRestartAndKill(t *testing.T) {
	t.Parallel()
	k := startKafka(t, devstack.KafkaOptions{})
	c := client(t, k)
	createTopic(t, c, "kept", 1)
	produce(t, c, "kept", "here")
	require.NoError(t, k.Restart(t.Context()))
	require.Equal(t, "here", first(t, k, "kept"))
	require.NoError(t, k.Kill(0))
	require.NoError(t, k.Start(t.Context()))
	require.Equal(t, "here", first(t, k, "kept"))
}

func TestKafkaPausedDoesNotAnswerAndResumes(t *testing.T) {
	t.Parallel()
	k := startKafka(t, devstack.KafkaOptions{})
	c := client(t, k)
	createTopic(t, c, "paused", 1)
	produce(t, c, "paused", "before")
	require.NoError(t, k.Pause(0))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := kadm.NewClient(c).ListEndOffsets(ctx, "paused")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, k.Resume(0))
	produce(t, c, "paused", "after")
}

func TestKafkaOfThreeNodesOutlivesOne(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three brokers")
	}
	k := startKafka(t, devstack.KafkaOptions{Nodes: 3, MinISR: 2, HeapMB: 256})
	c := client(t, k)
	createTopic(t, c, "replicated", 3)
	produce(t, c, "replicated", "all")
	require.NoError(t, k.Kill(0))
	produce(t, c, "replicated", "two")
	require.NoError(t, k.StartNode(t.Context(), 0))
	produce(t, c, "replicated", "again")
}

func TestKafkaSecureLetsOnlyTheRightPasswordIn(t *testing.T) {
	t.Parallel()
	k := startKafka(t, devstack.KafkaOptions{Secure: true})
	c := client(t, k)
	createTopic(t, c, "secret", 1)
	produce(t, c, "secret", "sealed")
	require.Equal(t, "sealed", first(t, k, "secret"))

	plain, err := kgo.NewClient(kgo.SeedBrokers(k.Bootstrap()...), kgo.RetryTimeout(time.Second))
	require.NoError(t, err)
	defer plain.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	require.Error(t, plain.Ping(ctx))
}
