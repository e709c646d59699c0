package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	if cmd.HasSubCommands() {
		for _, sub := range cmd.Commands() {
			describe(b, sub)
		}
		return
	}
	cmd.InitDefaultHelpFlag()
	fmt.Fprintf(b, "\n## %s\n\n%s.\n\n```\n%s\n```\n", cmd.CommandPath(), cmd.Short, cmd.UseLine())
	if cmd.Long != "" {
		fmt.Fprintf(b, "\n%s\n", fenceIndented(cmd.Long))
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(cmd.Example, "  "), "\n  ", "\n"))
	}
	b.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { describeFlag(b, f) })
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
	withoutJSON := []string{"run", "completion", "example", "help"}
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
		needsJSON := !cmd.HasSubCommands()
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
