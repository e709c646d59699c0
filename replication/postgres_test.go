package replication

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/testkit"
)

const outboxDDL = `CREATE TABLE outbox(
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL DEFAULT 'order', aggregate_id text NOT NULL DEFAULT 'k',
  event_type text NOT NULL DEFAULT 't', payload jsonb, created_at timestamptz NOT NULL DEFAULT now())`

// pgStream is a stream from a real server.
type pgStream struct {
	*Stream
	h      *recorder
	result chan error
	cancel context.CancelFunc
}

// publish makes publication and slot for tables of schema public, in that order.
func publish(t *testing.T, db *testkit.DB, tables ...string) {
	t.Helper()
	spec := PublicationSpec{Name: db.Publication}
	for _, name := range tables {
		spec.Tables = append(spec.Tables, Table{"public", name})
	}
	if _, err := EnsurePublication(within(t), db.Conn(t), spec); err != nil {
		t.Fatal(err)
	}
	newSlot(t, db)
}

func newSlot(t *testing.T, db *testkit.DB) CreatedSlot {
	t.Helper()
	// The shared server has open transactions of other tests: a slot waits for them.
	slot, err := CreateSlot(context.Background(), db.Conn(t), SlotSpec{ConnString: db.DSN, Slot: db.Slot, Limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// streamFrom streams db's slot with the given connection string.
func streamFrom(t *testing.T, db *testkit.DB, dsn string, hooks ...func(*pgStream)) *pgStream {
	t.Helper()
	s, err := Connect(within(t), Config{ConnString: dsn, Slot: db.Slot, Publications: []string{db.Publication}})
	if err != nil {
		t.Fatal(err)
	}
	p := &pgStream{h: newRecorder(), result: make(chan error, 1)}
	testkit.Eventually(t, patience, func() error { // the stream before may just be ending
		p.Stream, err = s.Start(within(t))
		return err
	})
	slot, err := ReadSlot(within(t), db.Conn(t), db.Slot)
	if err != nil || slot.ActivePID != s.BackendPID() {
		t.Fatalf("the slot is held by %d, this is %d (%v)", slot.ActivePID, s.BackendPID(), err)
	}
	for _, hook := range hooks {
		hook(p)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.result <- p.Run(ctx, slot.ConfirmedFlush, p.h) }()
	t.Cleanup(p.stop)
	return p
}

func (p *pgStream) stop() {
	p.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = p.Close(ctx)
}

// confirming confirms each commit, as a relay does that has nothing to wait for.
func confirming(p *pgStream) {
	p.h.onCommit = func(end event.LSN) { p.Confirm(end) }
	p.h.onKeepAlive = func(walEnd event.LSN) { p.Confirm(walEnd) }
}

// case C01, trap 26: every value arrives as PostgreSQL's own text.
func TestValuesVerbatim(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, `CREATE TYPE mood AS ENUM ('so so', 'happy'); CREATE DOMAIN posint AS int CHECK (VALUE > 0);
		CREATE TABLE ob1(id uuid PRIMARY KEY, agg uuid, d date, t time, p jsonb, b bytea, j json, ts timestamptz, n numeric, m mood, dom posint,
			arr text[], nul text, empty text, f float8, big bigint, iv interval, money money, bc date)`)
	publish(t, db, "ob1")
	s := streamFrom(t, db, db.DSN)
	db.Exec(t, `INSERT INTO ob1 VALUES ('11111111-1111-1111-1111-111111111111','550E8400-E29B-41D4-A716-446655440000','2024-02-29','23:59:59.999999',
		'{"b":1, "a":2, "a":3,"n":12345678901234567890.10,"e":1e5,"u":"\u00e9\u2028</script>"}','\xdeadbeef',
		'{"b":1, "b":2, "e":1e5, "z":"\u0000"}', 'infinity', 12345678901234567890.10, 'so so', 7,
		'{"a b",NULL,"\"q\""}', NULL, '', 0.1::float8+0.2, 9223372036854775807, '1 year 2 mons 3 days 04:05:06', 12.5, '0044-03-15 BC')`)
	got := s.h.rowsOf(t, 1)[0]
	want := map[string]string{
		"id": "11111111-1111-1111-1111-111111111111", "agg": "550e8400-e29b-41d4-a716-446655440000", "d": "2024-02-29", "t": "23:59:59.999999",
		"p": `{"a": 3, "b": 1, "e": 100000, "n": 12345678901234567890.10, "u": "é` + "\u2028" + `</script>"}`, "b": `\xdeadbeef`,
		"j": `{"b":1, "b":2, "e":1e5, "z":"\u0000"}`, "ts": "infinity", "n": "12345678901234567890.10", "m": "so so", "dom": "7",
		"arr": `{"a b",NULL,"\"q\""}`, "empty": "", "f": "0.30000000000000004", "big": "9223372036854775807",
		"iv": "1 year 2 mons 3 days 04:05:06", "money": "$12.50", "bc": "0044-03-15 BC",
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
	}
	if _, ok := got["nul"]; ok || len(got) != len(want) {
		t.Errorf("got %v", got)
	}
}

// case C03: a role's display settings change nothing, on the stream and in SQL.
func TestHostileRole(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	role := testkit.Unique(t)
	db.Exec(t, fmt.Sprintf(`CREATE ROLE %[1]s LOGIN REPLICATION PASSWORD 'secret';
		ALTER ROLE %[1]s SET datestyle = 'SQL, DMY'; ALTER ROLE %[1]s SET bytea_output = 'escape'; ALTER ROLE %[1]s SET intervalstyle = 'iso_8601';
		ALTER ROLE %[1]s SET extra_float_digits = 0; ALTER ROLE %[1]s SET timezone = 'Asia/Kolkata'; ALTER ROLE %[1]s SET client_encoding = 'latin1';
		ALTER ROLE %[1]s SET idle_session_timeout = 50; ALTER ROLE %[1]s SET statement_timeout = 5000`, role))
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), db.DSN)
		if err == nil {
			_, err = conn.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
			_ = conn.Close(context.Background())
		}
		if err != nil {
			t.Errorf("drop role: %v", err)
		}
	})
	db.Exec(t, `CREATE TABLE ob3(ts timestamptz, b bytea, f float8, s text, iv interval); GRANT SELECT ON ob3 TO `+role)
	publish(t, db, "ob3")
	s := streamFrom(t, db, db.As(role, "secret"))
	db.Exec(t, `INSERT INTO ob3 VALUES ('2024-03-05 06:07:08+00', '\xff00', 0.1::float8+0.2, 'é', '1 day 02:00');
		INSERT INTO ob3(s) VALUES ('日本')`)
	rows := s.h.rowsOf(t, 2)
	want := map[string]string{"ts": "2024-03-05 06:07:08+00", "b": `\xff00`, "f": "0.30000000000000004", "s": "\xc3\xa9", "iv": "1 day 02:00:00"}
	for name, value := range want {
		if rows[0][name] != value {
			t.Errorf("stream: %s is %q, want %q", name, rows[0][name], value)
		}
	}
	if rows[1]["s"] != "日本" {
		t.Errorf("stream: got %q", rows[1]["s"])
	}
	conn, err := ConnectSQL(within(t), db.As(role, "secret"), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for name, value := range want {
		var got string
		if err := conn.QueryRow(within(t), "SELECT "+name+"::text FROM public.ob3 WHERE ts IS NOT NULL").Scan(&got); err != nil || got != value {
			t.Errorf("SQL: %s is %q, want %q (%v)", name, got, value, err)
		}
	}
}

