package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// checkpoint runs a checkpoint command on the real binary.
func (s *stack) checkpoint(t *testing.T, args ...string) result {
	t.Helper()
	return runBinary(t, nil, append(append([]string{"checkpoint"}, args...), "--config", s.path)...)
}

// told is checkpoint with --json, decoded.
func told[T any](t *testing.T, s *stack, code int, args ...string) (v T) {
	t.Helper()
	r := s.checkpoint(t, append(args, "--json")...)
	r.expect(t, code)
	if err := json.Unmarshal([]byte(r.out), &v); err != nil {
		t.Fatalf("%v in %s", err, r.out)
	}
	return v
}

// drained publishes all there is and ends the relay.
func (s *stack) drained(t *testing.T) {
	t.Helper()
	runBinary(t, nil, "run", "--until-lsn", "now", "--config", s.path).expect(t, exitDone)
}

// where is row and slot, to be compared.
func (s *stack) where(t *testing.T) string {
	t.Helper()
	return scalar(t, s.db, `SELECT concat_ws(' ', c.confirmed_lsn, c.idle, c.system_id, c.timeline, c.slot, s.confirmed_flush_lsn)
		FROM postrider.checkpoint c FULL JOIN pg_replication_slots s ON s.slot_name = c.slot WHERE s.slot_name = $1 OR c.slot = $1`, s.db.Slot)
}

