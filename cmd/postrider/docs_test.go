package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/demo"
	"github.com/postrider/postrider/internal/doctor"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/internal/reconcile"
	"github.com/postrider/postrider/internal/recovery"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/internal/shadow"
	"github.com/postrider/postrider/internal/sizing"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/parking"
)

var update = flag.Bool("update", false, "write the generated files instead of comparing them")

const cliManual = "../../docs/cli.md"

const cliHead = "# Commands\n\n<!-- generated from the commands themselves: go test ./cmd/postrider -run TestManualIsCurrent -update -->\n\n" +
	"Data goes to standard output, diagnostics and the log to standard error. An error is printed as `postrider: …`, with what to\n" +
	"try after `Try:`. The fields of `--json` and the exit codes are a contract: they are added to, not changed.\n"

// TestManualIsCurrent is a drift test of docs/cli.md.
func TestManualIsCurrent(t *testing.T) {
	t.Parallel()
	want := manual(newRootCommand(newApp(io.Discard, io.Discard)))
	if *update {
		if err := os.WriteFile(cliManual, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(cliManual)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/cli.md is out of date; run: go test ./cmd/postrider -run TestManualIsCurrent -update")
	}
}

func manual(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(cliHead)
	b.WriteString("\n| exit code | meaning |\n|---|---|\n")
	for _, c := range exitCodes {
		fmt.Fprintf(&b, "| %d | %s |\n", c.code, c.meaning)
	}
	for _, cmd := range root.Commands() {
		describe(&b, cmd)
	}
	return b.String()
}

func describe(b *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" {
		return
	}
	if !isGroup(cmd) {
		describeCommand(b, cmd)
	}
	for _, sub := range cmd.Commands() {
		describe(b, sub)
	}
}

// isGroup is true for a command that only holds others; one that does something itself beside them has an example.
func isGroup(cmd *cobra.Command) bool { return cmd.HasSubCommands() && cmd.Example == "" }

func describeCommand(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n%s.\n\n```\n%s\n```\n", cmd.CommandPath(), cmd.Short, cmd.UseLine())
	if cmd.Long != "" {
		fmt.Fprintf(b, "\n%s\n", fenceIndented(cmd.Long))
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(cmd.Example, "  "), "\n  ", "\n"))
	}
	head := "\n| flag | default | meaning |\n|---|---|---|\n"
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			b.WriteString(head)
			describeFlag(b, f)
			head = ""
		}
	})
	if fields, ok := jsonDocuments[cmd.CommandPath()]; ok {
		describeJSON(b, reflect.TypeOf(fields))
	}
}

// jsonDocuments are what --json prints. config show prints the configuration's own keys.
var jsonDocuments = map[string]any{
	"postrider bench":              sizing.Result{},
	"postrider checkpoint accept":  acceptResult{},
	"postrider checkpoint advance": advanceResult{},
	"postrider checkpoint drop":    dropResult{},
	"postrider checkpoint history": checkpoint.Entry{},
	"postrider checkpoint list":    checkpoint.Listing{},
	"postrider checkpoint peek":    peek.Report{},
	"postrider checkpoint show":    checkpoint.Status{},
	"postrider checkpoint verify":  verify.Report{},
	"postrider checkpoint wait":    checkpoint.WaitResult{},
	"postrider config check":       configCheckResult{},
	"postrider demo":               demo.Result{},
	"postrider doctor":             []doctor.Finding{},
	"postrider parked assign":      selected{},
	"postrider parked discard":     selected{},
	"postrider parked erase":       selected{},
	"postrider parked list":        parking.Listing{},
	"postrider parked retry":       retried{},
	"postrider parked show":        parking.Detail{},
	"postrider pause":              paused{},
	"postrider purge":              outbox.PurgeResult{},
	"postrider reconcile":          reconciled{},
	"postrider run":                shadow.Report{},
	"postrider recover":            recovery.Report{},
	"postrider replay approve":     reissue.Task{},
	"postrider replay cancel":      reissue.Task{},
	"postrider replay list":        taskList{},
	"postrider replay show":        replayed{},
	"postrider replay":             replayed{},
	"postrider resume":             paused{},
	"postrider setup":              setupResult{},
	"postrider trace":              reconcile.Trail{},
	"postrider version":            versionInfo{},
}

