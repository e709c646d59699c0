package checkpoint_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// The JSON of "checkpoint show" is a contract.
func TestStatus(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	read := func() (checkpoint.Status, map[string]any) {
		t.Helper()
		st, err := checkpoint.ReadStatus(t.Context(), s.conn, "orders", s.db.Slot)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(st)
		if err != nil {
			t.Fatal(err)
		}
		fields := map[string]any{}
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatal(err)
		}
		return st, fields
	}
	before, fields := read()
	if before.Stored != nil || !before.SlotExists || before.SlotActive || before.Holding || before.OldestUnconfirmedSeconds != nil {
		t.Errorf("before the first start: %+v", before)
	}
	if v, ok := fields["stored_lsn"]; !ok || v != nil {
		t.Errorf("stored_lsn is %v, want null", v)
	}

	w := s.stream(t)
	store := s.store("host-a/1")
	row := s.claimed(t, store, w)
	row.Events, row.CommitTime, row.OldestUnconfirmed = 12, noon, time.Now().Add(-time.Minute)
	if err := store.Save(t.Context(), row, w.pid); err != nil {
		t.Fatal(err)
	}
	s.exec(t, "INSERT INTO outbox SELECT generate_series(1, 1000)")
	st, fields := read()
	if st.Stored == nil || *st.Stored != row.Confirmed.String() || st.Confirmed == nil || st.Restart == nil || st.Current == "" {
		t.Errorf("positions: %+v", st)
	}
	if st.BytesBehind == nil || *st.BytesBehind < 1000*30 || st.BytesHeld == nil || *st.BytesHeld < *st.BytesBehind {
		t.Errorf("bytes behind %v, held %v", st.BytesBehind, st.BytesHeld)
	}
	if !st.SlotActive || !st.Holding || st.Holder != "host-a/1" || st.WALStatus != "reserved" || st.EventsPublished != 12 {
		t.Errorf("holder: %+v", st)
	}
	if st.OldestUnconfirmedSeconds == nil || *st.OldestUnconfirmedSeconds < 59 || *st.OldestUnconfirmedSeconds > 120 {
		t.Errorf("age %v, want about a minute", st.OldestUnconfirmedSeconds)
	}
	for _, name := range []string{
		"publisher", "slot", "slot_exists", "slot_active", "wal_status", "safe_wal_size", "stored_lsn", "confirmed_lsn",
		"restart_lsn", "current_lsn", "bytes_behind", "bytes_held", "oldest_unconfirmed_at", "oldest_unconfirmed_seconds",
		"idle", "commit_time", "events_published", "system_id", "timeline", "holder", "holding", "walsender_pid", "updated_at", "paused_at",
	} {
		if _, ok := fields[name]; !ok {
			t.Errorf("field %s is missing", name)
		}
		delete(fields, name)
	}
	if len(fields) > 0 {
		t.Errorf("fields that the contract does not name: %v", fields)
	}

	w.stop()
	s.freed(t)
	s.exec(t, "SELECT pg_drop_replication_slot($1)", s.db.Slot)
	if gone, _ := read(); gone.SlotExists || gone.Confirmed != nil || gone.BytesBehind != nil || gone.Holding || gone.Stored == nil {
		t.Errorf("without the slot: %+v", gone)
	}
}

// waiter is a Wait that runs on a connection of its own.
type waiter struct {
	pid uint32
	out chan waited
}

type waited struct {
	result checkpoint.WaitResult
	err    error
}

func (s *server) waiting(t *testing.T, cfg checkpoint.WaitConfig) waiter {
	t.Helper()
	cfg.Publisher, cfg.Slot, cfg.Interval = "orders", s.db.Slot, 10*time.Millisecond
	conn := s.db.Conn(t)
	w := waiter{pid: conn.PgConn().PID(), out: make(chan waited, 1)}
	go func() {
		result, err := checkpoint.Wait(t.Context(), conn, cfg)
		w.out <- waited{result, err}
	}()
	return w
}

// stillWaits: it has looked again since, and goes on.
func (s *server) stillWaits(t *testing.T, w waiter) {
	t.Helper()
	for range 2 {
		now := s.text(t, "SELECT clock_timestamp()")
		testkit.EventuallyTrue(t, 10*time.Second, "the waiter looks again", func() bool {
			return len(w.out) > 0 || s.text(t, "SELECT coalesce(query_start > $1::text::timestamptz, false) AND state = 'idle' FROM pg_stat_activity WHERE pid = $2", now, int32(w.pid)) == "true"
		})
	}
	if len(w.out) > 0 {
		t.Fatalf("returned %+v", <-w.out)
	}
}

