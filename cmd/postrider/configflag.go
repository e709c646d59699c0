package main

import (
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/config"
)

// configFlag is --config, which every command that needs the configuration has.
type configFlag struct{ path string }

func (f *configFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.path, "config", "c", "postrider.yaml", "configuration `file`")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // fails only for a flag that does not exist
}

func (f *configFlag) load() (*config.Config, error) { return config.Load(f.path) }
