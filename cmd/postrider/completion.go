package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

var shells = []string{"bash", "zsh", "fish", "powershell"}

type completionOptions struct {
	out   io.Writer
	shell string
}

func newCompletionCommand(a *app) *cobra.Command {
	opts := completionOptions{out: a.out}
	return &cobra.Command{
		Use:   "completion " + strings.Join(shells, "|"),
		Short: "Print a completion script for a shell",
		Long: "Prints a script that completes commands and flags.\n\n" +
			"  bash        source <(postrider completion bash)\n" +
			"  zsh         postrider completion zsh > \"${fpath[1]}/_postrider\"\n" +
			"  fish        postrider completion fish | source\n" +
			"  powershell  postrider completion powershell | Out-String | Invoke-Expression",
		Example:   "  postrider completion bash > /etc/bash_completion.d/postrider",
		ValidArgs: shells,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError(cmd, fmt.Errorf("wants one shell: %s", strings.Join(shells, ", ")))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.shell = args[0]
			return opts.run(cmd)
		},
	}
}

func (o *completionOptions) run(cmd *cobra.Command) error {
	root := cmd.Root()
	switch o.shell {
	case "bash":
		return root.GenBashCompletionV2(o.out, true)
	case "zsh":
		return root.GenZshCompletion(o.out)
	case "fish":
		return root.GenFishCompletion(o.out, true)
	case "powershell":
		return root.GenPowerShellCompletionWithDesc(o.out)
	default:
		return usageError(cmd, fmt.Errorf("unknown shell %q; known are %s", o.shell, strings.Join(shells, ", ")))
	}
}
