package router

import (
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
)

// A route's dead-letter topic goes with its events, refused or not; rows that no route
// takes have the source's.
func TestDeadLetterTopic(t *testing.T) {
	t.Parallel()
	s := Source{
		Schema: "public", Table: "outbox", DeadLetterTopic: "dead",
		Mapping: Mapping{EventID: "id", Key: "key", Payload: "payload", EventType: "type"},
		Routes: []Route{
			{Match: []Match{{Field: "event_type", Glob: "own*"}}, Topic: "a", DeadLetterTopic: "own"},
			{Match: []Match{{Field: "event_type", Glob: "none*"}}, Topic: "b", DeadLetterTopic: Disabled},
			{Match: []Match{{Field: "event_type", Glob: "source*"}}, Topic: "c"},
			{Match: []Match{{Field: "event_type", Glob: "column*"}}, Topic: "${column.place}"},
		},
	}
	r, err := New(Config{Sources: []Source{s}})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.DeadLetterTopics(); !slices.Equal(got, []string{"dead", "own"}) {
		t.Errorf("topics %v", got)
	}
	rel := relation("outbox", "id text, key text, payload text, type text, place text")
	if err := r.Bind(rel); err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]string{"own": "own", "none": "", "source": "dead", "unmatched": "dead", "column": "dead"} {
		for _, key := range []any{"k", nil} {
			var msg event.Message
			r.Route(row(rel, "1", key, "x", kind, "not a topic"), &msg)
			if msg.DeadLetter != want {
				t.Errorf("%s, key %v: %q, want %q", kind, key, msg.DeadLetter, want)
			}
		}
	}
	short := row(rel, "1")
	var msg event.Message
	if _, refusal := r.Route(short, &msg); refusal == nil || msg.DeadLetter != "dead" {
		t.Errorf("a row that is cut short: %v, %q", refusal, msg.DeadLetter)
	}
}

// It is the name of a topic, and of none that has events of its own.
func TestDeadLetterTopicIsChecked(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Source){
		"sources[0].dead_letter_topic: the topic name has the character":  func(s *Source) { s.DeadLetterTopic = "dead ${type}" },
		"sources[0].routes[0].dead_letter_topic: the topic name must not": func(s *Source) { s.Routes[0].DeadLetterTopic = ".." },
		"sources[0].dead_letter_topic: is b, which is the topic of a":     func(s *Source) { s.DeadLetterTopic = "b" },
		"sources[0].routes[0].dead_letter_topic: is b, which is the":      func(s *Source) { s.Routes[0].DeadLetterTopic = "b" },
	} {
		s := Source{
			Schema: "public", Table: "outbox", Mapping: Mapping{EventID: "id", Key: "key", Payload: "payload"},
			Routes: []Route{{Match: []Match{{Field: "key", Glob: "a"}}, Topic: "a"}, {Topic: "b"}},
		}
		change(&s)
		if _, err := New(Config{Sources: []Source{s}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
