package e2e

import (
	"context"
	wire "encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// statusEvery is how often relays of these tests report: what is never confirmed is
// seen not to be confirmed within some of these.
const statusEvery = 100 * time.Millisecond

// frequentStatuses is the part of a configuration file that asks for it.
const frequentStatuses = "replication: {wal_sender_timeout: 1s, status_interval: 100ms}\n"

// severalSaves is the number of frequent statuses in which the binary, which looks for
// progress once a second, would have confirmed something; the short timers of a relay in
// this process need only severalStatuses.
const severalSaves, severalStatuses = 20, 3

// requireUnmoved fails the test if the slot moves past limit within so many statuses.
// The limit is the start of a commit record: WAL before it, also of the transaction's
// own rows, may be confirmed.
func (f *fixture) requireUnmoved(limit event.LSN, statuses int) {
	f.t.Helper()
	f.awaitStatuses(statuses)
	if at := f.confirmed(); at > limit {
		f.t.Fatalf("the slot is confirmed up to %s, past %s, though nothing was acknowledged", at, limit)
	}
}

// stored is the position in the checkpoint row.
func (f *fixture) stored() event.LSN {
	f.t.Helper()
	return f.lsn("SELECT confirmed_lsn::text FROM postrider.checkpoint")
}

// commits are the transactions with events, read from a second slot.
type commits struct{ f *fixture }

// watchCommits makes the second slot.
func (f *fixture) watchCommits() commits {
	f.db.Exec(f.t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s_probe', 'pgoutput')", f.db.Slot))
	return commits{f}
}

// peek is SQL for what the second slot has, lsn and data, without moving it.
func (f *fixture) peek() string {
	return fmt.Sprintf("SELECT lsn, data FROM pg_logical_slot_peek_binary_changes('%s_probe', NULL, NULL, 'proto_version', '1', 'publication_names', '%s')",
		f.db.Slot, f.db.Publication)
}

// all gives the LSNs of the Commit messages, as PostgreSQL writes them.
func (c commits) all() (found []struct{ commit, end event.LSN }) {
	c.f.t.Helper()
	rows, err := c.f.db.Conn(c.f.t).Query(context.Background(), "SELECT data FROM ("+c.f.peek()+") c")
	must(c.f.t, err)
	defer rows.Close()
	for rows.Next() {
		var data []byte
		must(c.f.t, rows.Scan(&data))
		if data[0] == 'C' {
			found = append(found, struct{ commit, end event.LSN }{
				event.LSN(wire.BigEndian.Uint64(data[2:])), event.LSN(wire.BigEndian.Uint64(data[10:])),
			})
		}
	}
	must(c.f.t, rows.Err())
	return found
}

// TestConfirmsExactlyTheEnd: while a later event is not acknowledged, what is stored
// and confirmed is the end LSN in the Commit message of the last transaction before
// it: not the commit's start, nothing added, though WAL goes on behind it (trap 1).
func TestConfirmsExactlyTheEnd(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.createTopic("held", 1, nil)
	f.cfg.Replication.StatusInterval = statusEvery
	written := f.watchCommits()
	f.db.Exec(t, "CREATE TABLE other(n int)")
	held := fake.Server.Cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: f.topic("held"), Err: kerr.NotEnoughReplicas, Count: -1,
	})
	r := f.start()
	r.awaitPhase("streaming")
	f.db.Exec(t, `BEGIN;
		INSERT INTO outbox(aggregate_type, aggregate_id, payload) SELECT 'order', 'k', to_jsonb(i) FROM generate_series(1, 3) i;
		COMMIT; INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES ('held', 'k', '4')`)
	f.db.Exec(t, "INSERT INTO other SELECT generate_series(1, 1000)")
	end := written.all()[0].end
	f.awaitConfirmed(end)
	f.awaitStatuses(3)
	if stored, confirmed := f.stored(), f.confirmed(); stored != end || confirmed != end {
		t.Errorf("stored %s, confirmed %s, want %s", stored, confirmed, end)
	}
	held.Remove()
	f.awaitConfirmed(f.walEnd())
	r.mustStop()
}

