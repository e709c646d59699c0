package router

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
)

// case C01: text-format values are text: uuid and dates arrive as PostgreSQL's
// text, a bytea as its raw bytes.
func TestC01TextValues(t *testing.T) {
	t.Parallel()
	rel := relation("ob1", "id uuid, agg uuid, d date, t time, p jsonb, b bytea")
	src := Source{
		Schema: "public", Table: "ob1",
		Mapping: Mapping{EventID: "id", Key: "agg", Payload: "p", Headers: []Field{{Column: "d"}, {Column: "t"}, {Column: "b"}}},
		Routes:  []Route{{Topic: "ob1"}},
	}
	values := []any{someID, "550e8400-e29b-41d4-a716-446655440000", "2024-02-29", "23:59:59.999999", `{"a": 1}`, `\xdeadbeef`}
	msg := routeOne(t, src, rel, values...)
	wantBytes(t, "key", msg.Key, "550e8400-e29b-41d4-a716-446655440000")
	wantBytes(t, "value", msg.Value, `{"a": 1}`)
	for name, want := range map[string]string{"id": someID, "d": "2024-02-29", "t": "23:59:59.999999", "b": `\xdeadbeef`} {
		if got := header(&msg, name); got != show([]byte(want)) {
			t.Errorf("header %s is %s, want %q", name, got, want)
		}
	}
	src.Mapping.Payload, src.Mapping.Key = "b", "b"
	msg = routeOne(t, src, rel, values...)
	wantBytes(t, "value", msg.Value, "\xde\xad\xbe\xef")
	wantBytes(t, "key", msg.Key, "\xde\xad\xbe\xef")

	for _, bad := range []string{``, `x`, `\x1`, `\xzz`, `\336`} {
		values[5] = bad
		refuseOne(t, event.ReasonUndecodable, src, rel, values...)
	}
}

// A domain over bytea is bytea, once its Type message has said so (trap 26).
func TestDomainOverBytea(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", "id uuid, aggregate_type text, aggregate_id text, event_type text, payload 17001, created_at timestamptz")
	r := newRouter(t, fixture())
	r.DefineType(17001, "", "bytea")
	if err := r.Bind(rel); err != nil {
		t.Fatal(err)
	}
	var msg event.Message
	if _, refusal := r.Route(row(rel, someID, "order", "1", "x", `\x00ff`, nil), &msg); refusal != nil {
		t.Fatal(refusal)
	}
	wantBytes(t, "value", msg.Value, "\x00\xff")
}

