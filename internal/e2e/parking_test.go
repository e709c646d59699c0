package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// parkedStates is "reason:state" of all parked events in order of position, ids left out.
func (f *fixture) parkedStates() string {
	f.t.Helper()
	return f.scalar(`SELECT coalesce(string_agg(reason || ':' || state, ' ' ORDER BY commit_lsn, event_index), '') FROM postrider.parked`)
}

func (f *fixture) awaitParked(want string) {
	f.t.Helper()
	testkit.Eventually(f.t, patience, func() error {
		if got := f.parkedStates(); got != want {
			return fmt.Errorf("parked: %s\nwant:   %s", got, want)
		}
		return nil
	})
}

// retryAll asks for all that is parked, as the command does.
func (f *fixture) retryAll() {
	f.t.Helper()
	f.db.Exec(f.t, `UPDATE postrider.parked SET state = 'retry' WHERE state = 'parked'; NOTIFY postrider_parked, 'test'`)
}

// ofKey gives the values of a key's records, in order.
func ofKey(records []testkit.Record, key string) string {
	var all []string
	for _, r := range records {
		if string(r.Key) == key {
			all = append(all, string(r.Value))
		}
	}
	return strings.Join(all, " ")
}

// alterTopic changes a setting of a topic.
func (f *fixture) alterTopic(aggregateType, name, value string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	admin := kadm.NewClient(f.broker.Client(f.t))
	results, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, f.topic(aggregateType))
	must(f.t, err)
	for _, r := range results {
		must(f.t, r.Err)
	}
}

func bigPayload(n int) string {
	return fmt.Sprintf(`{"n": %d, "pad": "%s"}`, n, strings.Repeat("x", 5000))
}

// case C20: under park_aggregate the events behind a poisoned one wait, other keys do
// not; a retry after the cause is gone puts them out in order; then the key flows.
func TestParkAggregate(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.onRefusal(router.OnRefusalParkAggregate)
	f.createTopic("order", 1, map[string]string{"max.message.bytes": "2000"})
	run := f.start()
	f.insert("order", "k", "1")
	f.insert("order", "k", bigPayload(2))
	f.insert("order", "k", "3")
	f.insert("order", "k", "4")
	for n := range 4 {
		f.insert("order", "j", fmt.Sprint(n+1))
	}
	f.awaitParked("too_large:parked held:parked held:parked")
	f.awaitConfirmed(f.walEnd())
	records := f.awaitRecords(f.topic("order"), 5)
	if k, j := ofKey(records, "k"), ofKey(records, "j"); k != "1" || j != "1 2 3 4" {
		t.Fatalf("k has %s, j has %s", k, j)
	}
	// The cause is still there.
	f.retryAll()
	testkit.Eventually(t, patience, func() error {
		if got := f.scalar(`SELECT string_agg(attempts::text || state, ' ' ORDER BY commit_lsn) FROM postrider.parked`); got != "2parked 0parked 0parked" {
			return fmt.Errorf("parked: %s", got)
		}
		return nil
	})
	f.alterTopic("order", "max.message.bytes", "100000")
	f.retryAll()
	f.awaitParked("too_large:published held:published held:published")
	f.insert("order", "k", "5")
	records = f.awaitRecords(f.topic("order"), 9)
	if k := ofKey(records, "k"); k != "1 "+bigPayload(2)+" 3 4 5" {
		t.Fatalf("k has %s", k)
	}
	run.mustStop()
	if n := len(f.broker.ReadAll(t, f.topic("order"))); n != 9 {
		t.Errorf("%d records", n)
	}
}

// poison is a row that the router refuses, in the shared table.
func (f *fixture) poison(aggregateType, key string) {
	f.t.Helper()
	f.db.Exec(f.t, fmt.Sprintf("INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES (%s, %s, NULL)", literal(aggregateType), literal(key)))
}

// case C20: under park_event the events behind a poisoned one pass; its row says so.
func TestParkEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.onRefusal(router.OnRefusalParkEvent)
	f.createTopic("order", 1, map[string]string{"max.message.bytes": "2000"})
	run := f.start()
	f.insert("order", "k", "1")
	f.insert("order", "k", bigPayload(2))
	f.poison("order", "k")
	f.insert("order", "k", "4")
	f.awaitParked("too_large:parked null_payload:parked")
	f.awaitConfirmed(f.walEnd())
	if k := ofKey(f.awaitRecords(f.topic("order"), 2), "k"); k != "1 4" {
		t.Fatalf("k has %s", k)
	}
	if n := f.scalar("SELECT count(unit)::text FROM postrider.parked"); n != "0" {
		t.Errorf("%s events hold their key", n)
	}
	f.alterTopic("order", "max.message.bytes", "100000")
	f.retryAll()
	// The NULL is one still.
	f.awaitParked("too_large:published null_payload:parked")
	if k := ofKey(f.awaitRecords(f.topic("order"), 3), "k"); k != "1 4 "+bigPayload(2) {
		t.Errorf("k has %s", k)
	}
	run.mustStop()
}

