package replication

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// rule 1, case C27 (c): with an unconfirmed event the walsender of a server that stops
// keeps asking; the stream says so, and the server can stop once we are gone.
func TestServerCanStop(t *testing.T) {
	t.Parallel()
	srv, db := privateDB(t, nil)
	db.Exec(t, "CREATE TABLE outbox(id text)")
	publish(t, db, "outbox")
	s := streamFrom(t, db, db.DSN)
	db.Exec(t, "INSERT INTO outbox VALUES ('unconfirmed')")
	s.h.rowsOf(t, 1)
	stopped := make(chan error, 1)
	began := time.Now()
	go func() { stopped <- srv.Halt(devstack.Fast) }()
	err := await(t, "end of the stream", s.result)
	wantErr(t, err, ErrServerShutdown)
	if !operr.IsTransient(err) {
		t.Fatal("must be transient")
	}
	s.stop()
	if err := await(t, "stop of the server", stopped); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Fatalf("the stop took %s", took)
	}
	if err := srv.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	again := streamFrom(t, db, db.DSN)
	if rows := again.h.rowsOf(t, 1); rows[0]["id"] != "unconfirmed" {
		t.Fatalf("after the restart: %v", rows)
	}
}

// case C27 (b): a caught-up stream does not hold the server up at all.
func TestServerStopsUnderACaughtUpStream(t *testing.T) {
	t.Parallel()
	srv, db := privateDB(t, nil)
	db.Exec(t, "CREATE TABLE outbox(id text)")
	publish(t, db, "outbox")
	s := streamFrom(t, db, db.DSN, confirming)
	db.Exec(t, "INSERT INTO outbox VALUES ('a')")
	s.h.rowsOf(t, 1)
	began := time.Now()
	if err := srv.Halt(devstack.Fast); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Fatalf("the stop took %s", took)
	}
	wantErr(t, await(t, "end of the stream", s.result), ErrServerShutdown)
}

