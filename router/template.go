package router

import (
	"fmt"
	"strings"
)

// maxTopicLength is Kafka's limit on the length of a topic's name.
const maxTopicLength = 249

// topicProblem says why a name cannot be a topic's, or "" (Kafka's Topic.validate;
// case C15). It is checked before anything is asked of a broker.
func topicProblem(name string) string {
	switch {
	case name == "":
		return "the topic name is empty"
	case name == "." || name == "..":
		return `the topic name must not be "." or ".."`
	case len(name) > maxTopicLength:
		return fmt.Sprintf("the topic name has %d bytes, at most %d are allowed", len(name), maxTopicLength)
	}
	return topicCharProblem(name)
}

func topicCharProblem(name string) string {
	for _, r := range name {
		if !topicChar(r) {
			return fmt.Sprintf("the topic name has the character %q, only letters, digits, '.', '_' and '-' are allowed", r)
		}
	}
	return ""
}

func topicChar(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
}

// template is a topic with fields in it.
type template []templatePart

// templatePart is literal text, or the field in this slot where slot >= 0.
type templatePart struct {
	text string
	slot int
}

// parseTemplate reads text with ${field} in it; slot resolves a field's name.
func parseTemplate(text string, slot func(field string) (int, error)) (template, error) {
	var t template
	for text != "" {
		literal, rest, found := strings.Cut(text, "${")
		if literal != "" {
			if problem := topicCharProblem(literal); problem != "" {
				return nil, fmt.Errorf("cannot give a topic: %s", problem)
			}
			t = append(t, templatePart{text: literal, slot: -1})
		}
		if !found {
			break
		}
		field, after, closed := strings.Cut(rest, "}")
		if !closed {
			return nil, fmt.Errorf("has a ${ without a }")
		}
		n, err := slot(field)
		if err != nil {
			return nil, err
		}
		t = append(t, templatePart{slot: n})
		text = after
	}
	if name, static := t.static(); static {
		if problem := topicProblem(name); problem != "" {
			return nil, fmt.Errorf("cannot be a topic: %s", problem)
		}
	}
	return t, nil
}

// static gives the topic of a template without fields.
func (t template) static() (string, bool) {
	name := ""
	for _, part := range t {
		if part.slot >= 0 {
			return "", false
		}
		name += part.text
	}
	return name, true
}

// valueProblem says why a field's value must not become part of a topic, or "".
// The name could be legal all the same (outbox.event. for an empty type,
// outbox.event... for ..), but such a value is a fault of the row, and a topic of
// its own would hide it.
func valueProblem(value string) string {
	switch value {
	case "":
		return "it is empty"
	case ".", "..":
		return "it consists of dots only"
	}
	return ""
}