// TestUnreachableBrokerLeavesTheSlotAlone: what was received and not published is
// reported neither as flushed nor as written, and is all delivered after a kill (case
// C21, traps 4 and 19).
func TestUnreachableBrokerLeavesTheSlotAlone(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.createTopic("order", 12, nil)
	config := f.yaml(frequentStatuses)
	relay := spawn(t, "run", "--config", config)
	relay.awaitLine("holding the slot")
	fake.Server.Halt()
	written, rows := f.watchCommits(), pick(100, 1000)
	f.series("order", "k", 1, rows)
	f.requireUnmoved(written.all()[0].commit, severalSaves)
	reported := f.scalar("SELECT concat_ws(' ', write_lsn, flush_lsn, replay_lsn) FROM pg_stat_replication WHERE pid = " + f.walsender())
	var write, flush, apply string
	if _, err := fmt.Sscan(reported, &write, &flush, &apply); err != nil || write != flush || flush != apply || flush != f.confirmed().String() {
		t.Errorf("reported write, flush, apply are %q, want three times %s", reported, f.confirmed())
	}
	relay.kill()
	must(t, fake.Server.Start())
	relay = spawn(t, "run", "--config", config)
	f.awaitRecords(f.topic("order"), rows)
	if code := relay.terminate(); code != 0 {
		t.Errorf("exit code %d; it said:\n%s", code, relay.said())
	}
	f.requireSeries(f.topic("order"), 1, rows)
}

// TestKeepAlivesConfirmNothingInFlight: keepalives tell of WAL ends past events that
// are on their way. None of them is confirmed while answers stay away, nor lost after
// a kill in that state (case C22, trap 3).
func TestKeepAlivesConfirmNothingInFlight(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.createTopic("order", 12, nil)
	f.db.Exec(t, "CREATE TABLE other(n int)")
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	dead := newLatch()
	t.Cleanup(dead.give)
	script(t, fake, func(c *kfake.Cluster, _ *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if dead.given() {
			return nil, nil, false
		}
		c.SleepControl(func() { <-dead.c })
		return nil, errHangUp, true
	})
	config := f.yaml(frequentStatuses)
	relay := spawn(t, "run", "--config", config)
	relay.awaitLine("holding the slot")
	written := f.watchCommits()
	for i := range pick(3, 10) {
		f.insert("order", fmt.Sprintf("order-%d", i%3), fmt.Sprint(i))
		f.db.Exec(t, "INSERT INTO other SELECT generate_series(1, 1000)")
		f.db.Exec(t, "SELECT pg_switch_wal()")
		f.requireUnmoved(written.all()[0].commit, severalStatuses)
	}
	f.requireUnmoved(written.all()[0].commit, severalSaves)
	relay.kill()
	dead.give()
	relay = spawn(t, "run", "--config", config)
	f.awaitConfirmed(f.walEnd())
	if code := relay.terminate(); code != 0 {
		t.Errorf("exit code %d; it said:\n%s", code, relay.said())
	}
	witness.RequireKept(t)
}

// TestAdjacentTransactionsAreBothDelivered: T1's commit record starts where T2's
// ends. T2 is acknowledged and stored, T1 is not; after a restart T1 is delivered and
// T2 not again: the skip is by "end <= stored", nothing added (case C23b, trap 1).
func TestAdjacentTransactionsAreBothDelivered(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"autovacuum": "off"}})
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), fake.Broker)
	f.createTopic("first", 1, nil)
	f.createTopic("second", 1, nil)
	written := f.watchCommits()
	ctx := context.Background()
	c1, c2 := f.db.Conn(t), f.db.Conn(t)
	held := fake.Server.Cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: f.topic("first"), Err: kerr.NotEnoughReplicas, Count: -1,
	})
	abandon := make(chan struct{})
	f.cfg.Abandon = abandon
	r := f.start()
	r.awaitPhase("streaming")
	const insert = "INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES ($1, 'k', '1')"
	t1, err := c1.Begin(ctx)
	must(t, err)
	_, err = t1.Exec(ctx, insert, "first")
	must(t, err)
	_, err = c2.Exec(ctx, insert, "second")
	must(t, err)
	must(t, t1.Commit(ctx))

	all := written.all()
	if len(all) != 2 || all[0].end != all[1].commit {
		t.Skipf("something else wrote WAL between the two: %v", all)
	}
	f.awaitConfirmed(all[0].end)
	close(abandon)
	if err := r.stop(); err == nil {
		t.Fatal("the run ended well, with T1 unacknowledged")
	}
	if at := f.confirmed(); at != all[0].end {
		t.Errorf("confirmed %s, want T2's end %s, which is T1's commit", at, all[0].end)
	}
	held.Remove()
	f.cfg.Abandon = nil
	f.mustDrain()
	for topic, n := range map[string]int{"first": 1, "second": 1} {
		if got := f.broker.ReadAll(t, f.topic(topic)); len(got) != n {
			t.Errorf("%d records in %s, want %d", len(got), topic, n)
		}
	}
}

