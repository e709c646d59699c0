package main

import "github.com/spf13/cobra"

func newConfigCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "config", Short: "Check, show or begin a configuration"})
	cmd.AddCommand(newConfigCheckCommand(a), newConfigShowCommand(a), newConfigExampleCommand(a))
	return cmd
}
