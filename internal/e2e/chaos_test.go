package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/oracle"
	"github.com/postrider/postrider/internal/testkit"
)

// expect says what a row of the shared table has to become.
func (f *fixture) expect(row oracle.Row) (oracle.Event, bool) {
	if row.Table != "outbox" {
		return oracle.Event{}, false
	}
	return oracle.Event{
		ID: string(row.Get("id")), Topic: f.topic(string(row.Get("aggregate_type"))),
		Key: row.Get("aggregate_id"), Value: row.Get("payload"),
		Headers: []event.Header{{Name: "id", Value: row.Get("id")}, {Name: "event_type", Value: row.Get("event_type")}},
	}, true
}

// load commits and rolls back transactions from several sessions until it is
// stopped, over restarts of the server.
type load struct {
	stop chan struct{}
	wg   sync.WaitGroup
	rows atomic.Int64
}

func (f *fixture) startLoad(sessions, keys int, pause time.Duration) *load {
	l := &load{stop: make(chan struct{})}
	for s := range sessions {
		l.wg.Go(func() { l.session(f.db.DSN, rand.New(rand.NewPCG(uint64(s), 7)), keys, pause) })
	}
	f.t.Cleanup(l.end)
	return l
}

func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.wg.Wait()
}

func (l *load) session(dsn string, rng *rand.Rand, keys int, pause time.Duration) {
	var conn *pgx.Conn
	ctx := context.Background()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			if conn != nil {
				_ = conn.Close(ctx)
			}
			return
		case <-tick.C:
		}
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = pgx.Connect(ctx, dsn); err != nil {
				conn = nil
				continue // the server is being restarted
			}
		}
		rows := 1 + rng.IntN(3)
		if l.transaction(ctx, conn, rng, keys, rows) == nil {
			l.rows.Add(int64(rows))
		}
	}
}

// transaction writes some rows; one in ten is rolled back, one in five has a
// savepoint that is.
func (l *load) transaction(ctx context.Context, conn *pgx.Conn, rng *rand.Rand, keys, rows int) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit there is nothing to roll back
	const insert = `INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES ('order', $1, jsonb_build_object('n', $2::int, 'pad', repeat('x', $3::int)))`
	for i := range rows {
		if _, err := tx.Exec(ctx, insert, fmt.Sprintf("key-%d", rng.IntN(keys)), i, rng.IntN(400)); err != nil {
			return err
		}
	}
	if rng.IntN(5) == 0 {
		if _, err := tx.Exec(ctx, "SAVEPOINT s"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, insert, "key-0", -1, 1); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "ROLLBACK TO s"); err != nil {
			return err
		}
	}
	if rng.IntN(10) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}

// pauseAt waits for the load to have committed so many more rows.
func (l *load) pauseAt(t *testing.T, more int64) {
	t.Helper()
	target := l.rows.Load() + more
	testkit.EventuallyTrue(t, 2*patience, "the load does not get on", func() bool { return l.rows.Load() >= target })
}

// TestFaultsUnderLoad kills the real binary at random moments, restarts the broker
// and PostgreSQL (fast and immediate) under load, and lets the oracle judge (traps
// 9, 12, 13, 19, 21, case C31). The interleavings are the clock's; the seed only
// chooses the order of faults.
func TestFaultsUnderLoad(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
	kafka := testkit.PrivateKafka(t, devstack.KafkaOptions{})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), kafka.Broker)
	f.createTopic("order", 6, nil)
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	config := f.yaml("")

	faults := faultPlan(pick(4, 20), pick(1, 5), pick(2, 10))
	relay := spawn(t, "run", "--config", config)
	load := f.startLoad(4, 40, 3*time.Millisecond)
	ctx := context.Background()
	for i, fault := range faults {
		load.pauseAt(t, 200+int64(rand.IntN(400)))
		t.Logf("fault %d of %d: %s", i+1, len(faults), fault)
		switch fault {
		case "kill -9":
			relay.kill()
			relay = spawn(t, "run", "--config", config)
		case "broker restart":
			must(t, kafka.Server.Restart(ctx))
		case "postgres fast":
			must(t, server.Restart(ctx, devstack.Fast))
		case "postgres immediate":
			must(t, server.Restart(ctx, devstack.Immediate))
		}
	}
	load.pauseAt(t, 300)
	load.end()
	end := f.walEnd()
	f.awaitConfirmed(end)
	if code := relay.terminate(); code != 0 {
		t.Errorf("exit code %d after a drain; it said:\n%s", code, relay.said())
	}
	v := witness.RequireKept(t)
	t.Logf("%d faults over %d committed rows: %s", len(faults), load.rows.Load(), v)
}

func faultPlan(kills, brokers, servers int) []string {
	var plan []string
	for range kills {
		plan = append(plan, "kill -9")
	}
	for range brokers {
		plan = append(plan, "broker restart")
	}
	for i := range servers {
		plan = append(plan, []string{"postgres fast", "postgres immediate"}[i%2])
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
	return plan
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
