package router

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/postrider/postrider/event"
)

// FuzzRoute gives arbitrary text to a mapping that uses everything: it never
// panics, a refusal holds no payload, and what is routed is fit for Kafka.
func FuzzRoute(f *testing.F) {
	src, rel, rows := everything()
	for _, values := range rows[:1] {
		for i, v := range values {
			f.Add(uint8(i), v.(string))
		}
	}
	for _, text := range []string{"", "infinity", "-infinity", "NaN", "{", `{"a":"\ud83d"}`, `\x`, `\x0`, "{{1}}", "294276-12-31 23:59:59+00", "0044-03-15 12:00:00+00 BC", "-9223372036854775808"} {
		for i := range rel.Columns {
			f.Add(uint8(i), text)
		}
	}
	f.Fuzz(func(t *testing.T, at uint8, text string) {
		r := boundRouter(t, src, rel)
		rw := row(rel, rows[0]...)
		i := int(at) % len(rw.Values)
		rw.Values[i].Data = []byte(text)
		var msg event.Message
		routed, refusal := r.Route(rw, &msg)
		if routed == (refusal != nil) {
			t.Fatalf("routed %v, refusal %v", routed, refusal)
		}
		if refusal != nil {
			if refusal.Reason == "" || refusal.Detail == "" || refusal.Column == "" {
				t.Fatalf("refusal is %+v", refusal)
			}
			return
		}
		if topicProblem(msg.Topic) != "" || len(msg.Key) == 0 || len(msg.EventID) == 0 || msg.TimestampMillis < 0 {
			t.Fatalf("message is %+v", msg)
		}
		if utf8.ValidString(text) && msg.Value != nil && !json.Valid(msg.Value) {
			t.Fatalf("envelope %q is no JSON", msg.Value)
		}
	})
}

// FuzzDebezium gives arbitrary text to each type's conversion: it never panics.
func FuzzDebezium(f *testing.F) {
	for _, b := range builtins {
		f.Add(b.oid, int32(-1), "1")
		f.Add(b.array, int32(10<<16|2+4), `{1,"a\"b",NULL}`)
	}
	f.Add(uint32(20), int32(-1), "00")
	f.Fuzz(func(t *testing.T, oid uint32, mod int32, text string) {
		typ := newTypeTable().lookup(oid, mod)
		if debeziumSupports(typ) != "" {
			return
		}
		var conv converter
		for _, s := range []style{styleHeader, styleElement, styleJSON} {
			out, problem := conv.append(nil, typ, []byte(text), s)
			if problem == "" && s == styleJSON && utf8.ValidString(text) && !json.Valid(out) {
				t.Fatalf("%+v %q gives %q", typ, text, out)
			}
		}
	})
}

// FuzzJavaPattern: a pattern is refused or compiles, and its replacement never
// panics; a full match is a match.
func FuzzJavaPattern(f *testing.F) {
	for _, seed := range []string{`(?<r>.*)`, `[\w.-]+`, `\Qa\E`, `(?i:a)`, `a{2,3}?`, `\p{Lu}`, `\u0041`, `[^\s\d]`, `(?=a)`, `[a&&b]`} {
		f.Add(seed, `x.${r}$0`, "order")
	}
	f.Fuzz(func(t *testing.T, regex, replacement, value string) {
		if len(regex) > 200 {
			return
		}
		p, err := compileJava(regex)
		if err != nil {
			return
		}
		r, err := parseReplacement(replacement, p.find)
		if err != nil || !p.full.MatchString(value) {
			return
		}
		if p.find.FindStringIndex(value) == nil {
			t.Fatalf("%q matches %q as a whole, but not in part", regex, value)
		}
		r.apply(p, value)
	})
}

// FuzzTemplate: a template is refused, or gives names that pass or fail the check
// as a whole, and never changes the value that it holds.
func FuzzTemplate(f *testing.F) {
	f.Add("outbox.event.${aggregate_type}", "order")
	f.Add("${key}", "a b")
	f.Add("${", "}")
	f.Fuzz(func(t *testing.T, text, value string) {
		parsed, err := parseTemplate(text, func(string) (int, error) { return 0, nil })
		if err != nil {
			return
		}
		r := route{template: parsed}
		o := r.fill([]string{"c"}, []cell{{data: []byte(value)}})
		if o.reason == "" && topicProblem(o.topic) != "" {
			t.Fatalf("%q with %q gives the topic %q", text, value, o.topic)
		}
		if _, static := parsed.static(); !static && o.reason == "" && !strings.Contains(o.topic, value) {
			t.Fatalf("%q with %q gives the topic %q", text, value, o.topic)
		}
	})
}

// FuzzHeadersColumn: what is accepted is what the standard library reads too.
func FuzzHeadersColumn(f *testing.F) {
	f.Add(`{"a": "b", "c": "\u00e9\n"}`)
	f.Add(`{"a":"\ud83d\ude00"}`)
	f.Add(` { } `)
	f.Fuzz(func(t *testing.T, text string) {
		headers, _, problem := appendColumnHeaders(nil, []byte(text), nil, names{})
		var object map[string]string
		err := json.Unmarshal([]byte(text), &object)
		if problem == "" && err != nil {
			t.Fatalf("%q is accepted: %v", text, err)
		}
		if problem != "" || !utf8.ValidString(text) {
			return
		}
		for _, h := range headers {
			if object[h.Name] != string(h.Value) {
				t.Fatalf("%q: %q is %q, want %q", text, h.Name, h.Value, object[h.Name])
			}
		}
	})
}