// case C06, trap 25: names travel byte for byte.
func TestQuotedNames(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Publication = `Pub-1 "x", it's`
	db.Exec(t, `CREATE SCHEMA "My.Schema"; CREATE TABLE "My.Schema"."Outbox Events"("Id" uuid PRIMARY KEY, "AggregateId" text, "a""b" text, payload jsonb)`)
	table := Table{"My.Schema", "Outbox Events"}
	if changed, err := EnsurePublication(within(t), db.Conn(t), PublicationSpec{db.Publication, []Table{table}}); err != nil || !changed {
		t.Fatalf("changed %t, %v", changed, err)
	}
	newSlot(t, db)
	if problems := Check(within(t), db.Conn(t), CheckConfig{db.Slot, []string{db.Publication}, []Table{table}}); len(problems) != 0 {
		t.Fatal(problems)
	}
	s := streamFrom(t, db, db.DSN)
	db.Exec(t, `INSERT INTO "My.Schema"."Outbox Events" VALUES ('11111111-1111-1111-1111-111111111111', 'k', 'q', '{}')`)
	got := s.h.rowsOf(t, 1)[0]
	if got["Id"] == "" || got["AggregateId"] != "k" || got[`a"b`] != "q" {
		t.Fatalf("got %v", got)
	}
	wantLines(t, s.h.log()[1:2], `relation My.Schema.Outbox Events(Id,AggregateId,a"b,payload)`)
}

