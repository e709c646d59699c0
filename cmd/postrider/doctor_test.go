package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/postrider/postrider/internal/doctor"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// The doctor names each fault that is planted into a healthy set-up, one at a time, with
// its fix, and is silent about the healthy one (trap 10, 21, 22, rule 6, 21).
func TestDoctorNamesPlantedFaults(t *testing.T) {
	t.Parallel()
	c := openClinic(t)
	t.Run("healthy", func(t *testing.T) { t.Parallel(); requireHealthy(t, c.admit(t)) })
	for name, f := range plantedFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := c.admit(t)
			f.plant(t, p)
			r, found := p.examine(t)
			f.requireNamed(t, r, found)
		})
	}
}

func requireHealthy(t *testing.T, p *patient) {
	t.Helper()
	r, found := p.examine(t)
	r.expect(t, exitDone)
	names, _ := doctor.Checks()
	if len(found) != len(names) {
		t.Errorf("%d findings of %d checks", len(found), len(names))
	}
	for _, x := range found {
		if x.State != doctor.OK && !harmless(x) || x.Fix != "" {
			t.Errorf("%s %s: %s (try: %s)", x.State, x.Name, x.Finding, x.Fix)
		}
		t.Logf("%s %s: %s", x.State, x.Name, x.Finding)
	}
	// For people: a line each, marks by the locale, within 100 columns.
	path := p.config(t)
	for mark, args := range map[string][]string{"✓ wal_level: logical\n": nil, "ok   wal_level: logical\n": {"--ascii"}} {
		r := runBinary(t, []string{"LC_ALL=C.UTF-8"}, append([]string{"doctor", "--config", path}, args...)...)
		r.expect(t, exitDone)
		if !strings.Contains(r.out, mark) || !strings.Contains(r.out, " 0 warnings, 0 failed") {
			t.Errorf("no %q in\n%s", mark, r.out)
		}
		for line := range strings.Lines(r.out) {
			if len([]rune(line)) > 101 {
				t.Errorf("%d columns: %s", len([]rune(line))-1, line)
			}
		}
	}
	r = runBinary(t, nil, "doctor", "--config", path, "--only", "wal_level", "--only", "max_*")
	if got := strings.Count(r.out, "\n"); got != 5 || !strings.Contains(r.out, "ok   wal_level: logical\n") {
		t.Errorf("--only gave\n%s", r.out)
	}
	runBinary(t, nil, "doctor", "--config", path, "--only", "wal_height").expect(t, operr.Config.ExitCode(), `no check is named "wal_height"`, "Try: ")
}

// sql plants by statements, with $role, $slot, $pub for the names.
func sql(text string) func(*testing.T, *patient) {
	return func(t *testing.T, p *patient) {
		t.Helper()
		p.db.Exec(t, strings.NewReplacer("$role", p.role, "$slot", p.db.Slot, "$pub", p.db.Publication).Replace(text))
	}
}

// noSlot are the checks that need a slot which can be used.
var noSlot = []string{"wal_held", "checkpoint", "failover"}

// byTopic are the checks that look at topics.
var byTopic = []string{"topics", "min_insync_replicas", "retention", "message_size", "kafka_clock"}

