package config

import (
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// expander replaces references to the environment in a text.
type expander func(text string, lookup func(string) (string, bool)) (string, error)

// scalar gives the text of a scalar with the environment filled in. Numbers and
// dates are taken as they are written, so that a password of digits needs no
// quotes; true, false and null are not texts.
func (d *decoder) scalar(node *yaml.Node, path, wanted string, fill expander) (string, bool) {
	if node.Kind != yaml.ScalarNode || node.ShortTag() == "!!bool" || isNull(node) {
		d.unreadable(node.Line, path, "wants %s, found %s", wanted, kindName(node))
		return "", false
	}
	return d.fill(node, path, fill)
}

func (d *decoder) fill(node *yaml.Node, path string, fill expander) (string, bool) {
	text, err := fill(node.Value, d.lookup)
	if err != nil {
		for message := range strings.SplitSeq(err.Error(), "\n") {
			d.unreadable(node.Line, path, "%s", message)
		}
		return "", false
	}
	return text, true
}

func (d *decoder) custom(node *yaml.Node, out textDecoder, path string) {
	fill := expander(expand)
	if _, ok := out.(*Template); ok {
		fill = expandTemplate
	}
	text, ok := d.scalar(node, path, out.wants(), fill)
	if !ok {
		return
	}
	if err := out.decodeText(text); err != nil {
		d.unreadable(node.Line, path, "%s", err.Error())
	}
}

func (d *decoder) integer(node *yaml.Node, out reflect.Value, path string) {
	text, ok := d.typed(node, path, "!!int", "a whole number")
	if !ok {
		return
	}
	n, err := strconv.ParseInt(text, 0, out.Type().Bits())
	if err != nil {
		d.unreadable(node.Line, path, "wants a whole number")
		return
	}
	out.SetInt(n)
}

func (d *decoder) boolean(node *yaml.Node, out reflect.Value, path string) {
	text, ok := d.typed(node, path, "!!bool", "true or false")
	if !ok {
		return
	}
	switch text {
	case "true":
		out.SetBool(true)
	case "false":
		out.SetBool(false)
	default:
		d.unreadable(node.Line, path, "wants true or false")
	}
}

// typed gives the text of a scalar of the given tag, or of one whose type is
// not known before the environment is filled in.
func (d *decoder) typed(node *yaml.Node, path, tag, wanted string) (string, bool) {
	fromEnv := node.Kind == yaml.ScalarNode && strings.Contains(node.Value, "${")
	if node.Kind != yaml.ScalarNode || node.ShortTag() != tag && !fromEnv {
		d.unreadable(node.Line, path, "wants %s, found %s", wanted, kindName(node))
		return "", false
	}
	return d.fill(node, path, expand)
}

func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null"
}

func knownTag(node *yaml.Node) bool {
	switch node.ShortTag() {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp", "!!map", "!!seq":
		return true
	default:
		return false
	}
}

func kindName(node *yaml.Node) string {
	switch node.ShortTag() {
	case "!!map":
		return "keys and values"
	case "!!seq":
		return "a list"
	case "!!null":
		return "nothing"
	case "!!bool":
		return "true or false"
	case "!!int":
		return "a whole number"
	case "!!float":
		return "a number"
	case "!!timestamp":
		return "a date"
	default:
		return "a text"
	}
}