// trap 9: an immediate stop is a lost connection or an administrator's word; either heals.
func TestImmediateStopIsTransient(t *testing.T) {
	t.Parallel()
	srv, db := privateDB(t, nil)
	db.Exec(t, "CREATE TABLE outbox(id text)")
	publish(t, db, "outbox")
	s := streamFrom(t, db, db.DSN, confirming)
	if err := srv.Halt(devstack.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := await(t, "end of the stream", s.result); !operr.IsTransient(err) {
		t.Fatal(err)
	}
	_, err := Connect(within(t), Config{ConnString: db.DSN, Slot: db.Slot, Publications: []string{db.Publication}})
	if !operr.IsTransient(err) {
		t.Fatalf("connecting to a server that is down: %v", err)
	}
}

// case C29, trap 6: reading stands still for several wal_sender_timeouts and more data
// waits than the sockets hold; the connection stays, and the rows come once. The
// server's own tcp_user_timeout would reset it: the kernel counts a full window as
// unacknowledged data (rule 8 wants the parameter sent; sent it must be, as 0).
func TestStallLongerThanSenderTimeout(t *testing.T) {
	t.Parallel()
	srv, db := privateDB(t, map[string]string{"wal_sender_timeout": "1s", "tcp_user_timeout": "1s"})
	db.Exec(t, "CREATE TABLE outbox(id text)")
	publish(t, db, "outbox")
	release := make(chan struct{})
	first := true
	s := streamFrom(t, db, db.DSN, func(p *pgStream) {
		p.h.onInsert = func(*event.Row) error {
			if first {
				first = false
				<-release
			}
			return nil
		}
	})
	db.Exec(t, "INSERT INTO outbox SELECT repeat('x', 5000) FROM generate_series(1, 5000)")
	s.h.rowsOf(t, 1)
	stall := time.NewTimer(6 * time.Second)
	defer stall.Stop()
	select {
	case err := <-s.result:
		t.Fatalf("the stream ended: %v", err)
	case <-s.Lost():
		t.Fatal("the connection was lost")
	case <-stall.C:
	}
	close(release)
	s.h.rowsOf(t, 5000)
	log, err := os.ReadFile(srv.LogFile())
	if err != nil || strings.Contains(string(log), "terminating walsender process due to replication timeout") {
		t.Fatalf("the server's log tells of a time-out (%v)", err)
	}
}

// trap 6: whoever holds the slot and does not read yet, for longer than
// wal_sender_timeout, keeps it; Run goes on from there, and Close works without it.
func TestHoldBeforeRun(t *testing.T) {
	t.Parallel()
	_, db := privateDB(t, map[string]string{"wal_sender_timeout": "1s"})
	db.Exec(t, "CREATE TABLE outbox(id text)")
	publish(t, db, "outbox")
	hold := func(p *pgStream) {
		slot, err := ReadSlot(within(t), db.Conn(t), db.Slot)
		if err == nil {
			err = p.Hold(slot.ConfirmedFlush)
		}
		if err != nil {
			t.Error(err)
		}
		if p.Hold(slot.ConfirmedFlush) == nil {
			t.Error("held twice")
		}
	}
	answers := func(*pgStream) { // while nobody reads, for longer than the timeout
		conn := db.Conn(t)
		testkit.Eventually(t, patience, func() error {
			var held bool
			err := conn.QueryRow(within(t), `SELECT r.reply_time > r.backend_start + interval '3 seconds'
				FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = $1`, db.Slot).Scan(&held)
			if err == nil && !held {
				err = errors.New("the last status is not young enough yet")
			}
			return err
		})
	}
	s := streamFrom(t, db, db.DSN, hold, answers)
	db.Exec(t, "INSERT INTO outbox VALUES ('a')")
	s.h.rowsOf(t, 1)
	s.stop()
	again, err := Connect(within(t), Config{ConnString: db.DSN, Slot: db.Slot, Publications: []string{db.Publication}})
	if err != nil {
		t.Fatal(err)
	}
	p := &pgStream{}
	testkit.Eventually(t, patience, func() error { p.Stream, err = again.Start(within(t)); return err })
	hold(p)
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
}

// rule 8: while the server decodes a large foreign transaction it is silent for longer
// than wal_sender_timeout, or nearly; the connection stays.
func TestSilentDecoding(t *testing.T) {
	t.Parallel()
	_, db := privateDB(t, map[string]string{"wal_sender_timeout": "500ms"})
	db.Exec(t, "CREATE TABLE outbox(id text); CREATE TABLE foreign_table(x text)")
	publish(t, db, "outbox")
	asked := make(chan struct{}, 1000)
	s, err := Connect(within(t), Config{ConnString: db.DSN, Slot: db.Slot, Publications: []string{db.Publication}})
	if err != nil {
		t.Fatal(err)
	}
	pid, conn := s.BackendPID(), db.Conn(t)
	s.cfg.StillOurs = func(ctx context.Context) (bool, error) {
		asked <- struct{}{}
		slot, err := ReadSlot(ctx, conn, db.Slot)
		return slot.ActivePID == pid, err
	}
	db.Exec(t, "INSERT INTO foreign_table SELECT repeat('x', 100) FROM generate_series(1, 300000)")
	db.Exec(t, "INSERT INTO outbox VALUES ('after')")
	st, err := s.Start(within(t))
	if err != nil {
		t.Fatal(err)
	}
	h, result := newRecorder(), make(chan error, 1)
	slot, err := ReadSlot(within(t), conn, db.Slot)
	if err != nil {
		t.Fatal(err)
	}
	go func() { result <- st.Run(within(t), slot.ConfirmedFlush, h) }()
	defer func() { _ = st.Close(within(t)) }()
	h.until(t, "the row behind it", func() bool { return len(h.rows) == 1 })
	t.Logf("asked %d times whether the slot is still ours", len(asked))
}

// rule 7, case C34 (b): a publication that is dropped under the stream: this version's
// own answer, beside the catalog watch.
func TestPublicationDroppedUnderTheStream(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, "CREATE TABLE outbox(id text)")
	publish(t, db, "outbox")
	s := streamFrom(t, db, db.DSN)
	db.Exec(t, "INSERT INTO outbox VALUES ('before')")
	s.h.rowsOf(t, 1)
	db.Exec(t, fmt.Sprintf("DROP PUBLICATION %s", db.Publication))
	db.Exec(t, "INSERT INTO outbox VALUES ('unseen')")
	err := await(t, "end of the stream", s.result)
	if operr.IsTransient(err) || operr.HintOf(err) != hintPublication {
		t.Fatalf("%v, hint %q", err, operr.HintOf(err))
	}
}
