package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand replaces ${NAME} and ${NAME:-default} by the environment's values and
// $${ by a literal ${. A missing variable is an error that names it. The value
// is inserted into one scalar after YAML was parsed: it cannot add keys.
func expand(text string, lookup func(string) (string, bool)) (string, error) {
	return expandWith(text, func(inner string) (string, bool, error) {
		value, err := resolve(inner, lookup)
		return value, true, err
	})
}

// expandTemplate replaces ${env:NAME} only: any other ${name} belongs to the
// template and stays as it is.
func expandTemplate(text string, lookup func(string) (string, bool)) (string, error) {
	return expandWith(text, func(inner string) (string, bool, error) {
		name, ok := strings.CutPrefix(inner, "env:")
		if !ok {
			return "", false, nil
		}
		value, err := resolve(name, lookup)
		return value, true, err
	})
}

func expandWith(text string, replace func(inner string) (string, bool, error)) (string, error) {
	var out strings.Builder
	var problems []error
	for {
		start := strings.Index(text, "${")
		if start < 0 {
			out.WriteString(text)
			return out.String(), errors.Join(problems...)
		}
		if start > 0 && text[start-1] == '$' {
			out.WriteString(text[:start-1] + "${")
			text = text[start+2:]
			continue
		}
		end := strings.IndexByte(text[start:], '}')
		if end < 0 {
			// The text itself is not shown: it may be a password.
			problems = append(problems, errors.New("has ${ without }; a literal ${ is written $${"))
			return "", errors.Join(problems...)
		}
		inner := text[start+2 : start+end]
		value, mine, err := replace(inner)
		if err != nil {
			problems = append(problems, err)
		}
		if !mine {
			value = text[start : start+end+1]
		}
		out.WriteString(text[:start] + value)
		text = text[start+end+1:]
	}
}

func resolve(inner string, lookup func(string) (string, bool)) (string, error) {
	name, fallback, hasFallback := strings.Cut(inner, ":-")
	if !envName.MatchString(name) {
		return "", errors.New("has a ${…} that is not the name of an environment variable; a literal ${ is written $${")
	}
	value, ok := lookup(name)
	switch {
	case ok && (value != "" || !hasFallback):
		return value, nil
	case hasFallback:
		return fallback, nil
	default:
		return "", fmt.Errorf("environment variable %s is not set", name)
	}
}