// TestPublishedMeansAcknowledged: a broker that takes the request and never answers,
// that lacks replicas, or that hangs up has acknowledged nothing. Every request asks
// for all replicas (case C24, trap 15).
func TestPublishedMeansAcknowledged(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*kmsg.ProduceRequest) (kmsg.Response, error, bool){
		"never answers": func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) { return nil, nil, true },
		"lacks replicas": func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
			return answerCode(r, kerr.NotEnoughReplicas.Code), nil, true
		},
		"hangs up": func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) { return nil, errHangUp, true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := testkit.Kfake(t, devstack.KfakeOptions{})
			f := newFixture(t, testkit.Postgres(t), fake.Broker)
			f.createTopic("order", 12, nil)
			f.cfg.Replication.StatusInterval = statusEvery
			f.cfg.Kafka.ProduceTimeout, f.cfg.Kafka.RequestTimeout = 100*time.Millisecond, 500*time.Millisecond
			var healed atomic.Bool
			broker := script(t, fake, func(_ *kfake.Cluster, r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
				if healed.Load() {
					return nil, nil, false
				}
				return fail(r)
			})
			r := f.start()
			r.awaitPhase("streaming")
			written := f.watchCommits()
			f.series("order", "k", 1, 5)
			broker.awaitBatches(f.topic("order"), 3)
			f.requireUnmoved(written.all()[0].commit, severalStatuses)
			healed.Store(true)
			f.awaitConfirmed(f.walEnd())
			r.mustStop()
			if copies := f.requireSeries(f.topic("order"), 1, 5); copies != 0 {
				t.Errorf("%d duplicates", copies)
			}
			for _, b := range broker.batches(f.topic("order")) {
				if b.acks != -1 {
					t.Fatalf("a request has acks=%d", b.acks)
				}
			}
		})
	}
}

// Keys and where Java's murmur2 puts them among 12 partitions.
const (
	keyOf10, keyOf3, keyOf4 = "order-1", "order-2", "42"
)

// TestConfirmsOnlyTheResolvedPrefix: later transactions, or a part of one, are
// acknowledged before an earlier one is. Only the finished prefix in commit order is
// confirmed, only at ends of transactions, and after a kill the rest comes again (case
// C25, trap 5).
func TestConfirmsOnlyTheResolvedPrefix(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		write  func(*fixture)
		early  int // records that are acknowledged while partition 10 is not
		rows   int
		copies int
	}{
		"three transactions": {func(f *fixture) {
			f.insert("order", keyOf10, "1")
			f.insert("order", keyOf3, "1")
			f.insert("order", keyOf4, "1")
		}, 2, 3, 2},
		"one transaction": {func(f *fixture) {
			f.db.Exec(f.t, fmt.Sprintf(`INSERT INTO outbox(aggregate_type, aggregate_id, payload)
				SELECT 'order', (ARRAY['%s', '%s', '%s'])[1 + i %% 3], to_jsonb(i) FROM generate_series(0, 29) i`, keyOf10, keyOf3, keyOf4))
		}, 20, 30, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := testkit.Kfake(t, devstack.KfakeOptions{})
			f := newFixture(t, testkit.Postgres(t), fake.Broker)
			f.createTopic("order", 12, nil)
			held := fake.Server.Cluster.Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.Produce}, Topic: f.topic("order"), Partitions: []int32{10}, Err: kerr.NotEnoughReplicas, Count: -1,
			})
			config := f.yaml(frequentStatuses)
			relay := spawn(t, "run", "--config", config)
			relay.awaitLine("holding the slot")
			written := f.watchCommits()
			c.write(f)
			f.awaitRecords(f.topic("order"), c.early)
			f.requireUnmoved(written.all()[0].commit, severalSaves)
			relay.kill()
			held.Remove()
			relay = spawn(t, "run", "--config", config)
			f.awaitConfirmed(f.walEnd())
			if code := relay.terminate(); code != 0 {
				t.Errorf("exit code %d; it said:\n%s", code, relay.said())
			}
			got := f.broker.ReadAll(t, f.topic("order"))
			if len(got) != c.rows+c.copies {
				t.Errorf("%d records, want %d and %d copies", len(got), c.rows, c.copies)
			}
			of10 := 0
			for _, r := range got {
				if r.Partition == 10 {
					of10++
				}
			}
			if want := c.rows - c.early; of10 != want {
				t.Errorf("%d records in partition 10, want %d", of10, want)
			}
		})
	}
}

