package reconcile

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/router"
)

const patience = 60 * time.Second

// fixture is a table, a topic, and a producer that is not ours.
type fixture struct {
	t      *testing.T
	db     *testkit.DB
	conn   *pgx.Conn
	broker *testkit.Broker
	client *kgo.Client
	topic  string
	cfg    Config
}

func newFixture(t *testing.T, broker *testkit.Broker, configs map[string]string) *fixture {
	t.Helper()
	return newFixtureOn(t, testkit.Postgres(t), broker, configs)
}

func newFixtureOn(t *testing.T, db *testkit.DB, broker *testkit.Broker, configs map[string]string) *fixture {
	t.Helper()
	f := &fixture{t: t, db: db, broker: broker, topic: broker.NewTopic(t, 4, configs)}
	f.client = broker.Client(t, kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if _, err := migrations.Apply(f.ctx(), f.db.DSN); err != nil {
		t.Fatal(err)
	}
	f.conn = f.db.Conn(t)
	f.exec(`CREATE TABLE outbox (id text PRIMARY KEY, kind text, key text, type text, version int, at timestamptz DEFAULT clock_timestamp(), payload text)`)
	f.exec(`CREATE PUBLICATION ` + pgx.Identifier{f.db.Publication}.Sanitize() + ` FOR TABLE outbox WITH (publish = 'insert')`)
	f.cfg = Config{
		ConnString: f.db.DSN, AppName: "test", Publisher: "test", Slot: f.db.Slot, Actor: "tester", Publications: []string{f.db.Publication},
		Kafka: publisher.Config{Brokers: broker.Bootstrap()},
		Router: router.Config{Sources: []router.Source{{
			Schema: "public", Table: "outbox",
			Mapping: router.Mapping{
				EventID: "id", Key: "key", Payload: "payload", AggregateType: "kind", EventType: "type", AggregateVersion: "version",
				Timestamp: router.Timestamp{Column: "at"},
			},
			Routes: []router.Route{{Topic: f.topic}},
		}}},
	}
	return f
}

func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.conn.Exec(f.ctx(), sql, args...); err != nil {
		f.t.Fatalf("%v\nin %s", err, sql)
	}
}

// insert makes rows from to until, e0, e1, …, each in a transaction of its own key by key.
func (f *fixture) insert(from, until int) {
	f.t.Helper()
	f.exec(`INSERT INTO outbox (id, kind, key, type, version, payload)
		SELECT 'e' || n, 'order', 'k' || n % 20, 'Placed', n / 20, '{"n": ' || n || '}' FROM generate_series($1::int, $2::int - 1) n`, from, until)
}

// cover writes a checkpoint that covers all rows that are visible now. Transactions of
// other tests hold back what a snapshot covers.
func (f *fixture) cover() {
	f.t.Helper()
	testkit.EventuallyTrue(f.t, patience, "older transactions have ended", func() (ended bool) {
		if err := f.conn.QueryRow(f.ctx(), `SELECT coalesce(bool_and(xmin::text::bigint < pg_snapshot_xmin(pg_current_snapshot())::text::bigint), true) FROM outbox`).Scan(&ended); err != nil {
			f.t.Fatal(err)
		}
		return ended
	})
	f.exec(`INSERT INTO postrider.checkpoint (publisher, slot, system_id, timeline, confirmed_lsn, snapshot)
		SELECT 'test', $1, system_identifier::text, ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int, pg_current_wal_insert_lsn(), pg_current_snapshot()
		  FROM pg_control_system()
		ON CONFLICT (publisher) DO UPDATE SET snapshot = EXCLUDED.snapshot, confirmed_lsn = EXCLUDED.confirmed_lsn`, f.db.Slot)
}

// records are the rows as they should be published, in the order of their numbers.
func (f *fixture) records(where string) (list []*kgo.Record) {
	f.t.Helper()
	r, err := outbox.Open(f.ctx(), outbox.Config{ConnString: f.db.DSN, AppName: "test", Publications: []string{f.db.Publication}, Router: f.cfg.Router})
	if err != nil {
		f.t.Fatal(err)
	}
	defer r.Close(f.ctx())
	var ids []string
	rows, err := f.conn.Query(f.ctx(), `SELECT id FROM outbox WHERE `+where+` ORDER BY substr(id, 2)::int`)
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		f.t.Fatal(err)
	}
	byID := map[string]*kgo.Record{}
	if err := r.Rows(f.ctx(), outbox.Selection{}, func(row *outbox.Row) error {
		m := row.Message
		rec := &kgo.Record{Topic: m.Topic, Key: bytes.Clone(m.Key), Value: bytes.Clone(m.Value), Timestamp: time.UnixMilli(m.TimestampMillis)}
		for _, h := range m.Headers {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Name, Value: bytes.Clone(h.Value)})
		}
		byID[string(m.EventID)] = rec
		return nil
	}); err != nil {
		f.t.Fatal(err)
	}
	for _, id := range ids {
		list = append(list, byID[id])
	}
	return list
}

// produce sends records in order.
func (f *fixture) produce(list ...*kgo.Record) {
	f.t.Helper()
	if err := f.client.ProduceSync(f.ctx(), list...).FirstErr(); err != nil {
		f.t.Fatalf("produce: %v", err)
	}
}

// again is a copy of a record, with further headers.
func again(rec *kgo.Record, headers ...string) *kgo.Record {
	c := &kgo.Record{Topic: rec.Topic, Key: rec.Key, Value: rec.Value, Headers: slices.Clone(rec.Headers), Timestamp: rec.Timestamp}
	for _, name := range headers {
		c.Headers = append(c.Headers, kgo.RecordHeader{Key: name, Value: []byte("7")})
	}
	return c
}

func (f *fixture) run(o Options) *Result {
	f.t.Helper()
	result, err := Run(f.ctx(), f.cfg, o)
	if err != nil {
		f.t.Fatal(err)
	}
	return result
}

func (f *fixture) park(id, topic, state string) {
	f.t.Helper()
	f.exec(`INSERT INTO postrider.parked (publisher, slot, system_id, timeline, commit_lsn, event_index, state, reason, event_id, topic)
		VALUES ('test', 'slot', '1', 1, pg_current_wal_insert_lsn(), $1::int, $2, 'too_large', $3, $4)`, len(id)*1000+int(time.Now().UnixNano()%1000000), state, id, topic)
}

// ids are the event ids of findings, sorted.
func ids(list []Finding) (s []string) {
	for _, f := range list {
		s = append(s, f.EventID)
	}
	slices.Sort(s)
	return s
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
