package checkpoint_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

func (s *server) desk() *checkpoint.Desk { return s.deskOn(s.conn) }

func (s *server) deskOn(conn *pgx.Conn) *checkpoint.Desk {
	return checkpoint.NewDesk(conn, checkpoint.DeskConfig{Publisher: "orders", Slot: s.db.Slot, Actor: "alice@desk"})
}

// standing is what a command would decide by.
func (s *server) standing(t *testing.T) (checkpoint.State, checkpoint.Start, error) {
	t.Helper()
	st, err := s.desk().Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	start, refusal := checkpoint.Decide(st.Row, st.Slot, st.System, nil)
	return st, start, refusal
}

// left stores a row as a relay leaves it behind, and gives the slot back.
func (s *server) left(t *testing.T) {
	t.Helper()
	w := s.stream(t)
	s.claimed(t, s.store("host-a/1"), w)
	w.stop()
	s.freed(t)
}

// events commits some, and gives the end of the WAL.
func (s *server) events(t *testing.T, from, to int) event.LSN {
	t.Helper()
	s.exec(t, "INSERT INTO outbox SELECT generate_series($1::int, $2::int)", from, to)
	return s.lsn(t, "SELECT pg_current_wal_flush_lsn()")
}

// rule 5 for operators: what has changed since it was looked at is not overwritten, be it
// by a relay that claimed the row, or by one that only holds the slot.
func TestDeskChangesNothingThatHasChanged(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"claimed", "held", "slot moved"} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.left(t)
			to := s.events(t, 1, 3)
			if change == "slot moved" {
				s.exec(t, "SELECT pg_replication_slot_advance($1, $2::text::pg_lsn)", s.db.Slot, to.String())
			}
			st, start, _ := s.standing(t)
			want := "pid "
			switch change {
			case "claimed":
				w := s.stream(t)
				s.claimed(t, s.store("host-b/2"), w)
				w.stop()
				s.freed(t)
				want = "has changed"
			case "held":
				s.stream(t)
			case "slot moved":
				s.events(t, 4, 5)
				s.exec(t, "SELECT pg_replication_slot_advance($1, pg_current_wal_flush_lsn())", s.db.Slot)
				want = "has changed"
			}
			before := s.text(t, "SELECT row(c.*) FROM postrider.checkpoint c")
			if change != "slot moved" { // an advance asks the row only: the slot follows it
				_, err := s.desk().Advance(t.Context(), st, start, to, nil)
				if operr.ClassOf(err) != operr.Slot || !strings.Contains(err.Error(), want) {
					t.Errorf("advance: %v", err)
				}
			}
			st.Holder = nil // as it was when the command looked
			_, err := s.desk().Accept(t.Context(), st, nil, nil)
			if operr.ClassOf(err) != operr.Slot || !strings.Contains(err.Error(), want) {
				t.Errorf("accept: %v", err)
			}
			if after := s.text(t, "SELECT row(c.*) FROM postrider.checkpoint c"); after != before {
				t.Errorf("the row was %s and is %s", before, after)
			}
			if n := s.text(t, "SELECT count(*) FROM postrider.audit WHERE action IN ('advance', 'accept')"); n != "0" {
				t.Errorf("%s lines in the audit", n)
			}
		})
	}
}

