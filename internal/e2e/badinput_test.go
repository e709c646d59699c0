package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
)

// The exit codes as docs/cli.md promises them, not as the code computes them.
const (
	exitConfig   = 2
	exitPostgres = 3
	exitKafka    = 4
	exitSlot     = 5
	exitHalted   = 6
)

// edited is the fixture's configuration with some of its texts replaced, in pairs.
func (f *fixture) edited(pairs ...string) string {
	f.t.Helper()
	text, err := os.ReadFile(f.yaml(""))
	must(f.t, err)
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(string(text), pairs[i]) {
			f.t.Fatalf("the configuration has no %q", pairs[i])
		}
		text = []byte(strings.Replace(string(text), pairs[i], pairs[i+1], 1))
	}
	path := filepath.Join(f.t.TempDir(), "postrider.yaml")
	must(f.t, os.WriteFile(path, text, 0o600))
	return path
}

// requireRefusedRun starts the binary, requires its exit code and the texts of its
// one error, and that no position has moved.
func (f *fixture) requireRefusedRun(config string, code int, texts ...string) {
	f.t.Helper()
	before, confirmed := f.slotRow(), f.confirmed()
	requireExit(f.t, spawn(f.t, "run", "--config", config), code, texts...)
	if now := f.confirmed(); now != confirmed {
		f.t.Errorf("confirmed moved from %s to %s", confirmed, now)
	}
	if now := f.slotRow(); now != before {
		f.t.Errorf("the slot was %s and is %s", before, now)
	}
}

