package e2e

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/control"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/router"
)

// case C20: what was parked alone, several events of a key among good ones, comes out in
// the order of commit too, behind the others; the oracle judges both.
func TestParkEventRetriesInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.onRefusal(router.OnRefusalParkEvent)
	f.createTopic("order", 3, map[string]string{"max.message.bytes": "2000"})
	w := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	run := f.start()
	const keys, each = 5, 40
	var rows []string
	for n := range each {
		for k := range keys {
			payload := fmt.Sprint(n)
			if (n+k)%4 == 0 {
				payload = bigPayload(n)
			}
			rows = append(rows, fmt.Sprintf("('order', 'k%d', %s)", k, literal(payload)))
		}
	}
	f.db.Exec(t, "INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES "+strings.Join(rows, ", "))
	f.awaitCount(parkedByReason, fmt.Sprintf("too_large %d", keys*each/4))
	f.awaitConfirmed(f.walEnd())
	f.alterTopic("order", "max.message.bytes", "100000")
	f.retryAll()
	f.awaitCount(parkedByReason, "")
	run.mustStop()
	f.tellParked(w)
	if v := w.RequireKept(t); v.Delivered != keys*each || v.Duplicates != 0 {
		t.Errorf("%s", v)
	}
}

// trap 18, cases C16, C20: a topic gets more partitions while events are parked. The
// change is reported, and a retry goes where the present count sends its key, with what
// follows; pinned, where the former one does.
func TestRetryAfterMorePartitions(t *testing.T) {
	t.Parallel()
	for change, action := range map[publisher.PartitionChange]string{publisher.FollowPartitions: "adopted", publisher.PinPartitions: "pinned"} {
		t.Run(string(change), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.onRefusal(router.OnRefusalParkAggregate)
			f.cfg.Kafka.PartitionChange = change
			f.cfg.Kafka.MetadataMaxAge = 200 * time.Millisecond
			f.createTopic("order", 6, map[string]string{"max.message.bytes": "2000"})
			run := f.start()
			const keys = 20
			write := func(payload string) {
				f.db.Exec(t, fmt.Sprintf("INSERT INTO outbox(aggregate_type, aggregate_id, payload) SELECT 'order', 'k' || i, %s FROM generate_series(1, %d) i", literal(payload), keys))
			}
			write("1")
			write(bigPayload(2))
			write("3")
			f.awaitCount(parkedByReason, fmt.Sprintf("held %d, too_large %d", keys, keys))
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			res, err := kadm.NewClient(f.broker.Client(t)).UpdatePartitions(ctx, 12, f.topic("order"))
			must(t, err)
			must(t, res.Error())
			changes := fmt.Sprintf("postrider_publisher_partition_changes_total{action=%q,topic=%q}", action, f.topic("order"))
			testkit.EventuallyTrue(t, patience, "the change is noticed", func() bool { return run.metric(changes) > 0 })
			f.alterTopic("order", "max.message.bytes", "100000")
			f.retryAll()
			f.awaitCount(parkedByReason, "")
			write("4")
			records := f.awaitRecords(f.topic("order"), 4*keys)
			run.mustStop()
			f.requireOneMove(records, keys, change == publisher.FollowPartitions)
		})
	}
}

// requireOneMove judges the records of four events a key, of which the first was
// published with 6 partitions and the others with 12, or with 6 still.
func (f *fixture) requireOneMove(records []testkit.Record, keys int, follow bool) {
	f.t.Helper()
	moved := 0
	for k := 1; k <= keys; k++ {
		key := fmt.Sprintf("k%d", k)
		old, now := javaPartition([]byte(key), 6), javaPartition([]byte(key), 12)
		if !follow {
			now = old
		}
		if now != old {
			moved++
		}
		var later []string
		for _, r := range records {
			switch {
			case string(r.Key) != key:
			case string(r.Value) == "1":
				if r.Partition != old {
					f.t.Errorf("the first event of %s is in partition %d, want %d", key, r.Partition, old)
				}
			default:
				later = append(later, string(r.Value))
				if r.Partition != now {
					f.t.Errorf("%.10s of %s is in partition %d, want %d", r.Value, key, r.Partition, now)
				}
			}
		}
		if got, want := strings.Join(later, " "), bigPayload(2)+" 3 4"; got != want {
			f.t.Errorf("%s has %.60s behind the first", key, got)
		}
	}
	if follow && moved == 0 {
		f.t.Fatal("no key moves: the test shows nothing")
	}
}

