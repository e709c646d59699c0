package router

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/event"
)

// ConfigError is one problem of a configuration, with the path of the option:
// "sources[0].routes[2].topic: empty". New joins all of them (errors.Join).
type ConfigError struct {
	// Path is the option's place, in the spelling of the configuration file.
	Path    string
	Problem string
}

var _ error = (*ConfigError)(nil)

// Error is "path: problem".
func (e *ConfigError) Error() string { return e.Path + ": " + e.Problem }

// BindError says that a mapping does not fit its table as the server describes
// it. Rows of the table are refused until the table fits again.
type BindError struct {
	// Table is the relation's qualified name.
	Table    string
	Problems []BindProblem
	// Columns are the table's real columns, in order.
	Columns []string
}

// BindProblem is one option of the mapping that does not fit.
type BindProblem struct {
	Reason event.Reason
	// Option is the option's path below the mapping: "payload", "headers[2].column".
	Option string
	Column string
	// Detail is a sentence for people.
	Detail string
}

var _ error = (*BindError)(nil)

// Error names the table, each column at fault with its option, and the columns
// that the table has.
func (e *BindError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "mapping does not fit table %s: ", e.Table)
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "column %q (mapped as %s) %s", p.Column, p.Option, p.Detail)
	}
	return b.String() + e.columns()
}

// columns is a sentence, to be appended to another one, that lists the real columns.
func (e *BindError) columns() string {
	var b strings.Builder
	b.WriteString(". The columns that it was described with are ")
	for i, c := range e.Columns {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", c)
	}
	b.WriteString(" (a generated column is not sent before PostgreSQL 18, nor is one that the publication's column list leaves out)")
	return b.String()
}
