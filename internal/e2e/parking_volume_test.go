package e2e

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// arrivals commits single events of the keys k0, k1, …, in turn, at a rate, until it is ended.
type arrivals struct {
	rows atomic.Int64
	stop context.CancelFunc
	done chan error
}

func (f *fixture) startArrivals(keys, perSecond int) *arrivals {
	ctx, cancel := context.WithCancel(context.Background())
	a := &arrivals{stop: cancel, done: make(chan error, 1)}
	f.t.Cleanup(cancel)
	conn, err := pgx.Connect(ctx, f.db.DSN)
	must(f.t, err)
	go func() {
		defer conn.Close(context.Background())
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				a.done <- nil
				return
			case <-tick.C:
			}
			if _, err := conn.Exec(context.Background(), "INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES ('order', $1, $2)",
				fmt.Sprintf("k%d", n%keys), n); err != nil {
				a.done <- err
				return
			}
			a.rows.Add(1)
		}
	}()
	return a
}

// end stops them and gives their number.
func (a *arrivals) end(t *testing.T) int {
	t.Helper()
	a.stop()
	must(t, <-a.done)
	return int(a.rows.Load())
}

// case C20: many parked events of many keys are retried while new ones of the same keys
// arrive. The order of each key holds, each event is there once, and the memory is a
// window and what the held keys take (`make test-long`: 100,000 events of 20,000 keys,
// 500 arrivals a second).
func TestRetryOfManyUnderLoad(t *testing.T) {
	t.Parallel()
	const each = 5
	keys, rate := pick(400, 20_000), pick(200, 500)
	patient := pick(2*patience, 10*time.Minute)
	f := newFixture(t, testkit.Postgres(t), testkit.KafkaReal(t))
	f.onRefusal(router.OnRefusalParkAggregate)
	f.createTopic("order", 6, nil)
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	config := f.yaml("")
	built(t)
	outstanding := func() string {
		return f.scalar("SELECT count(*)::text FROM postrider.parked WHERE state IN ('parked', 'retry', 'publishing')")
	}
	await := func(want int) {
		testkit.Eventually(t, patient, func() error {
			if got := outstanding(); got != fmt.Sprint(want) {
				return fmt.Errorf("%s events are parked, want %d", got, want)
			}
			return nil
		})
	}

	// The first event of each key is refused; the others stand behind it.
	for n := range each {
		payload := "jsonb_build_object('n', " + fmt.Sprint(n) + ", 'pad', repeat('x', 150))"
		if n == 0 {
			payload = "NULL"
		}
		f.db.Exec(t, fmt.Sprintf("INSERT INTO outbox(aggregate_type, aggregate_id, payload) SELECT 'order', 'k' || i, %s FROM generate_series(0, %d) i", payload, keys-1))
	}
	began := time.Now()
	relay := spawn(t, "run", "--config", config)
	await(keys * each)
	parking := time.Since(began)
	rssParking := relay.peakRSS()
	if code := relay.terminate(); code != 0 {
		t.Fatalf("exit code %d: %s", code, relay.said())
	}

	healed(t, config)
	relay = spawn(t, "run", "--config", config)
	relay.awaitLine("holding the slot")
	arriving := f.startArrivals(keys, rate)
	began = time.Now()
	f.retryAll()
	await(0)
	retry := time.Since(began)
	arrived := arriving.end(t)
	f.awaitConfirmed(f.walEnd())
	rss := relay.peakRSS()
	if code := relay.terminate(); code != 0 {
		t.Errorf("exit code %d: %s", code, relay.said())
	}
	f.tellParked(witness)
	v := witness.RequireKept(t)
	if v.Delivered != keys*each+arrived || v.Duplicates != 0 {
		t.Errorf("%d arrived: %s", arrived, v)
	}
	joined := f.scalar("SELECT count(*)::text FROM postrider.parked")
	t.Logf("%d events of %d keys parked in %s (peak RSS %.1f MiB), all retried in %s with %d arrivals (%.0f/s), %s rows in the end, peak RSS %.1f MiB: %s",
		keys*each, keys, parking.Round(time.Millisecond), float64(rssParking)/mib, retry.Round(time.Millisecond), arrived, float64(arrived)/retry.Seconds(), joined, float64(rss)/mib, v)
	if worst := max(rss, rssParking); worst > maxRSS {
		t.Errorf("peak RSS %d MiB is above %d MiB", worst/mib, maxRSS/mib)
	}
}
