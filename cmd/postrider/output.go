package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// addJSON adds the flag of commands that print data.
func addJSON(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

// writeJSON writes one indented document.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table aligns rows of a name and a value.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer) *table {
	return &table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
}

func (t *table) row(name, format string, args ...any) {
	fmt.Fprintf(t.w, "%s\t%s\n", name, fmt.Sprintf(format, args...))
}

func (t *table) flush() error { return t.w.Flush() }
