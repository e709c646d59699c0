package migrations_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func text(t *testing.T, conn *pgx.Conn, sql string, args ...any) string {
	t.Helper()
	var v string
	if err := conn.QueryRow(t.Context(), "SELECT ("+sql+")::text", args...).Scan(&v); err != nil {
		t.Fatalf("%v\nin %s", err, sql)
	}
	return v
}

// shape is what a schema consists of, to compare two ways of making it.
func shape(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return text(t, conn, `SELECT string_agg(line, E'\n' ORDER BY line) FROM (
		SELECT format('%s.%s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)) AS line
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
		WHERE c.relnamespace = 'postrider'::regnamespace AND c.relkind = 'r'
		UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE c.relnamespace = 'postrider'::regnamespace
		UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'postrider'::regnamespace
		UNION ALL SELECT 'version ' || version_id FROM postrider.goose_db_version) s`)
}

func TestApplyIsIdempotent(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	pending, err := migrations.Pending(t.Context(), db.DSN)
	if err != nil || len(pending) == 0 {
		t.Fatalf("pending %v, error %v", pending, err)
	}
	conn := db.Conn(t)
	if got := text(t, conn, "SELECT to_regnamespace('postrider') IS NULL"); got != "true" {
		t.Fatal("asking what is pending created the schema")
	}
	applied, err := migrations.Apply(t.Context(), db.DSN)
	if err != nil || len(applied) != len(pending) {
		t.Fatalf("applied %v, error %v", applied, err)
	}
	for i := range applied {
		if applied[i].Name != pending[i] {
			t.Errorf("applied %s, pending was %s", applied[i].Name, pending[i])
		}
	}
	if pending, err = migrations.Pending(t.Context(), db.DSN); err != nil || len(pending) != 0 {
		t.Errorf("pending %v, error %v afterwards", pending, err)
	}
	if applied, err = migrations.Apply(t.Context(), db.DSN); err != nil || len(applied) != 0 {
		t.Errorf("applied %v again, error %v", applied, err)
	}
	if got := text(t, conn, "SELECT count(*) FROM pg_class WHERE relname LIKE 'goose%' AND relkind = 'r' AND relnamespace <> 'postrider'::regnamespace"); got != "0" {
		t.Error("goose's table is outside our schema")
	}
}

// Four setups at once: each succeeds, and each migration runs once.
func TestConcurrentApply(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	var wg sync.WaitGroup
	counts := make([]int, 4)
	for i := range counts {
		wg.Go(func() {
			applied, err := migrations.Apply(t.Context(), db.DSN)
			if err != nil {
				t.Error(err)
			}
			counts[i] = len(applied)
		})
	}
	wg.Wait()
	conn := db.Conn(t)
	ran := 0
	for _, n := range counts {
		ran += n
	}
	if want := text(t, conn, "SELECT count(*) FROM postrider.goose_db_version WHERE version_id > 0"); text(t, conn, "SELECT $1::int", ran) != want {
		t.Errorf("%v migrations were run, %s are recorded", counts, want)
	}
	if got := text(t, conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"); got != "0" {
		t.Errorf("%s advisory locks are left", got)
	}
}

// What --print shows makes the same schema, may run twice, and leaves setup nothing to do.
func TestPlainSQL(t *testing.T) {
	t.Parallel()
	sql, err := migrations.PlainSQL()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(sql, "goose Up") || strings.Contains(sql, "+goose") {
		t.Error("annotations of the migration tool are left in it")
	}
	plain, applied := testkit.Postgres(t), testkit.Postgres(t)
	plain.Exec(t, sql)
	plain.Exec(t, sql)
	if _, err := migrations.Apply(t.Context(), applied.DSN); err != nil {
		t.Fatal(err)
	}
	if a, b := shape(t, plain.Conn(t)), shape(t, applied.Conn(t)); a != b {
		t.Errorf("plain SQL makes\n%s\nsetup makes\n%s", a, b)
	}
	if again, err := migrations.Apply(t.Context(), plain.DSN); err != nil || len(again) != 0 {
		t.Errorf("setup after it applied %v, error %v", again, err)
	}
}

