package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/testkit"
)

// statements runs SQL as psql does, each statement by itself: a slot cannot be made in
// a transaction that has written.
func (f *fixture) statements(sql string) {
	f.t.Helper()
	for _, part := range strings.Split(sql, "\n-- ") {
		f.db.Exec(f.t, "-- "+part)
	}
}

// output runs a command of the binary that has to succeed and gives its standard output.
func output(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, built(t), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, errs.String())
	}
	return out.String()
}

// outboxLayout is a table that setup is to serve.
type outboxLayout struct {
	// ddl makes it; "" asks setup for the default one.
	ddl string
	// source is its part of the configuration, TOPIC stands for the topic.
	source string
	// insert commits an event of key KEY and payload PAYLOAD.
	insert string
	// table is its quoted name.
	table string
}

var outboxLayouts = map[string]outboxLayout{
	"default": {
		source: `{table: public.outbox, profile: default, routes: [{topic: TOPIC}]}`,
		insert: `INSERT INTO outbox(event_id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'order', 'KEY', 'X', 'PAYLOAD')`,
		table:  "outbox",
	},
	"default in a schema of its own": {
		ddl:    `CREATE SCHEMA shop`,
		source: `{table: shop.events, profile: default, routes: [{topic: TOPIC}]}`,
		insert: `INSERT INTO shop.events(event_id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'order', 'KEY', 'X', 'PAYLOAD')`,
		table:  "shop.events",
	},
	"odd names": {
		ddl:    `CREATE SCHEMA "My.Schema"; CREATE TABLE "My.Schema"."Outbox ""Events"", 'all'"("Id" uuid PRIMARY KEY DEFAULT gen_random_uuid(), "AggregateId" text, "a""b" text, "select" jsonb)`,
		source: `{table: {schema: My.Schema, name: "Outbox \"Events\", 'all'"}, mapping: {event_id: Id, key: AggregateId, payload: select, headers: [{column: 'a"b', name: ab}]}, routes: [{topic: TOPIC}]}`,
		insert: `INSERT INTO "My.Schema"."Outbox ""Events"", 'all'"("AggregateId", "a""b", "select") VALUES ('KEY', 'x', 'PAYLOAD')`,
		table:  `"My.Schema"."Outbox ""Events"", 'all'"`,
	},
	"partitioned": {
		ddl: `CREATE TABLE parts(id uuid DEFAULT gen_random_uuid(), k text, payload jsonb) PARTITION BY HASH (k);
			CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
			CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1)`,
		source: `{table: public.parts, mapping: {event_id: id, key: k, payload: payload}, routes: [{topic: TOPIC}]}`,
		insert: `INSERT INTO parts(k, payload) VALUES ('KEY', 'PAYLOAD')`,
		table:  "parts",
	},
	"two tables": {
		ddl: `CREATE TABLE a(id uuid DEFAULT gen_random_uuid(), k text, payload jsonb); CREATE TABLE b(LIKE a INCLUDING ALL)`,
		source: `{table: public.a, mapping: {event_id: id, key: k, payload: payload}, routes: [{topic: TOPIC}]}
  - {table: public.b, mapping: {event_id: id, key: k, payload: payload}, routes: [{topic: TOPIC}]}`,
		insert: `INSERT INTO a(k, payload) VALUES ('KEY', 'PAYLOAD')`,
		table:  "a",
	},
}

func (l outboxLayout) fill(key, payload string) string {
	return strings.NewReplacer("KEY", key, "PAYLOAD", payload).Replace(l.insert)
}

// newSetupFixture is a database without anything of ours. config writes a
// configuration for a connection string.
func newSetupFixture(t *testing.T, l outboxLayout) (f *fixture, config func(dsn string) string) {
	f = &fixture{t: t, db: testkit.Postgres(t), broker: testkit.Kafka(t), prefix: strings.ReplaceAll(testkit.Unique(t), "_", "-")}
	if l.ddl != "" {
		f.db.Exec(t, l.ddl)
	}
	f.createTopic("all", 3, nil)
	return f, func(dsn string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "postrider.yaml")
		must(t, os.WriteFile(path, fmt.Appendf(nil, `postgres: {dsn: %q, slot: %s, publication: "Pub-1 \"x\", y'z"}
kafka: {brokers: [%s]}
admin: {listen: "127.0.0.1:0"}
log: {format: json}
sources:
  - %s
`, dsn, f.db.Slot, strings.Join(f.broker.Bootstrap(), ", "), strings.ReplaceAll(l.source, "TOPIC", f.topic("all"))), 0o600))
		return path
	}
}

