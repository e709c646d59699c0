package e2e

import (
	"context"
	"strings"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
)

// nightSteps is what happens in docs/nights.md.
var nightSteps = map[string]func(*night){
	"200 events are published": func(n *night) { n.orders(200); n.publish() },
	"5 more are committed, and somebody drops the slot": func(n *night) {
		n.orders(5)
		n.sql("SELECT pg_drop_replication_slot('orders')")
	},
	"3 more are committed, and somebody advances the slot": func(n *night) {
		n.orders(3)
		n.sql("SELECT pg_replication_slot_advance('orders', pg_current_wal_lsn())")
	},
	"the relay is down, 17 events are committed, and more WAL is written than max_slot_wal_keep_size allows": (*night).outgrow,
	"a base backup is taken, 40 more events are published, the server is lost":                               func(n *night) { n.backup(); n.orders(40); n.publish(); must(n.t, n.server.Halt(devstack.Fast)) },
	"the backup is restored, and the shop goes on: 6 events": func(n *night) {
		n.moveTo(testkit.PrivatePostgres(n.t, devstack.PostgresOptions{Dir: n.vars["BACKUP"]}))
		n.orders(6)
	},
	"10 events are committed, the server is lost, a standby without the slot is promoted": (*night).promote,
	"somebody drops the publication": func(n *night) { n.sql("DROP PUBLICATION orders") },
	"4 events are committed":         func(n *night) { n.orders(4) },
	"the relay runs":                 (*night).start,
	"the relay ends":                 (*night).stop,
	"an event of o1 has no payload; events of all keys come after it": func(n *night) {
		n.sql("INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'order', 'o1', 'OrderPlaced', NULL)")
		n.orders(7)
		n.await("nothing is parked", "SELECT count(*) = 2 FROM postrider.parked WHERE state = 'parked'")
	},
	"somebody has paused it, and 500 events are waiting": func(n *night) {
		n.must("pause", "--reason", "consumers are down")
		n.orders(500)
		n.holds()
	},
	"the brokers are away": func(n *night) { n.broker.Server.Halt() },
	"the brokers go away, and 500 events are waiting": func(n *night) {
		n.broker.Server.Halt()
		n.orders(500)
		n.waiting()
	},
	"EVENT_ID is an event that a consumer misses": func(n *night) { n.vars["EVENT_ID"] = n.ask("SELECT min(event_id::text) FROM outbox") },
	"the topic is not there, and the relay may not create it": func(n *night) {
		n.configure("postrider.yaml", n.server.DatabaseDSN(nightDatabase), "{}")
		n.orders(4)
		n.start()
		n.waiting()
	},
	"somebody tidied up the rights of the relay's role": func(n *night) {
		n.must("setup", "--role", "orders")
		n.sql("ALTER ROLE orders PASSWORD 'secret'; REVOKE UPDATE ON postrider.checkpoint FROM orders")
		n.configure("postrider.yaml", strings.Replace(n.server.DatabaseDSN(nightDatabase), devstack.Superuser+"@", "orders:secret@", 1), "{create: {partitions: 3, replication_factor: 1}}")
	},
	"somebody skips 12 events: checkpoint advance --now --yes": func(n *night) {
		n.orders(12)
		n.must("checkpoint", "advance", "--now", "--yes", "--reason", "in a hurry")
		n.publish()
	},
}

// outgrow makes the server give up WAL that the slot needs.
func (n *night) outgrow() {
	n.orders(17)
	for range 6 {
		n.sql("SELECT pg_logical_emit_message(false, 'fill', repeat('x', 100000))")
		n.sql("SELECT pg_switch_wal()")
	}
	for name, value := range map[string]string{"max_wal_size": "32MB", "max_slot_wal_keep_size": "1MB"} {
		n.sql("ALTER SYSTEM SET " + name + " = '" + value + "'")
		n.sql("SELECT pg_reload_conf()")
		n.await(name, "SELECT current_setting('"+name+"') = '"+value+"'")
	}
	n.sql("CHECKPOINT")
}

// waiting waits until the row says that events are waiting.
func (n *night) waiting() {
	n.t.Helper()
	n.await("nothing waits", "SELECT count(*) = 1 FROM postrider.checkpoint WHERE oldest_unconfirmed IS NOT NULL")
}

func (n *night) backup() { n.vars["BACKUP"] = backup(n.t, n.server, false) }

// promote makes a standby, loses the primary behind it, and promotes the standby.
func (n *night) promote() {
	primary := n.server
	dir := backup(n.t, primary, true)
	n.orders(10)
	at := n.ask("SELECT pg_current_wal_lsn()::text")
	standby := testkit.PrivatePostgres(n.t, devstack.PostgresOptions{Dir: dir, Settings: standbySettings(primary)})
	n.moveTo(standby)
	n.await("the standby does not follow", "SELECT pg_last_wal_replay_lsn() >= '"+at+"'")
	must(n.t, primary.Halt(devstack.Fast))
	must(n.t, standby.Halt(devstack.Fast))
	standby.Set("primary_conninfo", "")
	must(n.t, standby.Start(context.Background()))
	n.sql("SELECT pg_promote()")
	n.await("the standby is not promoted", "SELECT NOT pg_is_in_recovery()")
}
