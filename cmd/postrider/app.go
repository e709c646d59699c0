package main

import (
	"context"
	"io"

	"github.com/postrider/postrider/internal/config"
)

// app is what the commands share: where they write, and what they are wired to.
// Tests replace the writers.
type app struct {
	out io.Writer // data
	err io.Writer // diagnostics and logs

	// newPipeline wires a relay for the run command.
	newPipeline func(*config.Config, pipelineSettings) (pipeline, error)
}

func newApp(out, err io.Writer) *app {
	return &app{out: out, err: err, newPipeline: newRelay}
}

// execute runs one command line and gives the exit code.
func execute(args []string, a *app) int {
	root := newRootCommand(a)
	root.SetArgs(args)
	ctx, heard := withInterruption(context.Background())
	cmd, err := root.ExecuteContextC(ctx)
	err = heard.word(cmd, err)
	if err != nil {
		printError(a.err, err)
	}
	return exitCode(err)
}
