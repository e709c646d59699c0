package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// privateDB is a database on a server of its own, for what would disturb others.
func privateDB(t *testing.T, settings map[string]string) (*devstack.Postgres, *testkit.DB) {
	t.Helper()
	srv := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: settings})
	return srv, testkit.NewDB(t, srv.DSN())
}

// case C34 (a), trap 22: rows from before the publication end the stream with the order
// explained; not a loop.
func TestPublicationAfterSlot(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, "CREATE TABLE outbox(id text)")
	slot := newSlot(t, db)
	db.Exec(t, "INSERT INTO outbox VALUES ('early'); CREATE PUBLICATION "+db.Publication+" FOR TABLE outbox; INSERT INTO outbox VALUES ('late')")
	for name, end := range map[string]func(*Stream) error{
		"Run":        func(st *Stream) error { return st.Run(within(t), slot.ConsistentPoint, &nopHandler{}) },
		"EarlyError": func(st *Stream) error { return st.EarlyError(within(t)) },
	} {
		s, err := Connect(within(t), Config{ConnString: db.DSN, Slot: db.Slot, Publications: []string{db.Publication}})
		if err != nil {
			t.Fatal(err)
		}
		st, err := s.Start(within(t))
		if err != nil {
			t.Fatal(err)
		}
		err = end(st)
		if operr.IsTransient(err) || operr.HintOf(err) != hintPublication {
			t.Errorf("%s: %v, hint %q", name, err, operr.HintOf(err))
		}
		_ = st.Close(within(t))
		testkit.Eventually(t, patience, func() error {
			slot, err := ReadSlot(within(t), db.Conn(t), db.Slot)
			if err == nil && slot.Active {
				err = errors.New("still active")
			}
			return err
		})
	}
}

// case C34 (b), rule 7: the catalog tells of every change that could hide rows, and
// only of those.
func TestPublicationWatch(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	p := db.Publication
	db.Exec(t, fmt.Sprintf(`CREATE TABLE outbox(id int PRIMARY KEY, payload text); CREATE TABLE other(id int); CREATE TABLE parted(id int) PARTITION BY RANGE (id);
		CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10); CREATE PUBLICATION %s FOR TABLE outbox, parted WITH (publish = 'insert')`, p))
	conn := db.Conn(t)
	read := func() Publications {
		t.Helper()
		pubs, err := ReadPublications(within(t), conn, []string{p, "absent"})
		if err != nil {
			t.Fatal(err)
		}
		return pubs
	}
	tables := []Table{{"public", "outbox"}, {"public", "parted"}}
	accepted := read()
	steps := []struct{ sql, want string }{
		{"ALTER TABLE outbox ADD COLUMN extra int", ""},
		{"ALTER PUBLICATION %s ADD TABLE other", ""},
		{"ALTER PUBLICATION %s DROP TABLE other", ""},
		{"CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (20)", ""},
		{"DROP TABLE parted_1", ""},
		{"ALTER PUBLICATION %s SET TABLE parted", "lost table public.outbox"},
		{"ALTER PUBLICATION %s SET TABLE outbox, parted", ""},
		{"ALTER PUBLICATION %s SET TABLE outbox WHERE (id > 0), parted", "another row filter for table public.outbox"},
		{"ALTER PUBLICATION %s SET TABLE outbox, parted", "another row filter for table public.outbox"},
		{"ALTER PUBLICATION %s SET TABLE outbox (id), parted", "another column list for table public.outbox"},
		{"ALTER PUBLICATION %s SET TABLE outbox, parted", "another column list for table public.outbox"},
		{"ALTER PUBLICATION %s SET TABLE outbox", "lost table public.parted"},
		{"ALTER PUBLICATION %s SET TABLE outbox, parted", ""},
		{"ALTER PUBLICATION %[1]s DROP TABLE outbox; ALTER PUBLICATION %[1]s ADD TABLE outbox", "public.outbox taken out and put in again"},
		{"ALTER PUBLICATION %[1]s DROP TABLE parted; ALTER PUBLICATION %[1]s ADD TABLE parted", "public.parted taken out and put in again"},
		{"ALTER PUBLICATION %[1]s ADD TABLE other; ALTER PUBLICATION %[1]s DROP TABLE other", ""},
		{"ALTER PUBLICATION %s ADD TABLES IN SCHEMA public", "public.outbox taken out and put in again"},
		{"ALTER PUBLICATION %[1]s DROP TABLES IN SCHEMA public; ALTER PUBLICATION %[1]s ADD TABLES IN SCHEMA public", "public.outbox taken out and put in again"},
		{"ALTER PUBLICATION %s SET (publish = 'update')", "other operations"},
		{"ALTER PUBLICATION %s SET (publish = 'insert')", "other operations"},
		{"ALTER PUBLICATION %[1]s SET (publish = 'update'); ALTER PUBLICATION %[1]s SET (publish = 'insert')", "altered, if only for a moment"},
		{"ALTER PUBLICATION %s SET (publish_via_partition_root = true)", "publish_via_partition_root"},
		{"DROP PUBLICATION %s", "was dropped"},
		{"CREATE PUBLICATION %s FOR TABLE outbox, parted WITH (publish = 'insert')", "made again"},
	}
	if db.VersionNum(t) < 150000 {
		t.Skip("row filters and column lists came with 15")
	}
	for _, step := range steps {
		if strings.Contains(step.sql, "%") {
			step.sql = fmt.Sprintf(step.sql, p)
		}
		// Against the step before it, in a transaction for each statement.
		for _, sql := range strings.Split(step.sql, "; ") {
			db.Exec(t, sql)
		}
		now := read()
		got := accepted.Changed(now, tables)
		if len(now) > 0 {
			accepted = now
		}
		if (got == "") != (step.want == "") || !strings.Contains(got, step.want) {
			t.Errorf("%s: got %q, want %q", step.sql, got, step.want)
		}
	}
}

