package checkpoint_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

func TestStoreKeepsTheRow(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	store := s.store("host-a/1")
	if row, err := store.Load(t.Context()); row != nil || err != nil {
		t.Fatalf("row %+v, error %v before the first start", row, err)
	}
	w := s.stream(t)
	slot := s.slot(t)
	row := s.claimed(t, store, w)
	if row.Confirmed != slot.Confirmed || row.Holder != "host-a/1" || row.WalsenderPID != w.pid ||
		row.Slot != s.db.Slot || row.SystemID != s.sys.ID || row.Timeline != 1 || row.Idle || row.SlotBirth != 0 {
		t.Fatalf("claimed %+v, slot %+v", row, slot)
	}
	row.Confirmed += 0x100
	row.CommitTime = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	row.OldestUnconfirmed = row.CommitTime.Add(time.Second)
	row.Events, row.Idle, row.Snapshot = 1<<40, true, "10:20:12,14"
	if err := store.Save(t.Context(), row, w.pid); err != nil {
		t.Fatal(err)
	}
	got, err := store.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Confirmed != row.Confirmed || !got.CommitTime.Equal(row.CommitTime) || !got.OldestUnconfirmed.Equal(row.OldestUnconfirmed) ||
		got.Events != row.Events || !got.Idle || got.Snapshot != row.Snapshot || !got.UpdatedAt.After(row.UpdatedAt) {
		t.Fatalf("loaded %+v, saved %+v", got, row)
	}
	// Zero times and no snapshot are NULL, not a date.
	row.CommitTime, row.OldestUnconfirmed, row.Snapshot = time.Time{}, time.Time{}, ""
	if err := store.Save(t.Context(), row, w.pid); err != nil {
		t.Fatal(err)
	}
	if got, err = store.Load(t.Context()); err != nil || !got.CommitTime.IsZero() || !got.OldestUnconfirmed.IsZero() || got.Snapshot != "" {
		t.Fatalf("loaded %+v, error %v", got, err)
	}
	if audit := s.text(t, "SELECT string_agg(actor || ' ' || action || ' ' || (detail->>'why'), '; ') FROM postrider.audit"); !strings.HasPrefix(audit, "host-a/1 claim first start:") {
		t.Errorf("audit %q", audit)
	}
}

// rule 5, trap 20: the row is written only for the walsender that streams the slot
// now, and never backwards.
func TestSaveIsFenced(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := s.store("host-a/1")
	wa := s.stream(t)
	rowA := s.claimed(t, a, wa)
	forward := func(row checkpoint.Row, by event.LSN) checkpoint.Row {
		row.Confirmed += by
		return row
	}
	if err := a.Save(t.Context(), forward(rowA, 0x10), wa.pid); err != nil {
		t.Fatal(err)
	}
	fenced := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, checkpoint.ErrFenced) || operr.ClassOf(err) != operr.Slot || !operr.IsTransient(err) {
			t.Errorf("%s: error %v", what, err)
		}
	}
	fenced("backwards", a.Save(t.Context(), forward(rowA, 0xF), wa.pid))
	fenced("another pid", a.Save(t.Context(), forward(rowA, 0x20), wa.pid+1))
	otherTimeline := forward(rowA, 0x20)
	otherTimeline.Timeline = 2
	fenced("another timeline", a.Save(t.Context(), otherTimeline, wa.pid))
	otherSystem := forward(rowA, 0x20)
	otherSystem.SystemID = "1"
	fenced("another system", a.Save(t.Context(), otherSystem, wa.pid))

	wa.stop()
	s.freed(t)
	fenced("connection gone", a.Save(t.Context(), forward(rowA, 0x20), wa.pid))

	b := s.storeOn(s.db.Conn(t), "host-b/2")
	wb := s.stream(t)
	rowB := s.claimed(t, b, wb)
	if rowB.Confirmed != rowA.Confirmed+0x10 || rowB.Holder != "host-b/2" {
		t.Fatalf("took over %+v", rowB)
	}
	err := a.Save(t.Context(), forward(rowA, 0x20), wa.pid)
	fenced("taken over", err)
	if !strings.Contains(err.Error(), "host-b/2") {
		t.Errorf("error %q does not name the holder", err)
	}
	if err := b.Save(t.Context(), forward(rowB, 0x20), wb.pid); err != nil {
		t.Fatal(err)
	}
	if got := s.text(t, "SELECT confirmed_lsn FROM postrider.checkpoint"); got != (rowB.Confirmed + 0x20).String() {
		t.Errorf("row stands at %s", got)
	}
}

