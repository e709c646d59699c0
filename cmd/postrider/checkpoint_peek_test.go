package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/internal/testkit"
)

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
	// The server takes a temporary slot away when it has seen its session end.
	testkit.Eventually(t, patience, func() error {
		if holder := scalar(t, s.db, "SELECT count(*)::text FROM pg_replication_slots WHERE active AND database = $1", s.db.Name); holder != "1" {
			return fmt.Errorf("%s slots are active", holder)
		}
		return nil
	})
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
