package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// configFor points at a test's database; sources are YAML.
func configFor(t *testing.T, db *testkit.DB, sources string) string {
	t.Helper()
	return writeConfig(t, fmt.Sprintf(`postgres: {dsn: %q, slot: %s, publication: %q}
kafka: {brokers: ["127.0.0.1:1"]}
admin: {listen: "127.0.0.1:0"}
sources:
%s`, db.DSN, db.Slot, db.Publication, sources))
}

const defaultSource = "  - {table: public.outbox, profile: default}\n"

func scalar(t *testing.T, db *testkit.DB, sql string, args ...any) string {
	t.Helper()
	var text string
	if err := db.Conn(t).QueryRow(t.Context(), sql, args...).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

func setupSteps(t *testing.T, args ...string) map[string]bool {
	t.Helper()
	// A slot waits for every transaction that is open on the server, those of other tests too.
	r := runBinary(t, nil, append([]string{"setup", "--json", "--lock-timeout", "50s"}, args...)...)
	r.expect(t, exitDone)
	var got setupResult
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatalf("%v\n%s", err, r.out)
	}
	done := map[string]bool{}
	var order []string
	for _, s := range got.Steps {
		done[s.What] = s.Done
		order = append(order, s.What)
	}
	// The publication must be older than the slot (trap 22).
	if slices.Index(order, "publication") > slices.Index(order, "slot") || order[0] != "schema" {
		t.Errorf("order of the steps: %v", order)
	}
	return done
}

// Setup makes everything in its order, and nothing twice.
func TestSetupIsIdempotent(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	path := configFor(t, db, defaultSource)
	first := setupSteps(t, "--config", path, "--create-outbox", "--payload", "bytea")
	second := setupSteps(t, "--config", path, "--create-outbox")
	for _, what := range []string{"schema", "outbox table", "publication", "slot"} {
		if !first[what] {
			t.Errorf("%s was not created: %v", what, first)
		}
		if again, there := second[what]; again || !there {
			t.Errorf("%s in the second run: %v", what, second)
		}
	}
	if got := scalar(t, db, `SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'public.outbox'::regclass AND attname = 'payload'`); got != "bytea" {
		t.Errorf("payload is %s", got)
	}
	if got := scalar(t, db, `SELECT concat_ws(' ', pubinsert, pubupdate, pubdelete, pubtruncate) FROM pg_publication WHERE pubname = $1`, db.Publication); got != "t f f f" {
		t.Errorf("publication publishes %s", got)
	}
	// The slot's birth is stored: everything before it is not ours to publish.
	birth := scalar(t, db, `SELECT slot_birth_lsn::text FROM postrider.checkpoint WHERE slot = $1`, db.Slot)
	if got := scalar(t, db, `SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, db.Slot); got != birth {
		t.Errorf("the slot stands at %s, its stored birth is %s", got, birth)
	}
	r := runBinary(t, nil, "setup", "--config", path)
	r.expect(t, exitDone)
	if want := "slot " + db.Slot + ": exists (confirmed up to " + birth + ")"; !strings.Contains(r.out, want) {
		t.Errorf("standard output lacks %q:\n%s", want, r.out)
	}
}

// TestSetupOfOddNames is case C06: a table that exists already, under names that
// need quotes everywhere, and a partitioned one.
func TestSetupOfOddNames(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Publication = `Pub-1 "x", y'z`
	db.Exec(t, `CREATE SCHEMA "My.Schema";
		CREATE TABLE "My.Schema"."Outbox Events" ("Id" uuid PRIMARY KEY, "AggregateId" text, "a""b" text, payload jsonb);
		CREATE TABLE parts (id uuid, agg text, payload jsonb) PARTITION BY LIST (agg);
		CREATE TABLE part_a PARTITION OF parts FOR VALUES IN ('a')`)
	path := configFor(t, db, `  - table: {schema: My.Schema, name: Outbox Events}
    mapping: {event_id: Id, key: AggregateId, payload: payload}
    routes: [{topic: odd}]
  - table: public.parts
    mapping: {event_id: id, key: agg, payload: payload}
    routes: [{topic: parts}]
`)
	setupSteps(t, "--config", path)
	if again := setupSteps(t, "--config", path); again["publication"] || again["slot"] {
		t.Errorf("second run: %v", again)
	}
	got := scalar(t, db, `SELECT string_agg(schemaname || '/' || tablename, ' ' ORDER BY tablename) FROM pg_publication_tables WHERE pubname = $1`, db.Publication)
	if got != "My.Schema/Outbox Events public/parts" {
		t.Errorf("published: %s", got)
	}
}

func TestSetupNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	path := configFor(t, db, strings.Replace(defaultSource, "public.outbox", "public.Outbox", 1))
	db.Exec(t, "CREATE TABLE outbox (id uuid)")
	runBinary(t, nil, "setup", "--config", path).expect(t, operr.Postgres.ExitCode(), "public.Outbox", "does not exist", "Try: ")
	if got := scalar(t, db, `SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = $1`, db.Slot); got != "0" {
		t.Errorf("%s slots were left behind", got)
	}
	db.Name, db.DSN = "absent", strings.Replace(db.DSN, "/"+db.Name, "/absent_database", 1)
	runBinary(t, nil, "setup", "--config", configFor(t, db, defaultSource)).expect(t, operr.Postgres.ExitCode(), "absent_database", "Try: ")
}

