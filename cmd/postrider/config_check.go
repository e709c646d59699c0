package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/config"
)

type configCheckOptions struct {
	configFlag
	out  io.Writer
	json bool
}

// configCheckResult is what `config check --json` prints; its fields are a contract.
type configCheckResult struct {
	File     string           `json:"file"`
	Valid    bool             `json:"valid"`
	Problems []config.Problem `json:"problems"`
}

func newConfigCheckCommand(a *app) *cobra.Command {
	opts := configCheckOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check a configuration and name every problem with path and line",
		Long: "Reads the configuration, the environment variables and the files that it names, and reports all problems at\n" +
			"once, with path and line. It connects to nothing.",
		Example: "  postrider config check\n  postrider config check --config /etc/postrider/orders.yaml --json",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return opts.run() },
	}
	opts.add(cmd)
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *configCheckOptions) run() error {
	_, err := o.load()
	problems := new(config.Problems)
	if err != nil && !errors.As(err, &problems) {
		return err
	}
	if o.json {
		result := configCheckResult{File: o.path, Valid: err == nil, Problems: problems.List}
		if result.Problems == nil {
			result.Problems = []config.Problem{}
		}
		return errors.Join(err, writeJSON(o.out, result))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.out, "%s: correct\n", o.path)
	return err
}
