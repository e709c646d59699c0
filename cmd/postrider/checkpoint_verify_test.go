package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/internal/verify"
)

// rules 2 to 4: a healthy position is found in order, beside a running relay and without
// one; each fault is found, with exit code 8 and what to do, and nothing is changed.
func TestVerify(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	p := startRun(t, s.path)
	p.ready()
	s.insertKey(t, "k", `{"n": 1}`)
	runBinary(t, nil, "checkpoint", "wait", "--now", "--config", s.path).expect(t, exitDone)
	if r := told[verify.Report](t, s, exitDone, "verify"); !r.OK || len(r.Checks) < 8 || r.Stored == nil {
		t.Errorf("beside a relay: %+v", r)
	}
	p.signal(syscall.SIGTERM)
	p.end().expect(t, exitDone)
	r := s.checkpoint(t, "verify")
	r.expect(t, exitDone)
	narrow(t, r.out)
	if strings.Contains(r.out, "✗") || strings.Count(r.out, "✓") < 8 {
		t.Errorf("healthy: %s", r.out)
	}
	slot := "'" + s.db.Slot + "'"
	// Each is undone by the next but the last, which is for good.
	for _, fault := range []struct{ name, spoil, check, heal string }{
		{"other system", "UPDATE postrider.checkpoint SET system_id = '7'", "system identifier", "UPDATE postrider.checkpoint SET system_id = (SELECT system_identifier::text FROM pg_control_system())"},
		{"other slot", "UPDATE postrider.checkpoint SET slot = 'another'", "slot name", "UPDATE postrider.checkpoint SET slot = " + slot},
		{"other history", "UPDATE postrider.checkpoint SET timeline = timeline + 1", "timeline", "UPDATE postrider.checkpoint SET timeline = timeline - 1"},
		{"older slot", "UPDATE postrider.checkpoint SET slot_birth_lsn = pg_current_wal_insert_lsn()", "slot birth", "UPDATE postrider.checkpoint SET slot_birth_lsn = NULL"},
		{"table out of the publication", "ALTER PUBLICATION " + s.db.Publication + " DROP TABLE outbox", "publication", "ALTER PUBLICATION " + s.db.Publication + " ADD TABLE outbox"},
		{"slot moved", "UPDATE postrider.checkpoint SET idle = false; SELECT pg_replication_slot_advance(" + slot + ", pg_current_wal_lsn())", "slot against stored position", ""},
		{"slot dropped", "SELECT pg_drop_replication_slot(" + slot + ")", "slot", ""},
	} {
		s.db.Exec(t, fault.spoil)
		before := s.where(t)
		report := told[verify.Report](t, s, operr.Findings.ExitCode(), "verify")
		found := false
		for _, c := range report.Wrong() {
			found = found || c.Name == fault.check && c.Fix != ""
		}
		if !found || report.OK {
			t.Errorf("%s: %+v", fault.name, report.Checks)
		}
		human := s.checkpoint(t, "verify", "--quick")
		human.expect(t, operr.Findings.ExitCode(), fault.check)
		narrow(t, human.out)
		if after := s.where(t); after != before {
			t.Errorf("%s: row and slot were %s and are %s", fault.name, before, after)
		}
		if fault.heal != "" {
			s.db.Exec(t, fault.heal)
			s.checkpoint(t, "verify").expect(t, exitDone)
		}
	}
}

// latched stores a proved snapshot under the idle latch, as a relay does in the quiet.
func (s *stack) latched(t *testing.T) {
	t.Helper()
	testkit.EventuallyTrue(t, patience, "older transactions are open", func() bool {
		return scalar(t, s.db, `SELECT (pg_snapshot_xmin(pg_current_snapshot())::text::bigint > (SELECT max(x::text::bigint) FROM
			(SELECT xmin FROM outbox UNION ALL SELECT xmin FROM pg_publication UNION ALL SELECT xmin FROM pg_publication_rel) r(x)))::text`) == "true"
	})
	s.db.Exec(t, "UPDATE postrider.checkpoint SET idle = true, snapshot = pg_current_snapshot()")
}

