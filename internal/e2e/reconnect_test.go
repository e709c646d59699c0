package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/testkit"
)

// TestBrokerStallKeepsTheStream: the broker is silent for several wal_sender_timeouts
// while a transaction larger than the window and many small ones come. The same
// walsender streams on, memory stays within the window, and nothing comes twice (case
// C29, traps 6 and 19).
func TestBrokerStallKeepsTheStream(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 12, nil)
	f.cfg.Replication.WALSenderTimeout = time.Second
	f.cfg.Kafka.Window = 256 << 10
	network := f.kafkaProxy()
	r := f.start()
	f.insert("order", "k", "0")
	f.awaitRecords(f.topic("order"), 1)
	pid := f.awaitHolder()
	network.Pause(testkit.Answers)
	network.Pause(testkit.Requests)
	rows := pick(2000, 20_000)
	f.batch("order", "k", 1, rows, 400)
	f.series("order", "k", rows+1, rows+100)
	f.awaitStatuses(pick(10, 180))
	if s := r.relay.Status(); s.Unconfirmed == 0 || s.Unconfirmed > f.cfg.Kafka.Window/400 {
		t.Errorf("%d events of more than 400 bytes are held in a window of %d", s.Unconfirmed, f.cfg.Kafka.Window)
	}
	network.Resume(testkit.Requests)
	network.Resume(testkit.Answers)
	f.awaitRecords(f.topic("order"), rows+101)
	f.awaitConfirmed(f.walEnd())
	if now := f.walsender(); now != pid {
		t.Errorf("walsender %s, %s at the start: the stream was lost", now, pid)
	}
	r.mustStop()
	got, copies := firsts(t, f.broker.ReadAll(t, f.topic("order")))
	if len(got) != rows+101 || copies != 0 || got[len(got)-1] != fmt.Sprint(rows+100) {
		t.Errorf("%d events and %d duplicates, want %d and none", len(got), copies, rows+101)
	}
}

// TestStandbyTakesOver: a second process with the same configuration waits, says so
// once, and touches neither the slot nor its holder. When the first is killed it takes
// over (case C30, trap 21).
func TestStandbyTakesOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 6, nil)
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	config := f.yaml("")
	a := spawn(t, "run", "--config", config)
	a.awaitLine("holding the slot")
	pid := f.walsender()
	b := spawn(t, "run", "--config", config)
	b.awaitLine("standby: ")
	load := f.startLoad(3, 20, 5*time.Millisecond)
	load.pauseAt(t, int64(pick(200, 4000)))
	if now := f.walsender(); now != pid {
		t.Errorf("the holder's walsender is %s, was %s", now, pid)
	}
	if n := f.scalar("SELECT count(*)::text FROM pg_replication_slots WHERE slot_name NOT LIKE '%witness' AND database = current_database()"); n != "1" {
		t.Errorf("%s slots, want 1", n)
	}
	a.kill()
	b.awaitLine("holding the slot")
	load.pauseAt(t, 100)
	load.end()
	f.awaitConfirmed(f.walEnd())
	if code := b.terminate(); code != 0 {
		t.Errorf("exit code %d; it said:\n%s", code, b.said())
	}
	if said, err := os.ReadFile(b.stderr); err != nil || strings.Count(string(said), "standby:") != 1 {
		t.Errorf("it did not say once that it stands by (%v):\n%s", err, said)
	}
	witness.RequireKept(t)
}

// rival is the configuration of another instance of the same publisher, on a network
// of its own.
func (f *fixture) rival() relay.Config {
	cfg := f.config()
	cfg.Holder = "rival"
	cfg.Replication.WALSenderTimeout, cfg.Replication.StatusInterval = f.cfg.Replication.WALSenderTimeout, statusEvery
	return cfg
}

// awaitNotStreaming waits until the relay does not believe any more that the slot is its own.
func (r *running) awaitNotStreaming(within time.Duration) {
	r.t.Helper()
	testkit.Eventually(r.t, within, func() error {
		if s := r.relay.Status(); s.Phase == "streaming" || s.Ready {
			return fmt.Errorf("it is %s and ready=%t", s.Phase, s.Ready)
		}
		return nil
	})
}

// TestZombieWritesNothing: the server ends the walsender of an instance that does not
// read, because its window is full. Another instance takes over and publishes all.
// When the first reaches its broker again it sends none of what it holds (case C30,
// trap 20).
func TestZombieWritesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 12, nil)
	f.cfg.Kafka.Window = 256 << 10
	f.cfg.Kafka.RetryBackoffMax = 50 * time.Millisecond // what is not frozen is sent at once
	server, network := f.postgresProxy(), f.kafkaProxy()
	zombie := f.start()
	f.insert("order", "k", "0")
	f.awaitConfirmed(f.walEnd())
	network.Refuse(true)
	network.Cut()
	rows := 3000
	f.batch("order", "k", 1, rows, 400)
	zombie.awaitStandstill()
	b := startRelay(t, f.rival())
	b.awaitPhase("standby")
	server.Refuse(true) // or it may have the slot back before the rival looks again
	f.db.Exec(t, "SELECT pg_terminate_backend("+f.walsender()+")")
	zombie.awaitNotStreaming(5 * time.Second)
	f.awaitRecords(f.topic("order"), rows+1)
	network.Refuse(false)
	f.insert("order", "k", `"after"`)
	f.awaitRecords(f.topic("order"), rows+2)
	f.awaitStatuses(5)
	server.Refuse(false)
	zombie.awaitPhase("standby")
	b.mustStop()
	zombie.awaitPhase("streaming")
	zombie.mustStop()
	got, copies := firsts(t, f.broker.ReadAll(t, f.topic("order")))
	if len(got) != rows+2 || copies != 0 || got[len(got)-1] != `"after"` {
		t.Errorf("%d events and %d duplicates, want %d and none", len(got), copies, rows+2)
	}
}