// traps 16 and 17, rule 20: whatever the mapping cannot take is parked, once, under its
// reason, and never passed over; what is good flows.
func TestEachRefusalOfTheMappingIsParked(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), `CREATE TABLE outbox(
		id text, aggregate_type text, aggregate_id text, event_type text, payload jsonb, at timestamptz, part int, more jsonb)`)
	f.onRefusal(router.OnRefusalParkEvent)
	m := f.mapping()
	m.Timestamp.Column, m.Partition, m.HeadersColumn = "at", "part", "more"
	f.createTopic("order", 3, nil)
	run := f.start()
	row := func(id, kind, key, payload, at, part, more string) {
		f.db.Exec(t, fmt.Sprintf("INSERT INTO outbox VALUES (%s, %s, %s, 'X', %s, %s, %s, %s)", id, kind, key, payload, at, part, more))
	}
	row("'1'", "'order'", "'k'", "'1'", "now()", "NULL", "NULL")
	for _, bad := range []struct{ id, kind, key, payload, at, part, more string }{
		{"NULL", "'order'", "'k'", "'1'", "now()", "NULL", "NULL"},
		{"'b2'", "'order'", "NULL", "'1'", "now()", "NULL", "NULL"},
		{"'b3'", "'order'", "''", "'1'", "now()", "NULL", "NULL"},
		{"'b4'", "'order'", "'k'", "NULL", "now()", "NULL", "NULL"},
		{"'b5'", "'order'", "'k'", "'1'", "'infinity'", "NULL", "NULL"},
		{"'b6'", "'order'", "'k'", "'1'", "'1969-01-01'", "NULL", "NULL"},
		{"'b7'", "'order'", "'k'", "'1'", "now()", "-1", "NULL"},
		{"'b8'", "'order'", "'k'", "'1'", "now()", "NULL", "'[1]'"},
		{"'b9'", "NULL", "'k'", "'1'", "now()", "NULL", "NULL"},
		{"'b10'", "'not legal'", "'k'", "'1'", "now()", "NULL", "NULL"},
		{"'b11'", "'order'", "'k'", "'1'", "now()", "3", "NULL"},
	} {
		row(bad.id, bad.kind, bad.key, bad.payload, bad.at, bad.part, bad.more)
	}
	// In one transaction: only the stream sees the other name, and no look at the catalogue.
	f.db.Exec(t, `ALTER TABLE outbox RENAME payload TO body;
		INSERT INTO outbox VALUES ('b12', 'order', 'k', 'X', '1', now());
		ALTER TABLE outbox RENAME body TO payload`)
	row("'2'", "'order'", "'k'", "'2'", "now()", "NULL", "NULL")
	f.awaitCount(`SELECT coalesce(string_agg(reason, ' ' ORDER BY commit_lsn, event_index), '') FROM postrider.parked`,
		"null_event_id null_key empty_key null_payload invalid_timestamp invalid_timestamp invalid_partition invalid_headers null_route invalid_topic invalid_partition missing_column")
	f.awaitConfirmed(f.walEnd())
	if k := ofKey(f.awaitRecords(f.topic("order"), 2), "k"); k != "1 2" {
		t.Errorf("k has %s", k)
	}
	run.mustStop()
}

// cases C18, C20, rule 20: an event is refused, and before the lane has come to the next
// ones of its key an outage begins. Later ones are parked at once; a retry of all that is
// parked by then waits for those in the lane, and the key comes out in the order of commit.
func TestRetryWaitsForTheLane(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.onRefusal(router.OnRefusalParkAggregate)
	f.cfg.Kafka.BatchBytes = 1 << 10
	f.createTopic("order", 1, nil)
	w := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	var sick, away atomic.Bool
	sick.Store(true)
	handedOver := make(chan struct{})
	release := sync.OnceFunc(func() { close(handedOver) })
	t.Cleanup(release)
	script(t, fake, func(c *kfake.Cluster, req *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		records := req.Topics[0].Partitions[0].Records
		if bytes.Contains(records, []byte("poison")) {
			c.SleepControl(func() { <-handedOver })
		}
		switch {
		case sick.Load() && bytes.Contains(records, []byte("poison")):
			if !bytes.Contains(records, []byte("pad")) {
				away.Store(true) // it is alone: found out
			}
			return answerCode(req, 87), nil, true
		case away.Load():
			return nil, errHangUp, true
		}
		return nil, nil, false
	})
	run := f.start()
	f.insert("order", "k", "1")
	f.awaitConfirmed(f.walEnd())
	rows := []string{`('order', 'k', '"poison"')`}
	for n := range 30 {
		rows = append(rows, fmt.Sprintf(`('order', 'j', '{"n": %d, "pad": "%s"}')`, n, strings.Repeat("x", 200)))
	}
	rows = append(rows, "('order', 'k', '3')", "('order', 'k', '4')")
	f.db.Exec(t, "INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES "+strings.Join(rows, ", "))
	testkit.EventuallyTrue(t, patience, "all of the transaction is in the lane", func() bool {
		return run.metric("postrider_publisher_pending_events") == float64(len(rows))
	})
	release()
	f.awaitParked("invalid_record:parked")
	f.insert("order", "k", "5")
	f.awaitParked("invalid_record:parked held:parked")
	sick.Store(false)
	f.retryAll()
	f.awaitParked("invalid_record:publishing held:publishing")
	away.Store(false)
	f.awaitParked("invalid_record:published held:published held:published held:published")
	f.insert("order", "k", "6")
	f.awaitConfirmed(f.walEnd())
	run.mustStop()
	if k := ofKey(f.broker.ReadAll(t, f.topic("order")), "k"); k != `1 "poison" 3 4 5 6` {
		t.Errorf("k has %s", k)
	}
	f.tellParked(w)
	w.RequireKept(t)
}

