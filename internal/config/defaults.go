package config

import (
	"time"

	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/publisher"
)

// defaultConfig is what stands where the file says nothing.
func defaultConfig() *Config {
	return &Config{
		Publisher: Publisher{
			// Name: the slot's name; see fillDefaults.
			Delivery: DeliveryAtLeastOnce,
			// 32 MiB: at 100,000 events/s of 300 bytes a broker may stall for a
			// second (30 MB) before reading stops. It is a third of the 96 MiB that
			// the process may take in all.
			Window: publisher.DefaultWindow,
			// 30 s is Kubernetes' terminationGracePeriodSeconds.
			ShutdownTimeout: Duration(30 * time.Second),
		},
		Postgres: Postgres{
			ConnectTimeout: Duration(10 * time.Second),
		},
		Replication: Replication{
			// 0: what the server has, usually 60 s; the status interval is then a
			// third of it, at most 10 s.
			WALSenderTimeout: 0,
			StatusInterval:   0,
			// 30 s: half of the server's usual wal_sender_timeout, so that a dead
			// link is noticed on our side while the slot still looks taken.
			TCPUserTimeout: Duration(30 * time.Second),
			// 16 MiB: a bytea of 8 MiB arrives as 16 MiB of hexadecimal digits, and
			// that is eight times what a topic takes by default (1,048,588 bytes).
			MaxRowBytes: 16 << 20,
		},
		Kafka: Kafka{
			ClientID:    "postrider",
			Compression: "none",
			// 512 KiB: half of the 1,048,588 bytes that a topic takes by default, so
			// that four batches fill a request of 2 MiB and 64 batches the window.
			BatchBytes:      publisher.DefaultBatchBytes,
			PartitionChange: PartitionFollow,
			// 5 min: rights are often granted, and passwords rotated, a deploy later.
			AuthorizationGrace: Duration(publisher.DefaultAuthorizationGrace),
		},
		// A key takes some 100 bytes: 10 MB. An event takes none.
		Parking: Parking{MaxHeldKeys: parking.DefaultMaxUnits, MaxEvents: parking.DefaultMaxEvents},
		// More than a person can look through; every consumer will see them.
		Replay: Replay{ApprovalAbove: 10_000},
		// Every 0: a relay deletes nothing unless it is told to. 1000 rows, then a pause:
		// 10,000 rows a second at most.
		Purge: Purge{Batch: 1000, Pause: Duration(100 * time.Millisecond)},
		Admin: Admin{Listen: "127.0.0.1:9464"},
		Log:   Log{Level: "info", Format: LogAuto},
	}
}

// brokerDefault leaves the number to the broker (Kafka 2.4 and later).
const brokerDefault = -1

// fillDefaults sets what depends on what was given.
func (c *Config) fillDefaults() {
	if c.Publisher.Name == "" {
		// A checkpoint belongs to one slot, so its name is unique where the slot's is.
		c.Publisher.Name = c.Postgres.Slot
	}
	if c.Postgres.usesFields() {
		if c.Postgres.Port == 0 {
			c.Postgres.Port = 5432
		}
		if c.Postgres.SSLMode == "" {
			c.Postgres.SSLMode = "prefer" // libpq's own
		}
	}
	if create := c.Kafka.Topics.Create; create != nil {
		if create.Partitions == 0 {
			create.Partitions = brokerDefault
		}
		if create.ReplicationFactor == 0 {
			create.ReplicationFactor = brokerDefault
		}
	}
	for i := range c.Sources {
		c.Sources[i].fillDefaults()
	}
}
