package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/replication"
)

// setup carries out what the options ask for and remembers what it did.
type setup struct {
	opts  *setupOptions
	cfg   *config.Config
	conn  *pgx.Conn
	steps []step
}

// setupResult is what `setup --json` prints; its fields are a contract.
type setupResult struct {
	Steps []step `json:"steps"`
}

func (s *setup) result() setupResult {
	if s.steps == nil {
		return setupResult{Steps: []step{}}
	}
	return setupResult{Steps: s.steps}
}

// run keeps the order: a publication that is younger than the slot makes the
// stream fail at the rows between (trap 22).
func (s *setup) run(ctx context.Context) error {
	conn, err := connectSQL(ctx, s.cfg, "setup")
	if err != nil {
		return err
	}
	s.conn = conn
	defer conn.Close(context.WithoutCancel(ctx))
	lockTimeout := fmt.Sprintf("%dms", s.opts.lockTimeout.Milliseconds())
	if _, err := conn.Exec(ctx, "SELECT set_config('lock_timeout', $1, false)", lockTimeout); err != nil {
		return s.failed("set lock_timeout", "", err)
	}
	if err := s.precheck(ctx); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{s.schema, s.outbox, s.publication, s.grants, s.slot} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// precheck finds what makes every later step useless before anything is created.
func (s *setup) precheck(ctx context.Context) error {
	problems := append(replication.CheckServer(ctx, s.conn), replication.CheckWALLevel(ctx, s.conn)...)
	if len(problems) == 0 {
		return nil
	}
	return problems[0]
}

func (s *setup) schema(ctx context.Context) error {
	applied, err := migrations.Apply(ctx, s.cfg.Postgres.ConnString())
	if err != nil {
		return err
	}
	var names []string
	for _, m := range applied {
		names = append(names, m.Name)
	}
	return s.note(step{What: "schema", Name: migrations.Schema, Done: len(applied) > 0, Detail: strings.Join(names, ", ")})
}

func (s *setup) outbox(ctx context.Context) error {
	if !s.opts.createOutbox {
		return nil
	}
	_, tables := sourceTables(s.cfg)
	for _, table := range tables {
		if err := s.outboxTable(ctx, table); err != nil {
			return err
		}
	}
	return nil
}

func (s *setup) outboxTable(ctx context.Context, table migrations.Table) error {
	sql, err := migrations.OutboxTableSQL(table, migrations.PayloadType(s.opts.payload))
	if err != nil {
		return err
	}
	var exists bool
	if err := s.conn.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, table.SQL()).Scan(&exists); err != nil {
		return s.failed("look for", "table "+table.SQL(), err)
	}
	if !exists {
		if _, err := s.conn.Exec(ctx, sql); err != nil {
			return s.failed("create", "table "+table.SQL(), err)
		}
	}
	return s.note(step{What: "outbox table", Name: table.SQL(), Done: !exists})
}

func (s *setup) publication(ctx context.Context) error {
	published, _ := sourceTables(s.cfg)
	name := s.cfg.Postgres.Publication[0]
	changed, err := replication.EnsurePublication(ctx, s.conn, replication.PublicationSpec{Name: name, Tables: published})
	if err != nil {
		return err
	}
	return s.note(step{What: "publication", Name: name, Done: changed})
}

func (s *setup) grants(ctx context.Context) error {
	if s.opts.role == "" {
		return nil
	}
	_, tables := sourceTables(s.cfg)
	grants := migrations.Grants{Role: s.opts.role, Database: s.conn.Config().Database, Outbox: tables, Purge: s.opts.purge}
	if _, err := s.conn.Exec(ctx, migrations.GrantsSQL(grants), pgx.QueryExecModeSimpleProtocol); err != nil {
		return s.failed("grant rights to", fmt.Sprintf("role %q", s.opts.role), err)
	}
	return s.note(step{What: "grants", Name: s.opts.role, Done: true})
}

// slot is last. Its birth is stored: everything before it is not ours to publish.
func (s *setup) slot(ctx context.Context) error {
	name := s.cfg.Postgres.Slot
	before, err := replication.ReadSlot(ctx, s.conn, name)
	if err != nil {
		return err
	}
	if before.Exists {
		if problem := before.Problem(s.conn.Config().Database); problem != nil {
			return problem
		}
		return s.note(step{What: "slot", Name: name, Detail: "confirmed up to " + before.ConfirmedFlush.String()})
	}
	// A row without its slot means that events may be missing: that is for
	// `postrider run` to refuse, with the remedy, and not to be covered up here.
	store := checkpoint.NewStore(s.conn, checkpoint.StoreConfig{Publisher: s.cfg.Publisher.Name, Slot: name, Holder: holder()})
	created, err := replication.CreateSlot(ctx, s.conn, replication.SlotSpec{
		ConnString: s.cfg.Postgres.ConnString(), Slot: name, Failover: s.opts.failover, Limit: s.opts.lockTimeout,
	})
	if err != nil {
		return err
	}
	if err := s.note(step{What: "slot", Name: name, Done: true, Detail: "begins at " + created.ConsistentPoint.String()}); err != nil {
		return err
	}
	system, err := store.System(ctx)
	if err != nil {
		return err
	}
	return store.Register(ctx, system, created.ConsistentPoint, created.Snapshot)
}

// note remembers a step and tells it at once.
func (s *setup) note(done step) error {
	s.steps = append(s.steps, done)
	if s.opts.json {
		return nil
	}
	state := "exists"
	if done.Done {
		state = "done"
	}
	detail := ""
	if done.Detail != "" {
		detail = " (" + done.Detail + ")"
	}
	_, err := fmt.Fprintf(s.opts.out, "%s %s: %s%s\n", done.What, done.Name, state, detail)
	return err
}

// failed is for statements of this file; the packages bring operator's errors of their own.
func (s *setup) failed(op, subject string, err error) error {
	e := &operr.Error{Class: operr.Postgres, Op: op, Subject: subject, Err: err}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return e
	}
	switch pg.Code {
	case "42501": // insufficient_privilege
		e.Hint = "a role with the right to do it, or postrider setup --print, which gives the SQL for one"
	case "55P03": // lock_not_available
		e.Hint = "a longer --lock-timeout, or end the transactions that hold the lock"
	case "3F000": // invalid_schema_name
		e.Hint = "CREATE SCHEMA first; schemas are written exactly, without SQL quotes"
	}
	return e
}

// holder names this process in the audit.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}
