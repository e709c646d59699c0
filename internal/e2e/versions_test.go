package e2e

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
)

// TestVersions runs what depends on the server's version on a server of its own: 18
// always, every supported major in the long run.
func TestVersions(t *testing.T) {
	t.Parallel()
	for _, version := range pick([]string{"18"}, []string{"14", "15", "16", "17", "18"}) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server := versionedPostgres(t, version)
			// The group ends before the slot is lost: that may cost other slots theirs.
			t.Run("group", func(t *testing.T) { versionGroup(t, server.DSN()) })
			t.Run("slot lost", func(t *testing.T) { requireLostSlotRefused(t, server.DSN()) })
		})
	}
}

// versionedPostgres starts a server of a major version, which may have to be fetched:
// where it cannot be, the normal run does without it, but not where real servers are
// required.
func versionedPostgres(t *testing.T, version string) *devstack.Postgres {
	t.Helper()
	server, err := devstack.StartPostgres(context.Background(), devstack.PostgresOptions{Version: version, Settings: keepsLittleWAL})
	if err != nil && !long() && os.Getenv("POSTRIDER_TEST_REQUIRE_REAL") != "1" {
		t.Skipf("no PostgreSQL %s: %v", version, err)
	}
	must(t, err)
	t.Cleanup(func() { _ = server.Stop(devstack.Immediate) })
	t.Logf("PostgreSQL %s, %s", server.Version, server.Source)
	return server
}

func versionGroup(t *testing.T, server string) {
	broker := testkit.Kafka(t)
	t.Run("set up, run, quiet, crash, run", func(t *testing.T) {
		t.Parallel()
		requireWholePath(t, testkit.NewDB(t, server), broker)
	})
	// On 18 the server goes on without a publication and says so in a notice only;
	// what follows is free of events as far as the stream shows (rule 7, case C34).
	for name, how := range publicationLosses {
		t.Run("publication "+name, func(t *testing.T) {
			t.Parallel()
			newFixture(t, testkit.NewDB(t, server), broker).requireLossNoticed(how)
		})
	}
	t.Run("publication younger than the slot", func(t *testing.T) {
		t.Parallel()
		newFixture(t, testkit.NewDB(t, server), broker).requireLatePublicationRefused()
	})
	t.Run("generated key", func(t *testing.T) {
		t.Parallel()
		requireGeneratedColumns(t, testkit.NewDB(t, server), broker)
	})
	t.Run("checkpoint commands", func(t *testing.T) {
		t.Parallel()
		requireCheckpointCommands(t, testkit.NewDB(t, server), broker)
	})
	t.Run("backfill", func(t *testing.T) {
		t.Parallel()
		requireBackfill(t, testkit.NewDB(t, server), broker)
	})
	t.Run("failover slot", func(t *testing.T) {
		t.Parallel()
		requireFailoverSlot(t, testkit.NewDB(t, server), broker)
	})
}

// requireWholePath is the life of a relay on one server: set-up, an event, quiet over
// foreign WAL, a crash, a start that has to be proved, and an end.
func requireWholePath(t *testing.T, db *testkit.DB, broker *testkit.Broker) {
	t.Helper()
	f := newFixture(t, db, broker)
	requireDone(t, spawn(t, "setup", "--config", f.yaml("")))
	f.idleUntilCrash(nil)
	f.insert("order", "k", "2")
	requireDone(t, spawn(t, "run", "--until-lsn", "now", "--config", f.yaml("")))
	if v := values(f.broker.ReadAll(t, f.topic("order"))); strings.Join(v, " ") != "1 2" {
		t.Errorf("published %v", v)
	}
}

// requireGeneratedColumns: before 18 a generated column is in the catalog and never on
// the stream, since 18 where the publication says so. The start check knows (rule 10).
func requireGeneratedColumns(t *testing.T, db *testkit.DB, broker *testkit.Broker) {
	t.Helper()
	f := newFixtureWith(t, db, broker, strings.Replace(sharedTable, "aggregate_id text,",
		"raw text, aggregate_id text GENERATED ALWAYS AS (lower(raw)) STORED,", 1))
	f.db.Exec(t, `INSERT INTO outbox(aggregate_type, raw, payload) VALUES ('order', 'KEY', '1')`)
	f.requireRefusedRun(f.yaml(""), exitConfig, `"aggregate_id"`, "generated column")
	if f.db.VersionNum(t) < 180000 {
		return
	}
	f.db.Exec(t, "ALTER PUBLICATION "+quoted(f.db.Publication)+" SET (publish_generated_columns = stored)")
	f.db.Exec(t, `DELETE FROM outbox; SELECT pg_replication_slot_advance('`+f.db.Slot+`', pg_current_wal_lsn())`)
	f.db.Exec(t, `INSERT INTO outbox(aggregate_type, raw, payload) VALUES ('order', 'KEY', '2')`)
	requireDone(t, spawn(t, "run", "--until-lsn", "now", "--config", f.yaml("")))
	if got := f.broker.ReadAll(t, f.topic("order")); len(got) != 1 || string(got[0].Key) != "key" {
		t.Errorf("records: %+v", got)
	}
}

// requireFailoverSlot: asked for, it is one since 17; before, setup refuses and leaves none.
func requireFailoverSlot(t *testing.T, db *testkit.DB, broker *testkit.Broker) {
	t.Helper()
	f := newFixture(t, db, broker)
	f.db.Exec(t, "SELECT pg_drop_replication_slot('"+f.db.Slot+"')")
	setup := spawn(t, "setup", "--failover", "--config", f.yaml(""))
	if f.db.VersionNum(t) < 170000 {
		requireExit(t, setup, exitPostgres, "failover slots need PostgreSQL 17")
		if row := f.slotRow(); row != "none" {
			t.Errorf("a slot was made: %s", row)
		}
		return
	}
	requireDone(t, setup)
	if got := f.scalar("SELECT failover::text FROM pg_replication_slots WHERE slot_name = '" + f.db.Slot + "'"); got != "true" {
		t.Errorf("failover is %s", got)
	}
	f.insert("order", "k", "1")
	requireDone(t, spawn(t, "run", "--until-lsn", "now", "--config", f.yaml("")))
	f.awaitRecords(f.topic("order"), 1)
}

// requireBackfill: rows from before the slot and rows from after it, an updated one among
// each, come once.
func requireBackfill(t *testing.T, db *testkit.DB, broker *testkit.Broker) {
	t.Helper()
	f := newFixture(t, db, broker)
	f.createTopic("order", 1, nil)
	f.db.Exec(t, "SELECT pg_drop_replication_slot('"+f.db.Slot+"')")
	f.insert("order", "k", "1")
	f.insert("order", "k", "2")
	requireDone(t, spawn(t, "setup", "--config", f.yaml("")))
	f.insert("order", "k", "3")
	f.db.Exec(t, "UPDATE outbox SET created_at = now() WHERE payload IN ('2', '3')")
	requireDone(t, spawn(t, "backfill", "--config", f.yaml("")))
	requireDone(t, spawn(t, "run", "--until-lsn", "now", "--config", f.yaml("")))
	if v := values(f.broker.ReadAll(t, f.topic("order"))); strings.Join(v, " ") != "1 2 3" {
		t.Errorf("published %v", v)
	}
}
