package main

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/doctor"
)

// sql plants by statements, with $role, $slot, $pub for the names.
func sql(text string) func(*testing.T, *patient) {
	return func(t *testing.T, p *patient) {
		t.Helper()
		p.db.Exec(t, strings.NewReplacer("$role", p.role, "$slot", p.db.Slot, "$pub", p.db.Publication).Replace(text))
	}
}

// noSlot are the checks that need a slot which can be used.
var noSlot = []string{"wal_held", "checkpoint", "failover"}

// databaseFaults are planted in a database.
var databaseFaults = map[string]fault{
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
		also: []string{"row_filter"},
	},
	"publication without inserts": {
		plant: sql("ALTER PUBLICATION $pub SET (publish = 'truncate')"),
		check: "publication", state: doctor.Failed, says: "does not publish inserts", fix: "publish = 'insert'",
	},
	"table not published": {
		plant: sql("ALTER PUBLICATION $pub DROP TABLE outbox"),
		check: "publication", state: doctor.Failed, says: "no configured publication publishes its inserts", fix: "ADD TABLE",
		also: []string{"row_filter"},
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
	"no table": {
		plant: sql("DROP TABLE outbox CASCADE"),
		check: "publication", state: doctor.Failed, says: "public.outbox: it does not exist", fix: "without SQL quotes",
		also: []string{"row_filter", "mapping", "message_size"},
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
		check: "slot", state: doctor.Failed, says: "does not exist", fix: "postrider recover",
		also: noSlot,
	},
	"physical slot": {
		plant: sql("SELECT pg_drop_replication_slot('$slot'); SELECT pg_create_physical_replication_slot('$slot')"),
		check: "slot", state: doctor.Failed, says: "physical slot", fix: "postgres.slot",
		also: noSlot,
	},
	"slot moved by hand": {
		plant: sql("SELECT pg_replication_slot_advance('$slot', pg_current_wal_lsn())"),
		check: "checkpoint", state: doctor.Failed, says: "past the stored position", fix: "postrider recover",
	},
	"position of another server": {
		plant: sql("UPDATE postrider.checkpoint SET system_id = '7'"),
		check: "checkpoint", state: doctor.Failed, says: "belongs to system identifier 7", fix: "postrider checkpoint accept",
	},
	"position of another timeline": {
		plant: sql("UPDATE postrider.checkpoint SET timeline = 7"),
		check: "checkpoint", state: doctor.Failed, says: "timeline 7", fix: "postrider checkpoint accept",
	},
	"a backfill that is not ended": {
		plant: func(t *testing.T, p *patient) {
			p.db.Exec(t, "INSERT INTO postrider.task (publisher, kind, state, total, created_by) SELECT publisher, 'backfill', 'running', 9, 'test' FROM postrider.checkpoint")
		},
		check: "checkpoint", state: doctor.Failed, says: "is not ended: it is running, 0 of 9 events are done", fix: "postrider backfill --resume",
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
}

// plantFailingUpdate is rule 21, and proves that the fault is one.
func plantFailingUpdate(t *testing.T, p *patient) {
	sql("ALTER PUBLICATION $pub SET TABLE outbox WHERE (aggregate_type = 'Order'); ALTER PUBLICATION $pub SET (publish = 'insert, update')")(t, p)
	if _, err := p.db.Conn(t).Exec(t.Context(), "UPDATE outbox SET event_type = event_type"); err == nil {
		t.Fatal("the UPDATE went through: nothing is wrong")
	}
}