// case C34: set-up is idempotent, adds what is missing, and does not touch what others
// may rely on.
func TestEnsurePublication(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	conn := db.Conn(t)
	db.Exec(t, "CREATE TABLE a(id int); CREATE TABLE b(id int); CREATE TABLE parted(id int) PARTITION BY RANGE (id)")
	ensure := func(name string, tables ...string) (bool, error) {
		spec := PublicationSpec{Name: name}
		for _, n := range tables {
			spec.Tables = append(spec.Tables, Table{"public", n})
		}
		return EnsurePublication(within(t), conn, spec)
	}
	for _, want := range []bool{true, false} {
		if changed, err := ensure("p", "a"); err != nil || changed != want {
			t.Fatalf("changed %t, want %t (%v)", changed, want, err)
		}
	}
	if changed, err := ensure("p", "a", "b", "parted"); err != nil || !changed {
		t.Fatalf("changed %t, %v", changed, err)
	}
	if changed, err := ensure("p", "a", "b", "parted"); err != nil || changed {
		t.Fatalf("changed %t, %v", changed, err)
	}
	if changed, err := ensure("root", "parted"); err != nil || !changed {
		t.Fatalf("changed %t, %v", changed, err)
	}
	pubs, err := ReadPublications(within(t), conn, []string{"p", "root"})
	if err != nil || len(pubs) != 2 {
		t.Fatal(pubs, err)
	}
	if p := pubs[0]; !p.Insert || p.Update || p.Delete || p.Truncate || p.ViaRoot || len(p.Tables) != 3 {
		t.Errorf("%+v", p)
	}
	if !pubs[1].ViaRoot {
		t.Error("a new publication of a partitioned table does not go by the root")
	}
	db.Exec(t, "CREATE PUBLICATION noinsert FOR TABLE a WITH (publish = 'delete')")
	if _, err := ensure("noinsert", "a"); err == nil || !strings.Contains(operr.HintOf(err), `ALTER PUBLICATION "noinsert" SET`) {
		t.Errorf("%v, hint %q", err, operr.HintOf(err))
	}
	if _, err := ensure("p2", "absent"); err == nil || !strings.Contains(err.Error(), "public.absent") {
		t.Error(err)
	}
}

// The printed SQL does what the commands do.
func TestPrintedSQL(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, `CREATE TABLE "Odd ""name"""(id int)`)
	db.Exec(t, PublicationSQL(PublicationSpec{"p'q", []Table{{"public", `Odd "name"`}}}, true))
	testkit.Eventually(t, time.Minute, func() error {
		_, err := db.Conn(t).Exec(within(t), SlotSQL(db.Slot, false))
		return err
	})
	if got := Check(within(t), db.Conn(t), CheckConfig{db.Slot, []string{"p'q"}, []Table{{"public", `Odd "name"`}}}); len(got) != 0 {
		t.Fatal(problemsOf(got))
	}
	if got := SlotSQL("s", true); got != "SELECT pg_catalog.pg_create_logical_replication_slot('s', 'pgoutput', false, false, true)" {
		t.Error(got)
	}
}

// rule 6: the snapshot of the slot's creation tells rows from before it.
func TestCreateSlotGivesSnapshot(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, "CREATE TABLE outbox(id text); INSERT INTO outbox VALUES ('before')")
	slot := newSlot(t, db)
	db.Exec(t, "INSERT INTO outbox VALUES ('after')")
	var visible string
	err := db.Conn(t).QueryRow(within(t), `SELECT string_agg(id, ' ') FROM outbox
		WHERE pg_visible_in_snapshot(xmin::text::xid8, $1::pg_snapshot)`, slot.Snapshot).Scan(&visible)
	if err != nil || visible != "before" || slot.ConsistentPoint == 0 {
		t.Fatalf("visible %q, %+v, %v", visible, slot, err)
	}
	_, err = CreateSlot(within(t), db.Conn(t), SlotSpec{ConnString: db.DSN, Slot: db.Slot})
	if err == nil || operr.ClassOf(err) != operr.Slot {
		t.Fatalf("a second creation: %v", err)
	}
	if s, _ := ReadSlot(within(t), db.Conn(t), db.Slot); !s.Exists {
		t.Fatal("the failed creation dropped the slot that was there")
	}
	if _, err = CreateSlot(within(t), db.Conn(t), SlotSpec{ConnString: db.DSN, Slot: db.Slot + "_f", Failover: true}); db.VersionNum(t) < 170000 && err == nil {
		t.Fatal("a failover slot before 17")
	}
}

