package router

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/event"
)

// binding is a mapping compiled for one description of one table.
type binding struct {
	rel   *event.Relation
	src   *source
	table string
	// err is set where the mapping does not fit; then only what describes a refused row
	// is used, and of that the columns that are there.
	err *BindError

	eventID, key, payload           column
	aggregateType, eventType        column
	version                         column
	timestamp, partition, tombstone column
	headersColumn                   column
	headers                         []boundHeader
	fields                          []boundField
	slots                           []column
}

// boundHeader is a header with its column; debezium selects its format.
type boundHeader struct {
	column
	header   string
	debezium bool
}

// boundField is a field of the envelope; prefix is ,"name": ready to be appended.
type boundField struct {
	column
	prefix []byte
}

// binder collects what does not fit while it binds one mapping.
type binder struct {
	rel      *event.Relation
	types    *typeTable
	problems []BindProblem
}

// bind compiles src's mapping for rel.
func bind(rel *event.Relation, src *source, types *typeTable) *binding {
	m := &src.cfg.Mapping
	b := &binder{rel: rel, types: types}
	out := &binding{rel: rel, src: src, table: src.cfg.Schema + "." + src.cfg.Table}

	out.eventID = b.required("event_id", m.EventID)
	out.key = b.required("key", m.Key)
	out.payload = b.required("payload", m.Payload)
	out.aggregateType = b.used("aggregate_type", m.AggregateType)
	out.eventType = b.used("event_type", m.EventType)
	out.version = b.used("aggregate_version", m.AggregateVersion)
	b.want(&out.version, "aggregate_version", "an integer type", kindInt)
	out.timestamp = b.bindTimestamp(&m.Timestamp)
	out.partition = b.optional("partition", m.Partition, m.OnMissing)
	b.want(&out.partition, "partition", "an integer type", kindInt)
	out.tombstone = b.used("tombstone", m.Tombstone)
	b.want(&out.tombstone, "tombstone", "boolean", kindBool)
	out.headersColumn = b.used("headers_column", m.HeadersColumn)
	b.want(&out.headersColumn, "headers_column", "json or jsonb", kindJSON)
	out.headers = b.bindHeaders(m)
	out.fields = b.bindFields(m)
	for _, name := range src.routes.slots {
		out.slots = append(out.slots, b.used("routes", name))
	}
	if len(b.problems) > 0 {
		out.err = &BindError{Table: rel.String(), Problems: b.problems, Columns: columnNames(rel)}
	}
	return out
}

func columnNames(rel *event.Relation) []string {
	names := make([]string, len(rel.Columns))
	for i := range rel.Columns {
		names[i] = rel.Columns[i].Name
	}
	return names
}

func (b *binder) fail(reason event.Reason, option, name, format string, args ...any) {
	for _, p := range b.problems {
		if p.Column == name && p.Reason == reason {
			return // one message for a column that is mapped several times
		}
	}
	b.problems = append(b.problems, BindProblem{Reason: reason, Option: option, Column: name, Detail: fmt.Sprintf(format, args...)})
}

// find looks a column up by its exact name.
func (b *binder) find(name string) (column, bool) {
	i := b.rel.ColumnIndex(name)
	if i < 0 {
		return column{index: -1, name: name}, false
	}
	c := &b.rel.Columns[i]
	return column{index: i, name: name, typ: b.types.lookup(c.TypeOID, c.TypeMod)}, true
}

// required finds a column that must exist.
func (b *binder) required(option, name string) column {
	c, ok := b.find(name)
	if !ok {
		b.fail(event.ReasonMissingColumn, option, name, "does not exist%s", b.nearMiss(name))
	}
	return c
}

// used is required if it is mapped at all.
func (b *binder) used(option, name string) column {
	if name == "" {
		return column{index: -1}
	}
	return b.required(option, name)
}

// optional is used, unless the mapping ignores what is missing.
func (b *binder) optional(option, name string, missing OnMissing) column {
	if name != "" && missing == OnMissingIgnore {
		c, _ := b.find(name)
		return c
	}
	return b.used(option, name)
}

// nearMiss names the column that differs in case only, the usual fault (case C06).
func (b *binder) nearMiss(name string) string {
	for i := range b.rel.Columns {
		if strings.EqualFold(b.rel.Columns[i].Name, name) {
			return fmt.Sprintf(" (did you mean %q? names are compared exactly)", b.rel.Columns[i].Name)
		}
	}
	return ""
}

// want checks the type of a column that exists.
func (b *binder) want(c *column, option, types string, kinds ...typeKind) {
	if !c.mapped() {
		return
	}
	for _, k := range kinds {
		if c.typ.kind == k {
			return
		}
	}
	b.fail(event.ReasonUnsupportedType, option, c.name, "must be of type %s, its type has OID %d", types, b.rel.Columns[c.index].TypeOID)
}

func (b *binder) bindTimestamp(ts *Timestamp) column {
	c := b.used("timestamp.column", ts.Column)
	if !c.mapped() {
		return c
	}
	b.want(&c, "timestamp.column", "timestamptz, timestamp or bigint", kindTimestamp, kindTimestampTZ, kindInt)
	switch {
	case c.typ.kind == kindInt && ts.Unit == "":
		b.fail(event.ReasonUnsupportedType, "timestamp.unit", c.name, "is an integer, so its unit must be given: s, ms, us or ns")
	case c.typ.kind != kindInt && ts.Unit != "":
		b.fail(event.ReasonUnsupportedType, "timestamp.unit", c.name, "has a unit, but is no integer")
	}
	return c
}

func (b *binder) bindHeaders(m *Mapping) []boundHeader {
	var bound []boundHeader
	for _, h := range m.defaultHeaders() {
		if h.name == "" {
			continue
		}
		c, _ := b.find(h.column) // a missing one was reported under its own option
		bound = append(bound, boundHeader{column: c, header: h.name})
	}
	for i := range m.Headers {
		f := &m.Headers[i]
		option := fmt.Sprintf("headers[%d].column", i)
		h := boundHeader{
			column: b.optional(option, f.Column, m.OnMissing),
			header: f.name(), debezium: f.Format == FormatDebezium,
		}
		if !h.mapped() {
			continue
		}
		if h.debezium {
			b.wantDebezium(&h.column, option)
		}
		bound = append(bound, h)
	}
	return bound
}

func (b *binder) wantDebezium(c *column, option string) {
	if problem := debeziumSupports(c.typ); problem != "" {
		b.fail(event.ReasonUnsupportedType, option, c.name, "%s", problem)
	}
}

func (b *binder) bindFields(m *Mapping) []boundField {
	if m.Envelope == nil {
		return nil
	}
	var bound []boundField
	for i := range m.Envelope.Fields {
		f := &m.Envelope.Fields[i]
		option := fmt.Sprintf("envelope.fields[%d].column", i)
		c := b.optional(option, f.Column, m.OnMissing)
		if !c.mapped() {
			continue
		}
		if m.Envelope.Mode == EnvelopeDebezium {
			b.wantDebezium(&c, option)
		}
		prefix := append(appendJSONString([]byte{','}, []byte(f.name())), ':')
		bound = append(bound, boundField{column: c, prefix: prefix})
	}
	return bound
}