// TestRandomAnswersAndCuts: answers of several partitions come late, out of order or
// as refusals, and the relay is broken off at random moments; sampled all the time,
// nothing is confirmed too early (case C25, oracle O4).
func TestRandomAnswersAndCuts(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.createTopic("order", 6, nil)
	f.cfg.Kafka.RetryBackoffMax = f.cfg.Timers.Save
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	rng := rand.New(rand.NewPCG(25, 0))
	script(t, fake, func(c *kfake.Cluster, _ *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if late := time.Duration(rng.IntN(40)) * time.Millisecond; late > 10*time.Millisecond {
			c.SleepControl(func() { <-time.After(late) })
		}
		return nil, nil, false
	})
	for p := range int32(6) {
		refusals := rand.New(rand.NewPCG(25, uint64(p)+1))
		fake.Server.Cluster.Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{p}, Err: kerr.NotEnoughReplicas, Count: -1,
			When: func(kmsg.Request) bool { return refusals.IntN(3) == 0 },
		})
	}
	load := f.startLoad(3, 20, 5*time.Millisecond)
	for range pick(6, 100) {
		abandon := make(chan struct{})
		f.cfg.Abandon = abandon
		r := f.start()
		load.pauseAt(t, 20+int64(rand.IntN(100)))
		close(abandon)
		if err := r.stop(); err != nil && operr.ClassOf(err) != operr.DrainIncomplete {
			t.Fatal(err)
		}
	}
	load.end()
	f.cfg.Abandon = nil
	f.mustDrain()
	witness.RequireKept(t)
}

// TestCleanStopsResendNothing: stopped at random moments under load, each time with
// success and within the grace period; what was acknowledged is never sent again
// (cases C23a and C26a, trap 7).
func TestCleanStopsResendNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 6, nil)
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	load := f.startLoad(2, 20, 5*time.Millisecond)
	for range pick(6, 50) {
		r := f.start()
		load.pauseAt(t, 1+int64(rand.IntN(150)))
		began := time.Now()
		r.mustStop()
		if took := time.Since(began); took > f.cfg.ShutdownTimeout {
			t.Errorf("a stop took %s", took)
		}
	}
	load.end()
	f.mustDrain()
	if v := witness.RequireKept(t); v.Duplicates != 0 {
		t.Errorf("%d duplicates over clean stops", v.Duplicates)
	}
}

// TestSignalsOnTheBinary: SIGTERM under load ends with code 0 and costs no duplicate;
// with a broker that is away it ends in time with code 7, a second one at once, and
// nothing is lost (case C26, trap 24).
func TestSignalsOnTheBinary(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.createTopic("order", 6, nil)
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	load := f.startLoad(2, 20, 5*time.Millisecond)
	config := f.yaml("")
	for range pick(2, 10) {
		relay := spawn(t, "run", "--config", config)
		relay.awaitLine("holding the slot")
		load.pauseAt(t, 50+int64(rand.IntN(100)))
		if code := relay.terminate(); code != 0 {
			t.Errorf("exit code %d; it said:\n%s", code, relay.said())
		}
	}
	lacking := fake.Server.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
	brief := f.yamlWith("shutdown_timeout: 10s", "shutdown_timeout: 1s")
	for _, c := range []struct {
		config  string
		signals int
		within  time.Duration
	}{{brief, 1, 8 * time.Second}, {config, 2, 8 * time.Second}} {
		relay := spawn(t, "run", "--config", c.config)
		relay.awaitLine("holding the slot")
		load.pauseAt(t, 20)
		relay.awaitLine("batch not acknowledged") // it has read some: a stop without any is a whole one
		began := time.Now()
		for range c.signals - 1 {
			relay.signal()
			relay.awaitLine("draining")
		}
		if code := relay.terminate(); code != operr.DrainIncomplete.ExitCode() {
			t.Errorf("%d signals: exit code %d, want 7; it said:\n%s", c.signals, code, relay.said())
		}
		if took := time.Since(began); took > c.within {
			t.Errorf("%d signals: it took %s", c.signals, took)
		}
	}
	load.end()
	lacking.Remove()
	f.mustDrain()
	if v := witness.RequireKept(t); v.Duplicates != 0 {
		t.Errorf("%d duplicates though nothing was acknowledged twice", v.Duplicates)
	}
}

