package parking_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/parking"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// server is one test's database with the schema, and a slot that is streamed.
type server struct {
	db     *testkit.DB
	conn   *pgx.Conn
	sender *pgconn.PgConn
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{db: testkit.Postgres(t)}
	if _, err := migrations.Apply(t.Context(), s.db.DSN); err != nil {
		t.Fatal(err)
	}
	s.conn = s.db.Conn(t)
	s.exec(t, "CREATE PUBLICATION "+s.db.Publication)
	s.exec(t, "SELECT pg_create_logical_replication_slot('"+s.db.Slot+"', 'pgoutput')")
	s.sender = s.stream(t)
	return s
}

func (s *server) stream(t *testing.T) *pgconn.PgConn {
	t.Helper()
	dsn, err := url.Parse(s.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	q := dsn.Query()
	q.Set("replication", "database")
	dsn.RawQuery = q.Encode()
	conn, err := pgconn.Connect(t.Context(), dsn.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeConn(conn) })
	testkit.Eventually(t, patience, func() error {
		return pglogrepl.StartReplication(t.Context(), conn, s.db.Slot, 0, pglogrepl.StartReplicationOptions{
			PluginArgs: []string{"proto_version '1'", "publication_names '" + s.db.Publication + "'"},
		})
	})
	return conn
}

func closeConn(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = conn.Close(ctx)
}

// store is a relay's, behind the stream.
func (s *server) store(change ...func(*parking.Config)) *parking.Store {
	cfg := parking.Config{
		Publisher: "orders", Slot: s.db.Slot, SystemID: "7", Timeline: 1, Holder: "host-a/1", WalsenderPID: s.sender.PID(),
	}
	for _, c := range change {
		c(&cfg)
	}
	return parking.NewStore(s.conn, cfg)
}

func (s *server) desk() *parking.Desk { return parking.NewDesk(s.conn, "orders", "anna") }

func (s *server) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%v\nin %s", err, sql)
	}
}

func (s *server) text(t *testing.T, sql string, args ...any) string {
	t.Helper()
	var v *string
	if err := s.conn.QueryRow(t.Context(), "SELECT ("+sql+")::text", args...).Scan(&v); err != nil {
		t.Fatalf("%v\nin %s", err, sql)
	}
	if v == nil {
		return ""
	}
	return *v
}

// states is the state of all rows in order of position.
func (s *server) states(t *testing.T) string {
	t.Helper()
	return s.text(t, "SELECT string_agg(state, ' ' ORDER BY commit_lsn, event_index) FROM postrider.parked")
}

func (s *server) park(t *testing.T, events ...*parking.Event) {
	t.Helper()
	if err := s.store().Park(t.Context(), events); err != nil {
		t.Fatal(err)
	}
}

// ids are the numbers of all rows in order of position.
func (s *server) ids(t *testing.T) []int64 {
	t.Helper()
	rows, err := s.conn.Query(t.Context(), "SELECT id FROM postrider.parked ORDER BY commit_lsn, event_index")
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// parkedEvent is event n of a key; an empty key makes one that holds nothing.
func parkedEvent(key string, n int, reason event.Reason) *parking.Event {
	e := &parking.Event{
		Message: event.Message{
			Topic: "t", EventID: []byte(fmt.Sprintf("%s-%d", key, n)), Key: []byte(key), Value: []byte(fmt.Sprint(n)),
			Headers:         []event.Header{{Name: "id", Value: []byte("x")}, {Name: "empty", Value: []byte{}}, {Name: "null"}},
			TimestampMillis: 1700000000123, Partition: event.NoPartition,
			Position:      event.Position{Commit: event.LSN(0x1000 + n), Index: 3},
			AggregateType: []byte("order"), EventType: []byte("Paid"), AggregateVersion: []byte("7"),
		},
		CommitTime: time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC), Reason: reason, Error: "why", Attempts: 1, SourceTable: "public.outbox",
	}
	if key != "" {
		u := parking.UnitOf("t", []byte(key))
		e.Unit = &u
	}
	return e
}
