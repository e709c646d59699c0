package checkpoint_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
)

// rewrite stores a row as a recovery does.
func (s *server) rewrite(t *testing.T, row checkpoint.Row, at event.LSN) (written bool) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), s.conn, func(tx pgx.Tx) (err error) {
		written, err = checkpoint.Rewrite(t.Context(), tx, row, at)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return written
}

// rule 5: a recovery stores its position only for the slot that it found, and while nobody
// holds that; then the row is whole, and a relay starts from it.
func TestRewrite(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	store := s.store("host-a/1")
	at := s.slot(t).Confirmed
	row := checkpoint.Row{
		Publisher: "orders", Slot: s.db.Slot, SystemID: s.sys.ID, Timeline: s.sys.Timeline, SlotBirth: at, Confirmed: at,
		Snapshot: "700:703:701", BirthSnapshot: "600:600:", Events: 7, Holder: "alice@host",
	}
	if s.rewrite(t, row, at+8) {
		t.Error("written though the slot stands elsewhere")
	}
	for range 2 { // a new row, and one over it
		if !s.rewrite(t, row, at) {
			t.Fatal("not written")
		}
		got, err := store.Load(t.Context())
		if err != nil || got.Confirmed != at || got.SlotBirth != at || got.Snapshot != row.Snapshot || got.BirthSnapshot != row.BirthSnapshot || got.Events != 7 || got.Idle || got.WalsenderPID != 0 {
			t.Fatalf("stored %+v, error %v", got, err)
		}
		if start, err := checkpoint.Decide(got, s.slot(t), s.sys, nil); err != nil || start.Skip != at || start.Doubtful {
			t.Errorf("start %+v, error %v", start, err)
		}
		s.exec(t, "UPDATE postrider.checkpoint SET idle = true, walsender_pid = 1, oldest_unconfirmed = now()")
	}
	s.stream(t)
	if s.rewrite(t, row, at) {
		t.Error("written though somebody holds the slot")
	}
}