// TestStopWhileTheBrokerIsSilent: the drain is bounded, ends with its own error class,
// confirms nothing, and loses nothing; abandoned, it ends at once (case C26b, trap 24).
func TestStopWhileTheBrokerIsSilent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timeout time.Duration
		abandon bool
	}{"bounded": {300 * time.Millisecond, false}, "abandoned": {patience, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.createTopic("order", 12, nil)
			network := f.kafkaProxy()
			f.cfg.ShutdownTimeout = c.timeout
			abandon := make(chan struct{})
			f.cfg.Abandon = abandon
			r := f.start()
			r.awaitPhase("streaming")
			network.Pause(testkit.Answers)
			written := f.watchCommits()
			f.insert("order", "k", "1")
			r.awaitUnconfirmed(1)
			if c.abandon {
				close(abandon)
			}
			r.cancel()
			err := r.wait(8 * time.Second)
			var known *operr.Error
			if !errors.As(err, &known) || known.Class != operr.DrainIncomplete {
				t.Errorf("ended with %v, want an incomplete drain", err)
			}
			if at, commit := f.confirmed(), written.all()[0].commit; at > commit {
				t.Errorf("confirmed up to %s, past %s", at, commit)
			}
			network.Resume(testkit.Answers)
			f.cfg.Abandon, f.cfg.ShutdownTimeout = nil, patience
			f.mustDrain()
			f.requireSeries(f.topic("order"), 1, 1)
		})
	}
}

// TestQuietOutboxHoldsNoWAL: 64 MB (500 in the long run) of foreign WAL are confirmed
// without an event or a heartbeat table, whether wal_sender_timeout is on or off, and
// then the relay writes nothing itself (case C27a, trap 3, rule 3).
func TestQuietOutboxHoldsNoWAL(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"autovacuum": "off"}})
	for _, c := range []struct {
		timeout  string
		receipts time.Duration
	}{{"60s", 0}, {"0", 0}, {"60s", time.Second}} {
		t.Run(fmt.Sprintf("wal_sender_timeout %s, receipts for %s", c.timeout, c.receipts), func(t *testing.T) {
			f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
			timeout := c.timeout
			f.cfg.KeepReceipts, f.cfg.Timers.Prune = c.receipts, 50*time.Millisecond
			f.cfg.Replication.ConnString += "&options=-c%20wal_sender_timeout%3D" + timeout
			f.cfg.Replication.StatusInterval = statusEvery
			r := f.start()
			f.insert("order", "k", "1")
			f.awaitRecords(f.topic("order"), 1)
			before := f.confirmed()
			f.db.Exec(t, "CREATE TABLE other(n int, pad text)")
			target := f.walEnd() + event.LSN(pick(64, 500)<<20)
			for f.walEnd() < target {
				f.db.Exec(t, "INSERT INTO other SELECT i, repeat('x', 1000) FROM generate_series(1, 8000) i")
			}
			began := time.Now()
			testkit.Eventually(t, patience, func() error {
				if held := f.walEnd() - f.confirmed(); held >= 16<<20 {
					return fmt.Errorf("the slot holds back %d bytes of WAL, confirmed %s, %s before", held, f.confirmed(), before)
				}
				return nil
			})
			t.Logf("caught up %s after the last write", time.Since(began).Round(time.Millisecond))
			f.requireNoOwnWAL()
			r.mustStop()
			if f.stored() != f.confirmed() {
				t.Errorf("stored %s, confirmed %s: a start would have something to prove", f.stored(), f.confirmed())
			}
		})
	}
}

// requireNoOwnWAL waits until all is latched, and fails the test if the checkpoint
// row is written again within some statuses.
func (f *fixture) requireNoOwnWAL() {
	f.t.Helper()
	const latched = "SELECT idle::text || ' ' || updated_at FROM postrider.checkpoint"
	testkit.EventuallyTrue(f.t, patience, "the idle row is not written", func() bool { return f.scalar(latched)[:4] == "true" })
	before := f.scalar(latched)
	f.awaitStatuses(3)
	f.awaitConfirmed(f.walEnd())
	f.awaitStatuses(3)
	if now := f.scalar(latched); now != before {
		f.t.Errorf("the row was written again in the quiet: %s, then %s", before, now)
	}
}

