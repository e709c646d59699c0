package router

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// Every problem is reported, each with the path of its option.
func TestConfigProblems(t *testing.T) {
	t.Parallel()
	bad := Source{
		Schema: "", Table: "outbox",
		Mapping: Mapping{
			Key: "k", AggregateType: "", EmptyKey: "maybe", NullPayload: "x", BlankPayload: "x", OnMissing: "x", OnNoMatch: "x",
			Timestamp:     Timestamp{Unit: "h"},
			EventIDHeader: "postrider-id", EventTypeHeader: "type", AggregateVersionHeader: "v",
			Headers:  []Field{{}, {Column: "a"}, {Column: "b", Name: "a", Format: "xml"}},
			Envelope: &Envelope{Mode: "x", PayloadAs: "x", Fields: []Field{{}, {Column: "payload"}, {Column: "c", Format: FormatText}}},
		},
		Routes: []Route{
			{Match: []Match{{Field: "nope"}, {Field: "event_type", Glob: "a", Regex: "("}}, Topic: "x y"},
			{Match: []Match{{Field: "key", Glob: "a"}}},
			{Topic: "a", Regex: "b"},
			{By: "key", Regex: "(?=a)"},
			{By: "key", Regex: "a"},
			{By: "key", Regex: "a", Replacement: "$1"},
			{By: "key", Regex: "a", Replacement: "a b"},
			{Regex: "a", Replacement: "x"},
			{Match: []Match{{Field: "key", Glob: "a"}}, Topic: "${key"},
			{Match: []Match{{Field: "key", Glob: "a"}}, Topic: "..", By: "key", Replacement: "x"},
			{Topic: "fine"},
			{Topic: "late"},
		},
	}
	_, err := New(Config{Sources: []Source{bad, {Schema: "s", Table: "t", Mapping: Mapping{EventID: "a", Key: "b", Payload: "c"}}, fixture(), fixture()}})
	if err == nil {
		t.Fatal("accepted")
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%T does not join its problems", err)
	}
	var paths []string
	for _, e := range joined.Unwrap() {
		var problem *ConfigError
		if !errors.As(e, &problem) || problem.Problem == "" {
			t.Errorf("%v is no ConfigError", e)
			continue
		}
		paths = append(paths, problem.Path)
	}
	for _, want := range strings.Fields(`
		sources[0].schema sources[0].mapping.event_id sources[0].mapping.payload sources[0].mapping.empty_key
		sources[0].mapping.null_payload sources[0].mapping.blank_payload sources[0].mapping.on_missing
		sources[0].mapping.on_no_match sources[0].mapping.timestamp.unit sources[0].mapping.timestamp.column
		sources[0].mapping.event_type_header sources[0].mapping.aggregate_version_header
		sources[0].mapping.headers[0].column sources[0].mapping.headers[2].name sources[0].mapping.headers[2].format
		sources[0].mapping.envelope.mode sources[0].mapping.envelope.payload_as sources[0].mapping.envelope.fields[0].column
		sources[0].mapping.envelope.fields[1].name sources[0].mapping.envelope.fields[2].format
		sources[0].routes[0].match[0].field sources[0].routes[0].match[0] sources[0].routes[0].match[1].field
		sources[0].routes[0].match[1] sources[0].routes[0].match[1].regex sources[0].routes[0].topic
		sources[0].routes[1].topic sources[0].routes[2] sources[0].routes[3].regex sources[0].routes[4].replacement
		sources[0].routes[5].replacement sources[0].routes[6].replacement sources[0].routes[7].by
		sources[0].routes[8].topic sources[0].routes[9].topic sources[0].routes[9].by sources[0].routes[9].replacement
		sources[0].routes[11] sources[1].routes sources[3].table`) {
		if !slices.Contains(paths, want) {
			t.Errorf("no problem at %s in:\n%v", want, err)
		}
	}
	if !strings.Contains(err.Error(), "sources[0].routes[1].topic: empty") {
		t.Errorf("error is %v", err)
	}
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "sources: empty") {
		t.Errorf("no sources: %v", err)
	}
}