// A role that may not create schemas is told what would help; one that finds all
// done needs no right to create.
func TestApplyWithoutRights(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	role := testkit.Unique(t)
	db.Exec(t, "CREATE ROLE "+role+" LOGIN PASSWORD 'pw'")
	t.Cleanup(func() { db.Exec(t, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	_, err := migrations.Apply(t.Context(), db.As(role, "pw"))
	if operr.ClassOf(err) != operr.Postgres || !strings.Contains(operr.HintOf(err), "--print") {
		t.Fatalf("error %v, hint %q", err, operr.HintOf(err))
	}
	if _, err := migrations.Apply(t.Context(), db.DSN); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, migrations.GrantsSQL(migrations.Grants{Role: role, Database: db.Name}))
	if applied, err := migrations.Apply(t.Context(), db.As(role, "pw")); err != nil || len(applied) != 0 {
		t.Errorf("applied %v, error %v", applied, err)
	}
	if pending, err := migrations.Pending(t.Context(), db.As(role, "pw")); err != nil || len(pending) != 0 {
		t.Errorf("pending %v, error %v", pending, err)
	}
}

func TestApplyWithJunkForAConnection(t *testing.T) {
	t.Parallel()
	_, err := migrations.Apply(t.Context(), "postgres://h:no-port/")
	if operr.ClassOf(err) != operr.Config {
		t.Fatalf("error %v", err)
	}
}

func TestOutboxTable(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, `CREATE SCHEMA "My.Schema"`)
	for _, tt := range []struct {
		table   migrations.Table
		payload migrations.PayloadType
		value   string
	}{
		{migrations.Table{Schema: "public", Name: "outbox"}, migrations.JSONB, `'{"a": 1}'`},
		{migrations.Table{Schema: "My.Schema", Name: `Outbox "Events"; DROP`}, migrations.Bytea, `'\x00ff'`},
	} {
		sql, err := migrations.OutboxTableSQL(tt.table, tt.payload)
		if err != nil {
			t.Fatal(err)
		}
		db.Exec(t, sql)
		db.Exec(t, sql)
		db.Exec(t, `INSERT INTO `+tt.table.SQL()+` (event_id, aggregate_type, aggregate_id, event_type, payload)
			VALUES ('11111111-1111-1111-1111-111111111111', 'Order', '1', 'OrderCreated', `+tt.value+`)`)
		conn := db.Conn(t)
		got := text(t, conn, `SELECT string_agg(attname || ' ' || format_type(atttypid, -1) || CASE WHEN attnotnull THEN ' not null' ELSE '' END, ', ' ORDER BY attnum)
			FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0`, tt.table.SQL())
		want := "event_id uuid not null, aggregate_type text not null, aggregate_id text not null, aggregate_version bigint, event_type text not null, payload " +
			string(tt.payload) + ", headers jsonb, occurred_at timestamp with time zone not null"
		if got != want {
			t.Errorf("%s is (%s), want (%s)", tt.table.SQL(), got, want)
		}
	}
	if sql, err := migrations.OutboxTableSQL(migrations.Table{Schema: "public", Name: "x"}, "json"); operr.ClassOf(err) != operr.Config || sql != "" {
		t.Errorf("payload type json gave %q, error %v", sql, err)
	}
}

// The printed grants suffice for everything that the relay does with the checkpoint
// and the stream, and give no more.
func TestGrantsSuffice(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	if _, err := migrations.Apply(t.Context(), db.DSN); err != nil {
		t.Fatal(err)
	}
	table := migrations.Table{Schema: "My.Schema", Name: "Out box"}
	sql, err := migrations.OutboxTableSQL(table, migrations.JSONB)
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `CREATE SCHEMA "My.Schema"; `+sql)
	role := testkit.Unique(t) + `_R"o'l%e\$do$`
	quoted := pgx.Identifier{role}.Sanitize()
	grants := migrations.GrantsSQL(migrations.Grants{Role: role, Database: db.Name, Outbox: []migrations.Table{table}})
	db.Exec(t, grants)
	db.Exec(t, grants)
	db.Exec(t, "ALTER ROLE "+quoted+" PASSWORD 'pw'")
	t.Cleanup(func() { db.Exec(t, "DROP OWNED BY "+quoted+"; DROP ROLE "+quoted) })
	conn, err := pgx.Connect(t.Context(), db.As(role, "pw"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	useEverything(t, conn, db)
	if _, err := conn.Exec(t.Context(), "SELECT count(*), max(xmin::text) FROM "+table.SQL()); err != nil {
		t.Errorf("tick-off cannot read the outbox: %v", err)
	}
	for _, forbidden := range []string{
		"DELETE FROM postrider.checkpoint",
		"DELETE FROM postrider.audit",
		"UPDATE postrider.audit SET action = ''",
		"CREATE TABLE postrider.x (id int)",
		"DELETE FROM " + table.SQL(),
		"INSERT INTO " + table.SQL() + " (event_id, aggregate_type, aggregate_id, event_type) VALUES (gen_random_uuid(), '', '', '')",
	} {
		if _, err := conn.Exec(t.Context(), forbidden); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: error %v", forbidden, err)
		}
	}
}

// The right to delete from the outbox comes with what is asked for, and not before.
func TestGrantsToPurge(t *testing.T) {
	t.Parallel()
	g := migrations.Grants{Role: "r", Database: "d", Outbox: []migrations.Table{{Schema: "s", Name: "t"}}}
	if sql := migrations.GrantsSQL(g); !strings.Contains(sql, `GRANT SELECT ON "s"."t" TO "r"`) {
		t.Errorf("without: %s", sql)
	}
	g.Purge = true
	if sql := migrations.GrantsSQL(g); !strings.Contains(sql, `GRANT SELECT, DELETE ON "s"."t" TO "r"`) {
		t.Errorf("with: %s", sql)
	}
}

func useEverything(t *testing.T, conn *pgx.Conn, db *testkit.DB) {
	t.Helper()
	ctx := t.Context()
	store := checkpoint.NewStore(conn, checkpoint.StoreConfig{Publisher: "p", Slot: db.Slot, Holder: "h"})
	if _, err := conn.Exec(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", db.Slot); err != nil {
		t.Errorf("create the slot: %v", err)
	}
	sys, err := store.System(ctx)
	if err != nil || sys.Timeline != 1 || sys.ID == "" {
		t.Errorf("system %+v, error %v", sys, err)
	}
	if err := store.Register(ctx, sys, 0x100, ""); err != nil {
		t.Errorf("register: %v", err)
	}
	row, err := store.Load(ctx)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	if _, err := store.TakeTick(ctx); err != nil {
		t.Errorf("tick: %v", err)
	}
	if err := store.Audit(ctx, "test", map[string]any{"a": 1}); err != nil {
		t.Errorf("audit: %v", err)
	}
	// No stream here: fenced, which is more than being let in.
	if err := store.Save(ctx, *row, 1); operr.ClassOf(err) != operr.Slot {
		t.Errorf("save: %v", err)
	}
	if _, err := checkpoint.ReadStatus(ctx, conn, "p", db.Slot); err != nil {
		t.Errorf("status: %v", err)
	}
}