// rule 5: the write looked at the slot, then waited while another instance took over.
func TestSaveThatWaitedForATakeoverIsFenced(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := s.stream(t)
	row := s.claimed(t, s.store("host-a/1"), w)
	other := s.db.Conn(t)
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "UPDATE postrider.checkpoint SET walsender_pid = 1, holder = 'host-b/2'"); err != nil {
		t.Fatal(err)
	}
	writer := s.db.Conn(t)
	saved := make(chan error, 1)
	go func() { saved <- s.storeOn(writer, "host-a/1").Save(t.Context(), row, w.pid) }()
	testkit.EventuallyTrue(t, 10*time.Second, "the write waits for the row", func() bool {
		return s.text(t, "SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted", int32(writer.PgConn().PID())) == "1"
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-saved; !errors.Is(err, checkpoint.ErrFenced) {
		t.Fatalf("error %v", err)
	}
}

// rule 5: a claim holds for the row that was decided upon, and only for whoever
// streams the slot.
func TestClaimIsFenced(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	store := s.store("host-a/1")
	start := checkpoint.Start{Skip: s.slot(t).Confirmed, Timeline: 1}
	if _, err := store.Claim(t.Context(), nil, start, s.sys, 12345); !errors.Is(err, checkpoint.ErrFenced) {
		t.Fatalf("claimed without a stream: %v", err)
	}
	w := s.stream(t)
	first := s.claimed(t, store, w)
	if _, err := store.Claim(t.Context(), nil, start, s.sys, w.pid); !errors.Is(err, checkpoint.ErrFenced) {
		t.Fatalf("claimed as a first start over an existing row: %v", err)
	}
	moved := first
	moved.Confirmed += 0x10
	if err := store.Save(t.Context(), moved, w.pid); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Claim(t.Context(), &first, start, s.sys, w.pid); !errors.Is(err, checkpoint.ErrFenced) {
		t.Fatalf("claimed over a row that has moved: %v", err)
	}
	if n := s.text(t, "SELECT count(*) FROM postrider.audit"); n != "1" {
		t.Errorf("%s lines of audit, want that of the one claim", n)
	}
}

// rule 2: on another timeline the position may fall to the fork. rule 3: a start in
// doubt stays in doubt until it is settled.
func TestClaimOfADoubtfulStart(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	store := s.store("host-a/1")
	w := s.stream(t)
	row := s.claimed(t, store, w)
	row.Snapshot = "700:703:701"
	if err := store.Save(t.Context(), row, w.pid); err != nil {
		t.Fatal(err)
	}
	for _, fork := range []checkpoint.Start{
		{Skip: row.Confirmed - 0x10, Timeline: 2, Doubtful: true, Why: "promoted"},
		{Skip: row.Confirmed - 0x20, Timeline: 3, Parted: true, Why: "promoted past the row"},
	} {
		stored, err := store.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := store.Claim(t.Context(), stored, fork, s.sys, w.pid)
		if err != nil || got.Confirmed != fork.Skip || got.Timeline != fork.Timeline || !got.Idle {
			t.Fatalf("claimed %+v, error %v", got, err)
		}
		if dropped := got.Snapshot == ""; dropped != fork.Parted {
			t.Errorf("after a claim with Parted %t the snapshot is %q", fork.Parted, got.Snapshot)
		}
	}
}

// trap 10: one slot serves one publisher.
func TestSlotOfAnotherPublisher(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := s.stream(t)
	s.claimed(t, s.store("host-a/1"), w)
	other := checkpoint.NewStore(s.conn, checkpoint.StoreConfig{Publisher: "invoices", Slot: s.db.Slot, Holder: "host-b/2"})
	_, err := other.Claim(t.Context(), nil, checkpoint.Start{Skip: 1, Timeline: 1}, s.sys, w.pid)
	if operr.ClassOf(err) != operr.Slot || operr.HintOf(err) == "" || operr.IsTransient(err) {
		t.Fatalf("error %v, hint %q", err, operr.HintOf(err))
	}
}

// trap 10: setup knows where the slot was born. A slot made anew behind its back is
// noticed at the next start.
func TestRecreatedSlotIsNoticed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	store := s.store("setup")
	born := s.slot(t).Confirmed
	for range 2 {
		if err := store.Register(t.Context(), s.sys, born, "700:703:701"); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := store.Load(t.Context())
	if err != nil || stored.SlotBirth != born || stored.Confirmed != born || stored.BirthSnapshot != "700:703:701" {
		t.Fatalf("registered %+v, error %v", stored, err)
	}
	if _, err := checkpoint.Decide(stored, s.slot(t), s.sys, nil); err != nil {
		t.Fatalf("refused where nothing happened: %v", err)
	}
	s.exec(t, "INSERT INTO outbox VALUES (1)")
	s.exec(t, "SELECT pg_drop_replication_slot($1)", s.db.Slot)
	if _, err := checkpoint.Decide(stored, s.slot(t), s.sys, nil); operr.ClassOf(err) != operr.Slot {
		t.Fatalf("slot gone: error %v", err)
	}
	s.createSlot(t)
	_, err = checkpoint.Decide(stored, s.slot(t), s.sys, nil)
	if operr.ClassOf(err) != operr.Slot || !strings.Contains(err.Error(), "may be missing") {
		t.Fatalf("slot made anew: error %v", err)
	}
	// The remedy that is named works.
	if hint := operr.HintOf(err); !strings.Contains(hint, "postrider checkpoint accept") {
		t.Fatalf("hint %q", hint)
	}
	st, _, _ := s.standing(t)
	if _, err := s.desk().Accept(t.Context(), st, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, start, err := s.standing(t); err != nil || start.Skip != s.slot(t).Confirmed {
		t.Fatalf("start %+v, error %v after the remedy", start, err)
	}
}

// rule 5: a standby that is away does not hold up the row, and the setting ends with
// the transaction.
func TestSaveDoesNotWaitForAStandby(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.exec(t, `CREATE TABLE seen (setting text, timeout text)`)
	s.exec(t, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO seen VALUES (current_setting('synchronous_commit'), current_setting('statement_timeout')); RETURN NULL; END $$`)
	s.exec(t, `CREATE TRIGGER note AFTER UPDATE ON postrider.checkpoint FOR EACH ROW EXECUTE FUNCTION note()`)
	store := s.store("host-a/1")
	w := s.stream(t)
	row := s.claimed(t, store, w)
	if err := store.Save(t.Context(), row, w.pid); err != nil {
		t.Fatal(err)
	}
	if got := s.text(t, "SELECT string_agg(setting || ' ' || timeout, ', ') FROM seen"); got != "local 5s" {
		t.Errorf("the row was written with synchronous_commit and statement_timeout %s", got)
	}
	if got := s.text(t, "SELECT current_setting('synchronous_commit') || ' ' || current_setting('statement_timeout')"); got != "on 0" {
		t.Errorf("settings of the session after it: %s", got)
	}
}

// rule 5: a row that is locked by somebody does not hold the relay for ever.
func TestSaveTimesOut(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := s.stream(t)
	row := s.claimed(t, s.store("host-a/1"), w)
	blocker := s.db.Conn(t)
	tx, err := blocker.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM postrider.checkpoint FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	store := checkpoint.NewStore(s.conn, checkpoint.StoreConfig{
		Publisher: "orders", Slot: s.db.Slot, Holder: "host-a/1", StatementTimeout: time.Second,
	})
	err = store.Save(t.Context(), row, w.pid)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "57014" || !operr.IsTransient(err) || operr.ClassOf(err) != operr.Postgres {
		t.Fatalf("error %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(t.Context(), row, w.pid); err != nil {
		t.Fatalf("the connection does not serve any more: %v", err)
	}
}

// rule 1: what the server says at its shutdown reaches the caller as it is.
func TestSaveOnATerminatedSession(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := s.stream(t)
	held := s.db.Conn(t)
	store := s.storeOn(held, "host-a/1")
	row := s.claimed(t, store, w)
	s.exec(t, "SELECT pg_terminate_backend($1)", int32(held.PgConn().PID()))
	err := store.Save(t.Context(), row, w.pid)
	if err == nil || !operr.IsTransient(err) || operr.ClassOf(err) != operr.Postgres || errors.Is(err, checkpoint.ErrFenced) {
		t.Fatalf("error %v", err)
	}
}

func TestStoreWithoutSchema(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	_, err := checkpoint.NewStore(db.Conn(t), checkpoint.StoreConfig{Publisher: "orders", Slot: "s"}).Load(t.Context())
	if operr.ClassOf(err) != operr.Postgres || operr.IsTransient(err) || !strings.Contains(operr.HintOf(err), "postrider setup") {
		t.Fatalf("error %v, hint %q", err, operr.HintOf(err))
	}
}

// rule 4: what the snapshot sees lies before the tick's LSN, and a transaction that
// was open when it was taken is a suspect afterwards, savepoint or not.
func TestTakeTick(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	store := s.store("host-a/1")
	s.exec(t, "INSERT INTO outbox VALUES (1)")
	late := s.db.Conn(t)
	tx, err := late.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SAVEPOINT a; INSERT INTO outbox VALUES (2); RELEASE a; INSERT INTO outbox VALUES (3)"); err != nil {
		t.Fatal(err)
	}
	low := s.lsn(t, "SELECT pg_current_wal_insert_lsn()")
	tick, err := store.TakeTick(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if tick.LSN+40 < low {
		t.Errorf("tick at %s, the WAL was at %s before", tick.LSN, low)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.exec(t, "INSERT INTO outbox VALUES (4)")
	snapshot, err := checkpoint.ParseSnapshot(tick.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := s.conn.Query(t.Context(), "SELECT id, xmin::text::bigint FROM outbox ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	want := map[int]bool{1: true, 2: false, 3: false, 4: false}
	for rows.Next() {
		var id int
		var xmin int64
		if err := rows.Scan(&id, &xmin); err != nil {
			t.Fatal(err)
		}
		// Transactions of tests in other databases of the server may hold xmin back: then row 1 is a suspect too.
		if got := checkpoint.Covered(snapshot, uint32(xmin)); got != want[id] && !(id == 1 && snapshot.Xmin <= uint64(xmin)) {
			t.Errorf("row %d of transaction %d, snapshot %s: covered %t", id, xmin, tick.Snapshot, got)
		}
		delete(want, id)
	}
	if rows.Err() != nil || len(want) != 0 {
		t.Errorf("rows not seen: %v, error %v", want, rows.Err())
	}
}
