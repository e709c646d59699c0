package replication

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/testkit"
)

func currentLSN(t *testing.T, db *testkit.DB) event.LSN {
	t.Helper()
	var text string
	if err := db.Conn(t).QueryRow(within(t), "SELECT pg_current_wal_insert_lsn()::text").Scan(&text); err != nil {
		t.Fatal(err)
	}
	lsn, err := event.ParseLSN(text)
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

// confirmedReaches waits until the slot is confirmed up to lsn.
func confirmedReaches(t *testing.T, db *testkit.DB, lsn event.LSN) {
	t.Helper()
	conn := db.Conn(t)
	testkit.Eventually(t, patience, func() error {
		slot, err := ReadSlot(within(t), conn, db.Slot)
		if err == nil && slot.ConfirmedFlush < lsn {
			err = fmt.Errorf("confirmed_flush_lsn is %s, not yet %s", slot.ConfirmedFlush, lsn)
		}
		return err
	})
}

// case C23, trap 1, trap 7: after a clean stop nothing is sent again; a transaction
// whose commit LSN equals the end LSN that was confirmed is not skipped.
func TestConfirmedEndIsExact(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, "CREATE TABLE outbox(id text)")
	publish(t, db, "outbox")
	s := streamFrom(t, db, db.DSN)
	t1 := db.Conn(t)
	if _, err := t1.Exec(within(t), "BEGIN; INSERT INTO outbox VALUES ('t1')"); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, "INSERT INTO outbox VALUES ('t2')")
	if _, err := t1.Exec(within(t), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	ends := s.h.commits(t, 2)
	s.Confirm(ends[0])
	s.stop()
	confirmedReaches(t, db, ends[0])

	again := streamFrom(t, db, db.DSN)
	if rows := again.h.rowsOf(t, 1); rows[0]["id"] != "t1" {
		t.Fatalf("after confirming t2's end the stream begins with %v", rows)
	}
	again.Confirm(again.h.commits(t, 1)[0])
	again.stop()

	third := streamFrom(t, db, db.DSN)
	db.Exec(t, "INSERT INTO outbox VALUES ('t3')")
	if rows := third.h.rowsOf(t, 1); rows[0]["id"] != "t3" || len(rows) != 1 {
		t.Fatalf("after a clean stop the stream begins with %v", rows)
	}
}

// trap 21, case C30: a second stream waits, is told who holds the slot, and takes over
// when the holder is gone, however it went.
func TestTakeover(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, "CREATE TABLE outbox(id text)")
	publish(t, db, "outbox")
	first := streamFrom(t, db, db.DSN)
	second, err := Connect(within(t), Config{ConnString: db.DSN, Slot: db.Slot, Publications: []string{db.Publication}})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close(context.Background())
	_, err = second.Start(within(t))
	var busy *SlotBusyError
	slot, _ := ReadSlot(within(t), db.Conn(t), db.Slot)
	if !errors.As(err, &busy) || busy.PID == 0 || busy.PID != slot.ActivePID {
		t.Fatalf("got %v while %d holds the slot", err, slot.ActivePID)
	}
	_ = first.conn.Close() // as a killed process leaves it
	testkit.Eventually(t, patience, func() error {
		st, err := second.Start(within(t))
		if err == nil {
			_ = st.Close(within(t))
		}
		return err
	})
}

// case C27: event-free WAL is confirmed from keepalives alone; and the last
// activity moves while nothing happens.
func TestIdleStreamConfirmsForeignWAL(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, "CREATE TABLE outbox(id text); CREATE TABLE other(x text)")
	publish(t, db, "outbox")
	streamFrom(t, db, db.DSN+"&wal_sender_timeout=2s", confirming)
	db.Exec(t, "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
	confirmedReaches(t, db, currentLSN(t, db))
}
