package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/demo"
)

type demoOptions struct {
	app *app

	duration  time.Duration
	realKafka bool
	keep      bool
	json      bool
}

func newDemoCommand(a *app) *cobra.Command {
	opts := demoOptions{app: a}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show on this machine that nothing is lost, with faults and a verdict",
		Long: "Starts a real PostgreSQL (the machine's own, else fetched) and a broker on free ports in a temporary folder, sets up\n" +
			"an outbox with \"postrider setup\", and runs \"postrider run\" as a process of its own. A shop commits orders, each with\n" +
			"its events in the same transaction; some transactions and savepoints are rolled back. Part of the way the broker\n" +
			"is cut, later the relay is killed with kill -9 and started again.\n\n" +
			"The exit code is 0 when the promise held and 1 when it did not. Ctrl-C ends everything before the verdict (exit\n" +
			"code 7); nothing stays behind.\n\n" +
			"The verdict compares what was committed, read from the log by other code, with what stands in the topics:\n\n" +
			"  lost                  committed, and not in Kafka\n" +
			"  out of order          overtaken by a later event of the same key\n" +
			"  phantom               in Kafka, and never committed\n" +
			"  wrong bytes           key, payload, header or topic changed on the way\n" +
			"  unsafe confirmations  the slot was confirmed before Kafka had the event\n" +
			"  duplicates            sent again after the kill: allowed, with the same id",
		Example: "  postrider demo\n  postrider demo --real-kafka --duration 30s\n  postrider demo --json 2>/dev/null",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, err := opts.options()
			if err != nil {
				return err
			}
			if err := options.Validate(); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context(), options)
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&opts.duration, "duration", demo.DefaultDuration, "how long orders are written, 2s to 10m")
	flags.BoolVar(&opts.realKafka, "real-kafka", false, "use Apache Kafka's own jars (needs Java 17 and Maven) instead of the embedded broker")
	flags.BoolVar(&opts.keep, "keep", false, "leave the folder with data, configuration and the relay's log")
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *demoOptions) options() (demo.Options, error) {
	binary, err := os.Executable()
	if err != nil {
		return demo.Options{}, fmt.Errorf("find this program's own file: %w", err)
	}
	screen := o.app.out
	if o.json {
		screen = o.app.err
	}
	return demo.Options{Binary: binary, Duration: o.duration, RealKafka: o.realKafka, Keep: o.keep, Screen: screen}, nil
}

func (o *demoOptions) run(ctx context.Context, options demo.Options) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for the servers to stop
	result, err := demo.Run(ctx, options)
	if result == nil {
		return err
	}
	if o.json {
		err = errors.Join(err, writeJSON(o.app.out, result))
	} else {
		err = errors.Join(err, result.Print(o.app.out))
	}
	return errors.Join(result.Err(), err)
}