// case C12: nothing is wrapped, quoted or escaped on its way.
func TestC12Verbatim(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", "id uuid, aggregate_type text, aggregate_id int8, event_type text, payload text, created_at timestamptz")
	for _, payload := range []string{
		`{"a":1}`, `plain "text"`, `"`, `\`, "line\nline", "\x01", `{"a": "\u0000</script>"}`, "日本 é",
		`{"n":12345678901234567890.10,"a":1,"a":2,"e":1e5}`,
	} {
		msg := routeOne(t, fixture(), rel, someID, "order", "42", "Order \"Placed\"", payload, nil)
		wantBytes(t, "key", msg.Key, "42")
		wantBytes(t, "value", msg.Value, payload)
		if got := header(&msg, "event_type"); got != show([]byte(`Order "Placed"`)) {
			t.Errorf("event_type is %s", got)
		}
		if msg.Topic != "outbox.order" {
			t.Errorf("topic is %s", msg.Topic)
		}
	}
}

// case C13: NULL, empty and JSON-null are three things.
func TestC13NullAndEmpty(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", strings.Replace(fixtureColumns, "payload jsonb", "payload text", 1))
	with := func(change func(*Mapping)) Source {
		s := fixture()
		change(&s.Mapping)
		return s
	}
	plain := func(*Mapping) {}

	refusal := refuseOne(t, event.ReasonNullPayload, with(plain), rel, someID, "order", "1", "x", nil, nil)
	if refusal.EventID != someID || refusal.Column != "payload" || refusal.Table != "public.outbox" ||
		refusal.Position.Index != 7 || refusal.Topic != "outbox.order" {
		t.Errorf("refusal is %+v", refusal)
	}
	refuseOne(t, event.ReasonNullKey, with(plain), rel, someID, "order", nil, "x", "1", nil)
	refuseOne(t, event.ReasonEmptyKey, with(plain), rel, someID, "order", "", "x", "1", nil)
	refuseOne(t, event.ReasonNullEventID, with(plain), rel, nil, "order", "1", "x", "1", nil)
	refuseOne(t, event.ReasonNullEventID, with(plain), rel, "", "order", "1", "x", "1", nil)
	refuseOne(t, event.ReasonNullRoute, with(plain), rel, someID, nil, "1", "x", "1", nil)

	msg := routeOne(t, with(plain), rel, someID, "order", "1", "x", "", nil)
	wantBytes(t, "empty payload", msg.Value, "")
	msg = routeOne(t, with(plain), rel, someID, "order", "1", "x", "null", nil)
	wantBytes(t, "JSON null", msg.Value, "null")
	msg = routeOne(t, with(func(m *Mapping) { m.EmptyKey = EmptyKeyAllow }), rel, someID, "order", "", "x", "1", nil)
	wantBytes(t, "empty key", msg.Key, "")

	for _, option := range []NullPayload{NullPayloadTombstone, NullPayloadNull} {
		msg = routeOne(t, with(func(m *Mapping) { m.NullPayload = option }), rel, someID, "order", "1", "x", nil, nil)
		if msg.Value != nil {
			t.Errorf("%s: value is %q, want a tombstone", option, msg.Value)
		}
	}
	blank := with(func(m *Mapping) { m.BlankPayload = BlankPayloadTombstone })
	for _, payload := range []string{"", "   ", " \t\n\x01"} {
		if msg = routeOne(t, blank, rel, someID, "order", "1", "x", payload, nil); msg.Value != nil {
			t.Errorf("blank payload %q: value is %q, want a tombstone", payload, msg.Value)
		}
	}
	for _, payload := range []string{" x", "!", "é"} {
		if msg = routeOne(t, blank, rel, someID, "order", "1", "x", payload, nil); msg.Value == nil {
			t.Errorf("%q is not blank and became a tombstone", payload)
		}
	}
}

// A zero-length value that the decoder hands over as a nil slice is no NULL.
func TestEmptyIsNotNil(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", strings.Replace(fixtureColumns, "payload jsonb", "payload bytea", 1))
	r := boundRouter(t, fixture(), rel)
	rw := row(rel, someID, "order", "1", "x", `\x`, nil)
	var msg event.Message
	if _, refusal := r.Route(rw, &msg); refusal != nil {
		t.Fatal(refusal)
	}
	wantBytes(t, "empty bytea", msg.Value, "")
	rel = relation("outbox", strings.Replace(fixtureColumns, "payload jsonb", "payload text", 1))
	r = boundRouter(t, fixture(), rel)
	rw = row(rel, someID, "order", "1", "", "", nil)
	rw.Values[3].Data, rw.Values[4].Data = nil, nil
	if _, refusal := r.Route(rw, &msg); refusal != nil {
		t.Fatal(refusal)
	}
	wantBytes(t, "empty text", msg.Value, "")
	if got := header(&msg, "event_type"); got != `""` {
		t.Errorf("empty header is %s", got)
	}
}

// case C15: a name that no topic may have is refused before any network call; no
// two types are merged by a silent replacement.
func TestC15TopicNames(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns)
	for _, typ := range []string{"My Type", "a/b", "https://x#T", "..", ".", "", strings.Repeat("a", 300), "Größe", "a\x00b", "a\tb"} {
		for _, src := range []Source{fixture(), regexSource(`(?<r>.*)`, `outbox.${r}`), rawSource()} {
			refusal := refuseOne(t, event.ReasonInvalidTopic, src, rel, someID, typ, "1", "x", "1", nil)
			if len(refusal.Topic) > 249 || refusal.Column != "aggregate_type" {
				t.Errorf("refusal of %q is %+v", typ, refusal)
			}
		}
	}
	for _, typ := range []string{"Order", "a.b", "a_b-c", strings.Repeat("a", 249-len("outbox."))} {
		if msg := routeOne(t, fixture(), rel, someID, typ, "1", "x", "1", nil); msg.Topic != "outbox."+typ {
			t.Errorf("topic of %q is %q", typ, msg.Topic)
		}
	}
}

func regexSource(regex, replacement string) Source {
	s := fixture()
	s.Routes = []Route{{Regex: regex, Replacement: replacement}}
	return s
}

// rawSource routes everything by on_no_match: raw.
func rawSource() Source {
	s := regexSource(`never\x{1F600}`, `never`)
	s.Mapping.OnNoMatch = OnNoMatchRaw
	return s
}

// Rules are tried in order; the first that applies decides.
func TestRules(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns+", tenant text, aggregate_version int8")
	exact := "audit"
	s := fixture()
	s.Mapping.AggregateVersion = "aggregate_version"
	s.Routes = []Route{
		{Match: []Match{{Field: "event_type", Exact: &exact}}, Topic: "audit"},
		{Match: []Match{{Field: "aggregate_type", Glob: "order*"}, {Field: "column.tenant", Regex: "^t[0-9]+$"}}, Topic: "${column.tenant}.${aggregate_type}"},
		{By: "aggregate_type", Regex: `(?<a>\w+)\.(\w+)`, Replacement: `$2.${a}`},
		{Match: []Match{{Field: "aggregate_version", Regex: "^1$"}}, Topic: "first"},
	}
	for _, c := range []struct {
		typ, event, tenant, version any
		want                        string
	}{
		{"order", "audit", "t1", "1", "audit"},
		{"order", "x", "t1", "1", "t1.order"},
		{"orders", "x", "t22", "1", "t22.orders"},
		{"order", "x", "tt", "1", "first"},
		{"order", "x", nil, "1", "first"},
		{"a.b", "x", nil, "1", "b.a"},
		{"order", "x", nil, "2", "refused no_route"},
		{nil, "x", nil, "1", "refused null_route"},
	} {
		var msg event.Message
		_, refusal := boundRouter(t, s, rel).Route(row(rel, someID, c.typ, "1", c.event, "1", nil, c.tenant, c.version), &msg)
		got := msg.Topic
		if refusal != nil {
			got = "refused " + string(refusal.Reason)
		}
		if got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// A regex must match the whole value, and NULL matches no condition.
func TestWholeValueAndNull(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns)
	refuseOne(t, event.ReasonNoRoute, regexSource(`a(b)`, `$1`), rel, someID, "xab", "1", "x", "1", nil)
	empty := ""
	for _, m := range []Match{{Exact: &empty}, {Glob: "*"}, {Regex: "^$"}} {
		m.Field = "event_type"
		s := fixture()
		s.Routes = []Route{{Match: []Match{m}, Topic: "matched"}, {Topic: "rest"}}
		for value, want := range map[any]string{nil: "rest", "": "matched"} {
			if msg := routeOne(t, s, rel, someID, "order", "1", value, "1", nil); msg.Topic != want {
				t.Errorf("%+v on %v: %s", m, value, msg.Topic)
			}
		}
	}
}

// What is not routed is what has no source, and nothing else: a row that was never
// bound is refused, not lost (trap 17).
func TestUnknownTables(t *testing.T) {
	t.Parallel()
	other, outbox := relation("other", "id uuid"), relation("outbox", fixtureColumns)
	outbox.OID = 20001
	r := newRouter(t, fixture())
	if err := r.Bind(other); err != nil {
		t.Fatal(err)
	}
	var msg event.Message
	if routed, refusal := r.Route(row(other, someID), &msg); routed || refusal != nil {
		t.Errorf("routed %v, refusal %v", routed, refusal)
	}
	if _, refusal := r.Route(row(outbox, someID, "order", "1", "x", "1", nil), &msg); refusal == nil {
		t.Error("a table that was not bound is not refused")
	}
	if err := r.Bind(outbox); err != nil {
		t.Fatal(err)
	}
	for _, columns := range []string{fixtureColumns, fixtureColumns + ", extra int4"} {
		changed := relation("outbox", columns)
		changed.OID, changed.Generation = 20001, 2
		values := []any{someID, "order", "1", "x", "1", nil, "7"}[:len(changed.Columns)]
		if _, refusal := r.Route(row(changed, values...), &msg); refusal == nil {
			t.Error("a description that was not bound is not refused")
		}
	}
}

// A table that is bound again is read anew, even under the same description.
func TestBindAgain(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", strings.Replace(fixtureColumns, "payload jsonb", "payload 17001", 1))
	r := boundRouter(t, fixture(), rel)
	var msg event.Message
	for _, want := range []string{`\x00ff`, "\x00\xff"} {
		if _, refusal := r.Route(row(rel, someID, "order", "1", "x", `\x00ff`, nil), &msg); refusal != nil {
			t.Fatal(refusal)
		}
		wantBytes(t, "value", msg.Value, want)
		r.DefineType(17001, "pg_catalog", "bytea")
		if err := r.Bind(rel); err != nil {
			t.Fatal(err)
		}
	}
}

// A malformed row is refused with whatever names it (rule 10: u in an insert).
func TestMalformedRows(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns)
	r := boundRouter(t, fixture(), rel)
	var msg event.Message
	short := row(rel, someID, "order")
	if _, refusal := r.Route(short, &msg); refusal == nil || refusal.Reason != event.ReasonUndecodable {
		t.Errorf("short row: %v", refusal)
	}
	for i := range 5 {
		rw := row(rel, someID, "order", "1", "x", "1", nil)
		rw.Values[i].Kind = event.Unchanged
		if _, refusal := r.Route(rw, &msg); refusal == nil || refusal.Reason != event.ReasonUndecodable {
			t.Errorf("unchanged column %d: %v", i, refusal)
		}
	}
}

// A refusal says where and why, and nothing of the payload.
func TestRefusalHoldsNoPayload(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	rel := relation("outbox", strings.Replace(fixtureColumns, "payload jsonb", "payload bytea", 1)+", h jsonb")
	s := fixture()
	s.Mapping.HeadersColumn = "h"
	for _, values := range [][]any{
		{someID, "order", "1", "x", secret, nil, nil},
		{someID, "order", "1", "x", `\x00`, nil, `{"a": ["` + secret + `"]}`},
	} {
		var msg event.Message
		_, refusal := boundRouter(t, s, rel).Route(row(rel, values...), &msg)
		if refusal == nil || strings.Contains(refusal.Error(), secret) {
			t.Errorf("refusal is %v", refusal)
		}
	}
}

// An explicit partition; NULL leaves the choice to the partitioner.
func TestPartition(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns+", p int8")
	s := fixture()
	s.Mapping.Partition = "p"
	for value, want := range map[any]int32{nil: event.NoPartition, "0": 0, "2147483647": 2147483647} {
		if msg := routeOne(t, s, rel, someID, "order", "1", "x", "1", nil, value); msg.Partition != want {
			t.Errorf("partition of %v is %d", value, msg.Partition)
		}
	}
	for _, value := range []string{"-1", "2147483648", "9223372036854775808", "x", ""} {
		refuseOne(t, event.ReasonPartition, s, rel, someID, "order", "1", "x", "1", nil, value)
	}
}

// The tombstone column decides whatever the payload is.
func TestTombstoneColumn(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns+", deleted bool")
	s := fixture()
	s.Mapping.Tombstone = "deleted"
	s.Mapping.Envelope = &Envelope{}
	for _, payload := range []any{nil, "1"} {
		if msg := routeOne(t, s, rel, someID, "order", "1", "x", payload, nil, "t"); msg.Value != nil {
			t.Errorf("value is %q, want a tombstone", msg.Value)
		}
	}
	for _, deleted := range []any{nil, "f"} {
		if msg := routeOne(t, s, rel, someID, "order", "1", "x", "1", nil, deleted); msg.Value == nil {
			t.Errorf("deleted %v made a tombstone", deleted)
		}
		refuseOne(t, event.ReasonNullPayload, s, rel, someID, "order", "1", "x", nil, nil, deleted)
	}
}

// Default headers come first and can be renamed and left out.
func TestDefaultHeaders(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns+", v int8")
	names := func(change func(*Mapping)) string {
		s := fixture()
		s.Mapping.Headers = []Field{{Column: "created_at", Name: "at"}}
		change(&s.Mapping)
		msg := routeOne(t, s, rel, someID, "order", "1", "Placed", "1", nil, "3")
		var out []string
		for _, h := range msg.Headers {
			out = append(out, h.Name+"="+string(h.Value))
		}
		return strings.Join(out, " ")
	}
	for want, change := range map[string]func(*Mapping){
		"id=" + someID + " event_type=Placed at=": func(*Mapping) {},
		"eid=" + someID + " at=":                  func(m *Mapping) { m.EventIDHeader, m.EventTypeHeader = "eid", Disabled },
		"id=" + someID + " event_type=Placed version=3 at=": func(m *Mapping) {
			m.AggregateVersion, m.AggregateVersionHeader = "v", "version"
		},
	} {
		if got := names(change); got != want {
			t.Errorf("headers are %q, want %q", got, want)
		}
	}
}
