package config

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decoder walks the tree that the YAML library parsed and fills the structs of
// this package. The library's own struct decoding is not used, because its
// errors know no paths and quote the values that they complain about.
type decoder struct {
	*report
	lookup func(string) (string, bool)
	// visits bounds the walk: an alias may repeat what repeats something else. Its
	// depth is that of the structs, none of which holds itself.
	visits int
}

// maxVisits is that of some thousand sources.
const maxVisits = 100_000

// textDecoder is a type that is written as one scalar.
type textDecoder interface {
	decodeText(text string) error
	// wants describes the text.
	wants() string
}

// nodeDecoder is a type with a shorthand: a scalar instead of a mapping or a list.
type nodeDecoder interface {
	decodeNode(d *decoder, node *yaml.Node, path string)
}

// parseTree gives the root mapping of the only document, nil for an empty file.
func parseTree(data []byte, r *report) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) {
			r.syntax(err)
		}
		return nil
	}
	if err := dec.Decode(&second); err == nil {
		r.at(second.Line, "", "a second YAML document begins; one file holds one configuration")
	} else if !errors.Is(err, io.EOF) {
		r.syntax(err)
	}
	return doc.Content[0]
}

var syntaxLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntax reports what the library's scanner says, which quotes no values but
// for anchors: an unquoted password may begin with the mark of one.
func (r *report) syntax(err error) {
	m := syntaxLine.FindStringSubmatch(err.Error())
	line, text := 0, "not YAML"
	if m != nil {
		line, _ = strconv.Atoi(m[1])
		text = m[2]
	}
	if strings.Contains(text, "anchor") || strings.ContainsAny(text, `"'`) && strings.Contains(text, "tag") {
		text = "a value that begins with *, & or ! must be quoted"
	}
	if strings.Contains(text, "expected ','") {
		text += "; inside { } and [ ] a ${NAME} must be quoted"
	}
	r.at(line, "", "not valid YAML: %s", text)
}

func (d *decoder) value(node *yaml.Node, out reflect.Value, path string) {
	if d.visits++; d.visits > maxVisits {
		if d.visits == maxVisits+1 {
			d.unreadable(node.Line, path, "has too many values, counting aliases")
		}
		return
	}
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if !knownTag(node) {
		d.unreadable(node.Line, path, "has a YAML tag; a value that begins with ! must be quoted")
		return
	}
	if custom, ok := out.Addr().Interface().(nodeDecoder); ok {
		custom.decodeNode(d, node, path)
		return
	}
	if custom, ok := out.Addr().Interface().(textDecoder); ok {
		d.custom(node, custom, path)
		return
	}
	switch out.Kind() {
	case reflect.Struct:
		d.structure(node, out, path)
	case reflect.Pointer:
		out.Set(reflect.New(out.Type().Elem()))
		if isNull(node) {
			d.unreadable(node.Line, path, "has no value; write {} to take all defaults of the section, or remove the key")
			return
		}
		d.value(node, out.Elem(), path)
	case reflect.Slice:
		d.slice(node, out, path)
	case reflect.Map:
		d.stringMap(node, out, path)
	case reflect.String:
		if text, ok := d.scalar(node, path, "a text", expand); ok {
			out.SetString(text)
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		d.integer(node, out, path)
	case reflect.Bool:
		d.boolean(node, out, path)
	default:
		panic("config: no decoding for " + out.Type().String())
	}
}

func (d *decoder) structure(node *yaml.Node, out reflect.Value, path string) {
	if isNull(node) {
		return // a section whose keys are all commented out
	}
	if !d.isMapping(node, path) {
		return
	}
	fields := fieldsOf(out.Type())
	d.pairs(node, path, func(key, value *yaml.Node, keyPath string) {
		i := slices.Index(fields, key.Value)
		if i < 0 {
			d.unknown(key, keyPath, fields)
			return
		}
		d.value(value, fieldNamed(out, key.Value), keyPath)
	})
}

// pairs visits each key of a mapping once; a repeated key is a problem.
func (d *decoder) pairs(node *yaml.Node, path string, visit func(key, value *yaml.Node, keyPath string)) {
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			d.at(key.Line, path, "has a key that is not a plain name; merge keys are not supported")
			continue
		}
		keyPath := join(path, key.Value)
		if first, ok := seen[key.Value]; ok {
			d.at(key.Line, join(path, shownKey(key.Value)), "is given twice, first in line %d", first)
			continue
		}
		seen[key.Value] = key.Line
		d.lines[keyPath] = key.Line
		visit(key, value, keyPath)
	}
}

func (d *decoder) unknown(key *yaml.Node, keyPath string, fields []string) {
	if reason, ok := refusedKeys[generic(keyPath)]; ok {
		d.at(key.Line, keyPath, "%s", reason)
		return
	}
	path := join(parent(keyPath), shownKey(key.Value))
	d.at(key.Line, path, "unknown key; known here: %s", strings.Join(fields, ", "))
}

func (d *decoder) slice(node *yaml.Node, out reflect.Value, path string) {
	if node.Kind != yaml.SequenceNode {
		d.unreadable(node.Line, path, "wants a list, found %s", kindName(node))
		return
	}
	list := reflect.MakeSlice(out.Type(), len(node.Content), len(node.Content))
	for i, item := range node.Content {
		itemPath := index(path, i)
		d.lines[itemPath] = item.Line
		d.value(item, list.Index(i), itemPath)
	}
	out.Set(list)
}

func (d *decoder) stringMap(node *yaml.Node, out reflect.Value, path string) {
	if !d.isMapping(node, path) {
		return
	}
	out.Set(reflect.MakeMap(out.Type()))
	d.pairs(node, path, func(key, value *yaml.Node, keyPath string) {
		item := reflect.New(out.Type().Elem()).Elem()
		d.value(value, item, keyPath)
		out.SetMapIndex(reflect.ValueOf(key.Value), item)
	})
}

func (d *decoder) isMapping(node *yaml.Node, path string) bool {
	if node.Kind != yaml.MappingNode {
		d.unreadable(node.Line, path, "wants keys and values, found %s", kindName(node))
		return false
	}
	return true
}

// fieldsOf lists the keys of a section in the order of the struct.
func fieldsOf(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		if name := keyOf(t.Field(i)); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func fieldNamed(v reflect.Value, name string) reflect.Value {
	for i := range v.NumField() {
		if keyOf(v.Type().Field(i)) == name {
			return v.Field(i)
		}
	}
	panic("config: no field " + name)
}

func keyOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if name == "-" {
		return ""
	}
	return name
}

var listIndex = regexp.MustCompile(`\[\d+\]`)

// generic is the path for all items of a list: sources[].routes[].topic.
func generic(path string) string { return listIndex.ReplaceAllString(path, "[]") }

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,40}$`)

// shownKey is the key, unless it is so odd that it may be a value in the wrong place.
func shownKey(key string) string {
	if plainKey.MatchString(key) {
		return key
	}
	return "(a key that is not a plain name)"
}
