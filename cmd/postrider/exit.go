package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/operr"
)

// exitDone is the exit code of success; all others come from operr.Class.
const exitDone = 0

// exitCodes documents the contract: it is shown by --help and in docs/cli.md.
var exitCodes = []struct {
	code    int
	meaning string
}{
	{exitDone, "done"},
	{operr.Internal.ExitCode(), "internal: a fault of the program itself"},
	{operr.Config.ExitCode(), "configuration or usage"},
	{operr.Postgres.ExitCode(), "PostgreSQL: server, role, publication or connection"},
	{operr.Kafka.ExitCode(), "Kafka: brokers, topics, rights"},
	{operr.Slot.ExitCode(), "slot or position: going on might skip events"},
	{operr.Halted.ExitCode(), "an event cannot be published: the relay halted at it, or a retry was refused"},
	{operr.DrainIncomplete.ExitCode(), "not done in time: events were left unconfirmed and will be sent again, or a retry, a pause or another long command was not finished"},
	{operr.Findings.ExitCode(), "findings: a command that looks ran to its end, and what it looked at is not right"},
}

// commandExits are the classes with which a command may end, beside 0, 1 and 2, which every
// command has. --help and docs/cli.md show them; the tests hold every run of the binary against them.
var commandExits = map[string][]operr.Class{
	"postrider backfill":           {operr.Postgres, operr.Kafka, operr.Slot, operr.Halted, operr.DrainIncomplete},
	"postrider bench":              {operr.Postgres, operr.Kafka, operr.Slot, operr.Halted, operr.DrainIncomplete},
	"postrider checkpoint accept":  {operr.Postgres, operr.Slot, operr.DrainIncomplete},
	"postrider checkpoint advance": {operr.Postgres, operr.Slot, operr.DrainIncomplete},
	"postrider checkpoint drop":    {operr.Postgres, operr.Slot, operr.DrainIncomplete},
	"postrider checkpoint history": {operr.Postgres, operr.DrainIncomplete},
	"postrider checkpoint list":    {operr.Postgres, operr.DrainIncomplete},
	"postrider checkpoint peek":    {operr.Postgres, operr.Slot, operr.DrainIncomplete},
	"postrider checkpoint show":    {operr.Postgres, operr.DrainIncomplete},
	"postrider checkpoint verify":  {operr.Postgres, operr.Slot, operr.DrainIncomplete, operr.Findings},
	"postrider checkpoint wait":    {operr.Postgres, operr.Slot, operr.DrainIncomplete},
	"postrider completion":         {},
	"postrider config check":       {},
	"postrider config example":     {},
	"postrider config show":        {},
	"postrider demo":               {operr.DrainIncomplete},
	"postrider doctor":             {operr.DrainIncomplete, operr.Findings},
	"postrider help":               {},
	"postrider parked assign":      {operr.Postgres, operr.DrainIncomplete},
	"postrider parked discard":     {operr.Postgres, operr.DrainIncomplete},
	"postrider parked erase":       {operr.Postgres, operr.DrainIncomplete},
	"postrider parked export":      {operr.Postgres, operr.DrainIncomplete},
	"postrider parked list":        {operr.Postgres, operr.DrainIncomplete},
	"postrider parked retry":       {operr.Postgres, operr.Halted, operr.DrainIncomplete},
	"postrider parked show":        {operr.Postgres, operr.DrainIncomplete},
	"postrider pause":              {operr.Postgres, operr.Slot, operr.DrainIncomplete},
	"postrider purge":              {operr.Postgres, operr.Slot, operr.DrainIncomplete},
	"postrider reconcile":          {operr.Postgres, operr.Kafka, operr.Slot, operr.DrainIncomplete, operr.Findings},
	"postrider recover":            {operr.Postgres, operr.Kafka, operr.Slot, operr.Halted, operr.DrainIncomplete},
	"postrider replay":             {operr.Postgres, operr.Kafka, operr.Slot, operr.Halted, operr.DrainIncomplete},
	"postrider replay approve":     {operr.Postgres, operr.DrainIncomplete},
	"postrider replay cancel":      {operr.Postgres, operr.DrainIncomplete},
	"postrider replay list":        {operr.Postgres, operr.DrainIncomplete},
	"postrider replay show":        {operr.Postgres, operr.DrainIncomplete},
	"postrider resume":             {operr.Postgres, operr.Slot, operr.DrainIncomplete},
	"postrider run":                {operr.Postgres, operr.Kafka, operr.Slot, operr.Halted, operr.DrainIncomplete, operr.Findings},
	"postrider setup":              {operr.Postgres, operr.Slot, operr.DrainIncomplete},
	"postrider trace":              {operr.Postgres, operr.Kafka, operr.DrainIncomplete, operr.Findings},
	"postrider version":            {},
}

// commandExitText lists a command's exit codes: "0, 1, 2, 3".
func commandExitText(path string) string {
	codes := []string{strconv.Itoa(exitDone), strconv.Itoa(operr.Internal.ExitCode()), strconv.Itoa(operr.Config.ExitCode())}
	for _, class := range commandExits[path] {
		codes = append(codes, strconv.Itoa(class.ExitCode()))
	}
	return strings.Join(codes, ", ")
}

// noteExits makes each command's help end with its exit codes.
func noteExits(root *cobra.Command) {
	const note = "exit codes"
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if _, ok := commandExits[cmd.CommandPath()]; ok {
			cmd.Annotations = map[string]string{note: commandExitText(cmd.CommandPath())}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	root.SetUsageTemplate(root.UsageTemplate() + `{{with index .Annotations "` + note + `"}}
Exit codes: {{.}}; postrider --help says what they mean.
{{end}}`)
}

func exitCodesText() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for _, c := range exitCodes {
		fmt.Fprintf(&b, "  %d  %s\n", c.code, c.meaning)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	return operr.ClassOf(err).ExitCode()
}

// printError writes what went wrong and what to try.
func printError(w io.Writer, err error) {
	fmt.Fprintf(w, "postrider: %s\n", shownLines(err.Error()))
	if hint := operr.HintOf(err); hint != "" {
		fmt.Fprintf(w, "Try: %s\n", shownLines(hint))
	}
}
