package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/config"
)

func newConfigExampleCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "example",
		Short:   "Print a sample configuration with every key",
		Long:    "Prints a configuration with every key, its default and what it means: postrider.example.yaml.",
		Example: "  postrider config example > postrider.yaml",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return writeExample(a.out) },
	}
}

func writeExample(out io.Writer) error {
	text, err := config.Example()
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, text)
	return err
}
