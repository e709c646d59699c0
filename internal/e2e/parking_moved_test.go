package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/recovery"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// rule 20, trap 10: the database is dumped and loaded elsewhere, and brings parked events
// whose positions lie far past the WAL that is there: in another cluster, or in a copy of
// the old one, which has its system identifier. Their keys stay held, and a retry publishes
// them in their order, before what came since.
func TestParkedEventsMoveWithTheDatabase(t *testing.T) {
	t.Parallel()
	for name, sibling := range map[string]bool{"to another cluster": false, "to a sibling": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
			dump := pgDump(t, old)
			f := newFixture(t, testkit.NewDB(t, old.DSN()), testkit.Kafka(t))
			f.onRefusal(router.OnRefusalParkAggregate)
			f.createTopic("order", 1, nil)
			dir := ""
			if sibling {
				dir = backup(t, old, false)
			}
			f.segments(10)
			run := f.start()
			f.insert("order", "k", "1")
			f.poison("order", "k")
			f.insert("order", "k", "3")
			f.poison("order", "j")
			f.awaitParked("null_payload:parked held:parked null_payload:parked")
			f.db.Exec(t, "UPDATE postrider.parked SET state = 'discarded', finished_at = now() WHERE aggregate_id = 'j'; NOTIFY postrider_parked, 'test'")
			f.awaitConfirmed(f.walEnd())
			run.mustStop()
			sql, err := exec.Command(dump, "--dbname", f.db.DSN).Output()
			must(t, err)
			end := f.walEnd()
			must(t, old.Halt(devstack.Fast))

			server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Dir: dir})
			n := f.on(server)
			n.onRefusal(router.OnRefusalParkAggregate)
			n.db.DSN = server.DSN()
			n.db.Exec(t, "DROP DATABASE IF EXISTS "+f.db.Name)
			n.db.Exec(t, "CREATE DATABASE "+f.db.Name)
			n.db.DSN = server.DatabaseDSN(f.db.Name)
			load := exec.Command(filepath.Join(old.BinDir, "psql"), "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", n.db.DSN)
			load.Stdin = strings.NewReader(string(sql))
			if out, err := load.CombinedOutput(); err != nil {
				t.Fatalf("load the dump: %v\n%s", err, out)
			}
			want := recovery.CaseOtherSystem
			if sibling {
				want = recovery.CaseOtherHistory
			}
			n.mustRecover(want)
			n.insert("order", "k", "4")
			n.cfg.Router.Sources[0].Mapping.NullPayload = router.NullPayloadTombstone
			run = n.start()
			// A sibling's position of one that is done with is yet to be given to other events.
			states := "null_payload:parked held:parked held:parked null_payload:discarded"
			if sibling {
				states = "null_payload:parked held:parked null_payload:discarded held:parked"
			}
			n.awaitParked(states)
			n.retryAll()
			n.awaitParked(strings.ReplaceAll(states, ":parked", ":published"))
			n.insert("order", "k", "5")
			n.awaitConfirmed(n.walEnd())
			run.mustStop()
			if now := n.walEnd(); now > end {
				t.Fatalf("the WAL is at %s, past the old one's end at %s", now, end)
			}
			if k := ofKey(n.broker.ReadAll(t, n.topic("order")), "k"); k != "1  3 4 5" {
				t.Errorf("k has %q", k)
			}
		})
	}
}

// The position of a row may have come to be another event's: publications were changed
// between two runs, for one, and the index counts other rows. That event goes its way.
func TestParkedPositionOfAnotherEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.onRefusal(router.OnRefusalParkAggregate)
	config := f.yaml("")
	relay := spawn(t, "run", "--config", config)
	relay.awaitLine("holding the slot")
	unpin := f.pinPosition()
	f.poison("order", "k")
	f.poison("order", "j")
	f.insert("order", "j", "2")
	f.awaitParked("null_payload:parked null_payload:parked held:parked")
	relay.kill()
	unpin()
	f.db.Exec(t, "UPDATE postrider.parked SET event_id = gen_random_uuid(), state = 'discarded', finished_at = now() WHERE aggregate_id = 'j'")
	relay = spawn(t, "run", "--config", config)
	f.awaitParked("null_payload:parked null_payload:discarded null_payload:parked held:discarded held:parked")
	f.awaitConfirmed(f.walEnd())
	if code := relay.terminate(); code != 0 {
		t.Errorf("exit code %d: %s", code, relay.said())
	}
	if n := f.scalar("SELECT count(*)::text FROM outbox o WHERE NOT EXISTS (SELECT FROM postrider.parked p WHERE p.event_id = o.id::text)"); n != "0" {
		t.Errorf("%s events are not parked", n)
	}
}
