package main

import (
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// walkCommands visits every command that somebody can run or ask for help.
func walkCommands(visit func(*cobra.Command)) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		visit(cmd)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand(newApp(io.Discard, io.Discard)))
}

// Every command says what it does, shows how it is called, documents its exit codes, and where
// it prints something has --json, whose fields are in docs/cli.md.
func TestCommandsKeepTheHouseRules(t *testing.T) {
	t.Parallel()
	// What they write is a script, a file, or lines of JSON already.
	withoutJSON := []string{"postrider completion", "postrider config example", "postrider parked export", "postrider help"}
	exits, documents := maps.Clone(commandExits), maps.Clone(jsonDocuments)
	walkCommands(func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: short description %q", path, cmd.Short)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s: no description", path, f.Name)
			}
		})
		if cmd.HasSubCommands() && cmd.Example == "" {
			return // it holds others, and runs none itself
		}
		if cmd.Long == "" {
			t.Errorf("%s: no description", path)
		}
		if _, ok := commandExits[path]; !ok {
			t.Errorf("%s: its exit codes are not documented", path)
		}
		delete(exits, path)
		hasJSON := cmd.Flags().Lookup("json") != nil
		if hasJSON == slices.Contains(withoutJSON, path) {
			t.Errorf("%s: has --json: %t", path, hasJSON)
		}
		if _, ok := jsonDocuments[path]; hasJSON && !ok && jsonNotes[path] == "" {
			t.Errorf("%s: the fields of --json are not documented", path)
		}
		delete(documents, path)
		checkHelp(t, cmd)
		checkExamples(t, cmd)
	})
	if len(exits) > 0 || len(documents) > 0 {
		t.Errorf("documented, and no command: %v %v", slices.Collect(maps.Keys(exits)), slices.Collect(maps.Keys(documents)))
	}
}

// checkHelp: --help has all of it.
func checkHelp(t *testing.T, cmd *cobra.Command) {
	t.Helper()
	var help strings.Builder
	cmd.SetOut(&help)
	if err := cmd.Help(); err != nil {
		t.Errorf("%s: %v", cmd.CommandPath(), err)
	}
	for _, want := range []string{"Usage:", "Examples:", "Exit codes: " + commandExitText(cmd.CommandPath()) + ";"} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("%s --help lacks %q", cmd.CommandPath(), want)
		}
	}
}

// checkExamples: each line names the command, and its flags and arguments are such as the command takes.
func checkExamples(t *testing.T, cmd *cobra.Command) {
	t.Helper()
	if !strings.Contains(cmd.Example, cmd.CommandPath()) {
		t.Errorf("%s: no example: %q", cmd.CommandPath(), cmd.Example)
	}
	for line := range strings.Lines(cmd.Example) {
		words := shellWords(line)
		if len(words) == 0 || words[0] != "postrider" {
			t.Errorf("%s: an example is %q", cmd.CommandPath(), line)
			continue
		}
		found, rest, err := newRootCommand(newApp(io.Discard, io.Discard)).Find(words[1:])
		if err != nil || found.CommandPath() != cmd.CommandPath() {
			t.Errorf("%s: example of another command: %q, %v", cmd.CommandPath(), line, err)
			continue
		}
		if err := found.ParseFlags(rest); err != nil {
			t.Errorf("%s: %q: %v", cmd.CommandPath(), line, err)
		}
		if err := found.ValidateArgs(found.Flags().Args()); err != nil {
			t.Errorf("%s: %q: %v", cmd.CommandPath(), line, err)
		}
	}
}

// shellWords splits the first command of a line as a shell does, as far as examples go.
func shellWords(line string) (words []string) {
	for _, end := range []string{" | ", " > ", " 2>"} {
		line, _, _ = strings.Cut(line, end)
	}
	var word strings.Builder
	quote, began := rune(0), false
	for _, r := range strings.TrimSpace(line) + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			quote, began = r, true
		case r == ' ':
			if began {
				words = append(words, word.String())
			}
			word.Reset()
			began = false
		default:
			word.WriteRune(r)
			began = true
		}
	}
	return words
}

// documentedExit is false for an exit code that the help of the command does not list.
func documentedExit(args []string, code int) bool {
	if code < 0 {
		return true // killed
	}
	cmd, _, err := newRootCommand(newApp(io.Discard, io.Discard)).Find(args)
	if err != nil {
		return true
	}
	if _, ok := commandExits[cmd.CommandPath()]; !ok {
		return true // a group
	}
	return slices.Contains(strings.Split(commandExitText(cmd.CommandPath()), ", "), strconv.Itoa(code))
}
