package router

import (
	"errors"
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
)

// case C06: names are compared byte by byte; the error names the column, the table
// and what the table really has.
func TestC06ExactNames(t *testing.T) {
	t.Parallel()
	rel := relation("Outbox Events", `Id uuid, AggregateId text, a"b text, payload jsonb`)
	rel.Namespace = "My.Schema"
	src := Source{
		Schema: "My.Schema", Table: "Outbox Events",
		Mapping: Mapping{EventID: "Id", Key: "AggregateId", Payload: "payload", Headers: []Field{{Column: `a"b`}}},
		Routes:  []Route{{Topic: "events"}},
	}
	msg := routeOne(t, src, rel, someID, "1", "h", "{}")
	if got := header(&msg, `a"b`); got != `"h"` {
		t.Errorf("header is %s", got)
	}

	src.Mapping.Key = "aggregateid"
	r := newRouter(t, src)
	err := r.Bind(rel)
	var bindErr *BindError
	if !errors.As(err, &bindErr) {
		t.Fatalf("Bind: %v", err)
	}
	for _, part := range []string{"My.Schema.Outbox Events", `"aggregateid"`, "key", `did you mean "AggregateId"`, `"Id"`, `"a\"b"`, `"payload"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error lacks %s: %v", part, err)
		}
	}
	var got event.Message
	routed, refusal := r.Route(row(rel, someID, "1", "h", "{}"), &got)
	if routed || refusal == nil || refusal.Reason != event.ReasonMissingColumn || refusal.Column != "aggregateid" || refusal.EventID != someID {
		t.Errorf("routed %v, refusal %v", routed, refusal)
	}
}

// case C07: each row is read by the description that precedes it; a row whose
// payload column is gone is refused, never published empty.
func TestC07ChangesInTheStream(t *testing.T) {
	t.Parallel()
	r := newRouter(t, fixture())
	generation := uint64(0)
	step := func(columns string, values ...any) (event.Message, *event.Refusal) {
		rel := relation("outbox", columns)
		generation++
		rel.Generation = generation
		_ = r.Bind(rel)
		var msg event.Message
		_, refusal := r.Route(row(rel, values...), &msg)
		return msg, refusal
	}
	if msg, refusal := step(fixtureColumns, someID, "order", "1", "x", `"before"`, nil); refusal != nil || string(msg.Value) != `"before"` {
		t.Fatalf("before: %s %v", msg.Value, refusal)
	}
	renamed := strings.Replace(fixtureColumns, "payload", "body", 1)
	if _, refusal := step(renamed, someID, "order", "1", "x", `"after"`, nil); refusal == nil || refusal.Column != "payload" || refusal.Table != "public.outbox" {
		t.Fatalf("after: %v", refusal)
	}
	for _, c := range []struct {
		columns string
		values  []any
	}{
		{fixtureColumns, []any{someID, "order", "1", "x", `"in1"`, nil}},
		{fixtureColumns + ", extra int4", []any{someID, "order", "1", "x", `"in1"`, nil, "7"}},
		{"created_at timestamptz, payload jsonb, id uuid, aggregate_type text, event_type text, aggregate_id text", []any{nil, `"in1"`, someID, "order", "x", "1"}},
	} {
		if msg, refusal := step(c.columns, c.values...); refusal != nil || string(msg.Value) != `"in1"` || string(msg.Key) != "1" {
			t.Errorf("%s: key %s value %s %v", c.columns, msg.Key, msg.Value, refusal)
		}
	}
}

// trap 25: a leaf of a partitioned outbox is read with its root's mapping; its
// columns may stand in another order.
func TestBindLeafAsRoot(t *testing.T) {
	t.Parallel()
	leaf := relation("outbox_2024", "payload jsonb, "+strings.Replace(fixtureColumns, ", payload jsonb", "", 1))
	r := newRouter(t, fixture())
	if err := r.BindAs(leaf, "public", "outbox"); err != nil {
		t.Fatal(err)
	}
	var msg event.Message
	if routed, refusal := r.Route(row(leaf, "1", someID, "order", "7", "x", nil), &msg); !routed {
		t.Fatal(refusal)
	}
	wantBytes(t, "key", msg.Key, "7")
}

// Types that an option cannot work with are found when the table is bound.
func TestTypesAreChecked(t *testing.T) {
	t.Parallel()
	for option, change := range map[string]func(*Mapping){
		"partition":           func(m *Mapping) { m.Partition = "event_type" },
		"tombstone":           func(m *Mapping) { m.Tombstone = "event_type" },
		"headers_column":      func(m *Mapping) { m.HeadersColumn = "event_type" },
		"aggregate_version":   func(m *Mapping) { m.AggregateVersion = "event_type" },
		"timestamp.column":    func(m *Mapping) { m.Timestamp.Column = "event_type" },
		"timestamp.unit":      func(m *Mapping) { m.Timestamp.Column = "n" },
		"headers[0].column":   func(m *Mapping) { m.Headers = []Field{{Column: "pt", Format: FormatDebezium}} },
		"envelope.fields[0].": func(m *Mapping) { m.Envelope = &Envelope{Mode: EnvelopeDebezium, Fields: []Field{{Column: "pt"}}} },
	} {
		s := fixture()
		change(&s.Mapping)
		rel := relation("outbox", fixtureColumns+", n int8, pt point")
		r := newRouter(t, s)
		err := r.Bind(rel)
		if err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("%s: %v", option, err)
			continue
		}
		var msg event.Message
		if _, refusal := r.Route(row(rel, someID, "order", "1", "x", "1", nil, nil, nil), &msg); refusal == nil || refusal.Reason != event.ReasonUnsupportedType {
			t.Errorf("%s: %v", option, refusal)
		}
	}
	s := fixture()
	s.Mapping.Timestamp = Timestamp{Column: "created_at", Unit: UnitMillis}
	if err := newRouter(t, s).Bind(relation("outbox", fixtureColumns)); err == nil {
		t.Error("a unit for a timestamptz is accepted")
	}
}

// All problems of a table come in one error.
func TestBindErrorIsComplete(t *testing.T) {
	t.Parallel()
	err := newRouter(t, fixture()).Bind(relation("outbox", "x int4"))
	var bindErr *BindError
	if !errors.As(err, &bindErr) || len(bindErr.Problems) != 5 {
		t.Errorf("problems are %v", err)
	}
}

// on_missing: ignore is for additional columns only.
func TestMissingIgnore(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns)
	s := fixture()
	s.Mapping.OnMissing = OnMissingIgnore
	s.Mapping.Partition = "nope"
	s.Mapping.Headers = []Field{{Column: "nope"}, {Column: "created_at"}}
	s.Mapping.Envelope = &Envelope{Fields: []Field{{Column: "nope"}, {Column: "event_type"}}}
	msg := routeOne(t, s, rel, someID, "order", "1", "x", "1", nil)
	wantBytes(t, "value", msg.Value, `{"payload":1,"event_type":"x"}`)
	if len(msg.Headers) != 3 || header(&msg, "created_at") != "null" {
		t.Errorf("headers are %v", msg.Headers)
	}
	s.Mapping.Key = "nope"
	if err := newRouter(t, s).Bind(rel); err == nil {
		t.Error("a missing key is ignored")
	}
}
