package replication

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// problemsOf gives each problem as "subject: cause".
func problemsOf(problems []*operr.Error) (lines []string) {
	for _, p := range problems {
		lines = append(lines, p.Error())
	}
	return lines
}

// case C34, trap 22, trap 25: the start checks name each thing that is wrong, all of
// them at once, each with what to do.
func TestCheckNamesEveryProblem(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	other := testkit.Postgres(t)
	conn := db.Conn(t)
	db.Exec(t, fmt.Sprintf(`CREATE TABLE outbox(id text); CREATE TABLE stray(id text); CREATE UNLOGGED TABLE unlogged(id text);
		CREATE PUBLICATION %[1]s FOR TABLE outbox; CREATE PUBLICATION %[1]s_noinsert FOR TABLE stray WITH (publish = 'update')`, db.Publication))
	newSlot(t, other)
	ok := CheckConfig{Publications: []string{db.Publication}, Tables: []Table{{"public", "outbox"}}}
	if problems := Check(within(t), conn, ok); len(problems) != 0 {
		t.Fatal(problemsOf(problems))
	}
	got := Check(within(t), conn, CheckConfig{
		Slot: other.Slot, Publications: []string{db.Publication, db.Publication + "_noinsert", strings.ToUpper(db.Publication)},
		Tables: []Table{{"public", "outbox"}, {"public", "stray"}, {"public", "Outbox"}, {"public", "unlogged"}},
	})
	wantLines(t, problemsOf(got),
		fmt.Sprintf(`check publication %q: it does not publish inserts`, db.Publication+"_noinsert"),
		fmt.Sprintf(`check publication %q: it does not exist in this database`, strings.ToUpper(db.Publication)),
		`check publication of table public.stray: no configured publication publishes its inserts`,
		`check table public.Outbox: it does not exist in this database`,
		`check table public.unlogged: it is unlogged or temporary: its rows are not in the WAL`,
		fmt.Sprintf(`check slot %q: it belongs to database %q, the connection is to %q`, other.Slot, other.Name, db.Name))
	for _, p := range got {
		if p.Hint == "" || p.Transient {
			t.Errorf("no hint, or transient: %v", p)
		}
	}
	if got[5].Class != operr.Slot || got[0].Class != operr.Postgres {
		t.Error("wrong classes")
	}
}

func TestCheckSlots(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, fmt.Sprintf(`SELECT pg_create_physical_replication_slot('%s_phys')`, db.Slot))
	t.Cleanup(func() { db.Exec(t, fmt.Sprintf(`SELECT pg_drop_replication_slot('%s_phys')`, db.Slot)) })
	conn := db.Conn(t)
	for name, want := range map[string]string{"_phys": "it is a physical slot", "_none": "it does not exist"} {
		got := Check(within(t), conn, CheckConfig{Slot: db.Slot + name})
		if len(got) != 1 || got[0].Class != operr.Slot || !strings.Contains(got[0].Error(), want) || got[0].Hint == "" {
			t.Errorf("%s: %v", name, problemsOf(got))
		}
	}
	plugin := SlotInfo{Name: "s", Exists: true, Logical: true, Plugin: "test_decoding", Database: "d"}
	if p := plugin.Problem("d"); p == nil || !strings.Contains(p.Error(), "output plugin is test_decoding") {
		t.Error(p)
	}
	temporary := SlotInfo{Name: "s", Exists: true, Logical: true, Plugin: Plugin, Database: "d", Temporary: true}
	if p := temporary.Problem("d"); p == nil {
		t.Error("a temporary slot was accepted")
	}
	invalid := SlotInfo{Name: "s", Exists: true, Logical: true, Plugin: Plugin, Database: "d", WALStatus: "reserved", InvalidationReason: "rows_removed"}
	if p := invalid.Problem("d"); p == nil || !strings.Contains(p.Error(), "rows_removed") {
		t.Error(p)
	}
}

