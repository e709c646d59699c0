package parking

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/postrider/postrider/event"
)

// Event is an event on its way into the store, or out of it to be published.
type Event struct {
	// ID is the row's; 0 before it has one.
	ID int64
	// Message is the record. Where Row is set it holds only what could be found.
	Message event.Message
	// Row is set where the router refused: a retry routes it again.
	Row        *Row
	CommitTime time.Time
	// Unit is nil where nothing waits for the event.
	Unit *Unit
	// Reason and Error say why it is here.
	Reason event.Reason
	Error  string
	// Attempts counts refusals.
	Attempts int
	// SourceTable is the outbox, where it is known.
	SourceTable string
	// Repaired says that the value is not the original one.
	Repaired bool
}

// Row is a streamed row, kept whole.
type Row struct {
	Shape
	Values []event.Value
}

// Shape is what has to be known of a row's table to route it.
type Shape struct {
	Schema string `json:"schema"`
	Table  string `json:"table"`
	// As is the source that the table is bound as: the root of a partition.
	AsSchema string          `json:"as_schema"`
	AsTable  string          `json:"as_table"`
	Columns  []Column        `json:"columns"`
	Types    map[uint32]Type `json:"types,omitempty"`
}

// Column is one column as it was described on the stream.
type Column struct {
	Name string `json:"name"`
	Type uint32 `json:"type"`
	Mod  int32  `json:"mod"`
}

// Type names a type that is not built in.
type Type struct {
	Schema string `json:"schema"`
	Name   string `json:"name"`
}

// CopyRow copies a row of the stream.
func CopyRow(row *event.Row) *Row {
	rel := row.Relation
	r := &Row{Shape: Shape{Schema: rel.Namespace, Table: rel.Name, Types: map[uint32]Type{}}}
	for _, c := range rel.Columns {
		r.Columns = append(r.Columns, Column{Name: c.Name, Type: c.TypeOID, Mod: c.TypeMod})
	}
	for _, v := range row.Values {
		v.Data = clone(v.Data)
		r.Values = append(r.Values, v)
	}
	return r
}

// Relation is the table as it was described.
func (r *Row) Relation() *event.Relation {
	rel := &event.Relation{Namespace: r.Schema, Name: r.Table}
	for _, c := range r.Columns {
		rel.Columns = append(rel.Columns, event.Column{Name: c.Name, TypeOID: c.Type, TypeMod: c.Mod})
	}
	return rel
}

// Size is about what the event takes of memory, in bytes.
func (e *Event) Size() int {
	const fixed = 1024
	m := &e.Message
	n := fixed + len(m.Key) + len(m.Value) + len(m.EventID) + len(m.AggregateType) + len(m.EventType) + len(e.Error)
	for i := range m.Headers {
		n += 64 + len(m.Headers[i].Name) + len(m.Headers[i].Value)
	}
	if e.Row != nil {
		for i := range e.Row.Values {
			n += 64 + len(e.Row.Values[i].Data)
		}
	}
	return n
}

// CopyMessage copies everything that a message refers to.
func CopyMessage(m *event.Message) event.Message {
	c := *m
	for _, b := range []*[]byte{&c.EventID, &c.Key, &c.Value, &c.AggregateType, &c.EventType, &c.AggregateVersion} {
		*b = clone(*b)
	}
	c.Headers = make([]event.Header, len(m.Headers))
	for i, h := range m.Headers {
		c.Headers[i] = event.Header{Name: h.Name, Value: clone(h.Value)}
	}
	return c
}

// clone keeps nil and empty apart.
func clone(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

// text is b as a text column takes it; nil where it is empty.
func text(b []byte) *string {
	if len(b) == 0 {
		return nil
	}
	s := clean(string(b))
	return &s
}

// clean drops what a text column does not take.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// readable is the key as text; nil where it is none.
func readable(key []byte) *string {
	if len(key) == 0 || !utf8.Valid(key) || strings.IndexByte(string(key), 0) >= 0 {
		return nil
	}
	s := string(key)
	return &s
}

// columns of a row in the store.
func (r *Row) encode() (shape *string, values [][]byte, err error) {
	if r == nil {
		return nil, nil, nil
	}
	doc, err := json.Marshal(r.Shape)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the row's shape: %w", err)
	}
	for _, v := range r.Values {
		if v.Kind == event.Text && v.Data == nil {
			v.Data = []byte{}
		}
		values = append(values, v.Data)
	}
	s := string(doc)
	return &s, values, nil
}

func decodeRow(shape string, values [][]byte) (*Row, error) {
	r := &Row{}
	if err := json.Unmarshal([]byte(shape), &r.Shape); err != nil {
		return nil, fmt.Errorf("decode the row's shape: %w", err)
	}
	for _, v := range values {
		if v == nil {
			r.Values = append(r.Values, event.Value{Kind: event.Null})
			continue
		}
		r.Values = append(r.Values, event.Value{Kind: event.Text, Data: v})
	}
	return r, nil
}
