package router

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
	"pgregory.net/rapid"
)

func envelope(mode EnvelopeMode, as PayloadAs, fields ...Field) Source {
	s := fixture()
	s.Mapping.Envelope = &Envelope{Mode: mode, PayloadAs: as, Fields: fields}
	return s
}

// The envelope is spliced: the payload's bytes stand in it unchanged.
func TestEnvelope(t *testing.T) {
	t.Parallel()
	extra := ", n numeric, i int8, b bool, by bytea, at timestamptz, j json, ar _text"
	tail := []any{"12345678901234567890.10", "42", "t", `\xdead`, "2024-03-05 06:07:08+00", `{"x": 1e5}`, "{a}"}
	all := []Field{
		{Column: "n"},
		{Column: "i", Name: "int \"i\""},
		{Column: "b"},
		{Column: "by"},
		{Column: "at"},
		{Column: "j"},
		{Column: "ar"},
		{Column: "created_at"},
	}
	const rest = `,"n":12345678901234567890.10,"int \"i\"":42,"b":true,"by":"3q0=","at":"2024-03-05 06:07:08+00","j":{"x": 1e5},"ar":"{a}","created_at":null}`
	for _, c := range []struct {
		typ, payload, want string
		as                 PayloadAs
	}{
		{"jsonb", `{"a": 1,  "a": 2}`, `{"a": 1,  "a": 2}`, ""},
		{"json", " [1,\n2] ", " [1,\n2] ", ""},
		{"text", `say "hi"`, `"say \"hi\""`, ""},
		{"varchar", `{"a":1}`, `{"a":1}`, PayloadAsJSON},
		{"varchar", `{"a":1}`, `"{\"a\":1}"`, PayloadAsString},
		{"bytea", `\x7b7d`, `"e30="`, ""},
		{"bytea", `\x7b7d`, `{}`, PayloadAsJSON},
	} {
		rel := relation("outbox", strings.Replace(fixtureColumns, "payload jsonb", "payload "+c.typ, 1)+extra)
		values := append([]any{someID, "order", "1", "x", c.payload, nil}, tail...)
		msg := routeOne(t, envelope(EnvelopeJSON, c.as, all...), rel, values...)
		wantBytes(t, "envelope of "+c.typ, msg.Value, `{"payload":`+c.want+rest)
		if !json.Valid(msg.Value) {
			t.Errorf("%s is no JSON", msg.Value)
		}
	}
	rel := relation("outbox", strings.Replace(fixtureColumns, "payload jsonb", "payload text", 1))
	for _, payload := range []string{"", "{", `{"a":1}}`, "x"} {
		refuseOne(t, event.ReasonUndecodable, envelope(EnvelopeJSON, PayloadAsJSON), rel, someID, "order", "1", "x", payload, nil)
	}
}

// A NULL payload in an envelope: refused, a tombstone, or Event Router's structure
// with a null payload.
func TestEnvelopeOfNull(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns)
	s := envelope(EnvelopeDebezium, "", Field{Column: "event_type", Name: "eventType"})
	refuseOne(t, event.ReasonNullPayload, s, rel, someID, "order", "1", "x", nil, nil)
	s.Mapping.NullPayload = NullPayloadTombstone
	if msg := routeOne(t, s, rel, someID, "order", "1", "x", nil, nil); msg.Value != nil {
		t.Errorf("value is %q, want a tombstone", msg.Value)
	}
	s.Mapping.NullPayload = NullPayloadNull
	msg := routeOne(t, s, rel, someID, "order", "1", "x", nil, nil)
	wantBytes(t, "value", msg.Value, `{"payload":null,"eventType":"x"}`)
	s.Mapping.Envelope.PayloadName = "data"
	msg = routeOne(t, s, rel, someID, "order", "1", "x", `"1"`, nil)
	wantBytes(t, "value", msg.Value, `{"data":"\"1\"","eventType":"x"}`)
}

// Whatever a text holds, it reads back from the envelope as it was.
func TestEnvelopeTextReadsBack(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", strings.Replace(fixtureColumns, "payload jsonb", "payload text", 1))
	rapid.Check(t, func(rt *rapid.T) {
		payload := strings.ToValidUTF8(rapid.String().Draw(rt, "payload"), "?")
		typ := strings.ToValidUTF8(rapid.String().Draw(rt, "type"), "?")
		for _, mode := range []EnvelopeMode{EnvelopeJSON, EnvelopeDebezium} {
			msg := routeOne(t, envelope(mode, "", Field{Column: "event_type"}), rel, someID, "order", "1", typ, payload, nil)
			var got map[string]string
			if err := json.Unmarshal(msg.Value, &got); err != nil {
				rt.Fatal(err)
			}
			if got["payload"] != payload || got["event_type"] != typ {
				rt.Fatalf("%q became %q", msg.Value, got)
			}
		}
	})
}

