// Package watermill runs the outbox that comes with watermill, a common Go library for messages: its forwarder component
// reads a table through watermill-sql and publishes through watermill-kafka. It is a peer of the benchmark.
package watermill

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/IBM/sarama"
)

// Keys of a message's metadata. The marshaler makes a header of each, and the record's key of metadataKey.
const (
	metadataID   = "id"
	metadataKey  = "aggregate_id"
	metadataType = "eventType"
)

// Config is one forwarder. Each message carries its destination topic with it.
type Config struct {
	DSN string
	// Table is the table of messages.
	Table   string
	Brokers []string
	// Batch is the number of rows of a SELECT. 0 means 1,000 (the library's default is 100, and each SELECT
	// sorts all that waits).
	Batch int
	// Interval is the pause after a SELECT that found nothing. 0 means 100 ms (the library's default is a second).
	Interval time.Duration
}

func (c Config) withDefaults() Config {
	if c.Batch == 0 {
		c.Batch = 1000
	}
	if c.Interval == 0 {
		c.Interval = 100 * time.Millisecond
	}
	return c
}

// Run forwards until ctx ends, which is no error.
func Run(ctx context.Context, c Config) error {
	c = c.withDefaults()
	logger := watermill.NewStdLogger(false, false)
	pool, err := pgxpool.New(ctx, c.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: c.Brokers, Marshaler: marshaler(), OverwriteSaramaConfig: saramaConfig(),
	}, logger)
	if err != nil {
		return err
	}
	subscriber, err := sql.NewSubscriber(sql.BeginnerFromPgx(pool), sql.SubscriberConfig{
		SchemaAdapter:    schema(c.Table, c.Batch),
		OffsetsAdapter:   offsets(c.Table),
		PollInterval:     c.Interval,
		InitializeSchema: true,
	}, logger)
	if err != nil {
		return errors.Join(err, publisher.Close())
	}
	fwd, err := forwarder.NewForwarder(subscriber, publisher, logger, forwarder.Config{ForwarderTopic: forwarderTopic})
	if err != nil {
		return errors.Join(err, publisher.Close(), subscriber.Close())
	}
	return errors.Join(fwd.Run(ctx), publisher.Close())
}

// marshaler gives records the key of the aggregate; without it they would be spread at random.
func marshaler() kafka.Marshaler {
	return kafka.NewWithPartitioningMarshaler(func(_ string, msg *message.Message) (string, error) {
		return msg.Metadata.Get(metadataKey), nil
	})
}

// saramaConfig is the library's, but with acknowledgement by all replicas, as every contender has it.
func saramaConfig() *sarama.Config {
	c := kafka.DefaultSaramaSyncPublisherConfig()
	c.Producer.RequiredAcks = sarama.WaitForAll
	return c
}
