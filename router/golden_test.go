package router_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/router"
	"github.com/postrider/postrider/router/eventrouter"
	"github.com/postrider/postrider/router/goldentest"
)

const goldenID = "00000000-0000-0000-0000-00000000000"

// goldenRows are the rows of each scenario's statements, in the text that
// PostgreSQL sends for them; nil is NULL.
var goldenRows = map[string][][]any{
	"default": {
		{goldenID + "1", "order", "order-1", "OrderPlaced", `{"a": 2, "b": 1, "n": 12345678901234567890.10, "u": "é"}`},
		{goldenID + "2", "order", "ключ", "X", `"x"`},
		{goldenID + "3", "Customer", "c 1", "X", `null`},
		{goldenID + "4", "order", "order-1", "X", `[1, 2]`},
	},
	"textpayload": {
		{goldenID + "1", "order", "k", "X", `plain "text"`},
		{goldenID + "2", "order", "k", "X", ``},
		{goldenID + "3", "order", "k", "X", `   `},
		{goldenID + "4", "order", "k", "X", nil},
	},
	"regex": {
		{goldenID + "1", "sales.order", "k", "X", `1`},
		{goldenID + "2", "plain", "k", "X", `2`},
		{goldenID + "3", "a.b.c", "k", "X", `3`},
	},
	"routebytype": {{goldenID + "1", "order", "k", "Placed", "1"}},
	"headers": {{
		goldenID + "1", "order", "k", "Placed", "1", "42", "9007199254740993", "t", "2024-02-29",
		"23:59:59.999999", "2024-03-05 06:07:08.123456", "2024-03-05 04:07:08.123456+00", "12.50",
		"12345.678901234567890", "0.1", "550e8400-e29b-41d4-a716-446655440000", `\xdeadbeef`,
		`{a,"b c"}`, `{"a": 1}`, "1 day 02:03:04", nil,
	}},
	"envelope": {
		{goldenID + "1", "order", "k", "Placed", `{"a": 1}`, "42", "2024-03-05 04:07:08+00"},
		{goldenID + "2", "order", "k", "Placed", nil, nil, nil},
	},
	"tsbig": {{goldenID + "1", "order", "k", "Placed", "1", "1709618828123"}},
	"tstz":  {{goldenID + "1", "order", "k", "Placed", "1", "2024-03-05 06:07:08.123456+00"}},
	"bytea": {
		{goldenID + "1", "order", "k", "Placed", `\xdeadbeef00ff`},
		{goldenID + "2", "order", "k", "Placed", `\x`},
	},
	"expand":     {{goldenID + "1", "order", "k", "P", `{"a": 1, "b": null, "c": [], "d": {"x": 1.5, "y": "s"}, "e": 12345678901, "f": [1, 2]}`}},
	"missingerr": {{goldenID + "1", "order", "k", "P", "1"}},
	"missingign": {{goldenID + "1", "order", "k", "P", "1"}},
	"nullroute":  {{goldenID + "1", nil, "k", "P", "1"}},
	"badtopic": {
		{goldenID + "1", "My Type", "k", "P", "1"},
		{goldenID + "2", "ok", "k", "P", "2"},
	},
	"intkey":    {{goldenID + "1", "order", "42", "X", "1"}},
	"schemaver": {{goldenID + "1", "order", "k", "P", "1", "3"}},
	"insdel":    {{goldenID + "1", "order", "k", "P", "1"}, {goldenID + "2", "order", "k", "P", "2"}},
	"trunc":     {{goldenID + "1", "order", "k", "P", "1"}, {goldenID + "2", "order", "k", "P", "2"}},
}

// pgTypes are the names that the scenarios use.
var pgTypes = map[string]event.Column{
	"uuid": {TypeOID: 2950}, "varchar(255)": {TypeOID: 1043, TypeMod: 259}, "jsonb": {TypeOID: 3802},
	"text": {TypeOID: 25}, "int": {TypeOID: 23}, "bigint": {TypeOID: 20}, "boolean": {TypeOID: 16},
	"date": {TypeOID: 1082}, "time": {TypeOID: 1083}, "timestamp": {TypeOID: 1114},
	"timestamptz": {TypeOID: 1184}, "numeric(10,2)": {TypeOID: 1700, TypeMod: 10<<16 | 2 + 4},
	"numeric": {TypeOID: 1700}, "float8": {TypeOID: 701}, "bytea": {TypeOID: 17},
	"text[]": {TypeOID: 1009}, "interval": {TypeOID: 1186},
}

