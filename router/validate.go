package router

import (
	"fmt"
	"slices"
	"strings"
)

// reservedPrefix begins the names of headers that Postrider adds itself.
const reservedPrefix = "postrider-"

// validateSource checks what does not depend on the table.
func validateSource(s *Source, at string) (found problems) {
	if s.Schema == "" {
		found.add(join(at, "schema"), "empty")
	}
	if s.Table == "" {
		found.add(join(at, "table"), "empty")
	}
	return append(found, validateMapping(&s.Mapping, join(at, "mapping"))...)
}

func validateMapping(m *Mapping, at string) (found problems) {
	for _, required := range []struct{ option, column string }{
		{"event_id", m.EventID}, {"key", m.Key}, {"payload", m.Payload},
	} {
		if required.column == "" {
			found.add(join(at, required.option), "empty")
		}
	}
	checkEnum(&found, join(at, "empty_key"), m.EmptyKey, EmptyKeyRefuse, EmptyKeyAllow)
	checkEnum(&found, join(at, "null_payload"), m.NullPayload, NullPayloadRefuse, NullPayloadTombstone, NullPayloadNull)
	checkEnum(&found, join(at, "blank_payload"), m.BlankPayload, BlankPayloadKeep, BlankPayloadTombstone)
	checkEnum(&found, join(at, "on_missing"), m.OnMissing, OnMissingError, OnMissingIgnore)
	checkEnum(&found, join(at, "on_no_match"), m.OnNoMatch, OnNoMatchRefuse, OnNoMatchRaw)
	checkEnum(&found, join(at, "timestamp.unit"), m.Timestamp.Unit, UnitSeconds, UnitMillis, UnitMicros, UnitNanos)
	if m.Timestamp.Unit != "" && m.Timestamp.Column == "" {
		found.add(join(at, "timestamp.column"), "empty, but unit is set")
	}
	found = append(found, validateHeaders(m, at)...)
	return append(found, validateEnvelope(m.Envelope, join(at, "envelope"))...)
}

// checkEnum accepts the empty value and the listed ones.
func checkEnum[T ~string](found *problems, path string, value T, allowed ...T) {
	if value == "" || slices.Contains(allowed, value) {
		return
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = string(a)
	}
	found.add(path, "is %q, allowed are %s", string(value), strings.Join(names, ", "))
}

func validateHeaders(m *Mapping, at string) (found problems) {
	seen := map[string]string{}
	claim := func(path, name string) {
		switch {
		case strings.HasPrefix(name, reservedPrefix):
			found.add(path, "is %q; names that begin with %s are reserved", name, reservedPrefix)
		case seen[name] != "":
			found.add(path, "is %q, as is %s", name, seen[name])
		}
		seen[name] = path
	}
	for _, h := range m.defaultHeaders() {
		path := join(at, h.option)
		if h.column == "" && h.set != "" && h.set != Disabled {
			found.add(path, "is set, but %s is not mapped", strings.TrimSuffix(h.option, "_header"))
		}
		if h.name != "" {
			claim(path, h.name)
		}
	}
	for i, f := range m.Headers {
		path := fmt.Sprintf("%s.headers[%d]", at, i)
		if f.Column == "" {
			found.add(path+".column", "empty")
			continue
		}
		claim(path+".name", f.name())
		checkEnum(&found, path+".format", f.Format, FormatText, FormatDebezium)
	}
	return found
}

func validateEnvelope(e *Envelope, at string) (found problems) {
	if e == nil {
		return nil
	}
	checkEnum(&found, at+".mode", e.Mode, EnvelopeJSON, EnvelopeDebezium)
	checkEnum(&found, at+".payload_as", e.PayloadAs, PayloadAsString, PayloadAsJSON)
	if e.Mode == EnvelopeDebezium && e.PayloadAs == PayloadAsJSON {
		found.add(at+".payload_as", "is json, but mode debezium writes the payload as a string")
	}
	seen := map[string]string{e.payloadName(): at + ".payload_name"}
	for i, f := range e.Fields {
		path := fmt.Sprintf("%s.fields[%d]", at, i)
		if f.Column == "" {
			found.add(path+".column", "empty")
			continue
		}
		if f.Format != "" {
			found.add(path+".format", "is not for an envelope's field; the envelope's mode decides")
		}
		if other := seen[f.name()]; other != "" {
			found.add(path+".name", "is %q, as is %s", f.name(), other)
		}
		seen[f.name()] = path + ".name"
	}
	return found
}

// name is the field's name in the message.
func (f *Field) name() string {
	if f.Name != "" {
		return f.Name
	}
	return f.Column
}

func (e *Envelope) payloadName() string {
	if e.PayloadName != "" {
		return e.PayloadName
	}
	return "payload"
}

// defaultHeader is a header that a mapped field gets without being listed.
type defaultHeader struct {
	// option is the option that renames it, set its value, name the resulting name
	// ("" for none), column the field's column.
	option, set, name, column string
}

func (m *Mapping) defaultHeaders() []defaultHeader {
	headers := []defaultHeader{
		{"event_id_header", m.EventIDHeader, "id", m.EventID},
		{"event_type_header", m.EventTypeHeader, "event_type", m.EventType},
		{"aggregate_version_header", m.AggregateVersionHeader, "", m.AggregateVersion},
	}
	for i := range headers {
		h := &headers[i]
		switch {
		case h.column == "" || h.set == Disabled:
			h.name = ""
		case h.set != "":
			h.name = h.set
		}
	}
	return headers
}
