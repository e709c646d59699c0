package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/doctor"
	"github.com/postrider/postrider/internal/testkit"
)

// onlyPostgres leaves Kafka out.
func onlyPostgres() (args []string) {
	names, _ := doctor.Checks()
	for _, name := range names {
		if name == "brokers" {
			break
		}
		args = append(args, "--only", name)
	}
	return args
}

// planted is a fault of a server; planting it heals the one before, or leaves it.
type planted struct {
	name string
	fault
}

// take plants one after the other.
func take(t *testing.T, p *patient, steps []planted) {
	t.Helper()
	for _, s := range steps {
		s.plant(t, p)
		r, found := p.examine(t)
		t.Run(s.name, func(t *testing.T) { s.requireNamed(t, r, found) })
	}
}

// set changes settings that a reload takes up.
func set(t *testing.T, p *patient, settings ...string) {
	t.Helper()
	conn := p.db.Conn(t)
	for _, s := range settings {
		if _, err := conn.Exec(t.Context(), "ALTER SYSTEM SET "+s); err != nil {
			t.Fatal(err)
		}
		name, value, _ := strings.Cut(s, " = ")
		if _, err := conn.Exec(t.Context(), "SELECT pg_reload_conf()"); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, patience, func() error {
			got := scalar(t, p.db, "SELECT current_setting('"+name+"')")
			if got != strings.Trim(value, "'") {
				return fmt.Errorf("%s is %s", name, got)
			}
			return nil
		})
	}
}

// Faults of a server's own settings: no other test may share it (trap 21).
func TestDoctorNamesFaultsOfTheServer(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{
		"max_slot_wal_keep_size": "10GB", "max_wal_senders": "1", "max_replication_slots": "1", "max_wal_size": "2GB",
	}})
	p := newPatient(t, server, "events")
	p.args = onlyPostgres()
	requireWell(t, p)
	var walsender *pgconn.PgConn
	take(t, p, []planted{
		{"WAL without a bound", fault{
			plant: func(t *testing.T, p *patient) { set(t, p, "max_slot_wal_keep_size = -1") },
			check: "max_slot_wal_keep_size", state: doctor.Warning, says: "nothing bounds the WAL", fix: "ALTER SYSTEM SET max_slot_wal_keep_size",
		}},
		{"a bound that is tight", fault{
			plant: func(t *testing.T, p *patient) { set(t, p, "max_slot_wal_keep_size = '64MB'") },
			check: "max_slot_wal_keep_size", state: doctor.Warning, says: "64 MiB", fix: "ALTER SYSTEM SET max_slot_wal_keep_size",
		}},
		{"WAL held back", fault{
			plant: func(t *testing.T, p *patient) { writeWAL(t, p, 3) },
			check: "wal_held", state: doctor.Warning, says: "of 64 MiB at which the slot is lost", fix: "start the relay",
			also: []string{"max_slot_wal_keep_size"},
		}},
		{"no walsender", fault{
			plant: func(t *testing.T, p *patient) {
				set(t, p, "max_slot_wal_keep_size = '10GB'")
				walsender = replicationSession(t, p.db.DSN+"&replication=database")
			},
			check: "max_wal_senders", state: doctor.Failed, says: "all 1 are taken", fix: "raise max_wal_senders",
			also: []string{"role", "checkpoint"},
		}},
		{"certificate that ends soon", fault{
			plant: func(t *testing.T, p *patient) {
				_ = walsender.Close(t.Context())
				p.encrypt(t, server, 10*24*time.Hour)
			},
			check: "postgres_tls", state: doctor.Warning, says: "the server's certificate ends on", fix: "renew it",
		}},
		{"slot lost", fault{
			plant: func(t *testing.T, p *patient) {
				set(t, p, "max_slot_wal_keep_size = '1MB'")
				writeWAL(t, p, 3)
				p.db.Exec(t, "CHECKPOINT")
			},
			check: "slot", state: doctor.Failed, says: "wal_status=lost", fix: "postrider recover",
			also: append([]string{"max_slot_wal_keep_size", "postgres_tls"}, noSlot...),
		}},
		{"no slot is free", fault{
			plant: sql("SELECT pg_drop_replication_slot('$slot'); SELECT pg_create_physical_replication_slot('somebody_elses')"),
			check: "max_replication_slots", state: doctor.Failed, says: "all 1 slots are taken", fix: "raise max_replication_slots",
			also: append([]string{"max_slot_wal_keep_size", "postgres_tls", "slot"}, noSlot...),
		}},
		{"wal_level", fault{
			plant: func(t *testing.T, p *patient) {
				server.Set("wal_level", "replica")
				if err := server.Restart(t.Context(), devstack.Fast); err != nil {
					t.Fatal(err)
				}
			},
			check: "wal_level", state: doctor.Failed, says: "wal_level is replica, logical is needed", fix: "ALTER SYSTEM SET wal_level = 'logical'",
			also: append([]string{"max_slot_wal_keep_size", "postgres_tls", "slot", "max_replication_slots"}, noSlot...),
		}},
	})
}

