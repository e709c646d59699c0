package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/replication"
)

// onePublication: several may be read, but which of them to create is not ours to guess.
func onePublication(cfg *config.Config) error {
	if len(cfg.Postgres.Publication) == 1 {
		return nil
	}
	return &operr.Error{
		Class: operr.Config, Op: "set up", Subject: fmt.Sprintf("%d publications", len(cfg.Postgres.Publication)),
		Err:  fmt.Errorf("setup creates one publication for all tables; the configuration names %s", strings.Join(cfg.Postgres.Publication, ", ")),
		Hint: "name one publication in postgres.publication for the set-up, or create them by hand",
	}
}

// printSQL writes what setup does as SQL. It reads no catalog, so it cannot know
// which tables are partitioned: publish_via_partition_root is then harmless, and
// right where one is.
func (o *setupOptions) printSQL(cfg *config.Config) error {
	target, err := pgconn.ParseConfig(cfg.Postgres.ConnString())
	if err != nil {
		return fmt.Errorf("parse the connection string: %w", err) // the configuration was checked: cannot happen
	}
	schema, err := migrations.PlainSQL()
	if err != nil {
		return err
	}
	published, owned := sourceTables(cfg)
	var b strings.Builder
	fmt.Fprintf(&b, "-- Set-up of Postrider for database %s, in this order, by a role that may create schemas, publications\n"+
		"-- and slots. Run each statement by itself (psql without --single-transaction): a slot cannot be created\n"+
		"-- in a transaction that has written.\n", target.Database)
	section(&b, "Schema postrider", schema)
	if o.createOutbox {
		for _, table := range owned {
			sql, err := migrations.OutboxTableSQL(table, migrations.PayloadType(o.payload))
			if err != nil {
				return err
			}
			section(&b, "Outbox table", sql)
		}
	}
	role := o.role
	if role == "" {
		role = target.User
	}
	section(&b, "The role that runs the relay; set its password or map it in pg_hba.conf yourself",
		migrations.GrantsSQL(migrations.Grants{Role: role, Database: target.Database, Outbox: owned, Purge: o.purge}))
	publication := replication.PublicationSpec{Name: cfg.Postgres.Publication[0], Tables: published}
	section(&b, "Publication, before the slot; leave it out where it exists", replication.PublicationSQL(publication, true)+";\n")
	section(&b, "Slot, last: it waits for all open transactions; leave it out where it exists", replication.SlotSQL(cfg.Postgres.Slot, o.failover)+";\n")
	_, err = io.WriteString(o.out, b.String())
	return err
}

func section(b *strings.Builder, title, sql string) {
	fmt.Fprintf(b, "\n-- %s\n%s", title, sql)
}
