package config

import (
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// NameList is one name or a list of names. A name may hold any character, so a
// text is never split.
type NameList []string

func (l *NameList) decodeNode(d *decoder, node *yaml.Node, path string) {
	if node.Kind != yaml.SequenceNode {
		if text, ok := d.scalar(node, path, "a name or a list of names", expand); ok {
			*l = NameList{text}
		}
		return
	}
	d.slice(node, reflect.ValueOf((*[]string)(l)).Elem(), path)
}

// AddressList is a list of host:port, or a text with commas between them, so
// that one environment variable can hold them all.
type AddressList []string

func (l *AddressList) decodeNode(d *decoder, node *yaml.Node, path string) {
	if node.Kind == yaml.SequenceNode {
		d.slice(node, reflect.ValueOf((*[]string)(l)).Elem(), path)
		return
	}
	text, ok := d.scalar(node, path, "a list of host:port", expand)
	if !ok {
		return
	}
	for address := range strings.SplitSeq(text, ",") {
		*l = append(*l, strings.TrimSpace(address))
	}
}

// TableName is a table under its exact catalog names, without SQL quotes.
type TableName struct {
	Schema string `yaml:"schema"`
	Name   string `yaml:"name"`
}

// String is for people.
func (t TableName) String() string { return t.Schema + "." + t.Name }

// decodeNode takes schema.table where neither name has a dot, else both names apart.
func (t *TableName) decodeNode(d *decoder, node *yaml.Node, path string) {
	if node.Kind == yaml.MappingNode {
		d.structure(node, reflect.ValueOf(t).Elem(), path)
		return
	}
	text, ok := d.scalar(node, path, "schema.table", expand)
	if !ok {
		return
	}
	schema, name, _ := strings.Cut(text, ".")
	if schema == "" || name == "" || strings.Contains(name, ".") {
		d.unreadable(node.Line, path, "wants schema.table; a name that has a dot itself is written {schema: …, name: …}")
		return
	}
	t.Schema, t.Name = schema, name
}

// MarshalYAML writes the short form where it is unambiguous.
func (t TableName) MarshalYAML() (any, error) {
	if strings.Contains(t.Schema+t.Name, ".") {
		type long TableName
		return long(t), nil
	}
	return t.String(), nil
}