// The role needs REPLICATION; without it the check says so, and so does Connect.
func TestRoleWithoutReplication(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	role := testkit.Unique(t)
	db.Exec(t, "CREATE ROLE "+role+" LOGIN PASSWORD 'secret'")
	t.Cleanup(func() { db.Exec(t, "DROP ROLE "+role) })
	conn, err := ConnectSQL(within(t), db.As(role, "secret"), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	got := Check(within(t), conn, CheckConfig{})
	if len(got) != 1 || !strings.Contains(got[0].Hint, "ALTER ROLE") || !strings.Contains(got[0].Error(), "REPLICATION") {
		t.Fatal(problemsOf(got))
	}
	for _, password := range []string{"secret", "wrong"} {
		_, err = Connect(within(t), Config{ConnString: db.As(role, password), Slot: "s", Publications: []string{"p"}})
		if err == nil || operr.ClassOf(err) != operr.Postgres || operr.IsTransient(err) || operr.HintOf(err) == "" {
			t.Fatalf("%s: %v, hint %q", password, err, operr.HintOf(err))
		}
	}
}

func TestMissingDatabaseAndServer(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	_, err := ConnectSQL(within(t), strings.Replace(db.DSN, db.Name, "no_such_database", 1), "test")
	if err == nil || operr.IsTransient(err) || operr.HintOf(err) == "" {
		t.Fatalf("%v, hint %q", err, operr.HintOf(err))
	}
	_, err = ConnectSQL(within(t), "postgres://u@127.0.0.1:1/d?sslmode=disable", "test")
	if !operr.IsTransient(err) {
		t.Fatal(err)
	}
}

func TestCheckWALLevel(t *testing.T) {
	t.Parallel()
	_, db := privateDB(t, map[string]string{"wal_level": "replica"})
	got := Check(within(t), db.Conn(t), CheckConfig{})
	if len(got) != 1 || !strings.Contains(got[0].Error(), "wal_level is replica") || !strings.Contains(got[0].Hint, "restart") {
		t.Fatal(problemsOf(got))
	}
	_, err := CreateSlot(within(t), db.Conn(t), SlotSpec{ConnString: db.DSN, Slot: db.Slot})
	if err == nil || operr.IsTransient(err) || !strings.Contains(operr.HintOf(err), "wal_level") {
		t.Fatalf("%v, hint %q", err, operr.HintOf(err))
	}
}

// case C32, trap 10: a lost slot says what it was confirmed to, and what to do.
func TestLostSlot(t *testing.T) {
	t.Parallel()
	_, db := privateDB(t, map[string]string{"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"})
	db.Exec(t, "CREATE TABLE outbox(id text)")
	publish(t, db, "outbox")
	conn := db.Conn(t)
	for i := 0; ; i++ {
		db.Exec(t, "SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)); SELECT pg_switch_wal(); CHECKPOINT")
		slot, err := ReadSlot(within(t), conn, db.Slot)
		if err != nil || i == 50 {
			t.Fatalf("%+v, %v", slot, err)
		}
		if !slot.HasSafeWALSize && !slot.Lost() {
			t.Fatalf("max_slot_wal_keep_size bounds the slot: %+v", slot)
		}
		if slot.Lost() {
			break
		}
	}
	slot, _ := ReadSlot(within(t), conn, db.Slot)
	got := Check(within(t), conn, CheckConfig{Slot: db.Slot})
	if len(got) != 1 || got[0].Class != operr.Slot || got[0].Transient {
		t.Fatal(problemsOf(got))
	}
	for _, want := range []string{db.Slot, "wal_status=lost", slot.ConfirmedFlush.String(), "may be missing"} {
		if !strings.Contains(got[0].Error(), want) {
			t.Errorf("%q does not say %q", got[0], want)
		}
	}
	s, err := Connect(within(t), Config{ConnString: db.DSN, Slot: db.Slot, Publications: []string{db.Publication}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	if _, err := s.Start(within(t)); operr.ClassOf(err) != operr.Slot || operr.IsTransient(err) || operr.HintOf(err) != hintSlotLost {
		t.Fatalf("%v, hint %q", err, operr.HintOf(err))
	}
}

// trap 25: where a detached partition's rows could be taken for somebody else's, the
// check refuses; trap 12: so it does a slot that sends what is only prepared.
func TestCheckRefusesWhatCannotBeTold(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	conn := db.Conn(t)
	db.Exec(t, fmt.Sprintf(`CREATE TABLE outbox(id int) PARTITION BY RANGE (id); CREATE TABLE leaf PARTITION OF outbox DEFAULT;
		CREATE PUBLICATION %[1]s FOR ALL TABLES; CREATE PUBLICATION %[1]s_root FOR ALL TABLES WITH (publish_via_partition_root = true);
		CREATE PUBLICATION %[1]s_list FOR TABLE outbox`, db.Publication))
	tables := []Table{{"public", "outbox"}}
	for suffix, refused := range map[string]bool{"": true, "_root": false, "_list": false} {
		problems := Check(within(t), conn, CheckConfig{Publications: []string{db.Publication + suffix}, Tables: tables})
		if (len(problems) == 1) != refused || len(problems) > 1 {
			t.Errorf("publication %q: %q", suffix, problemsOf(problems))
		}
	}
	db.Exec(t, fmt.Sprintf(`SELECT pg_create_logical_replication_slot('%s', 'pgoutput', false, true)`, db.Slot))
	slot, err := ReadSlot(within(t), conn, db.Slot)
	if err != nil {
		t.Fatal(err)
	}
	if p := slot.Problem(db.Name); p == nil || !strings.Contains(p.Error(), "two_phase") || p.Hint == "" {
		t.Errorf("a two_phase slot gives %v", p)
	}
}
