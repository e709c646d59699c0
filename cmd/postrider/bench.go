package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/sizing"
)

type benchOptions struct {
	configFlag
	app *app

	dsn, brokers string
	yes, json    bool
	measure      sizing.Config
}

func newBenchCommand(a *app) *cobra.Command {
	opts := benchOptions{app: a}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what a relay does with your own PostgreSQL and brokers",
		Long: "Makes a database with an outbox table, a publication and a slot, and a topic, all under one new name; writes a backlog\n" +
			"into the table, publishes it with the relay of \"postrider run\" (checkpoint, acks=all and every check are on), then\n" +
			"writes slowly and measures the latency. It says what limits, and checks that all events arrived, byte for byte and in\n" +
			"order. Your own databases, slots and topics are not touched.\n\n" +
			"The connections are those of the configuration; its slot, sources and topics do not matter here. Or name both servers\n" +
			"with --dsn and --brokers, and no configuration is read. The role needs CREATEDB and REPLICATION, the Kafka user must\n" +
			"be able to create and delete the topic.\n\n" +
			"It is a load for both servers: what it will make and write is said before, and asked for on a terminal; elsewhere --yes\n" +
			"is needed. Ctrl-C at any time removes everything (exit code 7), and so does every error. Only a killed process leaves\n" +
			"it behind: its slot keeps WAL from being removed, so run the commands that were shown at the start.\n\n" +
			"The exit code is 1 when what arrived is not what was committed.",
		Example: "  postrider bench --config postrider.yaml\n" +
			"  postrider bench --dsn postgres://postgres@localhost/postgres --brokers localhost:9092 --rows 1000000 --yes\n" +
			"  postrider bench --json --yes 2>/dev/null",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.Validate(cmd.Flags().Changed("config")); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd)
		},
	}
	opts.add(cmd)
	flags, m := cmd.Flags(), &opts.measure
	flags.StringVar(&opts.dsn, "dsn", "", "PostgreSQL's `address` as URL or key=value pairs, instead of a configuration; the password is better in PGPASSWORD")
	flags.StringVar(&opts.brokers, "brokers", "", "Kafka's `addresses` with commas between them, instead of a configuration; TLS and SASL need one")
	flags.IntVar(&m.Rows, "rows", sizing.DefaultRows, "events of the backlog")
	flags.IntVar(&m.Payload, "payload", sizing.DefaultPayload, "`bytes` of JSON in each event")
	flags.IntVar(&m.PerTx, "rows-per-transaction", sizing.DefaultPerTx, "events that are committed together")
	flags.IntVar(&m.Partitions, "partitions", sizing.DefaultPartitions, "partitions of the topic")
	flags.IntVar(&m.Rate, "rate", sizing.DefaultRate, "events a second of the latency run; 0 leaves it out")
	flags.DurationVar(&m.For, "for", sizing.DefaultFor, "how long the latency run takes")
	flags.DurationVar(&m.StallTimeout, "stall-timeout", sizing.DefaultStallTimeout, "end the run where nothing is acknowledged for so long")
	flags.BoolVarP(&opts.yes, "yes", "y", false, "do not ask")
	addJSON(cmd, &opts.json)
	return cmd
}

// Validate checks the flags before anything is read or connected to.
func (o *benchOptions) Validate(configGiven bool) error {
	problems := []error{o.measure.Validate()}
	if (o.dsn == "") != (o.brokers == "") {
		problems = append(problems, errors.New("--dsn and --brokers go together"))
	}
	if configGiven && (o.dsn != "" || o.brokers != "") {
		problems = append(problems, errors.New("--config is given beside --dsn and --brokers; keep one of them"))
	}
	return errors.Join(problems...)
}

// flagConfig is the configuration that the flags stand for. The slot and the sources
// are never used.
const flagConfig = `postgres: {dsn: "${DSN}", slot: unused, publication: unused}
kafka: {brokers: "${BROKERS}"}
sources: [{table: public.unused, profile: default}]
`

func (o *benchOptions) loadConfig() (*config.Config, error) {
	if o.dsn == "" {
		return o.load()
	}
	given := map[string]string{"DSN": o.dsn, "BROKERS": o.brokers}
	return config.Parse("--dsn and --brokers", []byte(flagConfig), config.Environment{LookupEnv: func(name string) (string, bool) {
		value, ok := given[name]
		return value, ok
	}})
}

func (o *benchOptions) run(cmd *cobra.Command) error {
	cfg, err := o.loadConfig()
	if err != nil {
		return err
	}
	limitMemory(cfg)
	// Signals are kept until everything is removed: a second Ctrl-C, or a reader of the
	// output that has gone, must not leave a slot behind.
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	signal.Ignore(syscall.SIGPIPE)
	defer signal.Reset(syscall.SIGPIPE)
	result, err := sizing.Run(ctx, o.complete(ctx, cmd, cfg))
	if result == nil {
		return err
	}
	if o.json {
		return errors.Join(err, writeJSON(o.app.out, result))
	}
	return errors.Join(err, result.Print(o.app.out))
}

// complete adds the configuration's part to the flags'.
func (o *benchOptions) complete(ctx context.Context, cmd *cobra.Command, cfg *config.Config) sizing.Config {
	m := o.measure
	m.ConnString, m.InDatabase = cfg.Postgres.ConnString(), cfg.Postgres.ConnStringFor
	m.Replication, m.Kafka = cfg.ReplicationConfig(), cfg.PublisherConfig()
	m.Screen, m.Terminal = o.app.err, isTerminal(o.app.err) && os.Getenv("TERM") != "dumb"
	log := newLogger(o.app.err, cfg.Log)
	m.Log = log.Level(max(log.GetLevel(), zerolog.WarnLevel))
	m.Confirm = func(plan sizing.Plan) error { return o.confirm(ctx, cmd, plan) }
	return m
}

// confirm shows the plan, and asks where somebody can answer.
func (o *benchOptions) confirm(ctx context.Context, cmd *cobra.Command, plan sizing.Plan) error {
	fmt.Fprintf(o.app.err, "%s", plan)
	if o.yes {
		return nil
	}
	if !isTerminal(os.Stdin) || !isTerminal(o.app.err) {
		return usageError(cmd, errors.New("nobody can be asked here: give --yes to make that load"))
	}
	fmt.Fprint(o.app.err, "Go on? [y/N] ")
	if answer := readAnswer(ctx, os.Stdin); answer != "y" && answer != "yes" {
		return &operr.Error{Class: operr.DrainIncomplete, Op: "bench", Err: errors.New("not started, nothing was made")}
	}
	return nil
}

// readAnswer is a line in lower case; empty where ctx ends first.
func readAnswer(ctx context.Context, in io.Reader) string {
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n') // no line: no
		lines <- line
	}()
	select {
	case line := <-lines:
		return strings.ToLower(strings.TrimSpace(line))
	case <-ctx.Done():
		return ""
	}
}