// TestBlackHole: packets of the holder vanish in both directions, connections stay
// open. It notices, is not ready any more and freezes its lanes before the server gives
// the slot to another; back on the network it stands by (case C30, traps 20 and 23,
// rule 8).
func TestBlackHole(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 12, nil)
	f.cfg.Replication.WALSenderTimeout = 3 * time.Second
	f.cfg.Timers.Statement = 250 * time.Millisecond
	f.cfg.Kafka.RetryBackoffMax = 50 * time.Millisecond // what is not frozen is sent at once
	server, network := f.postgresProxy(), f.kafkaProxy()
	a := f.start()
	f.insert("order", "k", "0")
	f.awaitConfirmed(f.walEnd())
	network.Refuse(true)
	network.Cut()
	f.series("order", "k", 1, 10)
	a.awaitUnconfirmed(10)
	b := startRelay(t, f.rival())
	b.awaitPhase("standby")
	pid := f.walsender()
	server.Pause(testkit.Requests)
	server.Pause(testkit.Answers)
	a.awaitNotStreaming(patience)
	if now := f.walsender(); now != pid {
		t.Errorf("the slot went to %q before its holder %s had noticed anything", now, pid)
	}
	f.series("order", "k", 11, 20)
	f.awaitRecords(f.topic("order"), 21)
	network.Refuse(false)
	f.series("order", "k", 21, 22)
	f.awaitRecords(f.topic("order"), 23)
	f.awaitStatuses(10)
	server.Resume(testkit.Requests)
	server.Resume(testkit.Answers)
	server.Cut()
	a.awaitPhase("standby")
	b.mustStop()
	a.awaitPhase("streaming")
	f.insert("order", "k", "23")
	f.awaitRecords(f.topic("order"), 24)
	a.mustStop()
	if copies := f.requireSeries(f.topic("order"), 0, 23); copies != 0 {
		t.Errorf("%d duplicates", copies)
	}
}

// TestCutInMidTransaction: the connections to PostgreSQL break, again and again, while
// a transaction larger than the window arrives. Ledger and lanes stay: it goes on where
// it was cut, and nothing comes twice (trap 2, rule 10).
func TestCutInMidTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 12, nil)
	f.cfg.Kafka.Window = 256 << 10
	server, network := f.postgresProxy(), f.kafkaProxy()
	r := f.start()
	r.awaitPhase("streaming")
	rows := pick(4000, 40_000)
	network.Pause(testkit.Answers)
	f.batch("order", "k", 1, rows, 400)
	for range pick(3, 30) {
		r.awaitStandstill()
		server.Cut()
		r.awaitNotStreaming(patience)
		r.awaitPhase("streaming")
		before := r.relay.Status().Published
		network.Resume(testkit.Answers)
		testkit.EventuallyTrue(t, patience, "publishing does not go on", func() bool { return r.relay.Status().Published > before })
		network.Pause(testkit.Answers)
	}
	network.Resume(testkit.Answers)
	f.awaitConfirmed(f.walEnd())
	r.mustStop()
	got, copies := firsts(t, f.broker.ReadAll(t, f.topic("order")))
	if len(got) != rows || copies != 0 {
		t.Errorf("%d events and %d duplicates, want %d and none", len(got), copies, rows)
	}
}

// TestRandomCuts: under load the connections to both servers break at random moments;
// in one run without a crash that costs not one duplicate (promise 5, traps 13 and 14).
func TestRandomCuts(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 6, nil)
	server, network := f.postgresProxy(), f.kafkaProxy()
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	r := f.start()
	load := f.startLoad(3, 20, 3*time.Millisecond)
	for range pick(12, 200) {
		load.pauseAt(t, 5+int64(rand.IntN(60)))
		switch rand.IntN(4) {
		case 0, 1:
			server.Cut()
		case 2:
			network.Cut()
		default:
			network.CutNext(testkit.Answers) // appended, and nobody told us
		}
	}
	load.end()
	f.awaitConfirmed(f.walEnd())
	r.mustStop()
	if v := witness.RequireKept(t); v.Duplicates != 0 {
		t.Errorf("%d duplicates", v.Duplicates)
	}
}

