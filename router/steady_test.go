package router

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
	"pgregory.net/rapid"
)

// everything is a mapping that uses all that allocates if it is done carelessly.
func everything() (Source, *event.Relation, [][]any) {
	exact := "audit"
	s := fixture()
	m := &s.Mapping
	m.Timestamp.Column, m.Partition, m.Tombstone, m.HeadersColumn = "created_at", "p", "gone", "h"
	for _, c := range []string{"created_at", "n", "nn", "f", "by", "d", "iv", "ar", "tm", "u"} {
		m.Headers = append(m.Headers, Field{Column: c, Format: FormatDebezium})
	}
	m.Envelope = &Envelope{Mode: EnvelopeDebezium, Fields: []Field{{Column: "n"}, {Column: "nn"}, {Column: "u"}}}
	s.Routes = []Route{
		{Match: []Match{{Field: "event_type", Exact: &exact}}, Topic: "audit"},
		{Match: []Match{{Field: "column.u", Regex: "^x"}}, Topic: "x"},
		{Regex: `(?<a>\w+)-(\w+)`, Replacement: "${a}.$2"},
		{Topic: "outbox.${aggregate_type}"},
	}
	rel := relation("outbox", fixtureColumns+", p int4, gone bool, h jsonb, n numeric(30,10), nn numeric, f float8, by bytea, d date, iv interval, ar _text, tm time, u text")
	var rows [][]any
	for i := range 8 {
		rows = append(rows, []any{
			someID, fmt.Sprintf("order-%d", i), fmt.Sprint(i), "Placed", `{"a": 1}`, "2024-03-05 06:07:08.1+00", "3", "f",
			`{"a": "b", "c\n": "d\u00e9"}`, "12345678901234567890.0000000001", "12345678901234567890123.450", "0.1", `\xdeadbeef`,
			"2024-02-29", "1 day 02:03:04", `{a,"b c",NULL}`, "23:59:59.5", `say "hi"`,
		})
	}
	return s, rel, rows
}

// Routing costs no allocation once the topics and header names have been seen.
func TestRouteDoesNotAllocate(t *testing.T) {
	src, rel, values := everything()
	plainRel := relation("plain", fixtureColumns)
	plainRel.OID = 20001
	plain := fixture()
	plain.Table = "plain"
	byteaRel := relation("raw", strings.Replace(fixtureColumns, "jsonb", "bytea", 1))
	byteaRel.OID = 20002
	raw := fixture()
	raw.Table = "raw"
	r := newRouter(t, src, plain, raw)
	for _, rl := range []*event.Relation{rel, plainRel, byteaRel} {
		if err := r.Bind(rl); err != nil {
			t.Fatal(err)
		}
	}
	rows := []*event.Row{
		row(plainRel, someID, "order", "1", "x", `{"a": 1}`, nil),
		row(byteaRel, someID, "order", "1", "x", `\xdeadbeef`, nil),
	}
	for _, v := range values {
		rows = append(rows, row(rel, v...))
	}
	var msg event.Message
	run := func() {
		for _, rw := range rows {
			if _, refusal := r.Route(rw, &msg); refusal != nil {
				t.Fatal(refusal)
			}
		}
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations for %d rows", n, len(rows))
	}
}

// Two combinations of values never share a remembered topic.
func TestCacheKeysDiffer(t *testing.T) {
	t.Parallel()
	values := []any{nil, "", "a", "b", "ab", "\x00", "\x01", "\x02a", "\x02a\x02a", strings.Repeat("a", 127)}
	seen := map[string][]any{}
	for _, a := range values {
		for _, b := range values {
			for _, c := range values {
				combination := []any{a, b, c}
				key, _ := appendCacheKey(nil, cells(combination))
				if other, taken := seen[string(key)]; taken {
					t.Errorf("%q and %q have the key %q", combination, other, key)
				}
				seen[string(key)] = combination
			}
		}
	}
}

func cells(values []any) (out []cell) {
	for _, v := range values {
		text, ok := v.(string)
		out = append(out, cell{data: []byte(text), null: !ok})
	}
	return out
}

