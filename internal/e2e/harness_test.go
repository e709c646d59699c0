package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// patience bounds every single wait of these tests.
const patience = 30 * time.Second

// sharedTable is the fixture of the field cases.
const sharedTable = `CREATE TABLE outbox(
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text, aggregate_id text,
  event_type text NOT NULL DEFAULT 'X', payload jsonb, created_at timestamptz NOT NULL DEFAULT now())`

// fixture is one test's database, broker and relay configuration.
type fixture struct {
	t      *testing.T
	db     *testkit.DB
	broker *testkit.Broker
	// prefix begins every topic of the test: rows of aggregate_type x go to prefix.x.
	prefix string
	cfg    relay.Config
	// policy is on_refusal. These tests want to see a refusal where it happens: halt,
	// unless they set another.
	policy router.OnRefusal
	// deadLetters is the source's dead_letter_topic.
	deadLetters string
	// looks is the session of scalar, for the test's own goroutine.
	looks *pgx.Conn
}

// newFixture makes the shared table, the publication and the slot, and a
// configuration with short timers.
func newFixture(t *testing.T, db *testkit.DB, broker *testkit.Broker) *fixture {
	return newFixtureWith(t, db, broker, sharedTable)
}

func newFixtureWith(t *testing.T, db *testkit.DB, broker *testkit.Broker, ddl string) *fixture {
	t.Helper()
	f := &fixture{t: t, db: db, broker: broker, prefix: strings.ReplaceAll(testkit.Unique(t), "_", "-"), policy: router.OnRefusalHalt}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := migrations.Apply(ctx, db.DSN); err != nil {
		t.Fatalf("apply migrations: %v", err)
	}
	db.Exec(t, ddl)
	db.Exec(t, fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE outbox WITH (publish = 'insert')", quoted(db.Publication)))
	db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", db.Slot))
	f.cfg = f.config()
	return f
}

// onRefusal sets the policy of the fixture's source.
func (f *fixture) onRefusal(policy router.OnRefusal) {
	f.policy = policy
	f.cfg.Router.Sources[0].OnRefusal = policy
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

func (f *fixture) config() relay.Config {
	log := testLog(f.t)
	return relay.Config{
		Publisher: "test",
		Replication: replication.Config{
			ConnString: f.db.DSN, Slot: f.db.Slot, Publications: []string{f.db.Publication}, Log: &log,
		},
		Router: router.Config{Sources: []router.Source{{
			Schema: "public", Table: "outbox",
			Mapping: router.Mapping{
				EventID: "id", Key: "aggregate_id", Payload: "payload", AggregateType: "aggregate_type", EventType: "event_type",
			},
			Routes:    []router.Route{{Topic: f.prefix + ".${aggregate_type}"}},
			OnRefusal: f.policy,
		}}},
		Kafka: publisher.Config{
			Brokers:      f.broker.Bootstrap(),
			CreateTopics: &publisher.TopicSpec{Partitions: 12, ReplicationFactor: -1},
		},
		ShutdownTimeout: 10 * time.Second,
		Timers: relay.Timers{
			Save: 50 * time.Millisecond, Idle: 100 * time.Millisecond, Watch: 500 * time.Millisecond,
			StandbyLog: 200 * time.Millisecond, BackoffMin: 20 * time.Millisecond, BackoffMax: 300 * time.Millisecond,
		},
		Log:        log,
		Registerer: prometheus.NewRegistry(),
	}
}

// testLog writes to the test's log; POSTRIDER_TEST_LOG=debug shows more.
func testLog(t *testing.T) zerolog.Logger {
	level, err := zerolog.ParseLevel(os.Getenv("POSTRIDER_TEST_LOG"))
	if err != nil || level == zerolog.NoLevel {
		level = zerolog.InfoLevel
	}
	return zerolog.New(zerolog.NewTestWriter(t)).Level(level).With().Timestamp().Logger()
}

// topic is the topic of an aggregate type.
func (f *fixture) topic(aggregateType string) string { return f.prefix + "." + aggregateType }

// createTopic makes a topic ahead of the relay.
func (f *fixture) createTopic(aggregateType string, partitions int32, configs map[string]string) {
	f.t.Helper()
	f.broker.CreateTopic(f.t, f.topic(aggregateType), partitions, configs)
}

// insert commits one event in a transaction of its own.
func (f *fixture) insert(aggregateType, key, payload string) {
	f.t.Helper()
	f.db.Exec(f.t, fmt.Sprintf("INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES (%s, %s, %s)",
		literal(aggregateType), literal(key), literal(payload)))
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// running is a relay that runs in this process.
type running struct {
	t      *testing.T
	relay  *relay.Relay
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	// registry has the run's metrics, also after its end.
	registry *prometheus.Registry
}

// start runs a relay until stop or the end of the test.
func (f *fixture) start() *running {
	f.t.Helper()
	return startRelay(f.t, f.cfg)
}

func startRelay(t *testing.T, cfg relay.Config) *running {
	t.Helper()
	// A second run of the same test registers its metrics anew.
	registry := prometheus.NewRegistry()
	cfg.Registerer = registry
	abandon := make(chan struct{})
	if cfg.Abandon == nil {
		cfg.Abandon = abandon
	}
	r, err := relay.New(cfg)
	if err != nil {
		t.Fatalf("make the relay: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &running{t: t, relay: r, cancel: cancel, done: make(chan struct{}), registry: registry}
	go func() {
		defer close(run.done)
		if run.err = r.Run(ctx); run.err != nil {
			t.Logf("the run ended with: %v", run.err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		if t.Failed() {
			close(abandon) // what is left shall not hold up the others
		}
		<-run.done
	})
	return run
}

// metric is the value of a counter or gauge, found by its name and its labels as in
// name{label="value"}; 0 where there is none.
func (r *running) metric(name string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			full := family.GetName()
			if len(labels) > 0 {
				full += "{" + strings.Join(labels, ",") + "}"
			}
			if full == name {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// wait gives the result of a run that ends by itself.
func (r *running) wait(within time.Duration) error {
	r.t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(within):
		r.t.Fatalf("the relay did not end within %s: %+v", within, r.relay.Status())
		return nil
	}
}

// stop drains and ends it.
func (r *running) stop() error {
	r.t.Helper()
	r.cancel()
	return r.wait(patience)
}

// mustStop is stop for a run that has no reason to fail.
func (r *running) mustStop() {
	r.t.Helper()
	if err := r.stop(); err != nil {
		r.t.Fatalf("stop: %v", err)
	}
}

// awaitPhase waits until the relay says that it is in the phase.
func (r *running) awaitPhase(phase string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		s := r.relay.Status()
		if s.Phase == "stopped" && phase != s.Phase {
			r.t.Fatalf("it has ended: %v", r.wait(patience))
		}
		if s.Phase != phase {
			return fmt.Errorf("phase is %s (%s), want %s", s.Phase, s.WaitsFor, phase)
		}
		return nil
	})
}

// drain runs the relay until everything that is committed now is published and confirmed.
func (f *fixture) drain() error {
	f.t.Helper()
	cfg := f.cfg
	cfg.Until = relay.Until{Now: true}
	return startRelay(f.t, cfg).wait(patience)
}

// mustDrain is drain for a run that has no reason to fail.
func (f *fixture) mustDrain() {
	f.t.Helper()
	if err := f.drain(); err != nil {
		f.t.Fatalf("drain: %v", err)
	}
}

// confirmed is the slot's confirmed_flush_lsn.
func (f *fixture) confirmed() event.LSN {
	f.t.Helper()
	return f.lsn("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '" + f.db.Slot + "'")
}

// walEnd is the server's write position.
func (f *fixture) walEnd() event.LSN {
	f.t.Helper()
	return f.lsn("SELECT pg_current_wal_lsn()::text")
}

func (f *fixture) lsn(sql string) event.LSN {
	f.t.Helper()
	lsn, err := event.ParseLSN(f.scalar(sql))
	if err != nil {
		f.t.Fatal(err)
	}
	return lsn
}

// scalar runs a query of one text value.
func (f *fixture) scalar(sql string) string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var s string
	err := f.session(ctx).QueryRow(ctx, sql).Scan(&s)
	if err != nil && f.looks.IsClosed() {
		// The server was restarted since the last look.
		err = f.session(ctx).QueryRow(ctx, sql).Scan(&s)
	}
	if err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return s
}

// session is the one session of all looks, made again after the server has ended it.
func (f *fixture) session(ctx context.Context) *pgx.Conn {
	f.t.Helper()
	if f.looks != nil && !f.looks.IsClosed() {
		return f.looks
	}
	conn, err := pgx.Connect(ctx, f.db.DSN)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = conn.Close(ctx) // the server may be down by now
	})
	f.looks = conn
	return conn
}

// awaitConfirmed waits until the slot is confirmed up to at.
func (f *fixture) awaitConfirmed(at event.LSN) {
	f.t.Helper()
	testkit.Eventually(f.t, patience, func() error {
		if now := f.confirmed(); now < at {
			return fmt.Errorf("confirmed up to %s, want %s", now, at)
		}
		return nil
	})
}

// awaitRecords waits until the topic holds n records, and gives them.
func (f *fixture) awaitRecords(topic string, n int) []testkit.Record {
	f.t.Helper()
	testkit.Eventually(f.t, patience, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ends, err := f.broker.EndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		var have int64
		for _, end := range ends {
			have += end
		}
		if have < int64(n) {
			return fmt.Errorf("topic %s holds %d records, want %d", topic, have, n)
		}
		return nil
	})
	return f.broker.ReadAll(f.t, topic)
}

// values gives the records' values in order.
func values(records []testkit.Record) []string {
	var all []string
	for _, r := range records {
		all = append(all, string(r.Value))
	}
	return all
}