func TestWaitForTheRow(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	store := s.store("host-a/1")
	w := s.stream(t)
	row := s.claimed(t, store, w)
	s.exec(t, "INSERT INTO outbox VALUES (1)")
	target := s.lsn(t, "SELECT pg_current_wal_insert_lsn()")
	out := s.waiting(t, checkpoint.WaitConfig{Target: target, Timeout: 30 * time.Second})

	row.Confirmed = target - 1
	if err := store.Save(t.Context(), row, w.pid); err != nil {
		t.Fatal(err)
	}
	s.stillWaits(t, out) // one byte short
	row.Confirmed = target
	if err := store.Save(t.Context(), row, w.pid); err != nil {
		t.Fatal(err)
	}
	got := <-out.out
	if got.err != nil || !got.result.Reached || got.result.Target != target.String() || got.result.Confirmed != target.String() || !got.result.Streaming {
		t.Fatalf("%+v", got)
	}
}

// case C27, rule 3: a quiet outbox writes no rows; there the slot counts, under the
// latch only.
func TestWaitNowOnAQuietOutbox(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	store := s.store("host-a/1")
	w := s.stream(t)
	row := s.claimed(t, store, w)
	s.exec(t, "CREATE TABLE other (id int)")
	out := s.waiting(t, checkpoint.WaitConfig{Timeout: 30 * time.Second})
	end := s.lsn(t, "SELECT pg_current_wal_insert_lsn()")
	s.confirm(t, w, end)
	s.stillWaits(t, out) // somebody else may have moved the slot
	row.Idle = true
	if err := store.Save(t.Context(), row, w.pid); err != nil {
		t.Fatal(err)
	}
	// Begun before or after this write, "now" lies before the end that is read here.
	s.confirm(t, w, s.lsn(t, "SELECT pg_current_wal_insert_lsn()"))
	if got := <-out.out; got.err != nil || !got.result.Reached {
		t.Fatalf("%+v", got)
	}
}

// case C40: a mistyped position in the future is refused at once.
func TestWaitForTheFuture(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	result, err := checkpoint.Wait(t.Context(), s.conn, checkpoint.WaitConfig{Publisher: "orders", Slot: s.db.Slot, Target: 0xFF00000000})
	if operr.ClassOf(err) != operr.Config || !strings.Contains(err.Error(), "FF/0") || !strings.Contains(err.Error(), "the WAL ends at 0/") || result.Reached {
		t.Fatalf("result %+v, error %v", result, err)
	}
}

func TestWaitTimesOut(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	cfg := checkpoint.WaitConfig{Timeout: time.Second} // long enough for one look on a busy machine
	got := <-s.waiting(t, cfg).out
	if !errors.Is(got.err, checkpoint.ErrWaitTimeout) || operr.ClassOf(got.err) != operr.Slot || got.result.Reached || got.result.Streaming {
		t.Fatalf("%+v", got)
	}
	if !strings.Contains(operr.HintOf(got.err), "postrider run") {
		t.Errorf("hint %q with no relay connected", operr.HintOf(got.err))
	}
	w := s.stream(t)
	s.claimed(t, s.store("host-a/1"), w)
	if got = <-s.waiting(t, cfg).out; !errors.Is(got.err, checkpoint.ErrWaitTimeout) || !got.result.Streaming || !strings.Contains(operr.HintOf(got.err), "checkpoint show") {
		t.Fatalf("%+v, hint %q", got, operr.HintOf(got.err))
	}
}

// What can never be reached is said at once, not at the end of the time.
func TestWaitOnAMissingSlot(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.exec(t, "SELECT pg_drop_replication_slot($1)", s.db.Slot)
	if got := <-s.waiting(t, checkpoint.WaitConfig{}).out; operr.ClassOf(got.err) != operr.Slot || errors.Is(got.err, checkpoint.ErrWaitTimeout) {
		t.Fatalf("%+v", got)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	conn, err := pgx.Connect(t.Context(), s.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = checkpoint.Wait(ctx, conn, checkpoint.WaitConfig{Publisher: "orders", Slot: s.db.Slot})
	if !errors.Is(err, context.Canceled) || errors.Is(err, checkpoint.ErrWaitTimeout) || operr.IsTransient(err) {
		t.Fatalf("error %v", err)
	}
}
