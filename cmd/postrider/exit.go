package main

import (
	"fmt"
	"io"
	"strings"

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
	fmt.Fprintf(w, "postrider: %s\n", err)
	if hint := operr.HintOf(err); hint != "" {
		fmt.Fprintf(w, "Try: %s\n", hint)
	}
}