// The headers column: one flat object of strings.
func TestHeadersColumn(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns+", headers jsonb")
	s := fixture()
	s.Mapping.HeadersColumn = "headers"
	many := "{" + strings.TrimSuffix(strings.Repeat(`"a":"b",`, 2), ",") + "}"
	for text, want := range map[string]string{
		`{}`:                                   "",
		` { } `:                                "",
		`{"a": "1"}`:                           `a="1"`,
		`{"a": "", "B b": "é日"}`:               `a="" B b="é日"`,
		`{"a":"q\"b\\s\/n\nt\t\u00e9é"}`:       `a="q\"b\\s/n\nt\té` + `é"`,
		`{"a":"\ud83d\ude00"}`:                 `a="😀"`,
		`{"a\u0062": "1"}`:                     `ab="1"`,
		`{"a":"b\u0000c"}`:                     `a="b\x00c"`,
		`{"traceparent": "00-ab-cd-01"}`:       `traceparent="00-ab-cd-01"`,
		many:                                   "refused",
		`{"a": 1}`:                             "refused",
		`{"a": null}`:                          "refused",
		`{"a": true}`:                          "refused",
		`{"a": {"b": "c"}}`:                    "refused",
		`{"a": ["b"]}`:                         "refused",
		`[]`:                                   "refused",
		`null`:                                 "refused",
		`"a"`:                                  "refused",
		``:                                     "refused",
		`{`:                                    "refused",
		`{"a"`:                                 "refused",
		`{"a":"1"`:                             "refused",
		`{"a":"1",}`:                           "refused",
		`{"a":"1"} x`:                          "refused",
		`{"a":"\ud83d"}`:                       "refused",
		`{"a":"\ud83dx"}`:                      "refused",
		`{"a":"\udc00"}`:                       "refused",
		`{"a":"\u12"}`:                         "refused",
		`{"a":"\x"}`:                           "refused",
		"{\"a\":\"\n\"}":                       "refused",
		`{"id": "other"}`:                      "refused",
		`{"postrider-replayed": "true"}`:       "refused",
		`{"a":"1" "b":"2"}`:                    "refused",
		`{"a":"1", "b":"2", "event_type":"x"}`: "refused",
	} {
		if want == "refused" {
			if r := refuseOne(t, event.ReasonHeaders, s, rel, someID, "order", "1", "x", "1", nil, text); r.Column != "headers" {
				t.Errorf("refusal is %v", r)
			}
			continue
		}
		msg := routeOne(t, s, rel, someID, "order", "1", "x", "1", nil, text)
		var got []string
		for _, h := range msg.Headers[2:] {
			got = append(got, h.Name+"="+show(h.Value))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s gives %q, want %q", text, got, want)
		}
	}
	if msg := routeOne(t, s, rel, someID, "order", "1", "x", "1", nil, nil); len(msg.Headers) != 2 {
		t.Errorf("a NULL gives headers %v", msg.Headers)
	}
	var long strings.Builder
	for i := range maxColumnHeaders + 1 {
		long.WriteString(map[bool]string{true: "{", false: ","}[i == 0] + `"h` + strings.Repeat("x", i) + `":"v"`)
	}
	refuseOne(t, event.ReasonHeaders, s, rel, someID, "order", "1", "x", "1", nil, long.String()+"}")
}

// Any flat object of strings comes out as it went in.
func TestHeadersColumnReadsBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		object := rapid.MapOfN(rapid.StringMatching(`[a-z"\\é]{0,8}`), rapid.String(), 0, 8).Draw(t, "object")
		for k, v := range object {
			object[k] = strings.ToValidUTF8(v, "?")
		}
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		headers, _, problem := appendColumnHeaders(nil, text, nil, names{})
		if problem != "" || len(headers) != len(object) {
			t.Fatalf("%s gives %q, problem %q", text, headers, problem)
		}
		for _, h := range headers {
			if object[h.Name] != string(h.Value) {
				t.Fatalf("%s: %s is %q", text, h.Name, h.Value)
			}
		}
	})
}