var plantedFaults = map[string]fault{
	"wal_sender_timeout off": {
		plant: func(t *testing.T, p *patient) {
			p.db.Exec(t, "ALTER DATABASE "+p.db.Name+" SET wal_sender_timeout = 0")
		},
		check: "wal_sender_timeout", state: doctor.Warning, says: "it is off", fix: "replication.wal_sender_timeout: 60s",
	},
	"wal_sender_timeout short": {
		plant: func(t *testing.T, p *patient) {
			p.db.Exec(t, "ALTER DATABASE "+p.db.Name+" SET wal_sender_timeout = '2s'")
		},
		check: "wal_sender_timeout", state: doctor.Warning, says: "2s", fix: "replication.wal_sender_timeout: 60s",
	},
	"superuser": {
		plant: func(_ *testing.T, p *patient) { p.dsn = p.db.DSN },
		check: "role", state: doctor.Warning, says: `"postgres" is a superuser`, fix: "postrider setup --role",
		also: []string{"disk"},
	},
	"no REPLICATION": {
		plant: sql("ALTER ROLE $role NOREPLICATION"),
		check: "role", state: doctor.Failed, says: "no REPLICATION attribute", fix: "REPLICATION",
		also: []string{"checkpoint"},
	},
	"a grant is missing": {
		plant: sql("REVOKE UPDATE ON postrider.checkpoint FROM $role"),
		check: "grants", state: doctor.Failed, says: "UPDATE on postrider.checkpoint", fix: "GRANT UPDATE ON postrider.checkpoint TO",
	},
	"no USAGE on our schema": {
		plant: sql("REVOKE USAGE ON SCHEMA postrider FROM $role"),
		check: "grants", state: doctor.Failed, says: "USAGE on schema postrider", fix: "GRANT USAGE ON SCHEMA postrider TO",
		also: []string{"schema", "checkpoint"},
	},
	"outbox not readable": {
		plant: sql("REVOKE SELECT ON outbox FROM $role"),
		check: "grants", state: doctor.Warning, says: "may not read public.outbox", fix: `GRANT SELECT ON "public"."outbox" TO`,
		also: []string{"message_size"},
	},
	"row level security": {
		plant: sql("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY"),
		check: "grants", state: doctor.Warning, says: "row level security hides rows", fix: "CREATE POLICY",
	},
	"a migration is missing": {
		plant: sql("DELETE FROM postrider.goose_db_version WHERE version_id = (SELECT max(version_id) FROM postrider.goose_db_version)"),
		check: "schema", state: doctor.Failed, says: "lacks 0", fix: "postrider setup",
	},
	"schema is newer": {
		plant: sql("INSERT INTO postrider.goose_db_version (version_id, is_applied) VALUES (9999, true)"),
		check: "schema", state: doctor.Warning, says: "migration 9999", fix: "upgrade",
	},
	"no schema": {
		plant: sql("DROP SCHEMA postrider CASCADE"),
		check: "schema", state: doctor.Failed, says: "lacks 00001", fix: "postrider setup",
		also: []string{"checkpoint"},
	},
	"no publication": {
		plant: sql("DROP PUBLICATION $pub"),
		check: "publication", state: doctor.Failed, says: "does not exist", fix: "postrider setup",
		also: []string{"mapping", "message_size"},
	},
	"publication without inserts": {
		plant: sql("ALTER PUBLICATION $pub SET (publish = 'truncate')"),
		check: "publication", state: doctor.Failed, says: "does not publish inserts", fix: "publish = 'insert'",
	},
	"table not published": {
		plant: sql("ALTER PUBLICATION $pub DROP TABLE outbox"),
		check: "publication", state: doctor.Failed, says: "no configured publication publishes its inserts", fix: "ADD TABLE",
		also: []string{"mapping", "message_size"},
	},
	"publication younger than the slot": {
		plant: sql("DROP PUBLICATION $pub; CREATE PUBLICATION $pub FOR TABLE outbox WITH (publish = 'insert')"),
		check: "publication", state: doctor.Warning, says: "was created or altered after slot", fix: "postrider recover",
	},
	"row filter": {
		plant: sql("ALTER PUBLICATION $pub SET TABLE outbox WHERE (aggregate_type = 'Order')"),
		check: "row_filter", state: doctor.Warning, says: "never published", fix: "without WHERE",
	},
	"a shard without a publication": {
		plant: sql("ALTER PUBLICATION $pub SET TABLE outbox WHERE (get_byte(decode(md5(coalesce(aggregate_id, '')), 'hex'), 15) % 2 = 0)"),
		check: "row_filter", state: doctor.Failed, says: "one shard of 2", fix: "= 1",
	},
	"hashtext": {
		plant: sql("ALTER PUBLICATION $pub SET TABLE outbox WHERE (hashtext(aggregate_id) % 2 = 0)"),
		check: "row_filter", state: doctor.Failed, says: "hashtext is negative for half the keys", fix: "get_byte",
	},
	"updates of a filtered publication": {
		plant: plantFailingUpdate,
		check: "replica_identity", state: doctor.Failed, says: "every UPDATE of public.outbox fails", fix: "publish = 'insert'",
		also: []string{"row_filter", "publication"},
	},
	"deletes without a replica identity": {
		plant: sql("ALTER TABLE outbox REPLICA IDENTITY NOTHING; CREATE PUBLICATION $pub_all FOR ALL TABLES WITH (publish = 'delete')"),
		check: "replica_identity", state: doctor.Failed, says: "every DELETE of public.outbox fails", fix: "publish = 'insert'",
	},
	"column renamed": {
		plant: sql("ALTER TABLE outbox RENAME payload TO body"),
		check: "mapping", state: doctor.Failed, says: `column "payload"`, fix: "correct the source's mapping",
		also: []string{"message_size"},
	},
	"rows that would be refused": {
		plant: func(t *testing.T, p *patient) { p.insert(t, "''", "now()") },
		check: "mapping", state: doctor.Warning, says: "1 of 2 rows that were looked at would be refused (empty_key)", fix: "docs/refusals.md",
	},
	"no slot": {
		plant: sql("SELECT pg_drop_replication_slot('$slot')"),
		check: "slot", state: doctor.Failed, says: "does not exist", fix: "pg_create_logical_replication_slot",
		also: noSlot,
	},
	"physical slot": {
		plant: sql("SELECT pg_drop_replication_slot('$slot'); SELECT pg_create_physical_replication_slot('$slot')"),
		check: "slot", state: doctor.Failed, says: "physical slot", fix: "postgres.slot",
		also: noSlot,
	},
	"slot moved by hand": {
		plant: sql("SELECT pg_replication_slot_advance('$slot', pg_current_wal_lsn())"),
		check: "checkpoint", state: doctor.Failed, says: "past the stored position", fix: "checkpoint",
	},
	"position of another server": {
		plant: sql("UPDATE postrider.checkpoint SET system_id = '7'"),
		check: "checkpoint", state: doctor.Failed, says: "belongs to system identifier 7", fix: "checkpoint",
	},
	"position of another timeline": {
		plant: sql("UPDATE postrider.checkpoint SET timeline = 7"),
		check: "checkpoint", state: doctor.Failed, says: "timeline 7", fix: "checkpoint",
	},
	"a backfill that is not ended": {
		plant: func(t *testing.T, p *patient) {
			p.db.Exec(t, "INSERT INTO postrider.task (publisher, kind, state, total, created_by) SELECT publisher, 'backfill', 'running', 9, 'test' FROM postrider.checkpoint")
		},
		check: "checkpoint", state: doctor.Failed, says: "is not ended: it is running, 0 of 9 events are done", fix: "postrider backfill --resume",
	},
	"PostgreSQL down": {
		plant: func(_ *testing.T, p *patient) { p.dsn = "postgres://x@127.0.0.1:1/x?sslmode=disable" },
		check: "postgres", state: doctor.Failed, says: "connection refused", fix: "check that PostgreSQL runs",
		also: postgresChecks(),
	},
	"broker down": {
		plant: func(_ *testing.T, p *patient) { p.brokers = `"127.0.0.1:1"` },
		check: "brokers", state: doctor.Failed, says: "connection refused", fix: "check that the address is right",
		also: append([]string{"kafka_tls", "kafka_rights"}, byTopic...),
	},
	"one broker down": {
		plant: func(_ *testing.T, p *patient) { p.brokers += `, "127.0.0.1:1"` },
		check: "brokers", state: doctor.Warning, says: "127.0.0.1:1", fix: "take it out of kafka.brokers",
	},
	"wrong password": {
		plant: func(_ *testing.T, p *patient) { p.password = "wrong" },
		check: "brokers", state: doctor.Failed, says: "SASL Authentication Failed", fix: "check the SASL mechanism, user name and password",
		also: append([]string{"kafka_tls", "kafka_rights"}, byTopic...),
	},
	"unknown authority": {
		plant: func(_ *testing.T, p *patient) { p.kafka = "tls: {}" },
		check: "brokers", state: doctor.Failed, says: "certificate signed by unknown authority", fix: "tls.ca",
		also: append([]string{"kafka_tls", "kafka_rights"}, byTopic...),
	},
	"plain text to a TLS port": {
		plant: func(_ *testing.T, p *patient) { p.kafka = "" },
		check: "brokers", state: doctor.Failed, says: "negotiate versions", fix: "wants TLS",
		also: append([]string{"kafka_tls", "kafka_rights"}, byTopic...),
	},
	"no WRITE": {
		plant: func(t *testing.T, p *patient) {
			p.topic = p.clinic.kafka.NewTopic(t, 3, nil)
			p.allow(t, p.topic, kadm.OpDescribe, kadm.OpDescribeConfigs)
		},
		check: "kafka_rights", state: doctor.Failed, says: `user "postrider" may not write to topic`, fix: "--operation Write --topic",
	},
	"no DESCRIBE_CONFIGS": {
		plant: func(t *testing.T, p *patient) {
			p.topic = p.clinic.kafka.NewTopic(t, 3, nil)
			p.allow(t, p.topic, kadm.OpWrite, kadm.OpDescribe)
		},
		check: "kafka_rights", state: doctor.Warning, says: "may not read the settings", fix: "--operation DescribeConfigs",
		also: byTopic,
	},
	"no rights at all": {
		plant: func(_ *testing.T, p *patient) { p.user = strangerUser },
		check: "kafka_rights", state: doctor.Failed, says: `user "stranger" may not even see topic`, fix: "kafka-acls.sh",
		also: byTopic,
	},
	"no topic": {
		plant: func(t *testing.T, p *patient) {
			p.topic = testkit.Unique(t)
			p.allow(t, p.topic, kadm.OpWrite, kadm.OpDescribe, kadm.OpDescribeConfigs)
		},
		check: "topics", state: doctor.Failed, says: "does not exist", fix: "kafka.topics.create",
		also: byTopic,
	},
	"topic that only rows know": {
		plant: func(t *testing.T, p *patient) {
			p.topic = testkit.Unique(t) + ".${aggregate_type}"
			p.grant(t, kadm.NewACLs().Topics(strings.Replace(p.topic, "${aggregate_type}", "Order", 1)).Allow("User:"+relayUser).Operations(kadm.OpWrite, kadm.OpDescribe))
		},
		check: "topics", state: doctor.Failed, says: ".Order does not exist", fix: "kafka.topics.create",
		also: byTopic,
	},
	"topic that may not be created": {
		plant: func(t *testing.T, p *patient) {
			p.topic = testkit.Unique(t)
			p.allow(t, p.topic, kadm.OpWrite, kadm.OpDescribe, kadm.OpDescribeConfigs)
			p.kafka += "\n  topics: {create: {partitions: 3, replication_factor: 1}}"
		},
		check: "kafka_rights", state: doctor.Failed, says: "may not create it", fix: "--operation Create",
		also: byTopic,
	},
	"more in-sync replicas than replicas": {
		plant: func(t *testing.T, p *patient) { p.topic = p.writable(t, map[string]string{"min.insync.replicas": "2"}) },
		check: "min_insync_replicas", state: doctor.Failed, says: "nothing is ever accepted", fix: "min.insync.replicas=1",
	},
	"unclean leader election": {
		plant: func(t *testing.T, p *patient) {
			p.topic = p.writable(t, map[string]string{"unclean.leader.election.enable": "true"})
		},
		check: "min_insync_replicas", state: doctor.Warning, says: "lacks acknowledged events", fix: "unclean.leader.election.enable=false",
	},
	"short retention": {
		plant: func(t *testing.T, p *patient) {
			p.topic = p.writable(t, map[string]string{"retention.ms": "3600000"})
		},
		check: "retention", state: doctor.Warning, says: "keeps events for 1h, less than the longest outage of 3 days", fix: "retention.ms=259200000",
	},
	"small messages": {
		plant: func(t *testing.T, p *patient) {
			p.topic = p.writable(t, map[string]string{"max.message.bytes": "1000"})
			p.db.Exec(t, `UPDATE outbox SET payload = jsonb_build_object('pad', repeat('x', 5000))`)
		},
		check: "message_size", state: doctor.Warning, says: "takes 1000 B", fix: "max.message.bytes=",
	},
	"stamped ahead of the broker": {
		plant: func(t *testing.T, p *patient) { p.insert(t, "'2'", "now() + interval '5 hours'") },
		check: "kafka_clock", state: doctor.Failed, says: "is stamped 5h ahead", fix: "mapping.timestamp",
	},
	"PostgreSQL in the clear": {
		plant: func(t *testing.T, p *patient) {
			here := fmt.Sprintf("127.0.0.1:%d", p.postgres.Port)
			p.dsn = strings.Replace(p.dsn, here, throughTheNetwork(t, here), 1)
		},
		check: "postgres_tls", state: doctor.Warning, says: "in the clear", fix: "verify-full",
	},
}

