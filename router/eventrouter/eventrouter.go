// Package eventrouter translates the options of Debezium's Outbox Event Router
// into a source of the router, so that the same rows give the same records. What
// has no counterpart is named, with the reason.
package eventrouter

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/postrider/postrider/router"
)

// Kind tells what a Note is about.
type Kind string

// The kinds of notes.
const (
	// Unsupported is an option whose effect is not offered.
	Unsupported Kind = "unsupported"
	// Different is an option whose effect differs, for the better.
	Different Kind = "different"
	// NoEffect is an option that has no effect on what is published.
	NoEffect Kind = "no effect"
)

// Note is what somebody who moves over should know about one option.
type Note struct {
	Option string
	Kind   Kind
	Text   string
}

// Event Router's options and defaults (Debezium 3.6).
const (
	optEventID     = "table.field.event.id"
	optEventKey    = "table.field.event.key"
	optEventType   = "table.field.event.type"
	optPayload     = "table.field.event.payload"
	optTimestamp   = "table.field.event.timestamp"
	optSchema      = "table.field.event.schema.version"
	optPlacement   = "table.fields.additional.placement"
	optMissing     = "table.field.additional.missing"
	optMissingOld  = "table.fields.additional.error.on.missing"
	optRouteBy     = "route.by.field"
	optRegex       = "route.topic.regex"
	optReplacement = "route.topic.replacement"
	optTombstone   = "route.tombstone.on.empty.payload"
	optInvalidOp   = "table.op.invalid.behavior"
	optExpand      = "table.expand.json.payload"
	optNullJSON    = "table.json.payload.null.behavior"
	optEmptyArray  = "table.json.payload.empty.array.behavior"
	optTraceField  = "tracing.span.context.field"
	optTraceOp     = "tracing.operation.name"
	optTraceOnly   = "tracing.with.context.field.only"

	defaultRegex       = "(?<routedByValue>.*)"
	defaultReplacement = "outbox.event.${routedByValue}"
)

var defaults = map[string]string{
	optEventID: "id", optEventKey: "aggregateid", optPayload: "payload",
	optRouteBy: "aggregatetype", optRegex: defaultRegex, optReplacement: defaultReplacement,
	optTombstone: "false", optMissing: "error",
}

// translation is one run of Translate.
type translation struct {
	options map[string]string
	read    map[string]bool
	notes   []Note
	errs    []string
	source  router.Source
}

// Translate turns options, without the transform's own prefix
// ("transforms.outbox."), into a source for one table. The error lists all values
// that Event Router would not accept either.
func Translate(schema, table string, options map[string]string) (router.Source, []Note, error) {
	t := &translation{options: options, read: map[string]bool{}}
	t.source.Schema, t.source.Table = schema, table
	t.mapping()
	t.routes()
	t.placements()
	t.remarks()
	if len(t.errs) > 0 {
		return router.Source{}, t.notes, fmt.Errorf("translate Event Router options: %s", strings.Join(t.errs, "; "))
	}
	return t.source, t.notes, nil
}

// get is an option's value or its default.
func (t *translation) get(option string) string {
	t.read[option] = true
	if v, ok := t.options[option]; ok {
		return v
	}
	return defaults[option]
}

func (t *translation) note(option string, kind Kind, text string) {
	t.notes = append(t.notes, Note{Option: option, Kind: kind, Text: text})
}

func (t *translation) fail(option, format string, args ...any) {
	t.errs = append(t.errs, option+" "+fmt.Sprintf(format, args...))
}

func (t *translation) boolean(option string) bool {
	switch v := strings.ToLower(strings.TrimSpace(t.get(option))); v {
	case "true":
		return true
	case "false", "":
		return false
	default:
		t.fail(option, "is %q, allowed are true and false", v)
		return false
	}
}

func (t *translation) mapping() {
	m := &t.source.Mapping
	m.EventID = t.get(optEventID)
	m.Key = t.get(optEventKey)
	m.Payload = t.get(optPayload)
	m.Timestamp.Column = t.get(optTimestamp)
	m.EmptyKey = router.EmptyKeyAllow
	m.NullPayload, m.BlankPayload = router.NullPayloadNull, router.BlankPayloadKeep
	if t.boolean(optTombstone) {
		m.NullPayload, m.BlankPayload = router.NullPayloadTombstone, router.BlankPayloadTombstone
	}
	m.OnMissing = t.missing()
}

// missing reads the option under its name since 3.6 and under the one before.
func (t *translation) missing() router.OnMissing {
	if _, old := t.options[optMissingOld]; old {
		if t.boolean(optMissingOld) {
			return router.OnMissingError
		}
		return router.OnMissingIgnore
	}
	switch v := t.get(optMissing); v {
	case "error":
		return router.OnMissingError
	case "ignore":
		return router.OnMissingIgnore
	default:
		t.fail(optMissing, "is %q, allowed are error and ignore", v)
		return router.OnMissingError
	}
}