// A row that the mapping refused is kept as it was streamed. After a restart with a
// mapping that takes it a retry routes it anew: the same id, its place in the order.
func TestRetryRoutesARefusedRowAnew(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.onRefusal(router.OnRefusalParkAggregate)
	run := f.start()
	f.insert("order", "k", "1")
	f.poison("order", "k")
	f.insert("order", "k", "3")
	f.insert("order", "j", "1")
	f.awaitParked("null_payload:parked held:parked")
	f.awaitConfirmed(f.walEnd())
	run.mustStop()

	f.cfg.Router.Sources[0].Mapping.NullPayload = router.NullPayloadTombstone
	run = f.start()
	f.insert("order", "k", "4")
	f.awaitParked("null_payload:parked held:parked held:parked") // the key is held over the restart
	f.retryAll()
	f.awaitParked("null_payload:published held:published held:published")
	f.insert("order", "k", "5")
	records := f.awaitRecords(f.topic("order"), 6)
	if k := ofKey(records, "k"); k != "1  3 4 5" {
		t.Fatalf("k has %q", k)
	}
	id := f.scalar("SELECT id::text FROM outbox WHERE payload IS NULL")
	for _, r := range records {
		if r.Value == nil && (string(r.Key) != "k" || string(r.Headers[0].Value) != id) {
			t.Errorf("the tombstone is %+v", r)
		}
	}
	run.mustStop()
}

// pinPosition keeps the position from being stored, so that a killed relay's successor
// streams everything again; the result ends it.
func (f *fixture) pinPosition() (unpin func()) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, f.db.DSN)
	must(f.t, err)
	_, err = conn.Exec(ctx, "BEGIN; LOCK TABLE postrider.checkpoint IN SHARE MODE")
	must(f.t, err)
	unpin = func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = conn.Close(ctx)
	}
	f.t.Cleanup(unpin)
	return unpin
}

// A discarded event lets the events behind it go. Streamed again after a crash it stays
// discarded, and what a retry published is not published again, nor are their keys held.
func TestDiscardedStaysDiscarded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.onRefusal(router.OnRefusalParkAggregate)
	config := f.yaml("")
	relay := spawn(t, "run", "--config", config)
	relay.awaitLine("holding the slot")
	unpin := f.pinPosition()
	f.insert("order", "k", "1")
	f.poison("order", "k")
	f.insert("order", "k", "3")
	f.awaitParked("null_payload:parked held:parked")
	f.db.Exec(t, `UPDATE postrider.parked SET state = 'discarded' WHERE reason = 'null_payload'; NOTIFY postrider_parked, 'test'`)
	f.awaitParked("null_payload:discarded held:published")
	f.insert("order", "k", "4")
	if k := ofKey(f.awaitRecords(f.topic("order"), 3), "k"); k != "1 3 4" {
		t.Fatalf("k has %s", k)
	}
	relay.kill()
	unpin()
	relay = spawn(t, "run", "--config", config)
	f.insert("order", "k", "5")
	f.awaitConfirmed(f.walEnd())
	// 1 and 4 were not confirmed: a crash repeats them.
	if k := ofKey(f.broker.ReadAll(t, f.topic("order")), "k"); k != "1 3 4 1 4 5" {
		t.Errorf("k has %s", k)
	}
	if got := f.parkedStates(); got != "null_payload:discarded held:published" {
		t.Errorf("parked: %s", got)
	}
	if code := relay.terminate(); code != 0 {
		t.Errorf("exit code %d: %s", code, relay.said())
	}
}

// case C38: while the store cannot be written nothing is confirmed past the event, the
// rest flows, and after healing there is one row.
func TestParkingItselfFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ fail, heal string }{
		"table gone":   {"ALTER TABLE postrider.parked RENAME TO away", "ALTER TABLE postrider.away RENAME TO parked"},
		"insert fails": {"ALTER TABLE postrider.parked ADD CONSTRAINT no CHECK (false) NOT VALID", "ALTER TABLE postrider.parked DROP CONSTRAINT no"},
		"statements time out": {`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(5); RETURN NEW; END $$;
			CREATE TRIGGER slow BEFORE INSERT ON postrider.parked FOR EACH ROW EXECUTE FUNCTION slow()`, "DROP TRIGGER slow ON postrider.parked"},
		"session ended": {"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'postrider test (parking)' AND datname = current_database(); ALTER TABLE postrider.parked RENAME TO away", "ALTER TABLE postrider.away RENAME TO parked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.onRefusal(router.OnRefusalParkAggregate)
			f.cfg.Timers.Statement = 500 * time.Millisecond
			run := f.start()
			f.insert("order", "k", "1")
			f.awaitConfirmed(f.walEnd())
			f.db.Exec(t, c.fail)
			low := f.walEnd()
			f.poison("order", "k")
			high := f.walEnd()
			f.insert("order", "j", "1")
			f.insert("order", "k", "3")
			if j := ofKey(f.awaitRecords(f.topic("order"), 2), "j"); j != "1" {
				t.Fatalf("j has %s", j)
			}
			run.awaitPhase("streaming")
			if at := f.confirmed(); at >= high {
				t.Fatalf("confirmed %s, past the refused event behind %s", at, low)
			}
			f.db.Exec(t, c.heal)
			f.awaitParked("null_payload:parked held:parked")
			f.awaitConfirmed(f.walEnd())
			run.mustStop()
			if n := len(f.broker.ReadAll(t, f.topic("order"))); n != 2 {
				t.Errorf("%d records", n)
			}
		})
	}
}

// An upgrade brings migrations. Where they are missing a run ends at once and says what
// to do, whether the table is not there or one of its columns.
func TestRunWantsTheSchemaOfToday(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{
		"table":  "DROP TABLE postrider.parked",
		"column": "ALTER TABLE postrider.parked DROP COLUMN dead_letter_topic",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.db.Exec(t, before)
			relay := spawn(t, "run", "--config", f.yaml(""))
			requireExit(t, relay, exitPostgres, "parked", "does not exist", "Try: postrider setup")
			if strings.Contains(relay.said(), "trying again") {
				t.Errorf("it tried more than once:\n%s", relay.said())
			}
		})
	}
}