// case C07, trap 25: each row is described as it was written, whether the stream was
// there or not.
func TestColumnsChangeInMidStream(t *testing.T) {
	t.Parallel()
	for _, live := range []bool{true, false} {
		t.Run(fmt.Sprintf("live=%t", live), func(t *testing.T) {
			t.Parallel()
			db := testkit.Postgres(t)
			db.Exec(t, "CREATE TABLE outbox(id text, payload text)")
			publish(t, db, "outbox")
			var s *pgStream
			if live {
				s = streamFrom(t, db, db.DSN)
			}
			db.Exec(t, `INSERT INTO outbox VALUES ('before', '1')`)
			db.Exec(t, `ALTER TABLE outbox RENAME payload TO body`)
			db.Exec(t, `INSERT INTO outbox VALUES ('after', '2')`)
			db.Exec(t, `ALTER TABLE outbox RENAME body TO payload`)
			db.Exec(t, `BEGIN; INSERT INTO outbox VALUES ('in1', '3'); ALTER TABLE outbox ADD COLUMN extra int DEFAULT 7;
				INSERT INTO outbox VALUES ('in2', '4'); ALTER TABLE outbox DROP COLUMN extra; COMMIT`)
			db.Exec(t, `ALTER TABLE outbox DROP COLUMN id; ALTER TABLE outbox ADD COLUMN id text`)
			db.Exec(t, `INSERT INTO outbox(id, payload) VALUES ('moved', '5')`)
			if !live {
				s = streamFrom(t, db, db.DSN)
			}
			got := fmt.Sprint(s.h.rowsOf(t, 5))
			want := "[map[id:before payload:1] map[body:2 id:after] map[id:in1 payload:3] map[extra:7 id:in2 payload:4] map[id:moved payload:5]]"
			if got != want {
				t.Fatalf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// case C08, case C10, trap 27: only inserts come, also those that are deleted at once;
// the position moves past the rest.
func TestOnlyInserts(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, outboxDDL+`; ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL; CREATE PUBLICATION "`+db.Publication+`" FOR ALL TABLES`)
	newSlot(t, db)
	s := streamFrom(t, db, db.DSN, confirming)
	db.Exec(t, `INSERT INTO outbox(aggregate_id, payload) VALUES ('toast', to_jsonb(repeat('x', 9000)))`)
	db.Exec(t, `UPDATE outbox SET event_type = 'x'`)
	db.Exec(t, `SELECT pg_logical_emit_message(true, 'datastream', 'hb'), pg_logical_emit_message(false, 'hb', 'x')`)
	db.Exec(t, `DELETE FROM outbox`)
	for i := range 100 {
		db.Exec(t, fmt.Sprintf(`BEGIN; INSERT INTO outbox(id, aggregate_id) VALUES ('00000000-0000-0000-0000-%012d', 'k%d'); DELETE FROM outbox; COMMIT`, i, i%10))
	}
	db.Exec(t, `INSERT INTO outbox(id, aggregate_id) VALUES ('11111111-0000-0000-0000-000000000000', 'kept')`)
	db.Exec(t, `INSERT INTO outbox(id) VALUES ('11111111-0000-0000-0000-000000000000') ON CONFLICT DO NOTHING`)
	db.Exec(t, `WITH w AS (INSERT INTO outbox(aggregate_id) VALUES ('cte') RETURNING id) DELETE FROM outbox WHERE id IN (SELECT id FROM w)`)
	db.Exec(t, `TRUNCATE outbox`)
	rows := s.h.rowsOf(t, 103)
	confirmedReaches(t, db, currentLSN(t, db))
	for i := range 100 {
		if got, want := rows[i+1]["aggregate_id"], fmt.Sprintf("k%d", i%10); got != want {
			t.Fatalf("row %d is of %s, want %s", i, got, want)
		}
	}
	if rows[101]["aggregate_id"] != "kept" || rows[102]["aggregate_id"] != "cte" {
		t.Fatalf("got %v", rows[101:])
	}
	s.h.until(t, "truncate", func() bool { return s.h.ignored[OpTruncate] == 1 })
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	if len(s.h.rows) != 103 || s.h.ignored[OpUpdate] != 1 || s.h.ignored[OpDelete] != 101 {
		t.Fatalf("%d rows, ignored %v", len(s.h.rows), s.h.ignored)
	}
}

// case C17, trap 2, trap 12: commit order, whatever the rows' own order; rolled-back
// savepoints and prepared transactions are not seen.
func TestCommitOrder(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, "CREATE TABLE outbox(id text)")
	publish(t, db, "outbox")
	s := streamFrom(t, db, db.DSN)
	t1, t2 := db.Conn(t), db.Conn(t)
	do := func(conn *pgx.Conn, sql string) {
		t.Helper()
		if _, err := conn.Exec(within(t), sql); err != nil {
			t.Fatal(err)
		}
	}
	do(t1, "BEGIN; INSERT INTO outbox VALUES ('t1')")
	do(t2, "INSERT INTO outbox VALUES ('t2')")
	do(t1, "COMMIT")
	do(t1, `BEGIN; INSERT INTO outbox VALUES ('a'); SAVEPOINT s; INSERT INTO outbox VALUES ('undone'); ROLLBACK TO s;
		INSERT INTO outbox VALUES ('b'); SAVEPOINT s2; INSERT INTO outbox VALUES ('c'); RELEASE s2; COMMIT`)
	do(t1, "BEGIN; INSERT INTO outbox VALUES ('phantom'); ROLLBACK")
	do(t1, "INSERT INTO outbox VALUES ('m1'), ('m2'), ('m3')")
	if _, err := t1.CopyFrom(within(t), pgx.Identifier{"outbox"}, []string{"id"}, pgx.CopyFromRows([][]any{{"c1"}, {"c2"}, {"c3"}})); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, r := range s.h.rowsOf(t, 11) {
		ids = append(ids, r["id"])
	}
	if got := strings.Join(ids, " "); got != "t2 t1 a b c m1 m2 m3 c1 c2 c3" {
		t.Fatalf("got %s", got)
	}
	// case C17 (b): rows of one COPY share an LSN; the index tells them apart.
	if log := strings.Join(s.h.log(), "\n"); !strings.Contains(log, "insert 0 outbox: id=c1\ninsert 1 outbox: id=c2\ninsert 2 outbox: id=c3") {
		t.Fatalf("the rows of COPY are\n%s", log)
	}
}

// trap 25: rows of a partitioned table come under its own name.
func TestPartitionedTable(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, `CREATE TABLE outbox(id int, payload text) PARTITION BY RANGE (id); CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (0) TO (10);
		CREATE TABLE outbox_2(payload text, id int); ALTER TABLE outbox ATTACH PARTITION outbox_2 FOR VALUES FROM (10) TO (20)`)
	publish(t, db, "outbox")
	s := streamFrom(t, db, db.DSN)
	db.Exec(t, "INSERT INTO outbox VALUES (1, 'a'), (11, 'b')")
	db.Exec(t, "CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES FROM (20) TO (30); INSERT INTO outbox VALUES (21, 'c')")
	if got := fmt.Sprint(s.h.rowsOf(t, 3)); got != "[map[id:1 payload:a] map[id:11 payload:b] map[id:21 payload:c]]" {
		t.Fatalf("got %s", got)
	}
	for _, line := range s.h.log() {
		if strings.Contains(line, "outbox_") {
			t.Fatalf("a row came under its partition's name: %s", line)
		}
	}
}