// What --print writes does the same, run by a DBA; setup finds nothing left to do,
// and the role that it grants can be used.
func TestPrintedSQLDoesTheSame(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	path := configFor(t, db, defaultSource)
	role := testkit.Unique(t)
	r := runBinary(t, nil, "setup", "--print", "--create-outbox", "--role", role, "--config", path)
	r.expect(t, exitDone)
	t.Cleanup(func() { dropRole(t, db, role) })
	if got := scalar(t, db, `SELECT count(*)::text FROM pg_publication`); got != "0" {
		t.Error("--print has touched the database")
	}
	db2 := db.Conn(t)
	for _, part := range strings.Split(r.out, "\n-- ") { // a slot cannot be created in a transaction that has written
		if _, err := db2.PgConn().Exec(t.Context(), "-- "+part).ReadAll(); err != nil {
			t.Fatalf("%v\nin %s", err, part)
		}
	}
	steps := setupSteps(t, "--config", path, "--create-outbox")
	for what, done := range steps {
		if done {
			t.Errorf("%s was left to do", what)
		}
	}
	if got := scalar(t, db, `SELECT concat_ws(' ', rolreplication, rolsuper, has_table_privilege(rolname, 'postrider.checkpoint', 'UPDATE'),
		has_table_privilege(rolname, 'public.outbox', 'INSERT')) FROM pg_roles WHERE rolname = $1`, role); got != "t f t f" {
		t.Errorf("the role's rights: %s", got)
	}
}

func dropRole(t *testing.T, db *testkit.DB, role string) {
	quoted := pgx.Identifier{role}.Sanitize()
	db.Exec(t, "DROP OWNED BY "+quoted+"; DROP ROLE "+quoted)
}

func TestSetupGrantsTheRole(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	role := testkit.Unique(t)
	t.Cleanup(func() { dropRole(t, db, role) })
	steps := setupSteps(t, "--config", configFor(t, db, defaultSource), "--create-outbox", "--role", role)
	if !steps["grants"] {
		t.Errorf("steps: %v", steps)
	}
	if got := scalar(t, db, `SELECT has_table_privilege($1, 'postrider.checkpoint', 'UPDATE')::text`, role); got != "true" {
		t.Errorf("may update the checkpoint: %s", got)
	}
}