func (t *translation) routes() {
	m := &t.source.Mapping
	by := t.get(optRouteBy)
	m.AggregateType = by
	regex, replacement := t.get(optRegex), t.get(optReplacement)
	if regex == defaultRegex && replacement == defaultReplacement {
		t.source.Routes = []router.Route{{Topic: router.DefaultTopic}}
		return
	}
	m.OnNoMatch = router.OnNoMatchRaw
	t.source.Routes = []router.Route{{Regex: regex, Replacement: replacement}}
	t.note(optRegex, Different, "where the regex does not match, Event Router makes the value itself the topic; "+
		"on_no_match: raw keeps that, on_no_match: refuse finds typing errors")
}

// placements reads col:placement[:alias],…
func (t *translation) placements() {
	text := strings.TrimSpace(t.get(optPlacement))
	if text == "" {
		return
	}
	for entry := range strings.SplitSeq(text, ",") {
		parts := strings.Split(strings.TrimSpace(entry), ":")
		if len(parts) < 2 || len(parts) > 3 || parts[0] == "" {
			t.fail(optPlacement, "has the entry %q, which is not column:placement[:alias]", entry)
			continue
		}
		alias := ""
		if len(parts) == 3 {
			alias = strings.TrimSpace(parts[2])
		}
		t.place(strings.TrimSpace(parts[0]), strings.TrimSpace(parts[1]), alias)
	}
}

func (t *translation) place(column, placement, alias string) {
	m := &t.source.Mapping
	switch strings.ToLower(placement) {
	case "header":
		m.Headers = append(m.Headers, router.Field{Column: column, Name: alias, Format: router.FormatDebezium})
	case "envelope":
		if m.Envelope == nil {
			m.Envelope = &router.Envelope{Mode: router.EnvelopeDebezium}
			t.note(optPlacement, Different, "the envelope is written as the JSON converter writes it, with the payload as a "+
				"string inside JSON; mode: json splices the payload in as JSON")
		}
		m.Envelope.Fields = append(m.Envelope.Fields, router.Field{Column: column, Name: alias})
	case "partition":
		m.Partition = column
	default:
		t.fail(optPlacement, "has the placement %q, allowed are header, envelope and partition", placement)
	}
}

// remarks goes through what does not translate to an option of ours.
func (t *translation) remarks() {
	if _, set := t.options[optEventType]; set {
		t.note(optEventType, NoEffect, "Event Router declares it and never reads it; map event_type to get a header event_type")
	}
	if t.get(optTimestamp) != "" {
		t.note(optTimestamp, Different, "timestamptz works too, and bigint with a unit; a NULL falls back to the time of commit, not of processing")
	}
	if t.get(optSchema) != "" {
		t.note(optSchema, NoEffect, "it sets the version of a Connect schema, which converters without schemas do not write")
	}
	if v := t.get(optInvalidOp); v != "" {
		t.invalidOp(v)
	}
	if t.boolean(optExpand) {
		t.note(optExpand, Unsupported, "expansion drops null fields and empty arrays and writes numbers anew: "+
			"the payload would not be what the application wrote; json and jsonb are published as JSON already, not as a string inside JSON")
	}
	for _, option := range []string{optNullJSON, optEmptyArray} {
		if t.get(option) != "" {
			t.note(option, Unsupported, "it belongs to "+optExpand)
		}
	}
	for _, option := range []string{optTraceField, optTraceOp, optTraceOnly} {
		if t.get(option) != "" {
			t.note(option, Unsupported, "no spans are made; write traceparent into a header column, and consumers get it as a header")
		}
	}
	t.eventType()
	t.unknown()
}

func (t *translation) invalidOp(v string) {
	switch v {
	case "warn", "error":
		t.note(optInvalidOp, Different, "updates publish nothing and are counted in a metric instead of the log")
	case "fatal":
		t.note(optInvalidOp, Unsupported, "an update of the outbox does not stop the publisher; alert on the counter of ignored changes instead")
	default:
		t.fail(optInvalidOp, "is %q, allowed are warn, error and fatal", v)
	}
}

// eventType disables the header that ours would add and Event Router does not.
func (t *translation) eventType() { t.source.Mapping.EventTypeHeader = router.Disabled }

// unknown names what Event Router does not know either.
func (t *translation) unknown() {
	for _, option := range slices.Sorted(maps.Keys(t.options)) {
		if t.read[option] || option == optEventType {
			continue
		}
		if option == "type" || option == "predicate" || option == "negate" {
			t.note(option, NoEffect, "it belongs to Kafka Connect")
			continue
		}
		t.note(option, Unsupported, "it is not known as an option of Event Router")
	}
}