// role makes a login role that is dropped at the end, with the rights of one that
// runs the relay except those that attributes take away.
func (f *fixture) role(attributes string) string {
	f.t.Helper()
	name := testkit.Unique(f.t)
	f.db.Exec(f.t, migrations.GrantsSQL(migrations.Grants{
		Role: name, Database: f.db.Name, Outbox: []migrations.Table{{Schema: "public", Name: "outbox"}},
	}))
	f.db.Exec(f.t, fmt.Sprintf("ALTER ROLE %s PASSWORD 'right' %s", name, attributes))
	f.t.Cleanup(func() { f.db.Exec(f.t, fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", name)) })
	return name
}

// TestBadPostgres: what is wrong with server, role, slot, publication or table is said
// by the run itself, each with the remedy, and no position moves (trap 22, cases C06
// and C34a).
func TestBadPostgres(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// spoil prepares the database and gives the configuration and what the error must name.
		spoil func(f *fixture) (config string, texts []string)
		code  int
	}{
		"wrong password": {func(f *fixture) (string, []string) {
			role := f.role("")
			return f.edited(f.db.DSN, f.db.As(role, "wrong")), []string{"127.0.0.1:", f.db.Name, "password authentication failed", role, "pg_hba.conf"}
		}, exitPostgres},
		"no such role": {func(f *fixture) (string, []string) {
			return f.edited(f.db.DSN, f.db.As("nobody_of_this_name", "x")), []string{"nobody_of_this_name", "check user, password"}
		}, exitPostgres},
		"no such database": {func(f *fixture) (string, []string) {
			return f.edited("/"+f.db.Name+"?", "/absent_database?"), []string{`"absent_database"`, "does not exist", "postgres.database"}
		}, exitPostgres},
		"no REPLICATION": {func(f *fixture) (string, []string) {
			role := f.role("NOREPLICATION")
			return f.edited(f.db.DSN, f.db.As(role, "right")), []string{role, "no REPLICATION attribute", "ALTER ROLE", "REPLICATION"}
		}, exitPostgres},
		"no rights on the schema": {func(f *fixture) (string, []string) {
			role := f.role("")
			f.db.Exec(f.t, "REVOKE ALL ON postrider.checkpoint FROM "+role)
			return f.edited(f.db.DSN, f.db.As(role, "right")), []string{"permission denied for table checkpoint", "setup --print"}
		}, exitPostgres},
		"schema never set up": {func(f *fixture) (string, []string) {
			f.db.Exec(f.t, "DROP SCHEMA postrider CASCADE")
			return f.yaml(""), []string{"postrider.", "does not exist", "Try: postrider setup"}
		}, exitPostgres},
		"slot of another plugin": {func(f *fixture) (string, []string) {
			f.db.Exec(f.t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
			f.db.Exec(f.t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'test_decoding')", f.db.Slot))
			return f.yaml(""), []string{f.db.Slot, "output plugin is test_decoding, pgoutput is needed", "postgres.slot"}
		}, exitSlot},
		"slot of another database": {func(f *fixture) (string, []string) {
			other := testkit.Postgres(f.t)
			other.Exec(f.t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", other.Slot))
			return f.edited(f.db.Slot, other.Slot), []string{other.Slot, other.Name, f.db.Name, "postgres.slot"}
		}, exitSlot},
		"physical slot": {func(f *fixture) (string, []string) {
			name := f.db.Slot + "_p"
			f.db.Exec(f.t, fmt.Sprintf("SELECT pg_create_physical_replication_slot('%s')", name))
			f.t.Cleanup(func() { f.db.Exec(f.t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", name)) })
			return f.edited(f.db.Slot, name), []string{name, "physical", "postgres.slot"}
		}, exitSlot},
		"no slot": {func(f *fixture) (string, []string) {
			return f.edited(f.db.Slot, "no_such_slot"), []string{"no_such_slot", "does not exist", "postrider setup"}
		}, exitSlot},
		"no publication": {func(f *fixture) (string, []string) {
			return f.edited(f.db.Publication, "Absent"), []string{`"Absent"`, "does not exist", "postrider setup"}
		}, exitPostgres},
		"publication without the table": {func(f *fixture) (string, []string) {
			f.db.Exec(f.t, fmt.Sprintf("CREATE TABLE other(id int); ALTER PUBLICATION %s SET TABLE other", f.db.Publication))
			return f.yaml(""), []string{"public.outbox", "publishes its inserts", "ALTER PUBLICATION", "ADD TABLE"}
		}, exitPostgres},
		"publication without inserts": {func(f *fixture) (string, []string) {
			f.db.Exec(f.t, fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'update')", f.db.Publication))
			return f.yaml(""), []string{f.db.Publication, "does not publish inserts", "SET (publish = 'insert')"}
		}, exitPostgres},
		"no such table": {func(f *fixture) (string, []string) {
			return f.edited("table: public.outbox", "table: public.Outbox"), []string{"public.Outbox", "does not exist", "without SQL quotes"}
		}, exitPostgres},
		"unlogged table": {func(f *fixture) (string, []string) {
			f.db.Exec(f.t, "CREATE UNLOGGED TABLE quick(id uuid, k text, payload text)")
			return f.edited("table: public.outbox", "table: public.quick", "event_id: id, key: aggregate_id, payload: payload, aggregate_type: aggregate_type, event_type: event_type",
				"event_id: id, key: k, payload: payload", ".${aggregate_type}", ".x"), []string{"public.quick", "unlogged", "SET LOGGED"}
		}, exitPostgres},
		"mapping to a missing column": {func(f *fixture) (string, []string) {
			return f.edited("payload: payload", "payload: body"), []string{"public.outbox", `"body"`, "mapped as payload", `"payload"`, `"aggregate_id"`}
		}, exitConfig},
		"mapping to a wrongly cased column": {func(f *fixture) (string, []string) {
			return f.edited("key: aggregate_id", "key: Aggregate_Id"), []string{"public.outbox", `"Aggregate_Id"`, `did you mean "aggregate_id"?`}
		}, exitConfig},
		"two columns that do not fit": {func(f *fixture) (string, []string) {
			return f.edited("event_id: id, key: aggregate_id", "event_id: ID, key: aggregateid"), []string{`"ID"`, `"aggregateid"`}
		}, exitConfig},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.insert("order", "k", "1")
			config, texts := c.spoil(f)
			f.requireRefusedRun(config, c.code, texts...)
		})
	}
}

// TestWALLevel: on a server with wal_level=replica neither setup nor run does anything,
// and both say what to set.
func TestWALLevel(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"wal_level": "replica"}})
	f := &fixture{t: t, db: testkit.NewDB(t, server.DSN()), broker: testkit.Kafka(t), prefix: "wal"}
	f.db.Exec(t, sharedTable)
	config := f.yaml("")
	requireExit(t, spawn(t, "setup", "--config", config), exitPostgres, "wal_level is replica, logical is needed", "wal_level = 'logical'", "restart PostgreSQL")
	if n := f.scalar("SELECT count(*)::text FROM pg_namespace WHERE nspname = 'postrider'"); n != "0" {
		t.Error("setup has begun although it could not end")
	}
	requireExit(t, spawn(t, "run", "--config", config), exitPostgres, "wal_level is replica, logical is needed", "wal_level = logical", "restart PostgreSQL")
}

// TestMappingThatFitsNoMore: the column was renamed while no relay ran. What was written
// before is published, what came after is not, and the run says why (case C07).
func TestMappingThatFitsNoMore(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.insert("order", "k", "1")
	f.mustDrain()
	limit := f.walEnd() // before it: on a shared server others write WAL behind it
	f.insert("order", "k", "2")
	f.db.Exec(t, "ALTER TABLE outbox RENAME payload TO body")
	// Nothing after the rename: the run ends when it has come to the end.
	requireExit(t, spawn(t, "run", "--config", f.yaml("")), exitConfig, "public.outbox", `"payload"`, `"body"`)
	if v := values(f.awaitRecords(f.topic("order"), 2)); strings.Join(v, " ") != "1 2" {
		t.Errorf("published %v", v)
	}
	f.db.Exec(t, "INSERT INTO outbox(aggregate_type, aggregate_id, body) VALUES ('order', 'k', '3')")
	requireExit(t, spawn(t, "run", "--config", f.yaml("")), exitHalted, "missing_column", f.scalar("SELECT id::text FROM outbox WHERE body = '3'"), "payload")
	if f.confirmed() <= limit {
		t.Errorf("confirmed %s, want the second event's transaction, behind %s", f.confirmed(), limit)
	}
	requireDone(t, spawn(t, "run", "--until-lsn", "now", "--config", f.edited("payload: payload", "payload: body")))
	if got, copies := firsts(t, f.broker.ReadAll(t, f.topic("order"))); strings.Join(got, " ") != "1 2 3" || copies > 0 {
		t.Errorf("published %v and %d copies", got, copies)
	}
}

// TestBadRow: an event that cannot be published halts the run with exit code 6, its id,
// position and reason. What came before it is published and confirmed, nothing past it
// is (cases C13, C15, traps 16, 17 and 24).
func TestBadRow(t *testing.T) {
	t.Parallel()
	bad := func(aggregateType, key, payload string) string {
		return fmt.Sprintf("INSERT INTO outbox(aggregate_type, aggregate_id, payload, event_type) VALUES (%s, %s, %s, 'bad')", aggregateType, key, payload)
	}
	for name, c := range map[string]struct {
		insert string
		texts  []string
	}{
		"NULL key":         {bad("'order'", "NULL", "'{}'"), []string{"null_key", "column aggregate_id"}},
		"empty key":        {bad("'order'", "''", "'{}'"), []string{"empty_key", "mapping.empty_key"}},
		"NULL payload":     {bad("'order'", "'k'", "NULL"), []string{"null_payload", "column payload", "mapping.null_payload: tombstone"}},
		"topic with space": {bad("'My Type'", "'k'", "'{}'"), []string{"invalid_topic", "My Type", "a legal topic"}},
		"topic with slash": {bad("'https://x#T'", "'k'", "'{}'"), []string{"invalid_topic", "https://x#T"}},
		"topic too long":   {bad("repeat('a', 300)", "'k'", "'{}'"), []string{"invalid_topic", "249"}},
		"topic not ASCII":  {bad("'Größe'", "'k'", "'{}'"), []string{"invalid_topic", "Größe"}},
		"too large":        {bad("'order'", "'k'", "to_jsonb(repeat('x', 5000))"), []string{"too_large", "max.message.bytes", "2000"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.createTopic("order", 3, map[string]string{"max.message.bytes": "2000"})
			f.insert("order", "k", "1")
			low := f.walEnd()
			f.db.Exec(t, c.insert)
			high := f.walEnd()
			f.insert("order", "k", "3")
			id := f.scalar("SELECT id::text FROM outbox WHERE event_type = 'bad'")
			texts := append(c.texts, id, "public.outbox", "transaction ")
			if name == "too large" {
				// The broker's refusal knows the topic, not the table.
				texts = append(c.texts, id, f.topic("order"), "transaction ")
			}
			for range 2 { // a restart does not get past it either
				requireExit(t, spawn(t, "run", "--config", f.yaml("")), exitHalted, texts...)
				// The bad row's transaction ends at or before high, the one before it at or before low.
				if at := f.confirmed(); at > low || at >= high {
					t.Errorf("confirmed %s, past %s", at, low)
				}
			}
			if got, _ := firsts(t, f.broker.ReadAll(t, f.topic("order"))); strings.Join(got, " ") != "1" {
				t.Errorf("published %v", got)
			}
		})
	}
}

// TestTombstoneOnlyWhenSaid: the same NULL is a tombstone where the mapping says so (case C13).
func TestTombstoneOnlyWhenSaid(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.db.Exec(t, "INSERT INTO outbox(aggregate_type, aggregate_id) VALUES ('order', 'k')")
	requireDone(t, spawn(t, "run", "--until-lsn", "now", "--config", f.edited("payload: payload,", "payload: payload, null_payload: tombstone,")))
	if got := f.broker.ReadAll(t, f.topic("order")); len(got) != 1 || got[0].Value != nil || string(got[0].Key) != "k" {
		t.Errorf("records: %+v", got)
	}
}

// TestBadConfiguration: found before anything is connected to, all at once, with path
// and line.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	f := &fixture{t: t, db: &testkit.DB{DSN: "postgres://u@127.0.0.1:1/d?sslmode=disable", Slot: "s", Publication: "p"}, broker: testkit.Kafka(t), prefix: "t"}
	for name, c := range map[string]struct {
		pairs []string
		texts []string
	}{
		"unknown key":           {[]string{"log: {format: json}", "log: {format: json}\nspeed: fast"}, []string{"speed", "line 8"}},
		"unknown key, nested":   {[]string{"event_id: id,", "event_id: id, evnt_type: x,"}, []string{"evnt_type", "event_type", "line 10"}},
		"table mapped twice":    {[]string{"sources:\n", "sources:\n  - {table: public.outbox, profile: default}\n"}, []string{"public.outbox", "line "}},
		"upper-case slot":       {[]string{"slot: s", "slot: Outbox_Slot"}, []string{"postgres.slot", "a-z 0-9 _"}},
		"acks":                  {[]string{"kafka:\n", "kafka:\n  acks: 1\n"}, []string{"kafka.acks", "always all"}},
		"topic illegal for all": {[]string{"topic: t.${aggregate_type}", "topic: my topic"}, []string{"sources[0].routes[0].topic", "line ", "only letters, digits"}},
		"two at once":           {[]string{"slot: s", "slot: S", "format: json", "format: xml"}, []string{"postgres.slot", "log.format"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := *f
			f.t = t
			path := f.edited(c.pairs...)
			for _, command := range [][]string{{"run"}, {"setup"}, {"config", "check"}} {
				requireExit(t, spawn(t, append(command, "--config", path)...), exitConfig, append(c.texts, path)...)
			}
		})
	}
}

// TestJunkLSNs: a position that was not pasted whole is refused before anything is
// connected to (case C40, trap 11).
func TestJunkLSNs(t *testing.T) {
	t.Parallel()
	f := &fixture{t: t, db: &testkit.DB{DSN: "postgres://u@127.0.0.1:1/d?sslmode=disable", Slot: "s", Publication: "p"}, broker: testkit.Kafka(t), prefix: "t"}
	path := f.yaml("")
	for _, junk := range []string{"0/16B3748xyz", "1/FFFFFFFFF", " 0/1", "0/1 ", "FFFFFFFF1/0", "0x0/1", "16B3748", "/1", "0/", "-1/1", "", "0/0", "later", "٠/1"} {
		t.Run(junk, func(t *testing.T) {
			t.Parallel()
			requireExit(t, spawn(t, "run", "--until-lsn="+junk, "--config", path), exitConfig, "--until-lsn")
			requireExit(t, spawn(t, "checkpoint", "wait", "--lsn="+junk, "--config", path), exitConfig, "--lsn")
		})
	}
}

// TestUnreachableBrokers: a run that was never linked gives up after a while; the
// addresses and the cause are named.
func TestUnreachableBrokers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.insert("order", "k", "1")
	brokers := strings.Join(f.broker.Bootstrap(), ", ")
	for name, c := range map[string]struct{ brokers, text string }{
		"refused":      {`"127.0.0.1:1"`, "127.0.0.1:1: connect: connection refused"},
		"no such host": {`"broker.invalid:9092"`, "broker.invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := *f
			f.t = t
			f.requireRefusedRun(f.edited("brokers: ["+brokers+"]", "brokers: ["+c.brokers+"]"), exitKafka, c.text, "check that the address is right")
		})
	}
}

