package router

import (
	"maps"
	"slices"
)

// profiles are the outbox layouts that the field uses. Each is complete as it
// stands; nothing in it is derived from a table.
var profiles = map[string]Source{
	// default is the layout that setup creates.
	"default": {
		Table: "outbox",
		Mapping: Mapping{
			EventID: "event_id", Key: "aggregate_id", Payload: "payload",
			AggregateType: "aggregate_type", EventType: "event_type", AggregateVersion: "aggregate_version",
			AggregateVersionHeader: "aggregate_version",
			Timestamp:              Timestamp{Column: "occurred_at"},
			HeadersColumn:          "headers",
		},
	},
	// debezium is Event Router's own layout and behaviour, but for what is refused
	// instead of bringing the connector down.
	"debezium": {
		Table: "outboxevent",
		Mapping: Mapping{
			EventID: "id", Key: "aggregateid", Payload: "payload",
			AggregateType: "aggregatetype", EventType: "type", EventTypeHeader: Disabled,
			EmptyKey: EmptyKeyAllow, NullPayload: NullPayloadNull, BlankPayload: BlankPayloadKeep,
		},
	},
	// quarkus is the table of the Quarkus outbox extension.
	"quarkus": {
		Table: "outboxevent",
		Mapping: Mapping{
			EventID: "id", Key: "aggregateid", Payload: "payload",
			AggregateType: "aggregatetype", EventType: "type", EventTypeHeader: Disabled,
			Timestamp: Timestamp{Column: "timestamp"},
			EmptyKey:  EmptyKeyAllow, NullPayload: NullPayloadNull, BlankPayload: BlankPayloadKeep,
		},
	},
	// polling is the table of a polling relay. It has no aggregate type, so all
	// events share one topic, which keeps the order of each aggregate.
	"polling": {
		Table: "events_outbox",
		Mapping: Mapping{
			EventID: "id", Key: "aggregate_id", Payload: "payload", EventType: "type",
			Timestamp: Timestamp{Column: "created_at"},
		},
		Routes: []Route{{Topic: "outbox.event"}},
	},
	// prisma is a Prisma model with quoted camelCase columns.
	"prisma": {
		Table: "OutboxEvent",
		Mapping: Mapping{
			EventID: "eventId", Key: "aggregateId", Payload: "payload",
			AggregateType: "aggregateType", EventType: "eventType",
			Timestamp: Timestamp{Column: "createdAt"},
		},
	},
}

// Profile gives the mapping and routes of a known outbox layout: "default",
// "debezium", "quarkus", "polling" or "prisma". Schema is left empty, Table is the
// layout's usual name; both may be overwritten, as may any field.
func Profile(name string) (Source, bool) {
	s, ok := profiles[name]
	s.Routes = slices.Clone(s.Routes)
	return s, ok
}

// Profiles lists the names that Profile knows.
func Profiles() []string { return slices.Sorted(maps.Keys(profiles)) }
