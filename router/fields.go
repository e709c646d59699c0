package router

import (
	"fmt"
	"slices"
	"strings"
)

// columnPrefix begins the name of a field that is a column by its own name.
const columnPrefix = "column."

// fieldColumn resolves the name of a field in a route to its column.
func (m *Mapping) fieldColumn(field string) (string, error) {
	var column string
	switch field {
	case "":
		return "", fmt.Errorf("names no field")
	case "aggregate_type":
		column = m.AggregateType
	case "event_type":
		column = m.EventType
	case "aggregate_version":
		column = m.AggregateVersion
	case "key":
		column = m.Key
	default:
		name, ok := strings.CutPrefix(field, columnPrefix)
		if !ok || name == "" {
			return "", fmt.Errorf("names the field %q; there are aggregate_type, event_type, aggregate_version, key and column.NAME", field)
		}
		return name, nil
	}
	if column == "" {
		return "", fmt.Errorf("uses the field %s, which the mapping does not map", field)
	}
	return column, nil
}

// slotFor is the slot of a field's column, a new one if need be.
func (t *routeTable) slotFor(m *Mapping, field string) (int, error) {
	column, err := m.fieldColumn(field)
	if err != nil {
		return 0, err
	}
	if i := slices.Index(t.slots, column); i >= 0 {
		return i, nil
	}
	t.slots = append(t.slots, column)
	return len(t.slots) - 1, nil
}

// Columns lists the columns of the table that the source uses, without repeats:
// what a publication's column list must hold and a reader of the table selects.
func (s *Source) Columns() []string {
	m := &s.Mapping
	all := []string{
		m.EventID, m.Key, m.Payload, m.AggregateType, m.EventType, m.AggregateVersion,
		m.Timestamp.Column, m.Partition, m.Tombstone, m.HeadersColumn,
	}
	for _, f := range m.Headers {
		all = append(all, f.Column)
	}
	if m.Envelope != nil {
		for _, f := range m.Envelope.Fields {
			all = append(all, f.Column)
		}
	}
	table, _ := compileRoutes(s, "")
	all = append(all, table.slots...)

	var columns []string
	for _, c := range all {
		if c != "" && !slices.Contains(columns, c) {
			columns = append(columns, c)
		}
	}
	return columns
}