func goldenRelation(t *testing.T, columns string) *event.Relation {
	t.Helper()
	rel := &event.Relation{OID: 20000, Namespace: "public", Name: "outbox", Generation: 1}
	columns = strings.ReplaceAll(columns, "(10,2)", "(10;2)")
	for def := range strings.SplitSeq(columns, ", ") {
		name, typ, _ := strings.Cut(strings.TrimSuffix(def, " primary key"), " ")
		c, ok := pgTypes[strings.ReplaceAll(typ, ";", ",")]
		if !ok {
			t.Fatalf("type %q", typ)
		}
		if c.Name = name; c.TypeMod == 0 {
			c.TypeMod = -1
		}
		rel.Columns = append(rel.Columns, c)
	}
	return rel
}

func goldenRow(rel *event.Relation, values []any) *event.Row {
	r := &event.Row{Relation: rel, CommitTime: time.UnixMilli(1)}
	for _, v := range values {
		if v == nil {
			r.Values = append(r.Values, event.Value{Kind: event.Null})
			continue
		}
		r.Values = append(r.Values, event.Value{Kind: event.Text, Data: []byte(v.(string))})
	}
	return r
}

// better lists the scenarios in which ours must differ: Event Router's task dies,
// or its payload is not what was written. The value says what ours does with each
// row.
var better = map[string][]string{
	"tsbig":     {"bind"},
	"tstz":      {"routed"},
	"expand":    {"routed"},
	"nullroute": {string(event.ReasonNullRoute)},
	"badtopic":  {string(event.ReasonInvalidTopic), "routed"},
	// The same failure, but at start instead of at the first row.
	"missingerr": {"bind"},
}

// TestGolden routes the rows that the real Event Router was given, under its own
// options, and expects its records: topic, key, value, headers.
func TestGolden(t *testing.T) {
	t.Parallel()
	scenarios, err := goldentest.Load("testdata/event_router_golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(scenarios) != len(goldenRows) {
		t.Errorf("%d scenarios, but rows for %d", len(scenarios), len(goldenRows))
	}
	for _, s := range scenarios {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			source, _, err := eventrouter.Translate("public", "outbox", s.EventRouter)
			if err != nil {
				t.Fatal(err)
			}
			r, err := router.New(router.Config{Sources: []router.Source{source}})
			if err != nil {
				t.Fatal(err)
			}
			rel := goldenRelation(t, s.Columns)
			bindErr := r.Bind(rel)
			if want, differs := better[s.Name]; differs {
				checkBetter(t, r, rel, bindErr, s, want)
				return
			}
			if bindErr != nil {
				t.Fatal(bindErr)
			}
			checkSame(t, r, rel, s)
		})
	}
}

func checkBetter(t *testing.T, r *router.Router, rel *event.Relation, bindErr error, s goldentest.Scenario, want []string) {
	t.Helper()
	if (bindErr != nil) != (want[0] == "bind") {
		t.Fatalf("Bind: %v, want %v", bindErr, want)
	}
	if bindErr != nil {
		return
	}
	for i, values := range goldenRows[s.Name] {
		var msg event.Message
		routed, refusal := r.Route(goldenRow(rel, values), &msg)
		if want[i] == "routed" {
			if !routed {
				t.Errorf("row %d refused: %v", i, refusal)
			}
		} else if refusal == nil || string(refusal.Reason) != want[i] {
			t.Errorf("row %d: %v, want %s", i, refusal, want[i])
		}
	}
}

func checkSame(t *testing.T, r *router.Router, rel *event.Relation, s goldentest.Scenario) {
	t.Helper()
	records := slices.Clone(s.Records)
	for i, values := range goldenRows[s.Name] {
		var msg event.Message
		if routed, refusal := r.Route(goldenRow(rel, values), &msg); !routed {
			t.Errorf("row %d refused: %v", i, refusal)
			continue
		}
		at := slices.IndexFunc(records, func(rec goldentest.Record) bool { return sameRecord(&msg, &rec) })
		if at < 0 {
			t.Errorf("row %d gives topic %s key %q value %q headers %q, which is none of %+v",
				i, msg.Topic, msg.Key, msg.Value, msg.Headers, records)
			continue
		}
		records = slices.Delete(records, at, at+1)
	}
	if len(records) > 0 {
		t.Errorf("not given: %+v", records)
	}
}

func sameRecord(msg *event.Message, rec *goldentest.Record) bool {
	if msg.Topic != rec.Topic || !sameBytes(msg.Key, rec.Key) || !sameBytes(msg.Value, rec.Value) || len(msg.Headers) != len(rec.Headers) {
		return false
	}
	for i, h := range rec.Headers {
		if msg.Headers[i].Name != h.Name || !sameBytes(msg.Headers[i].Value, h.Value) {
			return false
		}
	}
	return true
}

// sameBytes tells null from empty.
func sameBytes(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
