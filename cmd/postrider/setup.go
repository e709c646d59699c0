package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/replication"
)

// defaultLockTimeout bounds each wait for a lock: a table that is being written is
// locked against those who write it for as long as the set-up waits in the queue.
const defaultLockTimeout = 10 * time.Second

type setupOptions struct {
	configFlag
	out          io.Writer
	print        bool
	createOutbox bool
	payload      string
	role         string
	failover     bool
	purge        bool
	lockTimeout  time.Duration
	json         bool
}

func newSetupCommand(a *app) *cobra.Command {
	opts := setupOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Create the schema, the publication and the slot",
		Long: "Applies the migrations of the schema postrider, creates the outbox table if asked, then the publication, then the\n" +
			"slot: in this order, or the stream would fail at the rows between. It may be run again: what exists is kept.\n" +
			"Events that are committed before the slot exists are not in the stream.\n\n" +
			"With --print nothing is connected to: the same is written as plain SQL for a DBA, with the least privileges of\n" +
			"the role that runs the relay.",
		Example: "  postrider setup --create-outbox\n  postrider setup --print --role postrider > setup.sql",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.Validate(cmd.Flags().Changed("payload")); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&opts.print, "print", false, "print SQL instead of running it")
	flags.BoolVar(&opts.createOutbox, "create-outbox", false, "create the default outbox table, with the columns of profile default, where the configured table does not exist")
	flags.StringVar(&opts.payload, "payload", string(migrations.JSONB), "`type` of the new table's payload column: jsonb or bytea")
	flags.StringVar(&opts.role, "role", "", "create this `role` where it is missing and grant it what the relay needs (with --print: the configured user by default)")
	flags.BoolVar(&opts.purge, "purge", false, "grant the role DELETE on the outbox tables, too, for postrider purge and purge.every")
	flags.BoolVar(&opts.failover, "failover", false, "create a slot that standbys keep a copy of (PostgreSQL 17 and later)")
	flags.DurationVar(&opts.lockTimeout, "lock-timeout", defaultLockTimeout, "how long to wait for a lock, and for open transactions when the slot is created")
	addJSON(cmd, &opts.json)
	return cmd
}

// Validate checks the flags before anything is read or connected to.
func (o *setupOptions) Validate(payloadGiven bool) error {
	var problems []error
	if o.payload != string(migrations.JSONB) && o.payload != string(migrations.Bytea) {
		problems = append(problems, fmt.Errorf("--payload is %q; must be jsonb or bytea", o.payload))
	}
	if payloadGiven && !o.createOutbox {
		problems = append(problems, errors.New("--payload is for the table that --create-outbox creates"))
	}
	if o.lockTimeout < time.Millisecond || o.lockTimeout > time.Hour {
		problems = append(problems, fmt.Errorf("--lock-timeout is %s; must be from 1ms to 1h", o.lockTimeout))
	}
	if o.purge && o.role == "" && !o.print {
		problems = append(problems, errors.New("--purge is a right of the role that --role names"))
	}
	if o.print && o.json {
		problems = append(problems, errors.New("--print writes SQL; it has no JSON"))
	}
	return errors.Join(problems...)
}

func (o *setupOptions) run(ctx context.Context) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	if err := onePublication(cfg); err != nil {
		return err
	}
	if o.print {
		return o.printSQL(cfg)
	}
	// An interrupted creation of a slot is taken back.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	s := &setup{opts: o, cfg: cfg}
	err = s.run(ctx)
	if o.json {
		return errors.Join(err, writeJSON(o.out, s.result()))
	}
	return err
}

// step is one thing that setup saw to; its fields are a contract of --json.
type step struct {
	What string `json:"what"`
	Name string `json:"name"`
	// Done says that it was missing and is there now.
	Done bool `json:"done"`
	// Detail is for people.
	Detail string `json:"detail,omitempty"`
}

// sourceTables are the configured tables in the types of those who need them.
func sourceTables(cfg *config.Config) (published []replication.Table, owned []migrations.Table) {
	for _, s := range cfg.Sources {
		published = append(published, replication.Table{Schema: s.Table.Schema, Name: s.Table.Name})
		owned = append(owned, migrations.Table{Schema: s.Table.Schema, Name: s.Table.Name})
	}
	return published, owned
}
