package config

import (
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/postrider/postrider/router"
)

// Source is one outbox table. Its parts mirror the router's own types: the
// router checks them, this package only reads and shows them.
type Source struct {
	Table      TableName `yaml:"table"`
	Profile    string    `yaml:"profile,omitempty"`
	Partitions bool      `yaml:"partitions,omitempty"`
	Mapping    Mapping   `yaml:"mapping"`
	Routes     []Route   `yaml:"routes"`
	OnRefusal  string    `yaml:"on_refusal"`

	DeadLetterTopic string       `yaml:"dead_letter_topic,omitempty"`
	Purge           *SourcePurge `yaml:"purge,omitempty"`
}

// Mapping names the column of each field of a message.
type Mapping struct {
	EventID          string    `yaml:"event_id"`
	Key              string    `yaml:"key"`
	EmptyKey         string    `yaml:"empty_key"`
	Payload          string    `yaml:"payload"`
	NullPayload      string    `yaml:"null_payload"`
	BlankPayload     string    `yaml:"blank_payload"`
	AggregateType    string    `yaml:"aggregate_type,omitempty"`
	EventType        string    `yaml:"event_type,omitempty"`
	AggregateVersion string    `yaml:"aggregate_version,omitempty"`
	Timestamp        Timestamp `yaml:"timestamp,omitempty"`
	Partition        string    `yaml:"partition,omitempty"`
	Tombstone        string    `yaml:"tombstone,omitempty"`

	EventIDHeader          string    `yaml:"event_id_header"`
	EventTypeHeader        string    `yaml:"event_type_header,omitempty"`
	AggregateVersionHeader string    `yaml:"aggregate_version_header,omitempty"`
	Headers                []Field   `yaml:"headers,omitempty"`
	HeadersColumn          string    `yaml:"headers_column,omitempty"`
	Envelope               *Envelope `yaml:"envelope,omitempty"`

	OnMissing string `yaml:"on_missing"`
	OnNoMatch string `yaml:"on_no_match"`
}

// Timestamp is a column, with the unit of a bigint.
type Timestamp struct {
	Column string `yaml:"column"`
	Unit   string `yaml:"unit,omitempty"`
}

// Field is a column that travels in a header or in the envelope.
type Field struct {
	Column string `yaml:"column"`
	Name   string `yaml:"name,omitempty"`
	Format string `yaml:"format,omitempty"`
}

// Envelope wraps the payload and named columns in one JSON object.
type Envelope struct {
	Mode        string  `yaml:"mode"`
	PayloadName string  `yaml:"payload_name"`
	PayloadAs   string  `yaml:"payload_as,omitempty"`
	Fields      []Field `yaml:"fields,omitempty"`
}

// Route gives a topic, by a template or by Event Router's pair of regular
// expression and replacement.
type Route struct {
	Name        string   `yaml:"name,omitempty"`
	Match       []Match  `yaml:"match,omitempty"`
	Topic       Template `yaml:"topic,omitempty"`
	By          string   `yaml:"by,omitempty"`
	Regex       Template `yaml:"regex,omitempty"`
	Replacement Template `yaml:"replacement,omitempty"`
	OnRefusal   string   `yaml:"on_refusal,omitempty"`

	DeadLetterTopic string `yaml:"dead_letter_topic,omitempty"`
}

// Match is one condition of a route.
type Match struct {
	Field string   `yaml:"field"`
	Exact *string  `yaml:"exact,omitempty"`
	Glob  string   `yaml:"glob,omitempty"`
	Regex Template `yaml:"regex,omitempty"`
}

// decodeNode lays the file's keys over the profile's, if one is named.
func (s *Source) decodeNode(d *decoder, node *yaml.Node, path string) {
	if name, line, ok := scalarOf(node, "profile"); ok {
		if profile, known := router.Profile(name); known {
			*s = fromRouter(profile)
			// The layout's usual table is not taken: which table is read must be said.
			s.Table = TableName{}
		} else {
			d.unreadable(line, join(path, "profile"), "unknown profile; known are %s", strings.Join(router.Profiles(), ", "))
		}
	}
	if isNull(node) {
		d.unreadable(node.Line, path, "has no value")
		return
	}
	d.structure(node, reflect.ValueOf(s).Elem(), path)
}

// scalarOf finds a scalar in a mapping before the mapping is decoded.
func scalarOf(node *yaml.Node, name string) (value string, line int, ok bool) {
	if node.Kind != yaml.MappingNode {
		return "", 0, false
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if v := node.Content[i+1]; node.Content[i].Value == name && v.Kind == yaml.ScalarNode {
			return v.Value, v.Line, true
		}
	}
	return "", 0, false
}

// decodeNode takes the column's name alone, too.
func (t *Timestamp) decodeNode(d *decoder, node *yaml.Node, path string) {
	*t = Timestamp{}
	decodeColumn(d, node, path, &t.Column, reflect.ValueOf(t).Elem())
}

// IsZero leaves an unmapped timestamp out of what is shown.
func (t Timestamp) IsZero() bool { return t == Timestamp{} }

// MarshalYAML writes the short form where there is no unit.
func (t Timestamp) MarshalYAML() (any, error) {
	if t.Unit == "" {
		return t.Column, nil
	}
	type long Timestamp
	return long(t), nil
}

// decodeNode takes the column's name alone, too.
func (f *Field) decodeNode(d *decoder, node *yaml.Node, path string) {
	decodeColumn(d, node, path, &f.Column, reflect.ValueOf(f).Elem())
}

// MarshalYAML writes the short form where the column says it all.
func (f Field) MarshalYAML() (any, error) {
	if f.Name == "" && f.Format == "" {
		return f.Column, nil
	}
	type long Field
	return long(f), nil
}

// decodeColumn takes "column" or "{column: …, …}".
func decodeColumn(d *decoder, node *yaml.Node, path string, column *string, whole reflect.Value) {
	if node.Kind == yaml.MappingNode {
		d.structure(node, whole, path)
		return
	}
	if text, ok := d.scalar(node, path, "the name of a column", expand); ok {
		*column = text
	}
}

// fillDefaults writes out what the router does where nothing is said, for config show.
func (s *Source) fillDefaults() {
	m := &s.Mapping
	setDefault(&s.OnRefusal, string(router.OnRefusalParkAggregate))
	setDefault(&m.EmptyKey, string(router.EmptyKeyRefuse))
	setDefault(&m.NullPayload, string(router.NullPayloadRefuse))
	setDefault(&m.BlankPayload, string(router.BlankPayloadKeep))
	if m.EventID != "" {
		setDefault(&m.EventIDHeader, "id")
	}
	if m.EventType != "" {
		setDefault(&m.EventTypeHeader, "event_type")
	}
	setDefault(&m.OnMissing, string(router.OnMissingError))
	setDefault(&m.OnNoMatch, string(router.OnNoMatchRefuse))
	if m.Envelope != nil {
		setDefault(&m.Envelope.Mode, string(router.EnvelopeJSON))
		setDefault(&m.Envelope.PayloadName, "payload")
	}
	if len(s.Routes) == 0 {
		s.Routes = []Route{{Topic: router.DefaultTopic}}
	}
}

func setDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}
