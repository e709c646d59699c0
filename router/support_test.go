package router

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
)

// commitTime is the commit time of all test rows; commitMillis is what it makes.
var commitTime = time.Date(2024, 3, 5, 6, 7, 8, 123_999_000, time.UTC)

const commitMillis = 1709618828123

// relation describes a table from "name type, name type": the types are names of
// builtins, arrays with a leading underscore, with (p) or (p,s) where they have one.
func relation(table, columns string) *event.Relation {
	rel := &event.Relation{OID: 20000, Namespace: "public", Name: table, Generation: 1}
	for _, def := range splitColumns(columns) {
		name, typ, _ := strings.Cut(def, " ")
		rel.Columns = append(rel.Columns, columnOf(name, typ))
	}
	return rel
}

// splitColumns splits at commas outside parentheses.
func splitColumns(columns string) (defs []string) {
	depth, start := 0, 0
	for i, c := range columns + "," {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			defs = append(defs, strings.TrimSpace(columns[start:i]))
			start = i + 1
		}
	}
	return defs
}

func columnOf(name, typ string) event.Column {
	base, mod, _ := strings.Cut(strings.TrimSuffix(typ, ")"), "(")
	c := event.Column{Name: name, TypeMod: -1, TypeOID: oidOf(base)}
	if mod == "" {
		return c
	}
	p, s, scaled := strings.Cut(mod, ",")
	precision, _ := strconv.Atoi(p)
	scale, _ := strconv.Atoi(s)
	switch {
	case strings.TrimPrefix(base, "_") == "numeric":
		c.TypeMod = int32(precision<<16 | scale&0x7FF + 4)
	case base == "varchar" || base == "bpchar":
		c.TypeMod = int32(precision) + 4
	default:
		c.TypeMod = int32(precision)
	}
	_ = scaled
	return c
}

func oidOf(name string) uint32 {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n)
	}
	for _, b := range builtins {
		switch name {
		case b.name:
			return b.oid
		case "_" + b.name:
			return b.array
		}
	}
	panic("no type " + name)
}

// row makes a row of rel; a value is a string, or nil for NULL.
func row(rel *event.Relation, values ...any) *event.Row {
	r := &event.Row{
		Relation: rel, CommitTime: commitTime,
		Position: event.Position{Commit: 0x100, Index: 7},
	}
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			r.Values = append(r.Values, event.Value{Kind: event.Null})
		case string:
			r.Values = append(r.Values, event.Value{Kind: event.Text, Data: []byte(v)})
		default:
			panic(fmt.Sprintf("value %v", v))
		}
	}
	return r
}

// fixture is the mapping of the shared fixture of the field cases.
func fixture() Source {
	return Source{
		Schema: "public", Table: "outbox",
		Mapping: Mapping{
			EventID: "id", Key: "aggregate_id", Payload: "payload",
			AggregateType: "aggregate_type", EventType: "event_type",
		},
		Routes: []Route{{Topic: "outbox.${aggregate_type}"}},
	}
}

const fixtureColumns = "id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb, created_at timestamptz"

const someID = "11111111-1111-1111-1111-111111111111"

func newRouter(t testing.TB, sources ...Source) *Router {
	t.Helper()
	r, err := New(Config{Sources: sources})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return r
}

func boundRouter(t testing.TB, src Source, rel *event.Relation) *Router {
	t.Helper()
	r := newRouter(t, src)
	if err := r.Bind(rel); err != nil {
		t.Fatalf("Bind: %v", err)
	}
	return r
}

// routeOne routes one row that must be accepted.
func routeOne(t testing.TB, src Source, rel *event.Relation, values ...any) event.Message {
	t.Helper()
	var msg event.Message
	routed, refusal := boundRouter(t, src, rel).Route(row(rel, values...), &msg)
	if refusal != nil || !routed {
		t.Fatalf("routed %v, refusal %v", routed, refusal)
	}
	return msg
}

// refuseOne routes one row that must be refused for a reason.
func refuseOne(t testing.TB, reason event.Reason, src Source, rel *event.Relation, values ...any) *event.Refusal {
	t.Helper()
	var msg event.Message
	routed, refusal := boundRouter(t, src, rel).Route(row(rel, values...), &msg)
	if routed || refusal == nil {
		t.Fatalf("routed %v to %+v, want a refusal %s", routed, msg, reason)
	}
	if refusal.Reason != reason {
		t.Fatalf("refusal %v, want reason %s", refusal, reason)
	}
	return refusal
}

// header gives a header's value as %q, "null" for null, "-" if it is absent.
func header(msg *event.Message, name string) string {
	for _, h := range msg.Headers {
		if h.Name == name {
			return show(h.Value)
		}
	}
	return "-"
}

func show(b []byte) string {
	if b == nil {
		return "null"
	}
	return strconv.Quote(string(b))
}

func wantBytes(t testing.TB, what string, got []byte, want string) {
	t.Helper()
	if got == nil || string(got) != want {
		t.Errorf("%s is %s, want %q", what, show(got), want)
	}
}