// describeJSON has a column for the meaning where the fields bring one, in a doc tag.
func describeJSON(b *strings.Builder, t reflect.Type) {
	what := "one object"
	switch {
	case t.Kind() == reflect.Slice:
		what, t = "a list of objects", t.Elem()
	case t == reflect.TypeFor[checkpoint.Entry]():
		what = "one object a line"
	}
	fmt.Fprintf(b, "\n`--json` prints %s:\n\n", what)
	if _, ok := t.Field(0).Tag.Lookup("doc"); ok {
		b.WriteString("| field | type | meaning |\n|---|---|---|\n")
	} else {
		b.WriteString("| field | type |\n|---|---|\n")
	}
	describeFields(b, "", t)
}

func describeFields(b *strings.Builder, prefix string, t reflect.Type) {
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		switch {
		case t.Field(i).Anonymous:
			describeFields(b, prefix, t.Field(i).Type)
			continue
		case name == "-":
			continue
		}
		kind, nullable := t.Field(i).Type, ""
		if kind.Kind() == reflect.Pointer {
			kind, nullable = kind.Elem(), " or null"
		}
		if strings.Contains(options, "omitempty") {
			nullable = ", or absent"
		}
		meaning := ""
		if doc, ok := t.Field(i).Tag.Lookup("doc"); ok {
			meaning = " " + doc + " |"
		}
		fmt.Fprintf(b, "| `%s%s` | %s%s |%s\n", prefix, name, jsonType(kind), nullable, meaning)
		switch {
		case kind.Kind() == reflect.Slice && kind.Elem().Kind() == reflect.Struct:
			describeFields(b, prefix+name+"[].", kind.Elem())
		case jsonType(kind) == "object" && !isDocument(kind):
			describeFields(b, prefix+name+".", kind)
		}
	}
}

// isDocument says that another command prints t, whose fields are told there.
func isDocument(t reflect.Type) bool {
	for _, document := range jsonDocuments {
		if reflect.TypeOf(document) == t {
			return true
		}
	}
	return false
}

func jsonType(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[event.LSN]():
		return "text"
	case t == reflect.TypeFor[json.RawMessage]():
		return "object, by action"
	case t == reflect.TypeFor[time.Time]():
		return "time (RFC 3339)"
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t == reflect.TypeFor[[]byte]():
		return "bytes in base64"
	case t.Kind() == reflect.Struct, t == reflect.TypeFor[json.RawMessage]():
		return "object"
	case t.Kind() == reflect.Slice:
		return "list"
	case t.Kind() == reflect.Map:
		return "numbers by name"
	case t.Kind() == reflect.Struct:
		return "object"
	default:
		return "number"
	}
}

// fenceIndented puts indented lines into a code block.
func fenceIndented(text string) string {
	plain, code, ok := strings.Cut(text, "\n\n  ")
	if !ok {
		return text
	}
	return plain + "\n\n```\n" + strings.ReplaceAll(code, "\n  ", "\n") + "\n```"
}

func describeFlag(b *strings.Builder, f *pflag.Flag) {
	value, usage := pflag.UnquoteUsage(f)
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if value != "" {
		name += " " + value
	}
	def := ""
	if f.DefValue != "" && f.DefValue != "false" {
		def = "`" + f.DefValue + "`"
	}
	fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, def, usage)
}

// Every command that prints data has --json, and every flag says what it does.
func TestCommandsKeepTheHouseRules(t *testing.T) {
	t.Parallel()
	withoutJSON := []string{"run", "export", "completion", "example", "help"}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: short description %q", cmd.CommandPath(), cmd.Short)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s: no description", cmd.CommandPath(), f.Name)
			}
		})
		needsJSON := !isGroup(cmd)
		for _, name := range withoutJSON {
			needsJSON = needsJSON && cmd.Name() != name
		}
		if needsJSON && cmd.Flags().Lookup("json") == nil {
			t.Errorf("%s: no --json", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand(newApp(io.Discard, io.Discard)))
}