func (s *stack) lsn(t *testing.T, sql string, args ...any) event.LSN {
	t.Helper()
	lsn, err := event.ParseLSN(scalar(t, s.db, sql, args...))
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

// walEnd is where the WAL ends, all of it on disk.
func (s *stack) walEnd(t *testing.T) event.LSN {
	t.Helper()
	return s.lsn(t, "SELECT pg_current_wal_flush_lsn()::text")
}

// narrow fails the test where a line is wider than a terminal.
func narrow(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 100 {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
}

// Drop shows what would go and what would be lost, and does nothing until the name is typed.
func TestDropCommand(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.insertKey(t, "k", `{"n": 2}`)
	name := scalar(t, s.db, "SELECT publisher FROM postrider.checkpoint")
	before := s.where(t)
	r := s.checkpoint(t, "drop", "--publication")
	r.expect(t, operr.Config.ExitCode(), "--confirm "+name)
	if !strings.Contains(r.out, "1 events in 1 transactions") || !strings.Contains(r.out, s.db.Publication) {
		t.Errorf("the plan: %s", r.out)
	}
	narrow(t, r.out)
	s.checkpoint(t, "drop", "--confirm", "another", "--reason", "a test").expect(t, operr.Config.ExitCode(), `"another"`)
	s.checkpoint(t, "drop", "--confirm", name).expect(t, operr.Config.ExitCode(), "--reason")
	p := startRun(t, s.path)
	p.ready()
	s.checkpoint(t, "drop", "--confirm", name, "--reason", "a test").expect(t, operr.Slot.ExitCode(), "held by pid")
	p.signal(syscall.SIGTERM)
	p.end().expect(t, exitDone)
	s.db.Exec(t, "CREATE TABLE another (id int); ALTER PUBLICATION "+s.db.Publication+" ADD TABLE another")
	s.checkpoint(t, "drop", "--confirm", name, "--publication", "--reason", "a test").expect(t, operr.Config.ExitCode(), "public.another")
	if slot := scalar(t, s.db, "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = $1", s.db.Slot); slot != "1" {
		t.Fatalf("%s slots; the row was %s", slot, before)
	}
	s.db.Exec(t, "ALTER PUBLICATION "+s.db.Publication+" DROP TABLE another")
	got := told[dropResult](t, s, exitDone, "drop", "--confirm", name, "--publication", "--reason", "moved, CHG-1")
	if len(got.Dropped) != 3 || got.Unpublished == nil {
		t.Errorf("%+v", got)
	}
	left := scalar(t, s.db, `SELECT concat_ws(' ', (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1), (SELECT count(*) FROM pg_publication),
		(SELECT count(*) FROM postrider.checkpoint), (SELECT count(*) FROM outbox))`, s.db.Slot)
	if left != "0 0 0 2" {
		t.Errorf("left: %s", left)
	}
	// And may be set up again.
	setupSteps(t, "--config", s.path)
	s.insertKey(t, "k", `{"n": 3}`)
	s.drained(t)
	if n := len(s.broker.ReadAll(t, "events")); n != 3 {
		t.Errorf("%d records", n)
	}
}

// The audit is a line an entry, of the publisher or of all.
func TestListAndHistoryCommands(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.db.Exec(t, `INSERT INTO postrider.checkpoint (publisher, slot, system_id, timeline, confirmed_lsn) VALUES ('a publisher whose name is far too long for a table', 'and_a_slot_whose_name_is_far_too_long_for_one', '1', 1, 'FFFFFFFF/FFFFFFFF');
		INSERT INTO postrider.audit (publisher, actor, action, detail) VALUES ('billing', 'alice', 'advance', '{"a": "<b>"}')`)
	list := told[checkpoint.Listing](t, s, exitDone, "list")
	if len(list.Publishers) != 2 || list.Publishers[1].EventsPublished != 1 {
		t.Errorf("%+v", list)
	}
	r := s.checkpoint(t, "list")
	narrow(t, r.out)
	if !strings.Contains(r.out, "no slot") || !strings.Contains(r.out, "stopped") {
		t.Errorf("list: %s", r.out)
	}
	r = s.checkpoint(t, "history", "--all-publishers", "--json")
	var actions []string
	for line := range strings.Lines(r.out) {
		var e checkpoint.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		actions = append(actions, e.Action)
	}
	if want := []string{"register", "setup", "claim", "advance"}; !slices.Equal(actions, want) {
		t.Errorf("actions %v, want %v", actions, want)
	}
	narrow(t, s.checkpoint(t, "history", "--all-publishers").out)
	if r := s.checkpoint(t, "history", "--action", "claim"); strings.Count(r.out, "\n") != 2 || !strings.Contains(r.out, "claim") {
		t.Errorf("filtered: %s", r.out)
	}
	if r := s.checkpoint(t, "history", "--since", "2000-01-01T00:00:00Z", "--until", "1h"); r.out != "" {
		t.Errorf("of another time: %s", r.out)
	}
	s.checkpoint(t, "history", "--since", "yesterday").expect(t, operr.Config.ExitCode(), "--since")
}

// case C27: where the last WAL holds no event, a gate need not wait for a relay to know it.
// Where it holds one, or where the publication may have missed one, it does.
func TestWaitOverWALWithoutEvents(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.latched(t)
	s.db.Exec(t, "UPDATE postrider.checkpoint SET idle = false")
	s.db.Exec(t, "CREATE TABLE foreign_work (id int); INSERT INTO foreign_work VALUES (1)")
	got := told[checkpoint.WaitResult](t, s, exitDone, "wait", "--now", "--timeout", "30s")
	if !got.Reached || !got.NoEvents || got.Streaming {
		t.Errorf("%+v", got)
	}
	s.db.Exec(t, fmt.Sprintf("ALTER PUBLICATION %[1]s DROP TABLE outbox; ALTER PUBLICATION %[1]s ADD TABLE outbox", s.db.Publication))
	if got := told[checkpoint.WaitResult](t, s, operr.Slot.ExitCode(), "wait", "--now", "--timeout", "2s"); got.Reached || got.NoEvents {
		t.Errorf("the publication was changed: %+v", got)
	}
	s.latched(t)
	s.db.Exec(t, "UPDATE postrider.checkpoint SET idle = false")
	s.insertKey(t, "k", `{"n": 2}`)
	if got := told[checkpoint.WaitResult](t, s, operr.Slot.ExitCode(), "wait", "--now", "--timeout", "2s"); got.Reached || got.NoEvents {
		t.Errorf("an event lies between: %+v", got)
	}
	s.drained(t)
}

// The audit says for people who did it, from where to where, and why, before all else.
func TestHistoryForPeople(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	from := scalar(t, s.db, "SELECT confirmed_lsn::text FROM postrider.checkpoint")
	target := s.walEnd(t)
	reason := strings.Repeat("a reason that is told whole, ", 8) + "to its end"
	s.checkpoint(t, "advance", "--lsn", target.String(), "--yes", "--reason", reason).expect(t, exitDone)
	r := s.checkpoint(t, "history")
	narrow(t, r.out)
	text := strings.Join(strings.Fields(r.out), " ")
	for _, want := range []string{
		"advance " + actor(), from + " → " + target.String() + ": " + reason, // C40: who, from, to, why
		"setup " + actor(), "register " + actor(),
		`"skipped": {"types": {"OrderPlaced": 1}`, `{"done": ["schema postrider"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the history lacks %q:\n%s", want, r.out)
		}
	}
}

// A slot that is gone is told with what heals it, by the gate of a deploy too.
func TestWaitForALostSlot(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.insertKey(t, "k", `{"n": 2}`)
	s.db.Exec(t, "SELECT pg_drop_replication_slot(slot) FROM postrider.checkpoint")
	s.checkpoint(t, "wait", "--now").expect(t, operr.Slot.ExitCode(), "may be missing", "last event committed", "Try: postrider recover")
	r := runBinary(t, nil, "pause", "--reason", "a test", "--config", s.path)
	if r.expect(t, exitDone); strings.Contains(r.out, "until the disk is full") {
		t.Errorf("no slot holds back any WAL: %s", r.out)
	}
}