// rule 4: under the latch a slot past the row is proved by the table, or the missing rows
// are named; a row that is parked, or on the stream, is none.
func TestVerifyTicksOffTheTable(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.latched(t)
	advance := fmt.Sprintf("SELECT pg_replication_slot_advance('%s', pg_current_wal_flush_lsn())", s.db.Slot)
	s.db.Exec(t, "SELECT pg_logical_emit_message(true, 'foreign', 'x')")
	s.db.Exec(t, advance)
	s.insertKey(t, "k", `{"n": "on the stream"}`)
	report := told[verify.Report](t, s, exitDone, "verify")
	if report.Table == nil || report.Table.Uncovered != 1 || report.Table.Left != 0 {
		t.Errorf("%+v", report)
	}
	s.insertKey(t, "k", `{"n": "gone from the stream"}`)
	s.db.Exec(t, advance)
	missing := scalar(t, s.db, `SELECT string_agg(event_id::text, ' ' ORDER BY xmin::text::bigint) FROM outbox WHERE payload::text <> '{"n": 1}'`)
	report = told[verify.Report](t, s, operr.Findings.ExitCode(), "verify")
	if report.Table == nil || report.Table.Left != 2 || len(report.Table.Names) != 2 {
		t.Fatalf("%+v", report)
	}
	for _, id := range strings.Fields(missing) {
		if !strings.Contains(strings.Join(report.Table.Names, " "), id) {
			t.Errorf("%s is not named: %v", id, report.Table.Names)
		}
	}
	s.db.Exec(t, fmt.Sprintf(`INSERT INTO postrider.parked (publisher, slot, system_id, timeline, commit_lsn, event_index, reason, event_id)
		SELECT publisher, slot, system_id, timeline, '0/1', 0, 'r', '%s' FROM postrider.checkpoint`, strings.Fields(missing)[0]))
	if report = told[verify.Report](t, s, operr.Findings.ExitCode(), "verify"); report.Table.Left != 1 {
		t.Errorf("one is parked: %+v", report.Table)
	}
	runBinary(t, nil, "run", "--until-lsn", "now", "--config", s.path).expect(t, operr.Slot.ExitCode(), "checkpoint accept")
}

// trap 10: a run that refuses is made to go on by accept, after the evidence, with consent
// and a reason. Nothing is changed before, and nothing where nothing is needed.
func TestAcceptCommand(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	if r := told[acceptResult](t, s, exitDone, "accept", "--yes", "--reason", "nothing to do"); r.Needed || r.Accepted != nil {
		t.Errorf("%+v", r)
	}
	s.latched(t)
	s.db.Exec(t, "UPDATE postrider.checkpoint SET idle = false")
	s.insertKey(t, "k", `{"n": "given up"}`)
	id := scalar(t, s.db, `SELECT event_id::text FROM outbox WHERE payload::text LIKE '%given up%'`)
	s.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", s.db.Slot))
	s.checkpoint(t, "accept", "--yes", "--reason", "no slot").expect(t, operr.Slot.ExitCode(), "does not exist", "postrider recover")
	s.db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", s.db.Slot))
	runBinary(t, nil, "run", "--config", s.path).expect(t, operr.Slot.ExitCode(), "moved or created anew", "postrider recover", "postrider checkpoint accept")
	before := s.where(t)
	r := s.checkpoint(t, "accept")
	r.expect(t, operr.Config.ExitCode(), "--yes")
	if !strings.Contains(r.out, id) {
		t.Errorf("the evidence does not name %s:\n%s", id, r.out)
	}
	s.checkpoint(t, "accept", "--yes").expect(t, operr.Config.ExitCode(), "--reason")
	if after := s.where(t); after != before {
		t.Errorf("row and slot were %s and are %s", before, after)
	}
	holder := startWalsender(t, s)
	s.checkpoint(t, "accept", "--yes", "--reason", "held").expect(t, operr.Slot.ExitCode(), "held by pid", "test-holder")
	holder()
	got := told[acceptResult](t, s, exitDone, "accept", "--yes", "--reason", "slot recreated, INC-812")
	if !got.Needed || got.Accepted == nil || !got.Accepted.SnapshotKept || got.Evidence.Table.Left != 1 {
		t.Errorf("%+v", got)
	}
	s.insertKey(t, "k", `{"n": 3}`)
	s.drained(t)
	if n := len(s.broker.ReadAll(t, "events")); n != 2 {
		t.Errorf("%d records, want the first and the third", n)
	}
	audit := scalar(t, s.db, `SELECT detail::text FROM postrider.audit WHERE action = 'accept'`)
	for _, text := range []string{"INC-812", id, "from_lsn", "to_lsn"} {
		if !strings.Contains(audit, text) {
			t.Errorf("the audit lacks %s: %s", text, audit)
		}
	}
	s.checkpoint(t, "verify").expect(t, exitDone)
}
