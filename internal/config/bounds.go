package config

import (
	"fmt"
	"time"
)

// bound is one row of the table of bounds.
type bound struct {
	path     string
	value    int64
	min, max int64
	// zero says that 0 is allowed beside the range: it leaves the choice to the server.
	zero bool
	show func(int64) string
}

func (b bound) check(r *report) {
	if b.zero && b.value == 0 || b.value >= b.min && b.value <= b.max {
		return
	}
	or := ""
	if b.zero {
		or = b.show(0) + " or "
	}
	r.follow(b.path, "is %s; must be %sfrom %s to %s", b.show(b.value), or, b.show(b.min), b.show(b.max))
}

const (
	// The publisher's own: a few buffers at least, and sizes of batches are 32 bits wide.
	minWindow, maxWindow = 256 << 10, 2 << 30
	// A request stays under 8 MiB: above its socket.request.max.bytes a broker
	// just hangs up (rule 14).
	minBatch, maxBatch = 1 << 10, 8 << 20
	// PostgreSQL sends at most 1 GB in one message.
	minRow, maxRow = 1 << 10, 1 << 30
	// Kafka's own limit per topic is far higher; this catches a slip of the finger.
	maxPartitions, maxReplicas = 100_000, 100 // of which both fit the wire: int32 and int16
)

func (c *Config) bounds() []bound {
	p, pg, repl, k := &c.Publisher, &c.Postgres, &c.Replication, &c.Kafka
	rows := []bound{
		size("publisher.window", p.Window, minWindow, maxWindow),
		span("publisher.shutdown_timeout", p.ShutdownTimeout, time.Second, time.Hour),
		span("postgres.connect_timeout", pg.ConnectTimeout, time.Second, 5*time.Minute),
		orZero(span("replication.wal_sender_timeout", repl.WALSenderTimeout, time.Second, 24*time.Hour)),
		orZero(span("replication.status_interval", repl.StatusInterval, 100*time.Millisecond, time.Hour)),
		span("replication.tcp_user_timeout", repl.TCPUserTimeout, time.Second, time.Hour),
		size("replication.max_row_bytes", repl.MaxRowBytes, minRow, maxRow),
		size("kafka.batch_bytes", k.BatchBytes, minBatch, maxBatch),
		count("parking.max_held_keys", c.Parking.MaxHeldKeys, 1, 10_000_000),
		count("parking.max_events", c.Parking.MaxEvents, 1, 1_000_000_000),
		count("replay.approval_above", c.Replay.ApprovalAbove, 0, 1_000_000_000),
		orZero(span("purge.every", c.Purge.Every, minEvery, maxEvery)),
		count("purge.batch", c.Purge.Batch, 1, 10_000),
		span("purge.pause", c.Purge.Pause, 0, time.Minute),
		span("kafka.authorization_grace", k.AuthorizationGrace, time.Second, 24*time.Hour),
	}
	rows = append(rows, c.purgeBounds()...)
	if pg.usesFields() {
		rows = append(rows, count("postgres.port", pg.Port, 1, 65535))
	}
	if create := k.Topics.Create; create != nil {
		if create.Partitions != brokerDefault {
			rows = append(rows, count("kafka.topics.create.partitions", create.Partitions, 1, maxPartitions))
		}
		if create.ReplicationFactor != brokerDefault {
			rows = append(rows, count("kafka.topics.create.replication_factor", create.ReplicationFactor, 1, maxReplicas))
		}
	}
	return rows
}

func size(path string, v, lo, hi Bytes) bound {
	return bound{path: path, value: int64(v), min: int64(lo), max: int64(hi), show: func(n int64) string { return Bytes(n).String() }}
}

func span(path string, v Duration, lo, hi time.Duration) bound {
	return bound{path: path, value: int64(v), min: int64(lo), max: int64(hi), show: func(n int64) string { return Duration(n).String() }}
}

func count(path string, v, lo, hi int) bound {
	return bound{path: path, value: int64(v), min: int64(lo), max: int64(hi), show: func(n int64) string { return fmt.Sprint(n) }}
}

func orZero(b bound) bound {
	b.zero = true
	return b
}
