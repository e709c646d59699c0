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
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/internal/verify"
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

// Peek tells what is not published, by type and topic and with what becomes of it, shows
// events as they are published afterwards, and takes nothing from the slot. Keys, headers'
// values and payloads come only when asked for.
func TestPeek(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	rewrite(t, s.path, "on_refusal: halt", "on_refusal: park_aggregate")
	s.insertKey(t, "secret-key", `{"n": 0}`)
	s.drained(t)
	if r := told[peek.Report](t, s, exitDone, "peek"); r.Events != 0 || !r.Complete || len(r.First) != 0 || r.Doubt != "" {
		t.Errorf("nothing is left, and it says %+v", r)
	}
	s.insertKey(t, "secret-key", `{"n": "secret-payload"}`)
	s.db.Exec(t, `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload) SELECT gen_random_uuid(), 'order', 'k' || n, 'OrderShipped', '{}' FROM generate_series(1, 5) n`)
	s.db.Exec(t, `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'order', 'k1', 'OrderShipped', NULL)`)
	s.insertKey(t, "k1", `{"n": "behind"}`)
	s.db.Exec(t, `BEGIN; INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'order', 'k', 'Never', '{}'); ROLLBACK`)
	before := s.where(t)
	report := told[peek.Report](t, s, exitDone, "peek", "--events", "7", "--payload")
	if report.Events != 8 || report.Transactions != 4 || len(report.First) != 7 || !report.Complete || report.Oldest == nil {
		t.Errorf("%+v", report)
	}
	var counts []string
	for _, c := range report.Counts {
		counts = append(counts, fmt.Sprintf("%d %s %s %s%s", c.Events, c.EventType, c.Topic, c.Outcome, c.Reason))
	}
	if want := []string{
		"5 OrderShipped events publish", "1 OrderPlaced events held", "1 OrderPlaced events publish", "1 OrderShipped events parknull_payload",
	}; !slices.Equal(counts, want) {
		t.Errorf("counts %q, want %q", counts, want)
	}
	if after := s.where(t); after != before {
		t.Errorf("row and slot were %s and are %s", before, after)
	}
	r := s.checkpoint(t, "peek")
	r.expect(t, exitDone)
	narrow(t, r.out)
	plain := s.checkpoint(t, "peek", "--json")
	for _, secret := range []string{"secret-key", "secret-payload", "c2VjcmV0"} { // the last: "secret" in base64
		if strings.Contains(r.out+plain.out, secret) {
			t.Errorf("%s is shown unasked:\n%s\n%s", secret, r.out, plain.out)
		}
	}
	if shown := s.checkpoint(t, "peek", "--payload"); !strings.Contains(shown.out, "secret-key") || !strings.Contains(shown.out, `{"n": "secret-payload"}`) {
		t.Errorf("--payload: %s", shown.out)
	}

	// What was peeked is what is published.
	s.drained(t)
	published := map[string]testkit.Record{}
	for _, rec := range s.broker.ReadAll(t, "events") {
		for _, h := range rec.Headers {
			if h.Key == "id" {
				published[string(h.Value)] = rec
			}
		}
	}
	for _, e := range report.First {
		rec, there := published[e.EventID]
		if (e.Outcome == peek.Publish) != there {
			t.Errorf("%s was to be %s; published: %t", e.EventID, e.Outcome, there)
		}
		if !there {
			continue
		}
		if string(rec.Key) != string(e.Key) || string(rec.Value) != string(e.Value) || len(rec.Headers) != len(e.Headers) || !rec.Timestamp.Equal(e.Timestamp) {
			t.Errorf("peeked %+v, published %+v", e, rec)
		}
	}
	if r := told[peek.Report](t, s, exitDone, "peek"); r.Events != 0 || r.Doubt != "" {
		t.Errorf("all is published or parked, and it says %+v", r)
	}
}

// It works beside a relay that cannot publish, whose slot it does not touch, and stops
// where it is told to.
func TestPeekBesideARelay(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	p := startRun(t, s.path)
	p.ready()
	s.broker.Server.Halt()
	for n := range 5 {
		s.insertKey(t, "k", fmt.Sprintf(`{"n": %d}`, n))
	}
	p.unconfirmed()
	report := told[peek.Report](t, s, exitDone, "peek")
	if report.Events != 5 || len(report.First) != 5 || report.Doubt != "" {
		t.Errorf("%+v", report)
	}
	// One that is parked already waits for nobody on the stream.
	s.db.Exec(t, fmt.Sprintf(`INSERT INTO postrider.parked (publisher, slot, system_id, timeline, commit_lsn, event_index, reason)
		SELECT publisher, slot, system_id, timeline, '%s', %d, 'r' FROM postrider.checkpoint`, report.First[2].CommitLSN, report.First[2].Index))
	report = told[peek.Report](t, s, exitDone, "peek")
	if report.Events != 4 || report.Parked != 1 {
		t.Errorf("%+v", report)
	}
	report = told[peek.Report](t, s, exitDone, "peek", "--max-events", "2")
	if report.Events != 2 || report.Complete || report.StoppedAt == nil {
		t.Errorf("%+v", report)
	}
	if holder := scalar(t, s.db, "SELECT count(*)::text FROM pg_replication_slots WHERE active AND database = $1", s.db.Name); holder != "1" {
		t.Errorf("%s slots are active", holder)
	}
	p.signal(syscall.SIGTERM)
	p.end().expect(t, operr.DrainIncomplete.ExitCode())
	s.checkpoint(t, "peek", "--events", "-1").expect(t, operr.Config.ExitCode(), "--events")
	s.db.Exec(t, "DROP PUBLICATION "+s.db.Publication)
	s.checkpoint(t, "peek").expect(t, operr.Postgres.ExitCode(), s.db.Publication, "Try: ")
	s.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", s.db.Slot))
	s.checkpoint(t, "peek").expect(t, operr.Slot.ExitCode(), "does not exist", "Try: ")
}

// A partitioned outbox that is published by its leaves is routed as its root.
func TestPeekOfPartitions(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, `CREATE TABLE parts (id uuid DEFAULT gen_random_uuid(), agg text, payload jsonb) PARTITION BY LIST (agg);
		CREATE TABLE part_a PARTITION OF parts FOR VALUES IN ('a'); CREATE TABLE part_b PARTITION OF parts FOR VALUES IN ('b');
		CREATE PUBLICATION `+db.Publication+` FOR TABLE parts WITH (publish = 'insert')`)
	s := &stack{db: db, path: configFor(t, db, `  - table: public.parts
    mapping: {event_id: id, key: agg, payload: payload}
    routes: [{topic: parts}]
`)}
	setupSteps(t, "--config", s.path)
	db.Exec(t, `INSERT INTO parts (agg, payload) VALUES ('a', '1'), ('b', '2')`)
	if r := told[peek.Report](t, s, exitDone, "peek"); r.Events != 2 || len(r.Counts) != 1 || r.Counts[0].Topic != "parts" {
		t.Errorf("%+v", r)
	}
}

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
	if want := []string{"register", "claim", "advance"}; !slices.Equal(actions, want) {
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
