package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/recovery"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// recoverWindow is a place in a recovery where it is killed.
type recoverWindow struct {
	name string
	// table, event, when say which write is held up, and with it the recovery.
	table, event, when string
	// keeps: the slot was advanced and is kept; else it is gone.
	keeps bool
	// made: the slot exists when the recovery is killed.
	made bool
	// meanwhile is what somebody does to the slot before --resume; SLOT is its name.
	meanwhile string
}

func recoverWindows() []recoverWindow {
	step := func(s string) string {
		return "NEW.detail ->> 'step' = '" + s + "' AND OLD.detail ->> 'step' <> '" + s + "'"
	}
	return []recoverWindow{
		{name: "slot made, list not begun", table: "postrider.task_item", event: "INSERT", when: "NEW.n = 1", made: true},
		{name: "list made, not stored with the slot", table: "postrider.task", event: "UPDATE", when: step("listed"), made: true},
		{name: "compared, not stored", table: "postrider.task", event: "UPDATE", when: step("compared"), made: true},
		{name: "published in part, not saved", table: "postrider.task", event: "UPDATE", when: "NEW.done > OLD.done", made: true},
		{name: "published, step not stored", table: "postrider.task", event: "UPDATE", when: step("published"), made: true},
		{name: "parked, step not stored", table: "postrider.task", event: "UPDATE", when: step("parked"), made: true},
		{name: "position not stored", table: "postrider.checkpoint", event: "UPDATE", when: "true", made: true},
		{
			name: "slot made anew by hand before it is resumed", table: "postrider.task", event: "UPDATE", when: step("published"), made: true,
			meanwhile: "SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')",
		},
		{
			name: "kept slot: dropped before it is resumed", table: "postrider.task", event: "UPDATE", when: step("compared"), keeps: true, made: true,
			meanwhile: "SELECT pg_drop_replication_slot('SLOT')",
		},
		{name: "kept slot: list made, not stored", table: "postrider.task", event: "UPDATE", when: step("listed"), keeps: true, made: true},
		{name: "kept slot: compared, not stored", table: "postrider.task", event: "UPDATE", when: step("compared"), keeps: true, made: true},
		{name: "kept slot: position not stored", table: "postrider.checkpoint", event: "UPDATE", when: "true", keeps: true, made: true},
	}
}

// TestKillRecover: kill -9 of recover in each window. `run` refuses and names --resume; a
// slot that is not in the task is made anew and not trusted; --resume ends with nothing
// lost and each key in order. Rows are updated and new ones committed in between: an
// update gives a row a later transaction's id, which must not hide it (rule 4).
func TestKillRecover(t *testing.T) {
	t.Parallel()
	for _, w := range recoverWindows() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			w.kill(t)
		})
	}
}

func (w *recoverWindow) kill(t *testing.T) {
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 3, nil)
	f.batch("order", "a", 1, 20, 0)
	f.quietRelay()
	f.db.Exec(t, "UPDATE postrider.checkpoint SET idle = false")
	f.batch("order", "a", 21, 60, 0)
	f.series("order", "b", 1, 10)
	spoil, want := "SELECT pg_drop_replication_slot('%s')", recovery.CaseNoSlot
	if w.keeps {
		spoil, want = "SELECT pg_replication_slot_advance('%s', pg_current_wal_lsn())", recovery.CaseMoved
	}
	f.db.Exec(t, fmt.Sprintf(spoil, f.db.Slot))
	f.series("order", "b", 11, 14)
	if dry := f.recover(); dry.Diagnosis.Case != want {
		t.Fatalf("%+v", dry.Diagnosis)
	}

	release, waiting := f.hold(w.table, w.event, w.when)
	p := spawn(t, "recover", "--yes", "--config", f.yaml(""))
	waiting()
	f.db.Exec(t, "UPDATE outbox SET event_type = event_type WHERE aggregate_id = 'b'")
	f.series("order", "b", 15, 17)
	p.kill()
	release()
	f.gone("postrider recover")
	if exists := f.slotRow() != "none"; exists != w.made {
		t.Errorf("the slot is %s", f.slotRow())
	}
	f.series("order", "b", 18, 20)
	for _, sql := range strings.Split(strings.ReplaceAll(w.meanwhile, "SLOT", f.db.Slot), "; ") {
		f.db.Exec(t, sql)
	}

	said := requireExit(t, spawn(t, "run", "--until-lsn", "now", "--config", f.yaml("")), operr.Slot.ExitCode())
	if !strings.Contains(said, "recover --resume") {
		t.Errorf("run does not name --resume: %s", said)
	}
	if again := f.recover("--yes"); again.code != operr.Config.ExitCode() || !strings.Contains(again.stderr, "--resume") {
		t.Errorf("a second recovery: %d, %s", again.code, again.stderr)
	}
	done := f.recover("--resume")
	if done.code != 0 || done.Position == "" {
		t.Fatalf("resumed: %d, %s", done.code, done.stderr)
	}
	f.series("order", "b", 21, 22)
	f.ran()
	copies, _ := f.requireWhole(f.topic("order"), map[string]int{"a": 60, "b": 22})
	t.Logf("%d copies", copies)
	// What was acknowledged and not saved is found in the topic.
	if copies > 0 {
		t.Errorf("%d copies, want none", copies)
	}
	f.requireIDs(f.topic("order"))
	if n := f.scalar("SELECT count(*)::text FROM pg_replication_slots WHERE database = current_database()"); n != "1" {
		t.Errorf("%s slots", n)
	}
}

