package router

import "github.com/postrider/postrider/event"

// TopicColumns are the columns of a bound relation on whose values the topic depends:
// what there is to read for Topic. It is nil for a table that is no source.
func (r *Router) TopicColumns(rel *event.Relation) (names []string) {
	b := r.binding(rel)
	if b == nil || b.src == nil {
		return nil
	}
	for i := range b.slots {
		names = append(names, b.slots[i].name)
	}
	return names
}

// Topic gives the topic of all rows of a bound relation that have these values in the
// TopicColumns, or why they have none.
func (r *Router) Topic(rel *event.Relation, values []event.Value) (topic string, refusal *event.Refusal) {
	b := r.binding(rel)
	if b == nil || b.src == nil || b.err != nil || len(values) != len(b.slots) {
		return "", &event.Refusal{
			Reason: event.ReasonMissingColumn, Table: rel.String(), Detail: "the table's description is not bound to a mapping that fits it",
		}
	}
	r.values = r.values[:0]
	for i := range values {
		c := cell{null: values[i].Kind == event.Null, data: values[i].Data}
		if c.data == nil {
			c.data = noBytes
		}
		r.values = append(r.values, c)
	}
	var o outcome
	o, r.key = b.src.routes.topic(r.values, r.key)
	if o.reason != "" {
		return o.topic, &event.Refusal{Reason: o.reason, Table: b.table, Column: o.column, Topic: o.topic, Detail: o.detail, Policy: o.policy}
	}
	return o.topic, nil
}
