package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// requireCheckpointCommands takes a position through the commands that look at it and move
// it: what they ask the catalog, and the copy of a slot, are not the same in all versions.
func requireCheckpointCommands(t *testing.T, db *testkit.DB, broker *testkit.Broker) {
	t.Helper()
	f := newFixture(t, db, broker)
	options := "'pgoutput'"
	if db.VersionNum(t) >= 170000 {
		options += ", false, false, true"
	}
	remake := fmt.Sprintf("SELECT pg_drop_replication_slot('%[1]s'); SELECT pg_create_logical_replication_slot('%[1]s', %[2]s)", db.Slot, options)
	for _, sql := range strings.Split(remake, "; ") {
		db.Exec(t, sql)
	}
	config := f.yaml("")
	done := func(args ...string) {
		t.Helper()
		requireDone(t, spawn(t, append(args, "--config", config)...))
	}
	f.insert("order", "k", "1")
	done("run", "--until-lsn", "now")
	done("checkpoint", "verify")
	f.insert("order", "k", "2")
	if seen := output(t, "checkpoint", "peek", "--json", "--config", config); !strings.Contains(seen, `"events": 1,`) || !strings.Contains(seen, f.topic("order")) {
		t.Errorf("peek: %s", seen)
	}
	done("checkpoint", "advance", "--now", "--yes", "--reason", "a test")
	f.insert("order", "k", "3")
	done("run", "--until-lsn", "now")
	done("checkpoint", "wait", "--lsn", f.stored().String())
	if v := values(f.awaitRecords(f.topic("order"), 2)); strings.Join(v, " ") != "1 3" {
		t.Errorf("published %v", v)
	}
	db.Exec(t, "UPDATE postrider.checkpoint SET idle = false")
	for _, sql := range strings.Split(remake, "; ") {
		db.Exec(t, sql)
	}
	requireExit(t, spawn(t, "checkpoint", "verify", "--config", config), operr.Findings.ExitCode(), "moved or created anew")
	done("checkpoint", "accept", "--yes", "--reason", "a test")
	done("checkpoint", "verify")
	db.Exec(t, "DROP PUBLICATION "+quoted(db.Publication))
	requireExit(t, spawn(t, "checkpoint", "peek", "--config", config), operr.Postgres.ExitCode(), "does not exist")
	done("checkpoint", "drop", "--confirm", "test", "--reason", "a test")
	if row := f.slotRow(); row != "none" {
		t.Errorf("the slot is left: %s", row)
	}
}
