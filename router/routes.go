package router

import (
	"encoding/binary"
	"strings"

	"github.com/postrider/postrider/event"
)

// routeTable is a source's compiled routes. It maps the values of the fields that
// the routes look at (its slots) to a topic, and remembers what it found: topics
// are few, events are many.
type routeTable struct {
	routes []route
	// slots are the columns that the routes look at.
	slots []string
	// rawSlot is the field whose own value is the topic where no route applies;
	// -1 refuses.
	rawSlot int
	// policy and deadLetter are the source's.
	policy     event.Policy
	deadLetter string
	cache      map[string]outcome
}

// route is one compiled Route: a template, or a pattern with a replacement.
type route struct {
	conditions  []condition
	template    template
	by          int
	pattern     *javaPattern
	replacement replacement
	policy      event.Policy
	deadLetter  string
}

// outcome is what the routes say about one combination of values.
type outcome struct {
	topic      string
	policy     event.Policy
	deadLetter string
	reason     event.Reason
	// column and detail are set with a reason.
	column string
	detail string
}

const (
	// cacheEntries bounds the remembered outcomes of one source.
	cacheEntries = 1024
	// cacheKeyBytes bounds the values of a remembered outcome; a longer one cannot
	// be part of a legal topic but for a few rules, and is looked at each time.
	cacheKeyBytes = 1024
)

// topic finds the outcome for the values of the slots. key is scratch space; the
// grown slice is returned. A remembered outcome costs no allocation.
func (t *routeTable) topic(values []cell, key []byte) (outcome, []byte) {
	key, short := appendCacheKey(key[:0], values)
	if !short {
		return t.evaluate(values), key
	}
	o, known := t.cache[string(key)]
	if !known {
		o = t.evaluate(values)
		t.remember(string(key), o)
	}
	return o, key
}

// appendCacheKey writes values so that no two combinations look alike. It is not
// short, and not complete, where they are too long to be remembered.
func appendCacheKey(key []byte, values []cell) (_ []byte, short bool) {
	for _, v := range values {
		if v.null {
			key = append(key, 0)
			continue
		}
		key = binary.AppendUvarint(key, uint64(len(v.data))+1)
		if len(key)+len(v.data) > cacheKeyBytes {
			return key, false
		}
		key = append(key, v.data...)
	}
	return key, true
}

// remember stores an outcome; in a full cache it takes any other one's place.
func (t *routeTable) remember(key string, o outcome) {
	if len(t.cache) >= cacheEntries {
		for victim := range t.cache {
			delete(t.cache, victim)
			break
		}
	}
	t.cache[key] = o
}

func (t *routeTable) evaluate(values []cell) outcome {
	for i := range t.routes {
		if o, applies := t.routes[i].apply(t.slots, values); applies {
			o.policy, o.deadLetter = t.routes[i].policy, t.routes[i].deadLetter
			return o
		}
	}
	o := t.unmatched(values)
	o.policy, o.deadLetter = t.policy, t.deadLetter
	return o
}

// unmatched is the outcome where no route applies.
func (t *routeTable) unmatched(values []cell) outcome {
	if t.rawSlot < 0 {
		return outcome{reason: event.ReasonNoRoute, detail: "no route applies to this row"}
	}
	if values[t.rawSlot].null {
		return nullRoute(t.slots[t.rawSlot])
	}
	return checked(string(values[t.rawSlot].data), t.slots[t.rawSlot])
}

func (r *route) apply(slots []string, values []cell) (o outcome, applies bool) {
	for i := range r.conditions {
		if c := &r.conditions[i]; !c.holds(values[c.slot]) {
			return outcome{}, false
		}
	}
	if r.pattern == nil {
		return r.fill(slots, values), true
	}
	if values[r.by].null {
		return nullRoute(slots[r.by]), true
	}
	value := string(values[r.by].data)
	if !r.pattern.full.MatchString(value) {
		return outcome{}, false
	}
	if problem := valueProblem(value); problem != "" {
		return badValue(slots[r.by], problem), true
	}
	return checked(r.replacement.apply(r.pattern, value), slots[r.by]), true
}

// fill puts the values into the template.
func (r *route) fill(slots []string, values []cell) outcome {
	var b strings.Builder
	column := ""
	for _, part := range r.template {
		if part.slot < 0 {
			b.WriteString(part.text)
			continue
		}
		column = slots[part.slot]
		if values[part.slot].null {
			return nullRoute(column)
		}
		value := string(values[part.slot].data)
		if problem := valueProblem(value); problem != "" {
			return badValue(column, problem)
		}
		b.WriteString(value)
	}
	return checked(b.String(), column)
}

func nullRoute(column string) outcome {
	return outcome{reason: event.ReasonNullRoute, column: column, detail: "the topic depends on this column, and it is NULL"}
}

func badValue(column, problem string) outcome {
	return outcome{
		reason: event.ReasonInvalidTopic, column: column,
		detail: "the column's value would be part of a topic name, but " + problem,
	}
}

// checked is the outcome for a complete name. A refused name is cut, since it is
// as long as its column.
func checked(topic, column string) outcome {
	problem := topicProblem(topic)
	if problem == "" {
		return outcome{topic: topic}
	}
	if len(topic) > maxTopicLength {
		topic = strings.ToValidUTF8(topic[:maxTopicLength], "")
	}
	return outcome{topic: topic, reason: event.ReasonInvalidTopic, column: column, detail: problem}
}