// case C20, decision 4: a key whose arrivals never pause is released all the same after a
// retry, and its order holds.
func TestArrivalsThatNeverPauseAreReleased(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.onRefusal(router.OnRefusalParkAggregate)
	f.createTopic("order", 1, map[string]string{"max.message.bytes": "2000"})
	w := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	run := f.start()
	f.insert("order", "k0", bigPayload(1))
	f.awaitParked("too_large:parked")
	var sessions []*arrivals
	for range 2 {
		sessions = append(sessions, f.startArrivals(1, 1000))
	}
	rows := func() (n int64) {
		for _, s := range sessions {
			n += s.rows.Load()
		}
		return n
	}
	f.awaitCount("SELECT (count(*) > 200)::text FROM postrider.parked", "true")
	f.alterTopic("order", "max.message.bytes", "100000")
	f.retryAll()
	testkit.EventuallyTrue(t, 2*patience, "the key is released while events of it arrive", func() bool {
		return run.metric("postrider_held_keys") == 0
	})
	during := rows()
	testkit.EventuallyTrue(t, patience, "events arrive still", func() bool { return rows() > during+50 })
	n := 0
	for _, s := range sessions {
		n += s.end(t)
	}
	f.awaitConfirmed(f.walEnd())
	run.mustStop()
	f.tellParked(w)
	if v := w.RequireKept(t); v.Delivered != n+1 || v.Duplicates != 0 {
		t.Errorf("%s", v)
	}
}

// case C20, rule 20: a run ends while an event is unacknowledged, of whose key later ones
// are parked and asked for. The next one streams it again, and the retry waits for that.
func TestRetryAfterARestartWaitsForTheStream(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.onRefusal(router.OnRefusalParkAggregate)
	f.cfg.ShutdownTimeout = 500 * time.Millisecond
	f.createTopic("order", 1, nil)
	w := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	var away atomic.Bool
	away.Store(true)
	script(t, fake, func(*kfake.Cluster, *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if away.Load() {
			return nil, errHangUp, true
		}
		return nil, nil, false
	})
	run := f.start()
	// It takes the stream a while to come to the key.
	f.db.Exec(t, "INSERT INTO outbox(aggregate_type, aggregate_id, payload) SELECT 'order', 'j', to_jsonb(i) FROM generate_series(1, 20000) i")
	f.insert("order", "k", "1")
	f.poison("order", "k")
	f.insert("order", "k", "3")
	f.awaitParked("null_payload:parked held:parked")
	if err := run.stop(); operr.ClassOf(err) != operr.DrainIncomplete {
		t.Fatalf("ended with %v", err)
	}
	f.cfg.Router.Sources[0].Mapping.NullPayload = router.NullPayloadTombstone
	f.retryAll()
	away.Store(false)
	run = f.start()
	f.awaitParked("null_payload:published held:published")
	f.insert("order", "k", "4")
	f.awaitConfirmed(f.walEnd())
	run.mustStop()
	if k := ofKey(f.broker.ReadAll(t, f.topic("order")), "k"); k != "1  3 4" {
		t.Errorf("k has %q", k)
	}
	f.tellParked(w)
	w.RequireKept(t)
}

// case C20: a link ends while a pause holds the stream at an event that is parked already.
// The next one brings it again, and it is parked still: neither published nor counted twice.
func TestRetryAfterALinkEndedAtAParkedEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.onRefusal(router.OnRefusalParkAggregate)
	relay := spawn(t, "run", "--config", f.yaml(""))
	relay.awaitLine("holding the slot")
	unpin := f.pinPosition()
	f.poison("order", "k")
	f.awaitParked("null_payload:parked")
	relay.kill()
	unpin()
	f.ask(control.Pause, "ana")
	f.cfg.Router.Sources[0].Mapping.NullPayload = router.NullPayloadTombstone
	run := f.start()
	run.awaitAtTheTap()
	f.db.Exec(t, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '"+f.db.Slot+"'")
	testkit.EventuallyTrue(t, patience, "the link does not end", func() bool { return run.metric("postrider_reconnects_total") > 0 })
	run.awaitAtTheTap()
	f.resume()
	f.awaitConfirmed(f.walEnd())
	f.awaitParked("null_payload:parked")
	f.retryAll()
	f.awaitParked("null_payload:published")
	testkit.EventuallyTrue(t, patience, "the key is held still", func() bool { return run.metric("postrider_held_keys") == 0 })
	f.insert("order", "k", "2")
	f.awaitConfirmed(f.walEnd())
	run.mustStop()
	if k := ofKey(f.broker.ReadAll(t, f.topic("order")), "k"); k != " 2" {
		t.Errorf("k has %q", k)
	}
}