// rule 4: what reads at the slot's snapshot sees rows as they were, whatever becomes of
// them meanwhile; where that reading fails, no slot is left that holds WAL back.
func TestCreateSlotForAReader(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, "CREATE TABLE outbox (id int); INSERT INTO outbox VALUES (1)")
	conn, err := ConnectSQL(within(t), db.DSN, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	reader := db.Conn(t)
	spec := SlotSpec{ConnString: db.DSN, Slot: db.Slot}
	seen := 0
	made, err := CreateSlotFor(within(t), conn, spec, func(ctx context.Context, made CreatedSlot, name string) error {
		db.Exec(t, "UPDATE outbox SET id = id; INSERT INTO outbox VALUES (2)")
		_, err := reader.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '"+name+"'")
		if err != nil {
			return err
		}
		defer func() { _, _ = reader.Exec(ctx, "ROLLBACK") }()
		return reader.QueryRow(ctx, "SELECT count(*) FROM outbox").Scan(&seen)
	})
	if err != nil || seen != 1 {
		t.Fatalf("%d rows seen at the slot's snapshot, error %v", seen, err)
	}
	if slot, err := ReadSlot(within(t), conn, db.Slot); err != nil || slot.ConfirmedFlush != made.ConsistentPoint || slot.Active {
		t.Errorf("made %+v, the slot is %+v, error %v", made, slot, err)
	}
	if err := DropSlot(within(t), conn, db.Slot); err != nil {
		t.Fatal(err)
	}
	if err := DropSlot(within(t), conn, db.Slot); err != nil {
		t.Errorf("dropped twice: %v", err)
	}
	wrong := errors.New("the table cannot be read")
	_, err = CreateSlotFor(within(t), conn, spec, func(context.Context, CreatedSlot, string) error { return wrong })
	if !errors.Is(err, wrong) {
		t.Errorf("error %v, want that of the reader", err)
	}
	if slot, err := ReadSlot(within(t), conn, db.Slot); err != nil || slot.Exists {
		t.Errorf("after the reader failed: %+v, error %v", slot, err)
	}
}

// case C34 (c): an open transaction blocks the creation, which returns within the
// limit, names the pid and leaves no slot; lock_timeout alone is not what does it.
func TestBlockedSlotCreation(t *testing.T) {
	t.Parallel()
	_, db := privateDB(t, nil)
	blocker := db.Conn(t)
	if _, err := blocker.Exec(within(t), "CREATE TABLE outbox(id text); BEGIN; INSERT INTO outbox VALUES ('open')"); err != nil {
		t.Fatal(err)
	}
	gone := func() {
		t.Helper()
		if s, err := ReadSlot(within(t), db.Conn(t), db.Slot); err != nil || s.Exists {
			t.Fatalf("a slot was left behind: %+v, %v", s, err)
		}
	}
	began := time.Now()
	_, err := CreateSlot(within(t), db.Conn(t), SlotSpec{ConnString: db.DSN, Slot: db.Slot, Limit: 500 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", blocker.PgConn().PID())) || operr.ClassOf(err) != operr.Slot {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Fatalf("took %s", took)
	}
	t.Log(err)
	gone()

	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err = CreateSlot(ctx, db.Conn(t), SlotSpec{ConnString: db.DSN, Slot: db.Slot, Limit: time.Minute})
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "57014" {
		t.Fatalf("after the caller gave up: %v", err)
	}
	gone()
}

// case C34 (c), the limit of lock_timeout: it bounds each wait, not their sum. With a
// blocker that is always a new one, the watcher ends the creation.
func TestSlotCreationBlockedByOneAfterTheOther(t *testing.T) {
	t.Parallel()
	_, db := privateDB(t, nil)
	db.Exec(t, "CREATE TABLE outbox(id text)")
	conns := []*pgx.Conn{db.Conn(t), db.Conn(t)}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // at each moment one transaction is open, and none for long
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			_, err := conns[i%2].Exec(context.Background(), "BEGIN; INSERT INTO outbox VALUES ('x')")
			if err == nil && i > 0 {
				_, err = conns[(i+1)%2].Exec(context.Background(), "ROLLBACK")
			}
			if err != nil {
				t.Error(err)
				return
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	began := time.Now()
	_, err := CreateSlot(within(t), db.Conn(t), SlotSpec{ConnString: db.DSN, Slot: db.Slot, Limit: 700 * time.Millisecond})
	close(stop)
	<-done
	t.Log(err)
	if took := time.Since(began); took > 5*time.Second {
		t.Fatalf("took %s", took)
	}
	s, readErr := ReadSlot(within(t), db.Conn(t), db.Slot)
	if readErr != nil || s.Exists != (err == nil) {
		t.Fatalf("%+v, %v; the creation said %v", s, readErr, err)
	}
}