// TestBlockedSlotCreation is case C34c: an open transaction keeps a slot from being created;
// the command names it within --lock-timeout and leaves nothing behind. On a
// server of its own, because the transaction holds up every slot of the cluster.
func TestBlockedSlotCreation(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t, testkit.PrivatePostgres(t, devstack.PostgresOptions{}).DSN())
	path := configFor(t, db, defaultSource)
	conn := db.Conn(t)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "CREATE TABLE writes_something ()"); err != nil {
		t.Fatal(err)
	}
	r := runBinary(t, nil, "setup", "--create-outbox", "--lock-timeout", "300ms", "--config", path)
	r.expect(t, operr.Slot.ExitCode(), fmt.Sprintf("pid %d", conn.PgConn().PID()), "not done within 300ms", "no slot was left behind", "Try: ")
	if got := scalar(t, db, `SELECT count(*)::text FROM pg_replication_slots`); got != "0" {
		t.Errorf("%s slots were left behind", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if steps := setupSteps(t, "--config", path); !steps["slot"] || steps["schema"] {
		t.Errorf("the run after it: %v", steps)
	}
}

func TestCheckpointShowAndWait(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	path := configFor(t, db, defaultSource)
	runBinary(t, nil, "checkpoint", "show", "--config", path).
		expect(t, operr.Postgres.ExitCode(), "Try: postrider setup")
	setupSteps(t, "--config", path, "--create-outbox")

	r := runBinary(t, nil, "checkpoint", "show", "--config", path)
	r.expect(t, exitDone)
	for _, text := range []string{db.Slot + " (not active", "stored", "behind", "holder", "none"} {
		if !strings.Contains(r.out, text) {
			t.Errorf("checkpoint show lacks %q:\n%s", text, r.out)
		}
	}
	var status checkpoint.Status
	r = runBinary(t, nil, "checkpoint", "show", "--json", "--config", path)
	if err := json.Unmarshal([]byte(r.out), &status); err != nil || !status.SlotExists || status.Slot != db.Slot || status.Stored == nil {
		t.Errorf("--json: %v\n%s", err, r.out)
	}
	birth := *status.Stored

	// A position that is stored already is reached at once, in lower case too.
	r = runBinary(t, nil, "checkpoint", "wait", "--lsn", strings.ToLower(birth), "--config", path)
	r.expect(t, exitDone)
	if !strings.Contains(r.out, birth+" is published") {
		t.Errorf("wait: %s", r.out)
	}
	db.Exec(t, `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type) VALUES (gen_random_uuid(), 'a', 'b', 'c')`)
	r = runBinary(t, nil, "checkpoint", "wait", "--now", "--timeout", "300ms", "--json", "--config", path)
	r.expect(t, operr.Slot.ExitCode(), "not confirmed in time", "Try: postrider run")
	var waited checkpoint.WaitResult
	if err := json.Unmarshal([]byte(r.out), &waited); err != nil || waited.Reached || waited.Confirmed != birth {
		t.Errorf("wait --json: %v\n%s", err, r.out)
	}
	// A position in the future was mistyped (case C40).
	runBinary(t, nil, "checkpoint", "wait", "--lsn", "FFFFFF/0", "--config", path).
		expect(t, operr.Config.ExitCode(), "FFFFFF/0", "lies in the future")
}

// A second setup at the same time does no harm.
func TestTwoSetupsAtOnce(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	path := configFor(t, db, defaultSource)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	codes := make(chan result, 2)
	for range 2 {
		go func() { codes <- runBinary(t, nil, "setup", "--create-outbox", "--config", path) }()
	}
	failed := 0
	for range 2 {
		select {
		case r := <-codes:
			if r.code != exitDone {
				failed++
			}
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
	}
	if failed == 2 {
		t.Error("both have failed")
	}
	if again := setupSteps(t, "--config", path); again["slot"] || again["publication"] {
		t.Errorf("left to do: %v", again)
	}
}

// A slot that setup did not make, or made and was killed before it could store its birth, is
// told: nothing says which rows are from before it.
func TestSetupFindsASlotWithoutPosition(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.db.Exec(t, "DELETE FROM postrider.checkpoint")
	r := runBinary(t, nil, "setup", "--config", s.path)
	r.expect(t, exitDone)
	if text := strings.Join(strings.Fields(r.out), " "); !strings.Contains(text, "no position is stored: run begins there, and backfill cannot tell") {
		t.Errorf("it says %s", r.out)
	}
	runBinary(t, nil, "backfill", "--config", s.path).expect(t, operr.Slot.ExitCode(), "postrider checkpoint drop")
	if n := scalar(t, s.db, "SELECT count(*)::text FROM postrider.audit WHERE action = 'setup'"); n != "1" {
		t.Errorf("%s lines in the audit: a set-up that changed nothing wrote one", n)
	}
}