// TestKillRecoverBeforeItsSlot: the making of the slot waits for an open transaction when
// the recovery is killed; nothing is left behind, and --resume makes it.
func TestKillRecoverBeforeItsSlot(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "k", 1, 5)
	f.quietRelay()
	f.series("order", "k", 6, 9)
	f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
	open := f.db.Conn(t)
	_, err := open.Exec(context.Background(), "BEGIN; INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES ('order', 'k', '10')")
	must(t, err)
	p := spawn(t, "recover", "--yes", "--lock-timeout", "1m", "--config", f.yaml(""))
	testkit.EventuallyTrue(t, patience, "no slot is being made", func() bool {
		return f.scalar("SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%' AND wait_event_type = 'Lock'") == "1"
	})
	p.kill()
	_, err = open.Exec(context.Background(), "COMMIT")
	must(t, err)
	f.gone("postrider")
	if done := f.recover("--resume"); done.code != 0 || done.Published != 5 {
		t.Fatalf("%d, %d published: %s", done.code, done.Published, done.stderr)
	}
	f.ran()
	if copies := f.requireSeries(f.topic("order"), 1, 10); copies != 0 {
		t.Errorf("%d copies", copies)
	}
}

// TestInterruptRecover: Ctrl-C while it publishes ends it with exit code 7 and --resume named;
// then it goes on where it was.
func TestInterruptRecover(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "k", 1, 3)
	f.quietRelay()
	f.batch("order", "k", 4, 400, 0)
	f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
	p := spawn(t, "recover", "--yes", "--rate", "100", "--config", f.yaml(""))
	f.awaitRecords(f.topic("order"), 20)
	if code := p.terminate(); code != operr.DrainIncomplete.ExitCode() || !strings.Contains(p.said(), "recover --resume") {
		t.Fatalf("exit code %d: %s", code, p.said())
	}
	f.gone("postrider recover")
	if done := f.recover("--resume", "--rate", "100000"); done.code != 0 || done.Published != 397 {
		t.Fatalf("%d, %d published: %s", done.code, done.Published, done.stderr)
	}
	f.ran()
	if copies := f.requireSeries(f.topic("order"), 1, 400); copies != 0 {
		t.Errorf("%d copies after a Ctrl-C that drains", copies)
	}
}

// TestRecoverParks: what the router or the broker refuses is parked, later events of its
// key behind it, and so are events of a key of which one was parked before the slot was
// lost (rule 20, trap 13). A retry publishes them in order. Under on_refusal: halt the
// recovery stops there, and goes on when the cause is healed.
func TestRecoverParks(t *testing.T) {
	t.Parallel()
	for _, policy := range []router.OnRefusal{router.OnRefusalParkAggregate, router.OnRefusalHalt} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.createTopic("order", 1, map[string]string{"max.message.bytes": "20000"})
			if policy == router.OnRefusalParkAggregate {
				f.onRefusal(policy)
				f.insert("order", "before", "1")
				f.poison("order", "before")
				f.quietRelay()
				f.awaitParked("null_payload:parked")
			} else {
				f.onRefusal(router.OnRefusalHalt)
				f.insert("order", "before", "1")
				f.quietRelay()
			}
			f.db.Exec(t, "UPDATE postrider.checkpoint SET idle = false")
			if policy == router.OnRefusalParkAggregate {
				f.insert("order", "before", "3")
			}
			f.insert("order", "k", "1")
			f.poison("order", "k")
			f.insert("order", "k", "3")
			f.insert("order", "big", `"`+strings.Repeat("x", 40000)+`"`)
			f.insert("order", "j", "1")
			f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
			done := f.recover("--yes")
			if policy == router.OnRefusalHalt {
				if done.code != operr.Halted.ExitCode() || !strings.Contains(done.stderr, "on_refusal") {
					t.Fatalf("%d, %s", done.code, done.stderr)
				}
				f.refusedRun("recover")
				f.alterTopic("order", "max.message.bytes", "1000000")
				config := f.yaml("")
				healed(t, config)
				requireDone(t, spawn(t, "recover", "--resume", "--config", config))
				requireDone(t, spawn(t, "run", "--until-lsn", "now", "--config", config))
			} else {
				if done.code != 0 || done.Published != 2 || done.Parked != 4 {
					t.Fatalf("%d, %d published, %d parked: %s", done.code, done.Published, done.Parked, done.stderr)
				}
				// What is parked is the parked store's from here on: the list holds up no purge.
				if n := f.scalar("SELECT count(*)::text FROM postrider.task_item"); n != "0" {
					t.Errorf("%s items are left of a recovery that is done", n)
				}
				f.insert("order", "k", "4")
				f.ran()
				f.alterTopic("order", "max.message.bytes", "1000000")
				config := f.yaml("")
				healed(t, config)
				relay := spawn(t, "run", "--config", config)
				relay.awaitLine("holding the slot")
				f.retryAll()
				f.awaitCount("SELECT count(*)::text FROM postrider.parked WHERE state = 'published'", "6")
				if code := relay.terminate(); code != 0 {
					t.Fatalf("exit code %d: %s", code, relay.said())
				}
			}
			records := f.broker.ReadAll(t, f.topic("order"))
			want := map[string]string{"k": "1  3", "j": "1", "before": "1"}
			if policy == router.OnRefusalParkAggregate {
				want["k"], want["before"] = "1  3 4", "1  3"
			}
			for key, values := range want {
				if got := ofKey(records, key); got != values {
					t.Errorf("key %s has %q, want %q", key, got, values)
				}
			}
			if len(ofKey(records, "big")) != 40002 {
				t.Errorf("the large event is not there")
			}
		})
	}
}
