package config

import "github.com/postrider/postrider/router"

// Router is the configuration of the router.
func (c *Config) Router() router.Config {
	var cfg router.Config
	for i := range c.Sources {
		cfg.Sources = append(cfg.Sources, c.Sources[i].toRouter())
	}
	return cfg
}

func (s *Source) toRouter() router.Source {
	out := router.Source{Schema: s.Table.Schema, Table: s.Table.Name, Partitions: s.Partitions, Mapping: s.Mapping.toRouter(), OnRefusal: router.OnRefusal(s.OnRefusal), DeadLetterTopic: s.DeadLetterTopic}
	for _, r := range s.Routes {
		out.Routes = append(out.Routes, r.toRouter())
	}
	return out
}

func (m *Mapping) toRouter() router.Mapping {
	return router.Mapping{
		EventID: m.EventID, Key: m.Key, EmptyKey: router.EmptyKey(m.EmptyKey), Payload: m.Payload,
		NullPayload: router.NullPayload(m.NullPayload), BlankPayload: router.BlankPayload(m.BlankPayload),
		AggregateType: m.AggregateType, EventType: m.EventType, AggregateVersion: m.AggregateVersion,
		Timestamp: router.Timestamp{Column: m.Timestamp.Column, Unit: router.Unit(m.Timestamp.Unit)},
		Partition: m.Partition, Tombstone: m.Tombstone,
		EventIDHeader: m.EventIDHeader, EventTypeHeader: m.EventTypeHeader, AggregateVersionHeader: m.AggregateVersionHeader,
		Headers: toRouterFields(m.Headers), HeadersColumn: m.HeadersColumn, Envelope: m.Envelope.toRouter(),
		OnMissing: router.OnMissing(m.OnMissing), OnNoMatch: router.OnNoMatch(m.OnNoMatch),
	}
}

func (e *Envelope) toRouter() *router.Envelope {
	if e == nil {
		return nil
	}
	return &router.Envelope{
		Mode: router.EnvelopeMode(e.Mode), PayloadName: e.PayloadName, PayloadAs: router.PayloadAs(e.PayloadAs),
		Fields: toRouterFields(e.Fields),
	}
}

func toRouterFields(fields []Field) []router.Field {
	var out []router.Field
	for _, f := range fields {
		out = append(out, router.Field{Column: f.Column, Name: f.Name, Format: router.Format(f.Format)})
	}
	return out
}

func (r *Route) toRouter() router.Route {
	out := router.Route{Name: r.Name, Topic: string(r.Topic), By: r.By, Regex: string(r.Regex), Replacement: string(r.Replacement), OnRefusal: router.OnRefusal(r.OnRefusal), DeadLetterTopic: r.DeadLetterTopic}
	for _, m := range r.Match {
		out.Match = append(out.Match, router.Match{Field: m.Field, Exact: m.Exact, Glob: m.Glob, Regex: string(m.Regex)})
	}
	return out
}

// fromRouter is the way back, for profiles.
func fromRouter(s router.Source) Source {
	out := Source{Table: TableName{Schema: s.Schema, Name: s.Table}, Partitions: s.Partitions, Mapping: fromRouterMapping(&s.Mapping), OnRefusal: string(s.OnRefusal), DeadLetterTopic: s.DeadLetterTopic}
	for _, r := range s.Routes {
		route := Route{Name: r.Name, Topic: Template(r.Topic), By: r.By, Regex: Template(r.Regex), Replacement: Template(r.Replacement), OnRefusal: string(r.OnRefusal), DeadLetterTopic: r.DeadLetterTopic}
		for _, m := range r.Match {
			route.Match = append(route.Match, Match{Field: m.Field, Exact: m.Exact, Glob: m.Glob, Regex: Template(m.Regex)})
		}
		out.Routes = append(out.Routes, route)
	}
	return out
}

func fromRouterMapping(m *router.Mapping) Mapping {
	out := Mapping{
		EventID: m.EventID, Key: m.Key, EmptyKey: string(m.EmptyKey), Payload: m.Payload,
		NullPayload: string(m.NullPayload), BlankPayload: string(m.BlankPayload),
		AggregateType: m.AggregateType, EventType: m.EventType, AggregateVersion: m.AggregateVersion,
		Timestamp: Timestamp{Column: m.Timestamp.Column, Unit: string(m.Timestamp.Unit)},
		Partition: m.Partition, Tombstone: m.Tombstone,
		EventIDHeader: m.EventIDHeader, EventTypeHeader: m.EventTypeHeader, AggregateVersionHeader: m.AggregateVersionHeader,
		Headers: fromRouterFields(m.Headers), HeadersColumn: m.HeadersColumn,
		OnMissing: string(m.OnMissing), OnNoMatch: string(m.OnNoMatch),
	}
	if e := m.Envelope; e != nil {
		out.Envelope = &Envelope{Mode: string(e.Mode), PayloadName: e.PayloadName, PayloadAs: string(e.PayloadAs), Fields: fromRouterFields(e.Fields)}
	}
	return out
}

func fromRouterFields(fields []router.Field) []Field {
	var out []Field
	for _, f := range fields {
		out = append(out, Field{Column: f.Column, Name: f.Name, Format: string(f.Format)})
	}
	return out
}
