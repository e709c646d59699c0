package config

import (
	"time"

	"github.com/postrider/postrider/publisher"
)

// compressions are the names of kafka.compression.
var compressions = map[string]publisher.Compression{
	"none":   publisher.NoCompression,
	"gzip":   publisher.Gzip,
	"snappy": publisher.Snappy,
	"lz4":    publisher.Lz4,
	"zstd":   publisher.Zstd,
}

// PublisherConfig is the configuration of the publisher; the caller adds the
// callbacks, the log and the registerer.
func (c *Config) PublisherConfig() publisher.Config {
	k := &c.Kafka
	out := publisher.Config{
		Brokers:            k.Brokers,
		ClientID:           k.ClientID,
		Compression:        compressions[k.Compression],
		BatchBytes:         int(k.BatchBytes),
		Window:             int(c.Publisher.Window),
		CreateTopics:       k.Topics.Create.toPublisher(),
		PartitionChange:    publisher.PartitionChange(k.PartitionChange),
		AuthorizationGrace: time.Duration(k.AuthorizationGrace),
	}
	if k.TLS != nil {
		out.TLS = k.TLS.client.Clone()
	}
	if k.SASL != nil {
		out.SASL = &publisher.SASL{Mechanism: k.SASL.Mechanism, Username: k.SASL.Username, Password: k.SASL.resolved.Reveal()}
	}
	return out
}

func (t *TopicSpec) toPublisher() *publisher.TopicSpec {
	if t == nil {
		return nil
	}
	// The bounds of both numbers were checked: they fit.
	return &publisher.TopicSpec{Partitions: int32(t.Partitions), ReplicationFactor: int16(t.ReplicationFactor), Configs: t.Configs}
}
