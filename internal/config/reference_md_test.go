package config

import (
	"fmt"
	"strings"
)

// Markers between which docs/configuration.md is generated.
const (
	tablesBegin = "<!-- keys: generated from internal/config/reference.go, do not edit by hand -->"
	tablesEnd   = "<!-- end of keys -->"
)

// ReferenceTables gives a Markdown table for each section.
func ReferenceTables() (string, error) {
	tree, err := defaultTree()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, section := range Reference() {
		if section.Type != typeSection {
			continue
		}
		fmt.Fprintf(&b, "\n### `%s`\n\n%s%s\n", section.Path, section.Doc, sectionDefault(section))
		head := "\n| key | type | default | meaning |\n|---|---|---|---|\n"
		for _, k := range Reference() {
			parentPath := strings.TrimSuffix(parent(k.Path), "[]")
			if parentPath != section.Path || k.Type == typeSection {
				continue
			}
			name := k.Path[strings.LastIndexByte(k.Path, '.')+1:]
			fmt.Fprintf(&b, "%s| `%s` | %s | %s | %s |\n", head, name, k.Type, defaultCell(k, tree), k.Doc)
			head = ""
		}
	}
	return b.String(), nil
}

func sectionDefault(k Key) string {
	switch {
	case k.Required:
		return " Required."
	case k.Default != "":
		return " Default: `" + k.Default + "`."
	}
	return ""
}

func defaultCell(k Key, tree map[string]any) string {
	if k.Required {
		return "**required**"
	}
	if k.Default != "" {
		return k.Default
	}
	return "`" + defaultText(tree, k.Path) + "`"
}

// ReplaceTables puts freshly generated tables into the text of the document.
func ReplaceTables(doc string) (string, error) {
	head, rest, ok := strings.Cut(doc, tablesBegin)
	_, tail, okEnd := strings.Cut(rest, tablesEnd)
	if !ok || !okEnd {
		return "", fmt.Errorf("the document lacks the markers %q and %q", tablesBegin, tablesEnd)
	}
	tables, err := ReferenceTables()
	if err != nil {
		return "", err
	}
	return head + tablesBegin + "\n" + tables + "\n" + tablesEnd + tail, nil
}
