package backfill

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every single wait.
const patience = 30 * time.Second

const table = `CREATE TABLE outbox(id text, key text, payload jsonb, done_at timestamptz)`

// fixture is an outbox with rows in it, before anything was set up.
type fixture struct {
	t      *testing.T
	db     *testkit.DB
	broker *testkit.Broker
	topic  string
	cfg    Config
}

func newFixture(t *testing.T, rows ...string) *fixture {
	t.Helper()
	f := &fixture{t: t, db: testkit.Postgres(t), broker: testkit.Kafka(t)}
	f.topic = f.broker.NewTopic(t, 1, nil)
	f.db.Exec(t, table)
	f.insert(rows...)
	_, err := migrations.Apply(t.Context(), f.db.DSN)
	must(t, err)
	f.db.Exec(t, "CREATE PUBLICATION "+f.db.Publication+" FOR TABLE outbox WITH (publish = 'insert')")
	f.cfg = Config{
		Publisher:   "test",
		Replication: replication.Config{ConnString: f.db.DSN, Slot: f.db.Slot, Publications: []string{f.db.Publication}},
		Router: router.Config{Sources: []router.Source{{
			Schema: "public", Table: "outbox", Mapping: router.Mapping{EventID: "id", Key: "key", Payload: "payload"},
			Routes: []router.Route{{Topic: f.topic}}, OnRefusal: router.OnRefusalHalt,
		}}},
		Kafka: publisher.Config{Brokers: f.broker.Bootstrap()},
		Actor: "tester@here",
		Say:   t.Logf,
	}
	return f
}

// insert commits each "id key payload" in a transaction of its own.
func (f *fixture) insert(rows ...string) {
	f.t.Helper()
	for _, row := range rows {
		v := strings.Fields(row)
		payload := "'" + v[2] + "'"
		if v[2] == "null" {
			payload = "NULL"
		}
		f.db.Exec(f.t, fmt.Sprintf("INSERT INTO outbox VALUES ('%s', '%s', %s)", v[0], v[1], payload))
	}
}

// setup makes the slot as the command of this name does.
func (f *fixture) setup() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	conn, err := replication.ConnectSQL(ctx, f.db.DSN, "setup")
	must(f.t, err)
	defer conn.Close(ctx)
	slot, err := replication.CreateSlot(ctx, conn, replication.SlotSpec{ConnString: f.db.DSN, Slot: f.db.Slot, Limit: patience})
	must(f.t, err)
	store := checkpoint.NewStore(conn, checkpoint.StoreConfig{Publisher: "test", Slot: f.db.Slot, Holder: "test"})
	sys, err := store.System(ctx)
	must(f.t, err)
	must(f.t, store.Register(ctx, sys, slot.ConsistentPoint, slot.Snapshot))
}

// open opens a backfill under a changed configuration.
func (f *fixture) open(change ...func(*Config)) *Backfill {
	f.t.Helper()
	cfg := f.cfg
	for _, c := range change {
		c(&cfg)
	}
	b, err := Open(f.t.Context(), cfg)
	must(f.t, err)
	f.t.Cleanup(func() { b.Close(context.Background()) })
	return b
}

// start runs a backfill and closes its sessions.
func (f *fixture) start(change ...func(*Config)) (Outcome, error) {
	f.t.Helper()
	b := f.open(change...)
	defer b.Close(f.t.Context())
	return b.Start(f.t.Context())
}

func (f *fixture) resume(change ...func(*Config)) (Outcome, error) {
	f.t.Helper()
	b := f.open(change...)
	defer b.Close(f.t.Context())
	return b.Resume(f.t.Context())
}

// run runs a relay until all that is committed now is published.
func (f *fixture) run() error {
	f.t.Helper()
	r, err := relay.New(f.relay())
	must(f.t, err)
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	return r.Run(ctx)
}

func (f *fixture) relay() relay.Config {
	return relay.Config{
		Publisher: "test", Replication: f.cfg.Replication, Router: f.cfg.Router, Kafka: f.cfg.Kafka, Until: relay.Until{Now: true},
		Log: zerolog.New(zerolog.NewTestWriter(f.t)), Registerer: prometheus.NewRegistry(),
	}
}

// requireTopic compares "id payload", with + where the record is marked.
func (f *fixture) requireTopic(want ...string) {
	f.t.Helper()
	var got []string
	for _, r := range f.broker.ReadAll(f.t, f.topic) {
		id, _ := r.Header("id")
		text := string(id) + " " + string(r.Value)
		if _, marked := r.Header("postrider-backfilled"); marked {
			text = "+" + text
		}
		got = append(got, text)
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		f.t.Errorf("the topic holds %q, want %q", got, want)
	}
}

func (f *fixture) scalar(sql string) (s string) {
	f.t.Helper()
	must(f.t, f.db.Conn(f.t).QueryRow(f.t.Context(), sql).Scan(&s))
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// requireRefused: err is of the class, says the parts, and its hint names what to do.
func requireRefused(t *testing.T, err error, class operr.Class, hint string, parts ...string) {
	t.Helper()
	var known *operr.Error
	if !errors.As(err, &known) || operr.ClassOf(err) != class || !strings.Contains(operr.HintOf(err), hint) {
		t.Fatalf("%v (class %d, hint %q), want class %d and a hint with %q", err, operr.ClassOf(err), operr.HintOf(err), class, hint)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
}

// holdSlot streams from the slot until the returned function is called.
func holdSlot(f *fixture) (release func()) {
	f.t.Helper()
	s, err := replication.Connect(f.t.Context(), f.cfg.Replication)
	must(f.t, err)
	stream, err := s.Start(f.t.Context())
	must(f.t, err)
	return func() { _ = stream.Close(context.Background()) }
}

// begin opens a transaction of the test's own, and gives what runs in it, and its id.
func (f *fixture) begin() (exec func(sql string), xid string) {
	f.t.Helper()
	conn := f.db.Conn(f.t)
	exec = func(sql string) {
		f.t.Helper()
		_, err := conn.Exec(f.t.Context(), sql)
		must(f.t, err)
	}
	exec("BEGIN")
	must(f.t, conn.QueryRow(f.t.Context(), "SELECT pg_current_xact_id()::text").Scan(&xid))
	return exec, xid
}

// awaitWaiter waits until some backend waits for the transaction's end.
func (f *fixture) awaitWaiter(xid string) {
	f.t.Helper()
	conn := f.db.Conn(f.t)
	testkit.Eventually(f.t, patience, func() error {
		var n int
		err := conn.QueryRow(f.t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid::text = $1", xid).Scan(&n)
		if err == nil && n == 0 {
			err = errors.New("nobody waits for transaction " + xid)
		}
		return err
	})
}
