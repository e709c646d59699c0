package config

import (
	"bytes"

	"go.yaml.in/yaml/v3"
)

// YAML is the configuration as it took effect: defaults filled in, secrets
// masked. Keys stand in the order of the documentation.
func (c *Config) YAML() ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(c); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Tree is the same as maps, lists and scalars, for JSON.
func (c *Config) Tree() (map[string]any, error) {
	text, err := c.YAML()
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	err = yaml.Unmarshal(text, &tree)
	return tree, err
}
