package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/admin"
)

// untilNow is the word for the server's end of WAL at the start.
const untilNow = "now"

type runOptions struct {
	configFlag
	app    *app
	until  string
	shadow shadowOptions

	// untilLSN is until as parsed; zero where it is empty or "now".
	untilLSN event.LSN
}

func newRunCommand(a *app) *cobra.Command {
	opts := runOptions{app: a}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Publish events until stopped",
		Long: "Checks the server, the publication, the slot, the mapping and the brokers, then publishes until it is stopped. While\n" +
			"another process holds the slot it waits as a standby and takes over. A server or broker that cannot be reached at the\n" +
			"start is tried for ten seconds; a run that has held the slot, or waited for it, tries for ever.\n\n" +
			"SIGTERM and SIGINT drain: what was read is published and confirmed within publisher.shutdown_timeout. A second\n" +
			"signal ends at once and says what stayed unconfirmed; it will be sent again.\n\n" + shadowHelp,
		Example: "  postrider run --config postrider.yaml\n  postrider run --until-lsn now\n  postrider run --shadow --for 1h --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(opts.Validate(cmd.Flags().Changed("until-lsn")), opts.shadow.validate(cmd)); err != nil {
				return usageError(cmd, err)
			}
			if opts.shadow.on {
				return opts.shadow.run(cmd.Context(), opts.app, &opts.configFlag)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	cmd.Flags().StringVar(&opts.until, "until-lsn", "", "publish up to this `position` or \"now\", confirm it and end")
	opts.shadow.add(cmd)
	return cmd
}

// Validate checks the flags before anything is read or connected to.
func (o *runOptions) Validate(untilGiven bool) error {
	if !untilGiven || o.until == untilNow {
		return nil
	}
	// Strictly: a pasted position with a stray character must not become another one (case C40).
	lsn, err := event.ParseLSN(o.until)
	if err != nil {
		return fmt.Errorf("--until-lsn: %w, or \"now\"", err)
	}
	if lsn == 0 {
		return errors.New("--until-lsn: 0/0 is no position")
	}
	o.untilLSN = lsn
	return nil
}

func (o *runOptions) run(ctx context.Context) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	limitMemory(cfg)
	logger := newLogger(o.app.err, cfg.Log)
	registry := newRegistry()
	signals := watchSignals(ctx, logger)
	defer signals.stop()
	relay, err := o.app.newPipeline(cfg, pipelineSettings{
		UntilLSN: o.untilLSN, UntilNow: o.until == untilNow, Abandon: signals.second, Log: logger, Registerer: registry,
	})
	if err != nil {
		return err
	}
	server, err := admin.Start(ctx, admin.Config{
		Listen: cfg.Admin.Listen, Gatherer: registry, Ready: relay.Ready, Status: relay.Status, Pprof: cfg.Admin.Pprof, Log: logger,
	})
	if err != nil {
		return err
	}
	defer closeAdmin(server)
	logger.Info().Str("version", readVersion().Version).Str("publisher", cfg.Publisher.Name).Str("slot", cfg.Postgres.Slot).
		Str("admin", server.Addr()).Msg("starting")
	if err := signals.attend(relay.Run); err != nil {
		return err
	}
	logger.Info().Msg("ended: everything that was read is published and confirmed")
	return nil
}

// adminGrace is how long a request that is under way may take at the end.
const adminGrace = time.Second

func closeAdmin(server *admin.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), adminGrace)
	defer cancel()
	_ = server.Close(ctx) // a request that was cut has nothing to do with the outcome
}
