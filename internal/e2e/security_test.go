package e2e

import (
	"testing"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/publisher"
)

// TestTLSAndSCRAM publishes through SASL_SSL with SCRAM-SHA-512 to a real Kafka, and
// a wrong password is told as what it is.
func TestTLSAndSCRAM(t *testing.T) {
	t.Parallel()
	kafka := testkit.PrivateKafka(t, devstack.KafkaOptions{Secure: true})
	f := newFixture(t, testkit.Postgres(t), kafka.Broker)
	tls, err := kafka.Server.TLS()
	must(t, err)
	f.cfg.Kafka.TLS = tls
	f.cfg.Kafka.SASL = &publisher.SASL{Mechanism: "SCRAM-SHA-512", Username: kafka.Server.User, Password: kafka.Server.Password}
	f.insert("order", "order-1", `{"a":1}`)
	f.mustDrain()
	if got := values(f.broker.ReadAll(t, f.topic("order"))); len(got) != 1 || got[0] != `{"a": 1}` {
		t.Errorf("read back %q", got)
	}

	f.insert("order", "order-1", `{"a":2}`)
	before := f.confirmed()
	f.cfg.Kafka.SASL = &publisher.SASL{Mechanism: "SCRAM-SHA-512", Username: kafka.Server.User, Password: "wrong"}
	err = f.drain()
	if operr.ClassOf(err) != operr.Kafka || operr.HintOf(err) == "" {
		t.Errorf("a wrong password gave %v (try %q)", err, operr.HintOf(err))
	}
	if f.confirmed() != before {
		t.Errorf("confirmed moved from %s to %s although nothing was published", before, f.confirmed())
	}
}

// TestCompressions reads the same rows back, byte for byte, through another client
// with each codec.
func TestCompressions(t *testing.T) {
	t.Parallel()
	for name, codec := range map[string]publisher.Compression{
		"none": publisher.NoCompression, "gzip": publisher.Gzip, "snappy": publisher.Snappy, "lz4": publisher.Lz4, "zstd": publisher.Zstd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.createTopic("order", 3, nil)
			witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
			f.cfg.Kafka.Compression = codec
			f.db.Exec(t, `INSERT INTO outbox(aggregate_type, aggregate_id, payload)
				SELECT 'order', 'k' || i % 7, jsonb_build_object('i', i, 'pad', repeat('abc', i % 50)) FROM generate_series(1, 500) i`)
			f.mustDrain()
			if v := witness.RequireKept(t); v.Delivered != 500 || v.Duplicates != 0 {
				t.Errorf("%s", v)
			}
		})
	}
}