// TestEndedSessions: an operator ends each of the relay's sessions in turn. It comes
// back each time, and nothing comes twice (rule 1, trap 21).
func TestEndedSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 12, nil)
	r := f.start()
	for i, application := range []string{"postrider test", "postrider test (shutdown watch)", "postrider " + f.db.Slot} {
		r.awaitPhase("streaming")
		holder := f.awaitHolder()
		if n := f.scalar(fmt.Sprintf(`SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = '%s'`, application)); n != "1" {
			t.Errorf("%s sessions %q", n, application)
		}
		testkit.EventuallyTrue(t, patience, "the link is not made anew", func() bool {
			now := f.walsender()
			return now != "" && now != holder
		})
		f.insert("order", "k", fmt.Sprint(i))
		f.awaitRecords(f.topic("order"), i+1)
	}
	r.mustStop()
	if copies := f.requireSeries(f.topic("order"), 0, 2); copies != 0 {
		t.Errorf("%d duplicates", copies)
	}
}

// TestBacklogIsPublished: what was committed before the first start and between two
// runs is published; the server's current position is no place to begin (case C31a,
// rule 2).
func TestBacklogIsPublished(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.series("order", "k", 1, 100)
	f.mustDrain()
	f.series("order", "k", 101, 200)
	r := f.start()
	f.awaitRecords(f.topic("order"), 200)
	r.mustStop()
	if copies := f.requireSeries(f.topic("order"), 1, 200); copies != 0 {
		t.Errorf("%d duplicates", copies)
	}
}

// TestServerCrash: after a crash of PostgreSQL the slot stands where its last
// checkpoint saved it. The stored row absorbs what is sent again, whether the relay ran
// through the crash or starts after it (cases C31b and C31c, trap 9, rule 3).
func TestServerCrash(t *testing.T) {
	t.Parallel()
	for name, through := range map[string]bool{"started after it": false, "running through it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"autovacuum": "off"}})
			f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
			proxy := f.postgresProxy()
			r := f.start()
			f.insert("order", "k", "1")
			f.awaitConfirmed(f.walEnd())
			f.db.Exec(t, "CHECKPOINT")
			// The first confirmation after it saves the slot once more, later ones do not.
			for n := 2; n <= 5; n++ {
				f.insert("order", "k", fmt.Sprint(n))
				f.awaitConfirmed(f.walEnd())
			}
			before := f.confirmed()
			if !through {
				r.mustStop()
			}
			proxy.Refuse(true)
			must(t, server.Restart(context.Background(), devstack.Immediate))
			if after := f.confirmed(); after >= before {
				t.Skipf("the crash did not move the slot back: %s, %s", before, after)
			}
			proxy.Refuse(false)
			if !through {
				r = f.start()
			}
			f.insert("order", "k", "6")
			f.awaitRecords(f.topic("order"), 6)
			f.awaitConfirmed(f.walEnd())
			r.mustStop()
			if copies := f.requireSeries(f.topic("order"), 1, 6); copies != 0 {
				t.Errorf("%d duplicates", copies)
			}
		})
	}
}

// TestForeignTransactionIsNoSilence: decoding somebody else's large transaction, with
// nothing to send for longer than wal_sender_timeout may allow, costs no reconnect (rule 8).
func TestForeignTransactionIsNoSilence(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.cfg.Replication.WALSenderTimeout = time.Second
	f.db.Exec(t, "CREATE TABLE other(n int)")
	r := f.start()
	pid := f.awaitHolder()
	f.db.Exec(t, fmt.Sprintf("INSERT INTO other SELECT generate_series(1, %d)", pick(200_000, 3_000_000)))
	f.insert("order", "k", "1")
	f.awaitRecords(f.topic("order"), 1)
	f.awaitConfirmed(f.walEnd())
	if now := f.walsender(); now != pid {
		t.Errorf("walsender %s, %s at the start: the stream was lost", now, pid)
	}
	r.mustStop()
}

// TestSilenceIsNotDeath: a walsender that says nothing for several wal_sender_timeouts,
// and still holds the slot for us, is waited for (rule 8).
func TestSilenceIsNotDeath(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
	f.cfg.Replication.WALSenderTimeout = 500 * time.Millisecond
	r := f.start()
	f.insert("order", "k", "0")
	f.awaitRecords(f.topic("order"), 1)
	pid, err := strconv.Atoi(f.awaitHolder())
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	defer syscall.Kill(pid, syscall.SIGCONT) //nolint:errcheck // it may have ended
	f.insert("order", "k", "1")
	testkit.EventuallyTrue(t, patience, "something is heard from a stopped process", func() bool {
		at := r.relay.Status().LastWireActivity
		return at != nil && time.Since(*at) > 4*f.cfg.Replication.WALSenderTimeout
	})
	if s := r.relay.Status(); s.Phase != "streaming" {
		t.Errorf("the relay is %s: %s", s.Phase, s.WaitsFor)
	}
	must(t, syscall.Kill(pid, syscall.SIGCONT))
	f.awaitRecords(f.topic("order"), 2)
	if now := f.walsender(); now != strconv.Itoa(pid) {
		t.Errorf("walsender %s, %d at the start: the stream was lost", now, pid)
	}
	r.mustStop()
}
