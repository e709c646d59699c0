package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
)

const mib = 1 << 20

// maxRSS is what the plain binary may hold at most with the default window of 32 MiB.
const maxRSS = 64 * mib

// TestDrainOfSingleRowTransactions publishes a backlog of single-row transactions
// through the real binary; the oracle finds each id once, in order for each key,
// with the bytes of payload::text.
func TestDrainOfSingleRowTransactions(t *testing.T) {
	rows := pick(5_000, 500_000)
	f := newFixture(t, testkit.Postgres(t), testkit.KafkaReal(t))
	f.createTopic("order", 6, nil)
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	f.db.Exec(t, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
		INSERT INTO outbox(aggregate_type, aggregate_id, payload)
		VALUES ('order', 'k' || i %% 5000, jsonb_build_object('i', i, 'customer', i %% 977, 'pad', repeat('x', 100 + i %% 120)));
		COMMIT; END LOOP; END $$`, rows))
	config := f.yaml("")
	built(t)
	began := time.Now()
	relay := spawn(t, "run", "--config", config, "--until-lsn", "now")
	if code := relay.wait(10 * time.Minute); code != 0 {
		t.Fatalf("exit code %d; it said:\n%s", code, relay.said())
	}
	took := time.Since(began)
	usage := relay.cmd.ProcessState
	v := witness.RequireKept(t)
	if v.Delivered != rows || v.Duplicates != 0 {
		t.Errorf("%s", v)
	}
	t.Logf("%d rows in %s: %.0f events/s from the start of the process to its end, CPU %s user %s system",
		rows, took.Round(time.Millisecond), float64(rows)/took.Seconds(), usage.UserTime(), usage.SystemTime())
}

// TestMemoryOfOneHugeTransaction publishes one transaction of 1 KB rows through the
// plain binary: rows are handed on while the transaction arrives, so the memory is a
// window and not the transaction (case C46).
func TestMemoryOfOneHugeTransaction(t *testing.T) {
	rows := pick(60_000, 1_000_000)
	f := newFixture(t, testkit.Postgres(t), testkit.KafkaReal(t))
	f.createTopic("order", 6, nil)
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	f.db.Exec(t, fmt.Sprintf(`INSERT INTO outbox(aggregate_type, aggregate_id, payload)
		SELECT 'order', 'k' || i %% 5000, jsonb_build_object('i', i, 'pad', repeat('y', 950)) FROM generate_series(1, %d) i`, rows))
	end := f.walEnd()
	built(t)
	began := time.Now()
	relay := spawn(t, "run", "--config", f.yaml(""))
	testkit.Eventually(t, 10*time.Minute, func() error {
		if now := f.confirmed(); now < end {
			return fmt.Errorf("confirmed up to %s, want %s", now, end)
		}
		return nil
	})
	took := time.Since(began)
	rss := relay.peakRSS()
	if code := relay.terminate(); code != 0 {
		t.Errorf("exit code %d; it said:\n%s", code, relay.said())
	}
	t.Logf("%d rows in one transaction: %s, peak RSS %.1f MiB", rows, took.Round(time.Millisecond), float64(rss)/mib)
	if rss > maxRSS {
		t.Errorf("peak RSS %d MiB is above %d MiB", rss/mib, maxRSS/mib)
	}
	if v := witness.RequireKept(t); v.Delivered != rows || v.Duplicates != 0 {
		t.Errorf("%s", v)
	}
}

// TestMemoryOfABrokerOutage pauses the broker under load: the window fills, reading
// stops, feedback goes on, and when the broker is back everything is published in
// order and nothing twice (trap 19, cases C29, C46).
func TestMemoryOfABrokerOutage(t *testing.T) {
	t.Parallel()
	outage := pick(7*time.Second, 2*time.Minute)
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"wal_sender_timeout": "5s"}})
	kafka := testkit.PrivateKafka(t, devstack.KafkaOptions{})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), kafka.Broker)
	f.createTopic("order", 6, nil)
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	relay := spawn(t, "run", "--config", f.yaml(""))
	load := f.startLoad(8, 200, 6*time.Millisecond) // some 2,000 rows/s
	load.pauseAt(t, 200)
	must(t, kafka.Server.Pause(0))
	over := time.NewTimer(outage)
	<-over.C // the outage itself: there is nothing to wait for
	outageRows := load.rows.Load()
	must(t, kafka.Server.Resume(0))
	load.end()
	end := f.walEnd()
	resumed := time.Now()
	// A broker that was stopped for minutes first finds back into its own cluster.
	testkit.Eventually(t, 4*patience, func() error {
		if now := f.confirmed(); now < end {
			return fmt.Errorf("confirmed up to %s, want %s", now, end)
		}
		return nil
	})
	t.Logf("everything is confirmed %s after the broker went on", time.Since(resumed).Round(time.Millisecond))
	rss := relay.peakRSS()
	if code := relay.terminate(); code != 0 {
		t.Errorf("exit code %d; it said:\n%s", code, relay.said())
	}
	v := witness.RequireKept(t)
	if v.Duplicates != 0 {
		t.Errorf("%d duplicates", v.Duplicates)
	}
	if n := countInLog(t, server.LogFile(), "terminating walsender process due to replication timeout"); n > 0 {
		t.Errorf("%d walsender timeouts", n)
	}
	t.Logf("outage of %s, %d rows by its end: peak RSS %.1f MiB; %s", outage, outageRows, float64(rss)/mib, v)
	if rss > maxRSS {
		t.Errorf("peak RSS %d MiB is above %d MiB", rss/mib, maxRSS/mib)
	}
}
