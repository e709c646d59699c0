package config

import (
	"time"

	"github.com/postrider/postrider/replication"
)

// ReplicationConfig is the configuration of the replication connection; the
// caller adds the log and what asks for the slot's owner.
func (c *Config) ReplicationConfig() replication.Config {
	return replication.Config{
		ConnString:       c.Postgres.ConnString(),
		Slot:             c.Postgres.Slot,
		Publications:     c.Postgres.Publication,
		StatusInterval:   time.Duration(c.Replication.StatusInterval),
		WALSenderTimeout: time.Duration(c.Replication.WALSenderTimeout),
		TCPUserTimeout:   time.Duration(c.Replication.TCPUserTimeout),
		ConnectTimeout:   time.Duration(c.Postgres.ConnectTimeout),
		MaxRowBytes:      int(c.Replication.MaxRowBytes),
	}
}
