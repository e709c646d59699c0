package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
	"github.com/postrider/postrider/router/eventrouter"
	"github.com/postrider/postrider/router/goldentest"
)

// goldenFile is the reference's record of itself: rows, options, and what Debezium's
// Event Router really wrote for them.
const goldenFile = "../../router/testdata/event_router_golden.json"

// goldenBetter are the scenarios in which ours differs, as docs/event-router.md explains:
// the reference's task dies, or it writes the payload anew.
var goldenBetter = map[string]func(*fixture){
	// A bigint has no unit of its own: said at the start, not at the first row.
	"tsbig": func(f *fixture) {
		requireClass(f.t, f.drain(), operr.Config, `"at"`, "unit")
		f.mapping().Timestamp.Unit = router.UnitMillis
		f.mustDrain()
		f.requireTimestamp(1709618828123)
	},
	"tstz": func(f *fixture) {
		f.mustDrain()
		f.requireTimestamp(1709618828123)
	},
	"expand": func(f *fixture) {
		f.mustDrain()
		f.requireRecords(f.topic("order"), `key "k" value "{\"a\": 1, \"b\": null, \"c\": [], \"d\": {\"x\": 1.5, \"y\": \"s\"}, \"e\": 12345678901, \"f\": [1, 2]}"`+
			` id="00000000-0000-0000-0000-000000000001"`)
	},
	"nullroute": func(f *fixture) {
		requireRefusal(f.t, f.drain(), event.ReasonNullRoute, "aggregatetype", "00000000-0000-0000-0000-000000000001")
	},
	"badtopic": func(f *fixture) {
		requireRefusal(f.t, f.drain(), event.ReasonInvalidTopic, "aggregatetype", "00000000-0000-0000-0000-000000000001")
		// A rule for it, and everything goes on.
		bad := "My Type"
		f.cfg.Router.Sources[0].Routes = append([]router.Route{{Match: []router.Match{{Field: "aggregate_type", Exact: &bad}}, Topic: f.topic("my-type")}},
			f.cfg.Router.Sources[0].Routes...)
		f.mustDrain()
		f.requireRecords(f.topic("my-type"), `key "k" value "1" id="00000000-0000-0000-0000-000000000001"`)
		f.requireRecords(f.topic("ok"), `key "k" value "2" id="00000000-0000-0000-0000-000000000002"`)
	},
	"missingerr": func(f *fixture) {
		requireClass(f.t, f.drain(), operr.Config, `"nope"`, `"aggregatetype"`)
	},
}

// TestGolden runs the rows of each scenario through a real PostgreSQL, the relay and a
// real Kafka, under the reference's own options, and expects its records: topic,
// partition, order, key, value and headers.
func TestGolden(t *testing.T) {
	t.Parallel()
	scenarios, err := goldentest.Load(goldenFile)
	must(t, err)
	if len(scenarios) < 18 {
		t.Fatalf("only %d scenarios", len(scenarios))
	}
	for _, s := range scenarios {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			f := newGoldenFixture(t, &s)
			if better := goldenBetter[s.Name]; better != nil {
				better(f)
				return
			}
			if s.Failure != "" {
				t.Fatalf("the reference fails (%s), and nothing is said of ours", s.Failure)
			}
			f.mustDrain()
			f.requireGolden(&s)
			f.mustDrain()
			f.requireGolden(&s)
		})
	}
}

// newGoldenFixture translates the scenario's options. Topics get the test's prefix in
// the place of the reference's, so that scenarios do not meet.
func newGoldenFixture(t *testing.T, s *goldentest.Scenario) *fixture {
	f := newFixtureOf(t, testkit.Postgres(t), "CREATE TABLE outbox ("+s.Columns+"); CREATE PUBLICATION %s FOR TABLE outbox", func(f *fixture) []router.Source {
		source, _, err := eventrouter.Translate("public", "outbox", s.EventRouter)
		must(t, err)
		for i := range source.Routes {
			r := &source.Routes[i]
			if r.Regex != "" {
				r.Replacement = f.prefix + "." + r.Replacement
			} else {
				r.Topic = f.prefix + strings.TrimPrefix(r.Topic, "outbox.event")
			}
		}
		return []router.Source{source}
	})
	f.cfg.Kafka.CreateTopics.Partitions = 6
	for _, sql := range s.Statements {
		// The one whose topic is the raw value.
		f.db.Exec(t, strings.ReplaceAll(sql, "'plain'", "'"+f.prefix+"-plain'"))
	}
	return f
}

// goldenTopic is the name under which a topic of the reference is found here.
func (f *fixture) goldenTopic(name string) string {
	switch rest, ok := strings.CutPrefix(name, "outbox.event"); {
	case ok:
		return f.prefix + rest
	case name == "plain":
		return f.prefix + "-plain"
	default:
		return f.prefix + "." + name
	}
}

