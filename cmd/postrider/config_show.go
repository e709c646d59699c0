package main

import (
	"io"

	"github.com/spf13/cobra"
)

type configShowOptions struct {
	configFlag
	out  io.Writer
	json bool
}

func newConfigShowCommand(a *app) *cobra.Command {
	opts := configShowOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show what takes effect: defaults filled in, secrets masked",
		Long: "Shows the configuration as it takes effect: defaults filled in, environment variables and files read in, passwords masked.\n" +
			"With --json the keys are those of the configuration (docs/configuration.md). It connects to nothing.",
		Example: "  postrider config show\n  postrider config show --json | jq .publisher",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return opts.run() },
	}
	opts.add(cmd)
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *configShowOptions) run() error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	if o.json {
		tree, err := cfg.Tree()
		if err != nil {
			return err
		}
		return writeJSON(o.out, tree)
	}
	text, err := cfg.YAML()
	if err != nil {
		return err
	}
	_, err = o.out.Write(text)
	return err
}