// TestServerCanStop: a fast shutdown ends within seconds while the relay is connected:
// when all is quiet, with an event that nobody acknowledges, and with reading stopped
// by a full window. Nothing is confirmed for it, and nothing lost or doubled (cases
// C27b and c, rule 1).
func TestServerCanStop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ rows, pad int }{
		"quiet": {0, 0}, "one event on its way": {1, 0}, "full window": {5000, 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
			f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
			f.createTopic("order", 12, nil)
			f.cfg.Kafka.Window = 256 << 10
			f.cfg.Replication.StatusInterval = statusEvery
			network := f.kafkaProxy()
			r := f.start()
			f.insert("order", "k", "0")
			f.awaitConfirmed(f.walEnd())
			network.Refuse(true)
			network.Cut()
			var commit event.LSN
			if c.rows > 0 {
				// WAL that a transaction wrote before its commit record may be confirmed.
				written := f.watchCommits()
				f.batch("order", "k", 1, c.rows, c.pad)
				commit = written.all()[0].commit
				f.db.Exec(t, "SELECT pg_drop_replication_slot('"+f.db.Slot+"_probe')")
				r.awaitStandstill()
				f.requireUnmoved(commit, severalStatuses)
			}
			began := time.Now()
			must(t, server.Halt(devstack.Fast))
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the fast shutdown took %s", took)
			}
			must(t, server.Start(context.Background()))
			if at := f.confirmed(); c.rows > 0 && at > commit {
				t.Errorf("confirmed %s for the shutdown, past %s", at, commit)
			}
			network.Refuse(false)
			f.insert("order", "k", `"last"`)
			f.awaitRecords(f.topic("order"), c.rows+2)
			f.awaitConfirmed(f.walEnd())
			r.mustStop()
			got, copies := firsts(t, f.broker.ReadAll(t, f.topic("order")))
			if len(got) != c.rows+2 || copies != 0 || got[len(got)-1] != `"last"` {
				t.Errorf("%d events and %d duplicates, want %d and none; the last is %s", len(got), copies, c.rows+2, got[len(got)-1])
			}
		})
	}
}

// awaitStandstill waits until events are held and their number does not change any
// more over several looks: reading has stopped, or there is no more to read.
func (r *running) awaitStandstill() {
	r.t.Helper()
	last, same := -1, 0
	testkit.EventuallyTrue(r.t, patience, "the number of unconfirmed events goes on changing", func() bool {
		now := r.relay.Status().Unconfirmed
		if now > 0 && now == last {
			same++
		} else {
			same = 0
		}
		last = now
		return same >= 20
	})
}

// TestBusyStreamReports: statuses go out, and the position moves, while events come
// without a pause (trap 6).
func TestBusyStreamReports(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.cfg.Replication.WALSenderTimeout = time.Second
	r := f.start()
	pid := f.awaitHolder()
	load := f.startLoad(3, 20, time.Millisecond)
	for range pick(4, 40) {
		before := f.confirmed()
		rows := load.rows.Load()
		f.awaitStatuses(2)
		f.awaitConfirmed(before + 1)
		if load.rows.Load() == rows {
			t.Error("the load stood still: the test shows nothing")
		}
	}
	load.end()
	if now := f.walsender(); now != pid {
		t.Errorf("walsender %s, %s at the start: the stream was lost", now, pid)
	}
	r.mustStop()
}

// TestStopInMidTransaction: a stop that comes while a transaction is arriving reads on
// to its end, since of a part nothing could be confirmed and all would come again (case
// C26a).
func TestStopInMidTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 12, nil)
	f.cfg.Kafka.Window = 256 << 10
	network := f.kafkaProxy()
	r := f.start()
	r.awaitPhase("streaming")
	network.Pause(testkit.Answers)
	rows := pick(3000, 100_000)
	f.batch("order", "k", 1, rows, 400)
	r.awaitStandstill()
	r.cancel()
	r.awaitPhase("draining")
	network.Resume(testkit.Answers)
	if err := r.wait(patience); err != nil {
		t.Errorf("ended with %v", err)
	}
	f.mustDrain()
	if got := f.broker.ReadAll(t, f.topic("order")); len(got) != rows {
		t.Errorf("%d records, want %d", len(got), rows)
	}
}