// TestSetUpAndRun: what setup makes, or a DBA from what --print writes, is all that a
// role with the printed rights needs to run, to be asked where it stands, and to prove
// a doubtful start. Run again, setup finds nothing to do (case C06).
func TestSetUpAndRun(t *testing.T) {
	t.Parallel()
	for name, layout := range outboxLayouts {
		for _, printed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, printed %t", name, printed), func(t *testing.T) {
				t.Parallel()
				f, config := newSetupFixture(t, layout)
				role := `Relay "1" ` + f.db.Name
				setup := []string{"setup", "--role", role, "--config", config(f.db.DSN)}
				if strings.HasPrefix(name, "default") {
					setup = append(setup, "--create-outbox")
				}
				if printed {
					f.statements(output(t, append(setup, "--print")...))
				} else {
					output(t, setup...)
				}
				t.Cleanup(func() {
					name := pgx.Identifier{role}.Sanitize()
					f.db.Exec(t, "DROP OWNED BY "+name+"; DROP ROLE "+name)
				})
				if again := output(t, setup...); strings.Count(again, ": done") != 1 { // the grants are given again
					t.Errorf("the second set-up has done something:\n%s", again)
				}
				f.db.Exec(t, "ALTER ROLE "+pgx.Identifier{role}.Sanitize()+" PASSWORD 'secret'")
				f.requireLeastRights(layout, role)
				f.requireUsable(layout, config(f.as(role, "secret")))
			})
		}
	}
}

// as is the database's address for a role whose name needs escaping.
func (f *fixture) as(role, password string) string {
	u, err := url.Parse(f.db.DSN)
	must(f.t, err)
	u.User = url.UserPassword(role, password)
	return u.String()
}

// requireUsable publishes with the configuration, asks for the position, and starts once
// more in doubt, which reads the table.
func (f *fixture) requireUsable(l outboxLayout, config string) {
	f.t.Helper()
	f.db.Exec(f.t, l.fill("k", "1"))
	requireDone(f.t, spawn(f.t, "run", "--until-lsn", "now", "--config", config))
	if show := output(f.t, "checkpoint", "show", "--config", config); !strings.Contains(show, "1 events") {
		f.t.Errorf("checkpoint show:\n%s", show)
	}
	output(f.t, "checkpoint", "wait", "--lsn", f.stored().String(), "--config", config)
	// The slot past a latched row: as a crash in the quiet leaves it. The snapshot has to
	// cover the row, whatever other tests do on the server.
	testkit.EventuallyTrue(f.t, patience, "older transactions are open", func() bool {
		return f.scalar("SELECT (pg_snapshot_xmin(pg_current_snapshot())::text::bigint > (SELECT max(xmin::text::bigint) FROM "+l.table+"))::text") == "true"
	})
	f.db.Exec(f.t, "UPDATE postrider.checkpoint SET idle = true, snapshot = pg_current_snapshot()")
	f.db.Exec(f.t, "SELECT pg_replication_slot_advance('"+f.db.Slot+"', pg_current_wal_lsn())")
	f.db.Exec(f.t, l.fill("k", "2"))
	requireDone(f.t, spawn(f.t, "run", "--until-lsn", "now", "--config", config))
	records := f.awaitRecords(f.topic("all"), 2)
	if v := values(records); strings.Join(v, " ") != "1 2" {
		f.t.Errorf("published %v", v)
	}
	for _, r := range records {
		if string(r.Key) != "k" {
			f.t.Errorf("key %q", r.Key)
		}
	}
}

// requireLeastRights: the role reads the outbox and keeps its position, and no more.
func (f *fixture) requireLeastRights(l outboxLayout, role string) {
	f.t.Helper()
	got := f.scalar(fmt.Sprintf(`SELECT concat_ws(' ', rolsuper, rolcreaterole, rolcreatedb, rolbypassrls,
		has_table_privilege(rolname, %[1]s, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER'),
		has_table_privilege(rolname, 'postrider.checkpoint', 'DELETE, TRUNCATE'),
		has_table_privilege(rolname, 'postrider.audit', 'UPDATE, DELETE, TRUNCATE'),
		has_schema_privilege(rolname, 'postrider', 'CREATE'),
		has_database_privilege(rolname, current_database(), 'CREATE')) FROM pg_roles WHERE rolname = %[2]s`, literal(l.table), literal(role)))
	if got != "f f f f f f f f f" {
		f.t.Errorf("the role may do more than it must: %s", got)
	}
}