// requireWell demands that there is nothing to say.
func requireWell(t *testing.T, p *patient) {
	t.Helper()
	r, found := p.examine(t)
	r.expect(t, exitDone)
	for _, x := range found {
		if x.State != doctor.OK && !harmless(x) {
			t.Errorf("%s %s: %s (try: %s)", x.State, x.Name, x.Finding, x.Fix)
		}
	}
}

// The questions are understood by every server that is supported; 15 and 18 are in every run.
func TestDoctorOnEveryVersion(t *testing.T) {
	t.Parallel()
	if os.Getenv("POSTRIDER_TEST_LONG") == "" {
		t.Skip("for the long run")
	}
	for _, version := range []string{"14", "15", "16", "17", "18"} {
		t.Run(version, func(t *testing.T) {
			server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Version: version, Settings: map[string]string{"max_slot_wal_keep_size": "10GB"}})
			p := newPatient(t, server, "events")
			p.args = onlyPostgres()
			requireWell(t, p)
		})
	}
}

// case C06, trap 25: names that need quotes, partitions either way, all tables, and
// two publications are no faults.
func TestDoctorOfOddTables(t *testing.T) {
	t.Parallel()
	const odd = `CREATE SCHEMA "My.Schema"; CREATE TABLE "My.Schema"."Outbox ""Events"" 'x'" ("Id" uuid PRIMARY KEY DEFAULT gen_random_uuid(), "AggregateId" text, "a""b" text, payload jsonb);
		INSERT INTO "My.Schema"."Outbox ""Events"" 'x'" ("AggregateId", payload) VALUES ('k', '1')`
	const parts = `CREATE TABLE parts (id uuid DEFAULT gen_random_uuid(), agg text, payload bytea) PARTITION BY LIST (agg);
		CREATE TABLE part_a PARTITION OF parts FOR VALUES IN ('a'); CREATE TABLE part_z PARTITION OF parts DEFAULT; INSERT INTO parts (agg, payload) VALUES ('a', 'x'), ('b', 'y')`
	const sources = `  - table: {schema: My.Schema, name: Outbox "Events" 'x'}
    mapping: {event_id: Id, key: AggregateId, payload: payload}
    routes: [{topic: odd}]
  - table: public.parts
    mapping: {event_id: id, key: agg, payload: payload}
    routes: [{topic: parts}]
`
	for name, publication := range map[string]string{
		"as setup makes it": "",
		"by the leaves":     `CREATE PUBLICATION %[1]s FOR TABLE parts, "My.Schema"."Outbox ""Events"" 'x'" WITH (publish = 'insert')`,
		"all tables":        `CREATE PUBLICATION %[1]s FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root = true)`,
		"with updates too":  `ALTER TABLE part_a REPLICA IDENTITY FULL; ALTER TABLE part_z REPLICA IDENTITY FULL; CREATE PUBLICATION %[1]s FOR ALL TABLES WITH (publish_via_partition_root = true)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Postgres(t)
			db.Exec(t, odd)
			db.Exec(t, parts)
			if publication != "" {
				db.Exec(t, fmt.Sprintf(publication, db.Publication))
			}
			path := configFor(t, db, sources)
			runBinary(t, nil, "setup", "--config", path).expect(t, exitDone)
			args := []string{"doctor", "--config", path}
			for _, check := range []string{"grants", "schema", "publication", "row_filter", "replica_identity", "mapping", "slot", "checkpoint"} {
				args = append(args, "--only", check)
			}
			r := runBinary(t, nil, args...)
			r.expect(t, exitDone)
			said := strings.Join(strings.Fields(r.out), " ")
			for _, text := range []string{"8 ok, 0 warnings, 0 failed, 0 not checked", "3 rows that were looked at would be published"} {
				if !strings.Contains(said, text) {
					t.Errorf("no %q in\n%s", text, r.out)
				}
			}
		})
	}
}

// writeWAL begins new segments of 16 MiB.
func writeWAL(t *testing.T, p *patient, segments int) {
	t.Helper()
	for range segments {
		p.db.Exec(t, "SELECT pg_logical_emit_message(false, 'filler', 'x'); SELECT pg_switch_wal()")
	}
}

func replicationSession(t *testing.T, dsn string) *pgconn.PgConn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// encrypt gives the server a certificate of its own making, and the patient sslmode=require.
func (p *patient) encrypt(t *testing.T, server *devstack.Postgres, lasts time.Duration) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lasts),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"server.crt": {Type: "CERTIFICATE", Bytes: der}, "server.key": {Type: "PRIVATE KEY", Bytes: secret}} {
		path := filepath.Join(server.DataDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		chownLike(t, path, server.DataDir())
	}
	set(t, p, "ssl = on")
	p.dsn = strings.Replace(p.dsn, "sslmode=disable", "sslmode=require", 1)
}

// What only newer servers have: rule 6, idle_replication_slot_timeout.
func TestDoctorNamesFaultsOf18(t *testing.T) {
	t.Parallel()
	server, err := devstack.StartPostgres(t.Context(), devstack.PostgresOptions{Version: "18", Settings: map[string]string{"max_slot_wal_keep_size": "10GB"}})
	if err != nil {
		t.Skipf("no PostgreSQL 18: %v", err)
	}
	t.Cleanup(func() { _ = server.Stop(devstack.Immediate) })
	p := newPatient(t, server, "events")
	p.args = onlyPostgres()
	take(t, p, []planted{
		{"idle slots are dropped", fault{
			plant: func(t *testing.T, p *patient) { set(t, p, "idle_replication_slot_timeout = '1h'") },
			check: "idle_replication_slot_timeout", state: doctor.Warning, says: "stopped for 1h loses its slot", fix: "idle_replication_slot_timeout = 0",
		}},
		{"a standby, and no failover slot", fault{
			plant: func(t *testing.T, p *patient) {
				set(t, p, "idle_replication_slot_timeout = 0")
				standby := replicationSession(t, server.DSN()+"&replication=true")
				system, err := pglogrepl.IdentifySystem(t.Context(), standby)
				p.db.Exec(t, "SELECT pg_create_physical_replication_slot('standby_0')")
				if err == nil {
					err = pglogrepl.StartReplication(t.Context(), standby, "standby_0", system.XLogPos, pglogrepl.StartReplicationOptions{Mode: pglogrepl.PhysicalReplication})
				}
				if err != nil {
					t.Fatal(err)
				}
				testkit.EventuallyTrue(t, patience, "the standby streams", func() bool {
					return scalar(t, p.db, "SELECT count(*)::text FROM pg_stat_replication WHERE state = 'streaming'") == "1"
				})
			},
			check: "failover", state: doctor.Warning, says: "the slot is no failover slot", fix: "postrider setup --failover",
		}},
		{"a failover slot that waits for nobody", fault{
			plant: func(t *testing.T, p *patient) {
				sql("SELECT pg_drop_replication_slot('$slot')")(t, p)
				sql("SELECT pg_create_logical_replication_slot('$slot', 'pgoutput', false, false, true); DELETE FROM postrider.checkpoint")(t, p)
			},
			check: "failover", state: doctor.Failed, says: "synchronized_standby_slots is empty", fix: "ALTER SYSTEM SET synchronized_standby_slots",
		}},
		{"a failover slot that waits for ever", fault{
			plant: func(t *testing.T, p *patient) {
				p.db.Exec(t, "SELECT pg_create_physical_replication_slot('standby_1')")
				set(t, p, "synchronized_standby_slots = 'standby_1'")
			},
			check: "failover", state: doctor.Failed, says: "nobody uses slot standby_1", fix: "take it out of synchronized_standby_slots",
		}},
	})
}
