package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/operr"
)

// newRootCommand builds the tree. Each command has a file of its own.
func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "postrider",
		Short: "Publish a PostgreSQL outbox table to Kafka",
		Long: "Postrider tails an outbox table through logical replication, publishes each event to Kafka, and confirms\n" +
			"the position only after the broker has acknowledged.\n\n" + exitCodesText(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError(cmd, err) })
	group(root)
	root.AddCommand(
		newRunCommand(a),
		newSetupCommand(a),
		newDoctorCommand(a),
		newBenchCommand(a),
		newDemoCommand(a),
		newBackfillCommand(a),
		newCheckpointCommand(a),
		newParkedCommand(a),
		newPauseCommand(a),
		newPurgeCommand(a),
		newRecoverCommand(a),
		newReplayCommand(a),
		newResumeCommand(a),
		newReconcileCommand(a),
		newTraceCommand(a),
		newConfigCommand(a),
		newVersionCommand(a),
		newCompletionCommand(a),
	)
	root.SetHelpCommand(newHelpCommand())
	return root
}

// group makes a command that only holds others: without one of them it shows its
// help as a usage error, so that a script notices.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		problem := fmt.Sprintf("unknown command %q", args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			problem += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return usageError(cmd, errors.New(problem))
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cmd.SetOut(cmd.ErrOrStderr())
		if err := cmd.Help(); err != nil {
			return err
		}
		return usageError(cmd, errors.New("a command is missing"))
	}
	return cmd
}

// noArgs is cobra's, as a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(cmd, fmt.Errorf("takes no arguments, got %q", args[0]))
	}
	return nil
}

// usageError is a mistake on the command line.
func usageError(cmd *cobra.Command, err error) error {
	usage := &operr.Error{Class: operr.Config, Op: "command line", Err: err, Hint: cmd.CommandPath() + " --help"}
	if cmd.HasParent() {
		_, usage.Op, _ = strings.Cut(cmd.CommandPath(), " ") // without the program's own name
	}
	return usage
}

// newHelpCommand is cobra's, but an unknown topic is an error.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Show the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usageError(cmd, fmt.Errorf("no command %q", strings.Join(args, " ")))
			}
			topic.InitDefaultHelpFlag()
			return topic.Help()
		},
	}
}
