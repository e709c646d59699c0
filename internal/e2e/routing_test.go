package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// textTable is the shared table with ids that the test decides and a payload of a type
// of its own.
func textTable(payload string) string {
	return "CREATE TABLE outbox(id text PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text DEFAULT 'X', payload " + payload + ")"
}

// TestNothingIsWrapped: key, value and headers are the columns' text and nothing else:
// no quotes, no envelope, no second encoding; and the key goes to its own partition
// (case C12).
func TestNothingIsWrapped(t *testing.T) {
	t.Parallel()
	bodies := []string{`{"a":1}`, `plain "text"`, `"`, `\`, "line\nline\r\n", "\x01\x1f\x7f", `"{\"a\":1}"`, `{"schema":{},"payload":{}}`, " ", "null", "''", "\\x41", "\ufeffbom"}
	for _, typ := range []string{"text", "varchar(100)", "json", "jsonb"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), textTable(typ))
			f.createTopic("order", 12, nil)
			var want []string
			var sql strings.Builder
			for i, body := range bodies {
				if strings.HasPrefix(typ, "json") && i > 0 && i != 6 && i != 7 && i != 9 {
					continue // no JSON
				}
				text := body
				if typ == "jsonb" {
					text = strings.NewReplacer(`":{`, `": {`, `":1`, `": 1`, `,"`, `, "`).Replace(body)
					if i == 6 {
						text = body // a string, not an object
					}
				}
				fmt.Fprintf(&sql, "INSERT INTO outbox VALUES ('%d', 'order', '42', '\"quoted\" \\ type', %s);", i, literal(body))
				want = append(want, fmt.Sprintf(`key "42" value %s id="%d" event_type="\"quoted\" \\ type"`, show([]byte(text)), i))
			}
			f.db.Exec(t, sql.String())
			f.mustDrain()
			f.requireRecords(f.topic("order"), want...)
			for _, r := range f.broker.ReadAll(t, f.topic("order")) {
				if r.Partition != 4 {
					t.Errorf("key 42 went to partition %d of 12, want 4", r.Partition)
				}
			}
		})
	}
}

// TestNullAndEmptyPayloads: an SQL NULL is refused unless the configuration makes it a
// tombstone, an empty text never becomes one by accident, JSON's null is four bytes; on a
// compacted topic as on any other, which flows on (case C13).
func TestNullAndEmptyPayloads(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"delete", "compact"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), textTable("text")+"; CREATE TABLE jb(LIKE outbox); ALTER TABLE jb ALTER payload TYPE jsonb USING payload::jsonb")
			f.createTopic("order", 1, map[string]string{"cleanup.policy": policy})
			f.db.Exec(t, `INSERT INTO outbox VALUES ('1', 'order', 'a', 'X', ''), ('2', 'order', 'b', 'X', ' '), ('3', 'order', 'c', 'X', NULL), ('4', 'order', 'd', 'X', 'null')`)
			low := f.confirmed()
			requireRefusal(t, f.drain(), event.ReasonNullPayload, "outbox", "payload", "3")
			f.requireRecords(f.topic("order"), `key "a" value "" id="1" event_type="X"`, `key "b" value " " id="2" event_type="X"`)
			if at := f.confirmed(); at > f.walEnd() || at < low {
				t.Errorf("confirmed %s", at)
			}
			f.mapping().NullPayload = router.NullPayloadTombstone
			f.mustDrain()
			again := []string{`key "a" value "" id="1" event_type="X"`, `key "b" value " " id="2" event_type="X"`}
			f.requireRecords(f.topic("order"), append(append(again, again...), // the halt was inside of their transaction
				`key "c" value null id="3" event_type="X"`, `key "d" value "null" id="4" event_type="X"`)...)
			// It flows on.
			f.db.Exec(t, "INSERT INTO outbox VALUES ('5', 'order', 'a', 'X', 'more')")
			f.mapping().BlankPayload = router.BlankPayloadTombstone
			f.db.Exec(t, "INSERT INTO outbox VALUES ('6', 'order', 'a', 'X', E' \\t\\n'), ('7', 'order', 'a', 'X', '')")
			f.mustDrain()
			records := f.broker.ReadAll(t, f.topic("order"))
			want := []string{`key "a" value "more" id="5" event_type="X"`, `key "a" value null id="6" event_type="X"`, `key "a" value null id="7" event_type="X"`}
			if got := spellAll(records[len(records)-3:]); strings.Join(got, ";") != strings.Join(want, ";") {
				t.Errorf("published %v, want %v", got, want)
			}
		})
	}
}

// TestJSONNullIsNoTombstone: jsonb and json null are their four letters, beside a NULL (case C13).
func TestJSONNullIsNoTombstone(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"json", "jsonb", "bytea"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), textTable(typ))
			f.mapping().NullPayload = router.NullPayloadTombstone
			f.mapping().BlankPayload = router.BlankPayloadTombstone
			f.createTopic("order", 1, map[string]string{"cleanup.policy": "compact"})
			f.db.Exec(t, "INSERT INTO outbox VALUES ('1', 'order', 'k', 'X', 'null'), ('2', 'order', 'k', 'X', NULL)")
			want := []string{`key "k" value "null" id="1" event_type="X"`, `key "k" value null id="2" event_type="X"`}
			if typ == "bytea" {
				// Bytes are no blank text, whatever they look like.
				f.db.Exec(t, `INSERT INTO outbox VALUES ('3', 'order', 'k', 'X', ''), ('4', 'order', 'k', 'X', '\x20')`)
				want = append(want, `key "k" value "" id="3" event_type="X"`, `key "k" value " " id="4" event_type="X"`)
			}
			f.mustDrain()
			f.requireRecords(f.topic("order"), want...)
		})
	}
}

// TestNullAndEmptyKeys: a NULL key is refused before a broker is asked, an empty one
// unless the configuration allows it (case C13).
func TestNullAndEmptyKeys(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"delete", "compact"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), textTable("text"))
			f.createTopic("order", 12, map[string]string{"cleanup.policy": policy})
			f.db.Exec(t, "INSERT INTO outbox VALUES ('1', 'order', 'k', 'X', '1')")
			f.db.Exec(t, "INSERT INTO outbox VALUES ('2', 'order', '', 'X', '2')")
			low := f.walEnd()
			f.db.Exec(t, "INSERT INTO outbox VALUES ('3', 'order', NULL, 'X', '3')")
			requireRefusal(t, f.drain(), event.ReasonEmptyKey, "aggregate_id", "2")
			f.mapping().EmptyKey = router.EmptyKeyAllow
			requireRefusal(t, f.drain(), event.ReasonNullKey, "aggregate_id", "3")
			if at := f.confirmed(); at > low {
				t.Errorf("confirmed %s, past %s", at, low)
			}
			records := f.broker.ReadAll(t, f.topic("order"))
			if len(records) != 2 || records[0].Partition != 9 && records[1].Partition != 9 {
				t.Fatalf("published %v, want two, the empty key in partition 9", spellAll(records))
			}
			for _, r := range records {
				if r.Partition == 9 && spell(r) != `key "" value "2" id="2" event_type="X"` {
					t.Errorf("published %s", spell(r))
				}
			}
		})
	}
}

// TestNullIDAndHeaders: an event without an id is refused, a NULL header is null and an
// empty one empty; the tombstone column and a headers column do what they say.
func TestNullIDAndHeaders(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), `CREATE TABLE outbox(id text, aggregate_type text, aggregate_id text,
		event_type text, payload text, v bigint, gone bool, more jsonb)`)
	m := f.mapping()
	m.AggregateVersion, m.AggregateVersionHeader, m.Tombstone, m.HeadersColumn = "v", "version", "gone", "more"
	m.Headers = []router.Field{{Column: "v", Name: "v2"}}
	f.createTopic("order", 1, nil)
	f.db.Exec(t, `INSERT INTO outbox VALUES ('1', 'order', 'k', NULL, 'x', 7, NULL, NULL), ('2', 'order', 'k', '', 'x', NULL, true, '{"traceparent":"00-\u00e9\"","b":""}'),
		('3', 'order', 'k', 'X', NULL, 9223372036854775807, true, '{}')`)
	f.mustDrain()
	f.requireRecords(f.topic("order"),
		`key "k" value "x" id="1" event_type=null version="7" v2="7"`,
		`key "k" value null id="2" event_type="" version=null v2=null b="" traceparent="00-é\""`,
		`key "k" value null id="3" event_type="X" version="9223372036854775807" v2="9223372036854775807"`)
	for sql, reason := range map[string]event.Reason{
		"(NULL, 'order', 'k', 'X', 'x')":                           event.ReasonNullEventID,
		"('', 'order', 'k', 'X', 'x')":                             event.ReasonNullEventID,
		"('4', NULL, 'k', 'X', 'x')":                               event.ReasonNullRoute,
		`('4', 'order', 'k', 'X', 'x', 1, false, '{"a":1}')`:       event.ReasonHeaders,
		`('4', 'order', 'k', 'X', 'x', 1, false, '{"a":{"b":1}}')`: event.ReasonHeaders,
		`('4', 'order', 'k', 'X', 'x', 1, false, '["a"]')`:         event.ReasonHeaders,
	} {
		t.Run(sql, func(t *testing.T) {
			f.db.Exec(t, "INSERT INTO outbox VALUES "+sql)
			requireRefusal(t, f.drain(), reason)
			f.skipAll()
		})
	}
	if n := len(f.broker.ReadAll(t, f.topic("order"))); n != 3 {
		t.Errorf("%d records, want the 3 before", n)
	}
}

// skipAll passes what is refused by publishing it elsewhere, with a mapping that takes
// anything.
func (f *fixture) skipAll() {
	f.t.Helper()
	cfg := f.cfg
	f.cfg.Router.Sources = []router.Source{{
		Schema: "public", Table: "outbox", Routes: []router.Route{{Topic: f.topic("skipped")}},
		Mapping: router.Mapping{EventID: "payload", Key: "payload", Payload: "payload"},
	}}
	f.mustDrain()
	f.cfg = cfg
}
