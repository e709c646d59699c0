package checkpoint_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is one test's database with the schema, a publication and a slot.
type server struct {
	db   *testkit.DB
	conn *pgx.Conn
	sys  checkpoint.System
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{db: testkit.Postgres(t)}
	if _, err := migrations.Apply(t.Context(), s.db.DSN); err != nil {
		t.Fatal(err)
	}
	s.conn = s.db.Conn(t)
	s.exec(t, "CREATE TABLE outbox (id int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())")
	s.exec(t, "CREATE PUBLICATION "+s.db.Publication+" FOR TABLE outbox WITH (publish = 'insert')")
	s.createSlot(t)
	sys, err := s.store("test").System(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.sys = sys
	return s
}

func (s *server) createSlot(t *testing.T) {
	t.Helper()
	s.exec(t, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", s.db.Slot)
}

func (s *server) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%v\nin %s", err, sql)
	}
}

func (s *server) text(t *testing.T, sql string, args ...any) string {
	t.Helper()
	var v string
	if err := s.conn.QueryRow(t.Context(), "SELECT ("+sql+")::text", args...).Scan(&v); err != nil {
		t.Fatalf("%v\nin %s", err, sql)
	}
	return v
}

func (s *server) lsn(t *testing.T, sql string, args ...any) event.LSN {
	t.Helper()
	lsn, err := event.ParseLSN(s.text(t, sql, args...))
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

func (s *server) store(holder string) *checkpoint.Store { return s.storeOn(s.conn, holder) }

func (s *server) storeOn(conn *pgx.Conn, holder string) *checkpoint.Store {
	return checkpoint.NewStore(conn, checkpoint.StoreConfig{Publisher: "orders", Slot: s.db.Slot, Holder: holder})
}

func (s *server) slot(t *testing.T) checkpoint.SlotState {
	t.Helper()
	state := checkpoint.SlotState{Name: s.db.Slot}
	var confirmed, restart string
	err := s.conn.QueryRow(t.Context(), `SELECT true, confirmed_flush_lsn::text, coalesce(restart_lsn, '0/0')::text, wal_status
		FROM pg_replication_slots WHERE slot_name = $1`, s.db.Slot).Scan(&state.Exists, &confirmed, &restart, &state.WALStatus)
	if errors.Is(err, pgx.ErrNoRows) {
		return state
	}
	if err != nil {
		t.Fatal(err)
	}
	state.Confirmed, err = event.ParseLSN(confirmed)
	if err == nil {
		state.Restart, err = event.ParseLSN(restart)
	}
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// walsender is a replication connection that streams the slot.
type walsender struct {
	conn *pgconn.PgConn
	pid  uint32
}

// stream starts one; pid is the server process behind it.
func (s *server) stream(t *testing.T) *walsender {
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
	w := &walsender{conn: conn, pid: conn.PID()}
	t.Cleanup(w.stop)
	testkit.Eventually(t, 10*time.Second, func() error {
		return pglogrepl.StartReplication(t.Context(), conn, s.db.Slot, 0, pglogrepl.StartReplicationOptions{
			PluginArgs: []string{"proto_version '1'", "publication_names '" + s.db.Publication + "'"},
		})
	})
	return w
}

func (w *walsender) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = w.conn.Close(ctx)
}

// confirm tells the slot a position, as a relay does after the row is written.
func (s *server) confirm(t *testing.T, w *walsender, lsn event.LSN) {
	t.Helper()
	at := pglogrepl.LSN(lsn)
	err := pglogrepl.SendStandbyStatusUpdate(t.Context(), w.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: at, WALFlushPosition: at, WALApplyPosition: at,
	})
	if err != nil {
		t.Fatal(err)
	}
	testkit.EventuallyTrue(t, 10*time.Second, "the slot stands at "+lsn.String(), func() bool { return s.slot(t).Confirmed >= lsn })
}

// freed waits until no process streams the slot.
func (s *server) freed(t *testing.T) {
	t.Helper()
	testkit.EventuallyTrue(t, 10*time.Second, "the slot is free", func() bool {
		return s.text(t, "SELECT NOT active FROM pg_replication_slots WHERE slot_name = $1", s.db.Slot) == "true"
	})
}

// claimed starts a stream and claims the row as a relay does.
func (s *server) claimed(t *testing.T, store *checkpoint.Store, w *walsender) checkpoint.Row {
	t.Helper()
	stored, err := store.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	start, err := checkpoint.Decide(stored, s.slot(t), s.sys, nil)
	if err != nil {
		t.Fatal(err)
	}
	row, err := store.Claim(t.Context(), stored, start, s.sys, w.pid)
	if err != nil {
		t.Fatal(err)
	}
	return row
}