// The memory of what was seen is bounded, whatever the rows bring.
func TestCachesAreBounded(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns+", h jsonb")
	s := fixture()
	s.Mapping.HeadersColumn = "h"
	r := boundRouter(t, s, rel)
	var msg event.Message
	for i := range 3 * cacheEntries {
		rw := row(rel, someID, fmt.Sprintf("t%d", i), "1", "x", "1", nil, fmt.Sprintf(`{"h%d": "v"}`, i))
		if _, refusal := r.Route(rw, &msg); refusal != nil || msg.Topic != fmt.Sprintf("outbox.t%d", i) || msg.Headers[2].Name != fmt.Sprintf("h%d", i) {
			t.Fatalf("row %d: %+v %v", i, msg, refusal)
		}
	}
	long := strings.Repeat("x", 1<<20)
	if _, refusal := r.Route(row(rel, someID, long, "1", "x", "1", nil, nil), &msg); refusal == nil || len(refusal.Topic) > 249 {
		t.Errorf("refusal is %v", refusal)
	}
	cache := r.sources[tableName{"public", "outbox"}].routes.cache
	if len(cache) > cacheEntries || len(r.names) > maxNames {
		t.Errorf("%d topics and %d names are remembered", len(cache), len(r.names))
	}
	for key := range cache {
		if len(key) > cacheKeyBytes {
			t.Errorf("a key of %d bytes is remembered", len(key))
		}
	}
}

// One huge row does not keep its scratch space.
func TestScratchIsReleased(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", strings.Replace(fixtureColumns, "jsonb", "bytea", 1))
	r := boundRouter(t, fixture(), rel)
	var msg event.Message
	for _, payload := range []string{`\x` + strings.Repeat("ab", 8<<20), `\xab`} {
		if _, refusal := r.Route(row(rel, someID, "order", "1", "x", payload, nil), &msg); refusal != nil {
			t.Fatal(refusal)
		}
	}
	if cap(r.buf) > maxScratch {
		t.Errorf("%d bytes are kept", cap(r.buf))
	}
}

// What one row leaves behind never shows in the next: a router that has seen other
// rows gives the same message as a new one.
func TestRowsDoNotLeak(t *testing.T) {
	t.Parallel()
	src, rel, values := everything()
	used := boundRouter(t, src, rel)
	rapid.Check(t, func(rt *rapid.T) {
		var msg, fresh event.Message
		for range rapid.IntRange(1, 6).Draw(rt, "rows") {
			v := append([]any{}, values[rapid.IntRange(0, len(values)-1).Draw(rt, "row")]...)
			at := rapid.IntRange(0, len(v)-1).Draw(rt, "column")
			v[at] = rapid.SampledFrom([]any{nil, "", "x", "7", "t", `\x00`, `{"k": "v"}`, "audit"}).Draw(rt, "value")
			gotRouted, gotRefusal := used.Route(row(rel, v...), &msg)
			wantRouted, wantRefusal := boundRouter(rt2t{t, rt}, src, rel).Route(row(rel, v...), &fresh)
			if gotRouted != wantRouted || (gotRefusal == nil) != (wantRefusal == nil) || gotRefusal != nil && *gotRefusal != *wantRefusal {
				rt.Fatalf("%v: %v %v, want %v %v", v, gotRouted, gotRefusal, wantRouted, wantRefusal)
			}
			if fmt.Sprintf("%+v", msg) != fmt.Sprintf("%+v", fresh) || !bytes.Equal(msg.Value, fresh.Value) || (msg.Value == nil) != (fresh.Value == nil) {
				rt.Fatalf("%v: %+v, want %+v", v, msg, fresh)
			}
		}
	})
}

// rt2t lets test support report to rapid.
type rt2t struct {
	*testing.T
	rt *rapid.T
}

func (r rt2t) Fatalf(format string, args ...any) { r.rt.Fatalf(format, args...) }

func BenchmarkRoute(b *testing.B) {
	rel := relation("outbox", fixtureColumns)
	r := boundRouter(b, fixture(), rel)
	rw := row(rel, someID, "order", "1", "x", `{"a": 1}`, "2024-03-05 06:07:08.1+00")
	var msg event.Message
	b.ReportAllocs()
	for b.Loop() {
		r.Route(rw, &msg)
	}
}