// plantFailingUpdate is rule 21, and proves that the fault is one.
func plantFailingUpdate(t *testing.T, p *patient) {
	sql("ALTER PUBLICATION $pub SET TABLE outbox WHERE (aggregate_type = 'Order'); ALTER PUBLICATION $pub SET (publish = 'insert, update')")(t, p)
	if _, err := p.db.Conn(t).Exec(t.Context(), "UPDATE outbox SET event_type = event_type"); err == nil {
		t.Fatal("the UPDATE went through: nothing is wrong")
	}
}

// postgresChecks are all but Kafka's.
func postgresChecks() []string {
	names, _ := doctor.Checks()
	return append(names[:len(names)-len(byTopic)-3:len(names)-len(byTopic)-3], "message_size", "kafka_clock")
}

// throughTheNetwork leads to target by an address that is not the loopback's, which is
// all that tells a connection that leaves the machine from one that does not.
func throughTheNetwork(t *testing.T, target string) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && n.IP.IsGlobalUnicast() {
			return testkit.ProxyOn(t, n.IP.String(), target).Addr()
		}
	}
	t.Skip("this machine has no address but the loopback's")
	return ""
}

// A relay that runs is no fault: the slot is taken, by us.
func TestDoctorBesideARelay(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	broker := testkit.Kafka(t)
	topic := broker.NewTopic(t, 1, nil)
	path := configFor(t, db, "  - {table: public.outbox, profile: default, routes: [{topic: "+topic+"}]}\n")
	rewrite(t, path, `"127.0.0.1:1"`, fmt.Sprintf("%q", broker.Bootstrap()[0]))
	runBinary(t, nil, "setup", "--create-outbox", "--config", path).expect(t, exitDone)
	startRun(t, path)
	testkit.EventuallyTrue(t, patience, "the slot is held", func() bool {
		return scalar(t, db, "SELECT active::text FROM pg_replication_slots WHERE slot_name = $1", db.Slot) == "true"
	})
	r := runBinary(t, nil, "doctor", "--config", path, "--only", "slot", "--only", "checkpoint", "--only", "publication", "--only", "max_*s")
	r.expect(t, exitDone)
	if !strings.Contains(r.out, "active for PID") || !strings.Contains(r.out, " 0 warnings, 0 failed") {
		t.Errorf("%s", r.out)
	}
}

// With both servers away everything is named, in bounded time, and the exit code says so.
func TestDoctorWithNothingThere(t *testing.T) {
	t.Parallel()
	r := runBinary(t, secretEnv(), "doctor", "--config", writeConfig(t, unreachable))
	r.expect(t, operr.Findings.ExitCode(), "failed", "could not be checked")
	for _, text := range []string{"FAIL postgres: ", "FAIL brokers: ", "not checked, because PostgreSQL cannot be used", "not checked, because Kafka cannot be used"} {
		if !strings.Contains(r.out, text) {
			t.Errorf("no %q in\n%s", text, r.out)
		}
	}
	if strings.Contains(r.out+r.err, pgSecret) || strings.Contains(r.out+r.err, kafkaSecret) {
		t.Error("a secret was shown")
	}
}
