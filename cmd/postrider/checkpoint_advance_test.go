package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/peek"
)

// case C40, trap 8, trap 11: junk is refused before anything is connected to, a position in
// the future or behind is refused with the right words, and nothing moves.
func TestAdvanceRefuses(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.insertKey(t, "k", `{"n": 2}`)
	before := s.where(t)
	reason := []string{"--yes", "--reason", "a test"}
	advance := func(lsn string) result {
		return s.checkpoint(t, append([]string{"advance", "--lsn", lsn}, reason...)...)
	}
	for _, junk := range []string{
		"0/16B3748xyz", "1/FFFFFFFFF", " 0/1", "0/1 ", "FFFFFFFF1/0", "0x0/1", "16B3748", "/1", "0/", "-1/1", "", "0/1/2", "+0/1", "0/1\n", "0/0",
	} {
		advance(junk).expect(t, operr.Config.ExitCode(), "Try: ")
	}
	advance("FF/0").expect(t, operr.Config.ExitCode(), "FF/0", "future", "the WAL ends at", "--now")
	advance("0/1").expect(t, operr.Config.ExitCode(), "a slot cannot go back", "postrider replay")
	s.checkpoint(t, "advance", "--now").expect(t, operr.Config.ExitCode(), "--reason")
	s.checkpoint(t, "advance", "--reason", "neither").expect(t, operr.Config.ExitCode(), "--lsn or --now")
	// Unasked nothing is skipped, and the refusal says what would be.
	r := s.checkpoint(t, "advance", "--now", "--reason", "a test")
	r.expect(t, operr.Config.ExitCode(), "1 events that are not published", "--yes")
	if !strings.Contains(r.out, "OrderPlaced") {
		t.Errorf("it does not say which types: %s", r.out)
	}
	narrow(t, r.out)
	if r := told[advanceResult](t, s, exitDone, "advance", "--now", "--dry-run"); r.Skipped == nil || r.Skipped.Events != 1 || r.Advanced != nil {
		t.Errorf("dry run: %+v", r)
	}
	// Inside a commit record nothing could be decided: a start would stop there for good.
	inside := told[peek.Report](t, s, exitDone, "peek").First[0].CommitLSN + 1
	advance(inside.String()).expect(t, operr.Config.ExitCode(), "inside the commit record", "--lsn")
	if after := s.where(t); after != before {
		t.Errorf("row and slot were %s and are %s", before, after)
	}

	p := startRun(t, s.path)
	p.ready()
	s.checkpoint(t, append([]string{"advance", "--now"}, reason...)...).expect(t, operr.Slot.ExitCode(), "held by pid", s.db.Slot, "stop that relay")
	p.signal(syscall.SIGTERM)
	p.end().expect(t, exitDone)
	if n := len(s.broker.ReadAll(t, "events")); n != 2 {
		t.Errorf("%d records", n)
	}
}

// With consent it skips what lies between, keeps that in the audit, and the next run goes
// on behind it; lower-case digits are the same position.
func TestAdvanceCommand(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.db.Exec(t, `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload) SELECT gen_random_uuid(), 'order', 'k', 'Import', NULL FROM generate_series(1, 3)`)
	runBinary(t, nil, "run", "--config", s.path).expect(t, operr.Halted.ExitCode())
	target := s.walEnd(t)
	s.insertKey(t, "k", `{"n": 2}`)
	got := told[advanceResult](t, s, exitDone, "advance", "--lsn", strings.ToLower(target.String()), "--yes", "--reason", "import, INC-812")
	if got.Advanced == nil || got.Advanced.To != target || got.Advanced.SlotTo != target || got.Skipped.Events != 3 {
		t.Errorf("%+v", got)
	}
	audit := scalar(t, s.db, `SELECT detail::text FROM postrider.audit WHERE action = 'advance'`)
	skipped := strings.Fields(scalar(t, s.db, `SELECT string_agg(event_id::text, ' ') FROM outbox WHERE event_type = 'Import'`))
	for _, text := range append(skipped, "INC-812", `"Import": 3`, `"to_lsn": "`+target.String()+`"`) {
		if !strings.Contains(audit, text) {
			t.Errorf("the audit lacks %s: %s", text, audit)
		}
	}
	s.checkpoint(t, "verify").expect(t, exitDone)
	s.drained(t)
	if n := len(s.broker.ReadAll(t, "events")); n != 2 {
		t.Errorf("%d records, want the first and the last", n)
	}
	// What is published already is skipped without a word.
	r := s.checkpoint(t, "advance", "--now", "--reason", "again")
	r.expect(t, exitDone)
	if !strings.Contains(r.out, "nothing") && !strings.Contains(r.out, "there already") {
		t.Errorf("nothing is skipped, and it says %s", r.out)
	}
}

// Where what is skipped cannot be counted, consent to that is asked for besides.
func TestAdvanceOverWhatCannotBeDecoded(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.db.Exec(t, "DROP PUBLICATION "+s.db.Publication)
	s.insertKey(t, "k", `{"n": 2}`)
	before := s.where(t)
	s.checkpoint(t, "advance", "--now", "--yes", "--uncounted", "--reason", "a test").expect(t, operr.Postgres.ExitCode(), "does not exist", "postrider setup")
	setupSteps(t, "--config", s.path)
	runBinary(t, nil, "run", "--config", s.path).expect(t, operr.Postgres.ExitCode(), s.db.Publication)
	s.checkpoint(t, "advance", "--now", "--yes", "--reason", "a test").expect(t, operr.Postgres.ExitCode(), "--uncounted")
	if after := s.where(t); after != before {
		t.Errorf("row and slot were %s and are %s", before, after)
	}
	s.checkpoint(t, "advance", "--now", "--uncounted", "--reason", "a test").expect(t, operr.Config.ExitCode(), "--yes")
	s.checkpoint(t, "advance", "--now", "--yes", "--uncounted", "--reason", "publication was dropped").expect(t, exitDone)
	s.insertKey(t, "k", `{"n": 3}`)
	s.drained(t)
	if n := len(s.broker.ReadAll(t, "events")); n != 2 {
		t.Errorf("%d records", n)
	}
	if audit := scalar(t, s.db, `SELECT detail ->> 'skipped' FROM postrider.audit WHERE action = 'advance'`); !strings.Contains(audit, "not counted") {
		t.Errorf("audit: %s", audit)
	}
}

// In doubt about what lies before the slot, an advance would bury the question.
func TestAdvanceInDoubt(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.latched(t)
	s.insertKey(t, "k", `{"n": "missing"}`)
	s.db.Exec(t, fmt.Sprintf("SELECT pg_replication_slot_advance('%s', pg_current_wal_flush_lsn())", s.db.Slot))
	s.insertKey(t, "k", `{"n": 3}`)
	before := s.where(t)
	s.checkpoint(t, "advance", "--now", "--yes", "--reason", "a test").expect(t, operr.Slot.ExitCode(), "in doubt", "checkpoint accept")
	if after := s.where(t); after != before {
		t.Errorf("row and slot were %s and are %s", before, after)
	}
}