// TestUnauthorisedTopic: a broker with access lists. What the user may not do is named
// with the topic, and nothing is confirmed; other rights do not heal it, the right one
// does (case C15).
func TestUnauthorisedTopic(t *testing.T) {
	t.Parallel()
	kafka := testkit.PrivateKafka(t, devstack.KafkaOptions{Secure: true, Settings: map[string]string{
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":           "User:relay;User:ANONYMOUS",
	}})
	f := newFixture(t, testkit.Postgres(t), kafka.Broker)
	admin := kadm.NewClient(kafka.Client(t))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{{User: "limited", Mechanism: kadm.ScramSha512, Iterations: 4096, Password: "limited-secret"}})
	must(t, err)
	f.createTopic("order", 3, nil)
	f.createTopic("else", 3, nil)
	allow := func(aggregateType string, ops ...kadm.ACLOperation) {
		t.Helper()
		acl := kadm.NewACLs().Allow("User:limited").AllowHosts().Topics(f.topic(aggregateType)).ResourcePatternType(kadm.ACLPatternLiteral).Operations(ops...)
		results, err := admin.CreateACLs(ctx, acl)
		must(t, err)
		for _, r := range results {
			must(t, r.Err)
		}
	}
	config := f.edited("admin: {", fmt.Sprintf("  authorization_grace: 1s\n  tls: {ca_file: %s}\n  sasl: {mechanism: SCRAM-SHA-512, username: limited, password: limited-secret}\nadmin: {", kafka.Server.CAFile))
	f.insert("order", "k", "1")

	// No right at all, not even to produce anywhere.
	f.requireRefusedRun(config, exitKafka, "uthori", "WRITE")
	// It may produce elsewhere, and not see this topic.
	allow("else", kadm.OpWrite, kadm.OpDescribe)
	f.requireRefusedRun(config, exitKafka, "topic "+f.topic("order"), "uthori", "WRITE and DESCRIBE")
	// It may see it and not write.
	allow("order", kadm.OpDescribe)
	f.requireRefusedRun(config, exitKafka, "topic "+f.topic("order"), "uthori", "WRITE and DESCRIBE")
	if got := f.broker.ReadAll(t, f.topic("order")); len(got) != 0 {
		t.Errorf("%d records", len(got))
	}
	allow("order", kadm.OpWrite)
	requireDone(t, spawn(t, "run", "--until-lsn", "now", "--config", config))
	if got := f.broker.ReadAll(t, f.topic("order")); len(got) != 1 {
		t.Errorf("%d records, want 1", len(got))
	}
}

// TestExitCodesAreThoseOfTheManual holds the constants of this file against the code.
func TestExitCodesAreThoseOfTheManual(t *testing.T) {
	t.Parallel()
	for class, code := range map[operr.Class]int{
		operr.Config: exitConfig, operr.Postgres: exitPostgres, operr.Kafka: exitKafka, operr.Slot: exitSlot, operr.Halted: exitHalted,
	} {
		if class.ExitCode() != code {
			t.Errorf("class %d has exit code %d, want %d", class, class.ExitCode(), code)
		}
	}
}