// trap 10: each state in which a run refuses to start is accepted as it stands, and only as
// it was shown; the snapshot stays where it still means the same transactions.
func TestAccept(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil string
		keeps bool
	}{
		"slot moved":     {"SELECT pg_replication_slot_advance('SLOT', pg_current_wal_flush_lsn())", true},
		"slot recreated": {"SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')", true},
		"other slot":     {"UPDATE postrider.checkpoint SET slot = 'another'", true},
		"older slot":     {"UPDATE postrider.checkpoint SET slot_birth_lsn = pg_current_wal_insert_lsn()", true},
		"other system":   {"UPDATE postrider.checkpoint SET system_id = '7'", false},
		"other history":  {"UPDATE postrider.checkpoint SET timeline = 9", false},
		"older copy":     {"UPDATE postrider.checkpoint SET confirmed_lsn = 'F/0'", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.left(t)
			s.exec(t, "UPDATE postrider.checkpoint SET snapshot = pg_current_snapshot(), birth_snapshot = pg_current_snapshot()")
			s.events(t, 1, 3)
			for _, sql := range strings.Split(strings.ReplaceAll(tt.spoil, "SLOT", s.db.Slot), "; ") {
				s.exec(t, sql)
			}
			st, _, refusal := s.standing(t)
			if refusal == nil {
				t.Fatal("a run would start")
			}
			contains(t, "hint", operr.HintOf(refusal), []string{"postrider recover", "postrider checkpoint accept"})
			accepted, err := s.desk().Accept(t.Context(), st, nil, map[string]any{"reason": "looked at"})
			if err != nil || accepted.SnapshotKept != tt.keeps || accepted.To != st.Slot.Confirmed {
				t.Fatalf("%+v, %v", accepted, err)
			}
			after, start, refusal := s.standing(t)
			if refusal != nil || start.Doubtful || start.Skip != st.Slot.Confirmed || after.Row.Slot != s.db.Slot {
				t.Errorf("a run begins at %+v (%v)", start, refusal)
			}
			if kept := after.Row.Snapshot != "" && after.Row.BirthSnapshot != ""; kept != tt.keeps {
				t.Errorf("the snapshots are %q and %q", after.Row.Snapshot, after.Row.BirthSnapshot)
			}
			if _, err := s.desk().Accept(t.Context(), st, nil, nil); !errors.Is(err, checkpoint.ErrChanged) {
				t.Errorf("accepted twice on the same evidence: %v", err)
			}
		})
	}
}

// A missing or lost slot is not accepted, and neither is one that somebody holds.
func TestCheckAccept(t *testing.T) {
	t.Parallel()
	row := &checkpoint.Row{Slot: "s", Confirmed: 0x100}
	for name, tt := range map[string]struct {
		state checkpoint.State
		hint  string
	}{
		"no row":  {checkpoint.State{Slot: checkpoint.SlotState{Name: "s", Exists: true}}, "postrider setup"},
		"no slot": {checkpoint.State{Row: row, Slot: checkpoint.SlotState{Name: "s"}}, "postrider recover"},
		"lost":    {checkpoint.State{Row: row, Slot: checkpoint.SlotState{Name: "s", Exists: true, WALStatus: "lost"}}, "postrider recover"},
		"held":    {checkpoint.State{Row: row, Slot: checkpoint.SlotState{Name: "s", Exists: true}, Holder: &checkpoint.Holder{PID: 1}}, "stop that relay"},
	} {
		err := checkpoint.CheckAccept(tt.state)
		if err == nil || !strings.Contains(operr.HintOf(err), tt.hint) {
			t.Errorf("%s: %v, hint %q", name, err, operr.HintOf(err))
		}
	}
}

// The lock that commands share says who has it.
func TestLockPublisher(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	if err := checkpoint.LockPublisher(t.Context(), s.conn, "orders"); err != nil {
		t.Fatal(err)
	}
	other := s.db.Conn(t)
	err := checkpoint.LockPublisher(t.Context(), other, "orders")
	if operr.ClassOf(err) != operr.Slot || !strings.Contains(err.Error(), "pid "+s.text(t, "SELECT pg_backend_pid()")) {
		t.Errorf("%v", err)
	}
	if err := checkpoint.LockPublisher(t.Context(), other, "another"); err != nil {
		t.Error(err)
	}
}

// The end of the WAL comes to disk also where nobody commits: the last records of an open
// transaction stay in memory on a quiet server.
func TestAwaitFlush(t *testing.T) {
	t.Parallel()
	s := &server{db: testkit.NewDB(t, testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"autovacuum": "off"}}).DSN())}
	s.conn = s.db.Conn(t)
	s.exec(t, "CREATE TABLE foreign_work (id int)")
	open := s.db.Conn(t)
	if _, err := open.Exec(t.Context(), "BEGIN; INSERT INTO foreign_work VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	end := s.lsn(t, "SELECT pg_current_wal_insert_lsn()")
	if flushed := s.lsn(t, "SELECT pg_current_wal_flush_lsn()"); flushed >= end {
		t.Fatalf("flushed up to %s, the WAL ends at %s: the test shows nothing", flushed, end)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.desk().AwaitFlush(ctx, end); err != nil {
		t.Fatal(err)
	}
}