// A header's name cannot be taken twice, nor be one of Postrider's own.
func TestHeaderNames(t *testing.T) {
	t.Parallel()
	for path, change := range map[string]func(*Mapping){
		"mapping.event_type_header": func(m *Mapping) { m.EventTypeHeader = "id" },
		"mapping.headers[0].name":   func(m *Mapping) { m.Headers = []Field{{Column: "x", Name: "event_type"}} },
		"mapping.event_id_header":   func(m *Mapping) { m.EventIDHeader = "postrider-x" },
	} {
		s := fixture()
		change(&s.Mapping)
		if _, err := New(Config{Sources: []Source{s}}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	s := fixture()
	s.Mapping.EventTypeHeader = Disabled
	s.Mapping.Headers = []Field{{Column: "x", Name: "event_type"}}
	newRouter(t, s)
}

// on_no_match: raw needs a field to take the topic from.
func TestRawNeedsAField(t *testing.T) {
	t.Parallel()
	s := Source{
		Schema: "s", Table: "t",
		Mapping: Mapping{EventID: "a", Key: "b", Payload: "c", OnNoMatch: OnNoMatchRaw},
		Routes:  []Route{{Match: []Match{{Field: "key", Glob: "x"}}, Topic: "x"}},
	}
	if _, err := New(Config{Sources: []Source{s}}); err == nil || !strings.Contains(err.Error(), "mapping.on_no_match") {
		t.Errorf("%v", err)
	}
	s.Routes = []Route{{By: "column.d", Regex: "x", Replacement: "y"}}
	rel := relation("t", "a text, b text, c text, d text")
	rel.Namespace = "s"
	if msg := routeOne(t, s, rel, "1", "k", "v", "plain"); msg.Topic != "plain" {
		t.Errorf("topic is %s", msg.Topic)
	}
}

// Without routes the topic is the default template.
func TestDefaultTopic(t *testing.T) {
	t.Parallel()
	s := fixture()
	s.Routes = nil
	if msg := routeOne(t, s, relation("outbox", fixtureColumns), someID, "order", "1", "x", "1", nil); msg.Topic != "outbox.event.order" {
		t.Errorf("topic is %s", msg.Topic)
	}
}

// What a caller needs to know before there are rows.
func TestTopicsAndColumns(t *testing.T) {
	t.Parallel()
	s := fixture()
	s.Mapping.Headers = []Field{{Column: "id", Name: "again"}, {Column: "h"}}
	s.Mapping.Envelope = &Envelope{Fields: []Field{{Column: "e"}}}
	s.Mapping.Timestamp.Column = "created_at"
	s.Routes = []Route{
		{Match: []Match{{Field: "column.tenant", Glob: "b"}}, Topic: "b"},
		{Match: []Match{{Field: "key", Glob: "a"}}, Topic: "a"},
		{Topic: "x.${event_type}"},
	}
	if got := newRouter(t, s).StaticTopics(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("topics are %v", got)
	}
	want := []string{"id", "aggregate_id", "payload", "aggregate_type", "event_type", "created_at", "h", "e", "tenant"}
	if got := s.Columns(); !slices.Equal(got, want) {
		t.Errorf("columns are %v", got)
	}
}

// Each profile is complete as it stands and fits its own layout.
func TestProfiles(t *testing.T) {
	t.Parallel()
	for name, columns := range map[string]string{
		"default":  "event_id uuid, aggregate_type text, aggregate_id text, aggregate_version int8, event_type text, payload jsonb, headers jsonb, occurred_at timestamptz",
		"debezium": "id uuid, aggregatetype varchar(255), aggregateid varchar(255), type varchar(255), payload jsonb",
		"quarkus":  "id uuid, aggregateid varchar(255), aggregatetype varchar(255), type varchar(255), timestamp timestamp, payload varchar(8000), tracingspancontext varchar(256)",
		"polling":  "id int8, aggregate_id uuid, type text, payload jsonb, created_at timestamptz, dispatched_at timestamptz",
		"prisma":   "eventId uuid, aggregateId text, aggregateType text, eventType text, payload jsonb, createdAt timestamp(3)",
	} {
		s, ok := Profile(name)
		if !ok {
			t.Errorf("no profile %s", name)
			continue
		}
		s.Schema = "public"
		boundRouter(t, s, relation(s.Table, columns))
	}
	if got := Profiles(); !slices.Equal(got, []string{"debezium", "default", "polling", "prisma", "quarkus"}) {
		t.Errorf("profiles are %v", got)
	}
	if _, ok := Profile("nope"); ok {
		t.Error("a profile that does not exist")
	}
}

// The records of the default and the quarkus layout.
func TestProfileRecords(t *testing.T) {
	t.Parallel()
	s, _ := Profile("default")
	s.Schema = "public"
	rel := relation("outbox", "event_id uuid, aggregate_type text, aggregate_id text, aggregate_version int8, event_type text, payload jsonb, headers jsonb, occurred_at timestamptz")
	msg := routeOne(t, s, rel, someID, "order", "o-1", "3", "Placed", `{"a": 1}`, `{"trace": "x"}`, "2024-03-05 06:07:08+00")
	if len(msg.Headers) != 4 || header(&msg, "aggregate_version") != `"3"` || header(&msg, "trace") != `"x"` ||
		msg.Topic != "outbox.event.order" || string(msg.Key) != "o-1" || msg.TimestampMillis != 1709618828000 {
		t.Errorf("message is %+v", msg)
	}
	s, _ = Profile("quarkus")
	s.Schema = "public"
	rel = relation("outboxevent", "id uuid, aggregateid varchar(255), aggregatetype varchar(255), type varchar(255), timestamp timestamp, payload varchar(8000), tracingspancontext varchar(256)")
	msg = routeOne(t, s, rel, someID, "o-1", "order", "Placed", "2024-03-05 06:07:08", nil, nil)
	if len(msg.Headers) != 1 || msg.Value != nil || msg.TimestampMillis != 1709618828000 {
		t.Errorf("message is %+v", msg)
	}
}
