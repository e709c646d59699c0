package router

import "github.com/postrider/postrider/event"

// describe takes along what the parked store shows of an event.
func describe(b *binding, row *event.Row, msg *event.Message) {
	text := func(c *column) []byte {
		if !c.mapped() {
			return nil
		}
		v, _ := cellOf(row, c)
		return v.data
	}
	msg.AggregateType, msg.EventType, msg.AggregateVersion = text(&b.aggregateType), text(&b.eventType), text(&b.version)
}

// refuse makes the refusal of a row. Whatever was at fault, it looks for key and topic:
// they say which later events must not pass.
func (r *Router) refuse(b *binding, row *event.Row, msg *event.Message, p problem) *event.Refusal {
	refusal := &event.Refusal{
		Reason: p.reason, Table: b.table, Column: p.column, Position: row.Position, Detail: p.detail,
		Policy: b.src.routes.policy,
	}
	msg.DeadLetter = b.src.routes.deadLetter
	if len(row.Values) == len(b.rel.Columns) {
		refusal.Order = orderOf(r.keyOrder(b, row, msg), r.topicOrder(b, row, msg))
		refusal.Policy = msg.OnRefusal
	}
	refusal.Topic, refusal.EventID = msg.Topic, string(msg.EventID)
	return refusal
}

// orderOf: without a key, or without a topic that could exist, there is no order.
func orderOf(key, topic event.Order) event.Order {
	switch {
	case key == event.OrderNone || topic == event.OrderNone:
		return event.OrderNone
	case key == event.OrderKnown && topic == event.OrderKnown:
		return event.OrderKnown
	}
	return event.OrderUnknown
}

func (r *Router) keyOrder(b *binding, row *event.Row, msg *event.Message) event.Order {
	msg.Key = nil
	if !b.key.mapped() {
		return event.OrderUnknown
	}
	switch p := r.fillKey(b, row, msg); p.reason {
	case "":
		return event.OrderKnown
	case event.ReasonNullKey, event.ReasonEmptyKey:
		return event.OrderNone
	}
	return event.OrderUnknown
}

func (r *Router) topicOrder(b *binding, row *event.Row, msg *event.Message) event.Order {
	msg.Topic, msg.OnRefusal, msg.DeadLetter = "", b.src.routes.policy, b.src.routes.deadLetter
	for i := range b.slots {
		if !b.slots[i].mapped() {
			return event.OrderUnknown
		}
	}
	switch p := r.fillTopic(b, row, msg); p.reason {
	case "":
		return event.OrderKnown
	case event.ReasonUndecodable:
		return event.OrderUnknown
	}
	return event.OrderNone
}