func (f *fixture) requireGolden(s *goldentest.Scenario) {
	f.t.Helper()
	want := map[string][]string{}
	for _, r := range s.Records {
		text := fmt.Sprintf("partition %d key %s value %s", r.Partition, show(r.Key), show(r.Value))
		for _, h := range r.Headers {
			text += fmt.Sprintf(" %s=%s", h.Name, show(h.Value))
		}
		topic := f.goldenTopic(r.Topic)
		want[topic] = append(want[topic], text)
	}
	for topic, want := range want {
		f.requireInPartitions(topic, want)
		for _, r := range f.broker.ReadAll(f.t, topic) {
			if age := time.Since(r.Timestamp); age < 0 || age > 2*patience {
				f.t.Errorf("timestamp %s is not the time of commit", r.Timestamp)
			}
		}
	}
}

// requireInPartitions compares a topic with "partition N " and what spell says, in the
// order of each partition.
func (f *fixture) requireInPartitions(topic string, want []string) {
	f.t.Helper()
	var got []string
	for _, r := range f.awaitRecords(topic, len(want)) {
		got = append(got, fmt.Sprintf("partition %d %s", r.Partition, spell(r)))
	}
	byPartition := func(a, b string) int { return strings.Compare(a[:len("partition 0")], b[:len("partition 0")]) }
	slices.SortStableFunc(got, byPartition)
	slices.SortStableFunc(want, byPartition)
	if !slices.Equal(got, want) {
		f.t.Errorf("topic %s holds\n  %s\nwant\n  %s", topic, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// requireTimestamp: the one record carries the time that its row names.
func (f *fixture) requireTimestamp(millis int64) {
	f.t.Helper()
	records := f.awaitRecords(f.topic("order"), 1)
	if len(records) != 1 || records[0].Timestamp.UnixMilli() != millis || string(records[0].Value) != "1" {
		f.t.Errorf("published %v at %v, want one at %d", spellAll(records), records[0].Timestamp.UnixMilli(), millis)
	}
}

// TestGoldenIsCovered: each failure of the reference has a better behaviour of ours.
func TestGoldenIsCovered(t *testing.T) {
	t.Parallel()
	scenarios, err := goldentest.Load(goldenFile)
	must(t, err)
	names := map[string]bool{}
	for _, s := range scenarios {
		names[s.Name] = true
		if s.Failure != "" && goldenBetter[s.Name] == nil {
			t.Errorf("%s: the reference fails, and nothing is said of ours", s.Name)
		}
	}
	for name := range goldenBetter {
		if !names[name] {
			t.Errorf("%s is no scenario", name)
		}
	}
}

// goldenNeighbours are rows and options of the same kinds as the golden file's, with the
// records that the reference's documented behaviour gives: by topic, as spell has them.
var goldenNeighbours = []struct {
	name, columns string
	options       map[string]string
	statements    []string
	want          map[string][]string
}{
	{
		"every name changed", `"Event Id" int, k varchar(5), "Body" text, at timestamp, dest text, part smallint, n int`,
		map[string]string{
			"table.field.event.id": "Event Id", "table.field.event.key": "k", "table.field.event.payload": "Body", "table.field.event.timestamp": "at",
			"route.by.field": "dest", "table.fields.additional.placement": "part:partition, n:header:N,n:header", "table.op.invalid.behavior": "error",
		},
		[]string{
			"insert into outbox values (1, 'k', 'x', '2024-03-05 06:07:08.123999', 'Order', 5, 7)",
			"insert into outbox values (2, 'k', 'x', NULL, 'Order', NULL, NULL)",
		},
		map[string][]string{".Order": {
			`partition 2 key "k" value "x" id="2" N=null n=null`, `partition 5 key "k" value "x" id="1" N="7" n="7"`,
		}},
	},
	{
		"tombstones", "id int, aggregatetype text, aggregateid text, payload text",
		map[string]string{"route.tombstone.on.empty.payload": "true"},
		[]string{`insert into outbox values (1, 'order', 'k', ''), (2, 'order', 'k', E' \n\t'), (3, 'order', 'k', NULL), (4, 'order', 'k', 'null'), (5, 'order', 'k', '{}'), (6, 'order', '', ' ')`},
		map[string][]string{".order": {
			`partition 2 key "k" value null id="1"`, `partition 2 key "k" value null id="2"`, `partition 2 key "k" value null id="3"`,
			`partition 2 key "k" value "null" id="4"`, `partition 2 key "k" value "{}" id="5"`, `partition 3 key "" value "\u00a0" id="6"`,
		}},
	},
	{
		"numbered groups", "id int, aggregatetype text, aggregateid text, payload jsonb",
		map[string]string{"route.topic.regex": `(?i)([a-z]+)-(\d+)(?:-.*)?`, "route.topic.replacement": "t.$2_$1"},
		[]string{"insert into outbox values (1, 'Order-12', 'k', '1'), (2, 'a-1-more', 'k', '2')"},
		map[string][]string{".t.12_Order": {`partition 2 key "k" value "1" id="1"`}, ".t.1_a": {`partition 2 key "k" value "2" id="2"`}},
	},
	{
		"missing columns ignored, by the option's old name", "id int, aggregatetype text, aggregateid text, payload jsonb, h text",
		map[string]string{"table.fields.additional.error.on.missing": "false", "table.fields.additional.placement": "nope:header,h:header:H,gone:partition,away:envelope"},
		[]string{"insert into outbox values (1, 'order', 'k', '[1]', 'h')"},
		map[string][]string{".order": {`partition 2 key "k" value "{\"payload\":\"[1]\"}" id="1" H="h"`}},
	},
	{
		"envelope and header of every kind", "id uuid, aggregatetype text, aggregateid text, payload text, b bool, n numeric(10,2), by bytea, d date, ar int[], f float4, x text",
		map[string]string{"table.fields.additional.placement": "b:envelope,n:envelope,by:envelope,d:envelope,ar:envelope,f:envelope,x:envelope:ex,n:header,d:header:day,f:header,ar:header"},
		[]string{`insert into outbox values ('00000000-0000-0000-0000-00000000000A', 'order', 'k', E'a"b\\\u2028', false, -1.5, '\xff00', '1969-12-31', '{1,NULL}', 1, '<é>')`},
		map[string][]string{".order": {`partition 2 key "k" value "{\"payload\":\"a\\\"b\\\\\u2028\",\"b\":false,\"n\":\"/2o=\",\"by\":\"/wA=\",\"d\":-1,\"ar\":[1,null],\"f\":1.0,\"ex\":\"<é>\"}"` +
			` id="00000000-0000-0000-0000-00000000000a" n="-1.50" day="-1" f="1.0" ar="[1,null]"`}},
	},
	{
		"updates, deletes and a new key", "id int primary key, aggregatetype text, aggregateid text, payload jsonb", nil,
		[]string{
			"insert into outbox values (1, 'order', 'k', '1')", "update outbox set payload = '2'", "update outbox set id = 11", "delete from outbox",
			"begin; insert into outbox values (2, 'order', 'k', '2'); update outbox set payload = '3'; delete from outbox; commit",
			"begin; insert into outbox values (3, 'order', 'k', '3'); rollback", "truncate outbox; insert into outbox values (4, 'order', 'k', '4')",
		},
		map[string][]string{".order": {`partition 2 key "k" value "1" id="1"`, `partition 2 key "k" value "2" id="2"`, `partition 2 key "k" value "4" id="4"`}},
	},
	{
		"Quarkus", `id uuid PRIMARY KEY, aggregateid varchar(255) NOT NULL, aggregatetype varchar(255) NOT NULL, type varchar(255) NOT NULL, timestamp timestamp NOT NULL,
			payload varchar(8000), tracingspancontext varchar(256)`,
		map[string]string{"table.field.event.timestamp": "timestamp", "table.fields.additional.placement": "type:header:eventType", "tracing.span.context.field": "tracingspancontext"},
		[]string{`begin; insert into outbox values ('00000000-0000-0000-0000-000000000001', 'k', 'Order', 'Placed', '2024-03-05 06:07:08.123456', '{"a":1,  "b":null}', NULL);
			delete from outbox; commit`},
		map[string][]string{".Order": {`partition 2 key "k" value "{\"a\":1,  \"b\":null}" id="00000000-0000-0000-0000-000000000001" eventType="Placed"`}},
	},
}

// TestGoldenNeighbours: what the reference is known to do with other rows and options.
func TestGoldenNeighbours(t *testing.T) {
	t.Parallel()
	for _, n := range goldenNeighbours {
		t.Run(n.name, func(t *testing.T) {
			t.Parallel()
			f := newGoldenFixture(t, &goldentest.Scenario{Columns: n.columns, EventRouter: n.options, Statements: n.statements})
			f.mustDrain()
			for topic, want := range n.want {
				f.requireInPartitions(f.prefix+topic, want)
			}
			if n.name == "every name changed" {
				for _, r := range f.broker.ReadAll(t, f.topic("Order")) {
					if id, _ := r.Header("id"); string(id) == "1" && r.Timestamp.UnixMilli() != 1709618828123 {
						t.Errorf("timestamp %d is not cut to milliseconds", r.Timestamp.UnixMilli())
					} else if string(id) == "2" && time.Since(r.Timestamp) > 2*patience {
						t.Errorf("a NULL timestamp became %s", r.Timestamp)
					}
				}
			}
		})
	}
}
