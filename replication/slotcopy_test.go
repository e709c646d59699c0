package replication

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

func copySlot(t *testing.T, db *testkit.DB, change func(*CopyConfig)) *SlotCopy {
	t.Helper()
	cfg := CopyConfig{ConnString: db.DSN, Slot: db.Slot, Publications: []string{db.Publication}}
	if change != nil {
		change(&cfg)
	}
	c, err := CopySlot(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(within(t)) })
	return c
}

func walEnd(t *testing.T, db *testkit.DB) event.LSN {
	t.Helper()
	var text string
	if err := db.Conn(t).QueryRow(within(t), "SELECT pg_current_wal_flush_lsn()::text").Scan(&text); err != nil {
		t.Fatal(err)
	}
	lsn, err := event.ParseLSN(text)
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

// payloads are what a recorder saw, in order.
func payloads(h *recorder) string {
	var all []string
	for _, row := range h.rows {
		all = append(all, row["payload"])
	}
	return strings.Join(all, " ")
}

// A copy is read whatever the slot's holder does, in pages that end with a transaction;
// the slot stays where it is, and no copy is left behind.
func TestSlotCopyConsumesNothing(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, outboxDDL)
	publish(t, db, "outbox")
	running := streamFrom(t, db, db.DSN) // confirms nothing
	for n := range 4 {
		db.Exec(t, fmt.Sprintf("BEGIN; INSERT INTO outbox(payload) VALUES ('%d'), ('%d'); COMMIT", 2*n, 2*n+1))
	}
	db.Exec(t, "BEGIN; INSERT INTO outbox(payload) VALUES ('99'); ROLLBACK")
	running.h.until(t, "four commits", func() bool { return len(running.h.ends) >= 4 })
	before, err := ReadSlot(within(t), db.Conn(t), db.Slot)
	if err != nil || !before.Active {
		t.Fatalf("%+v, %v", before, err)
	}
	for _, page := range []int{1, 3, 0} {
		c := copySlot(t, db, func(cfg *CopyConfig) { cfg.Page = page })
		if c.From != before.ConfirmedFlush {
			t.Errorf("the copy stands at %s, the slot at %s", c.From, before.ConfirmedFlush)
		}
		h := newRecorder()
		if err := c.Read(within(t), walEnd(t, db), h); err != nil {
			t.Fatal(err)
		}
		if got := payloads(h); got != "0 1 2 3 4 5 6 7" {
			t.Errorf("page %d: read %s", page, got)
		}
		if !slices.Equal(h.ends, running.h.ends[:len(h.ends)]) {
			t.Errorf("page %d: ends %v, the stream's %v", page, h.ends, running.h.ends)
		}
		c.Close(within(t))
	}
	after, err := ReadSlot(within(t), db.Conn(t), db.Slot)
	if err != nil || after.ConfirmedFlush != before.ConfirmedFlush || after.ActivePID != before.ActivePID {
		t.Errorf("the slot was %+v and is %+v (%v)", before, after, err)
	}
	var left int
	if err := db.Conn(t).QueryRow(within(t), "SELECT count(*) FROM pg_replication_slots WHERE database = $1 AND slot_name <> $2", db.Name, db.Slot).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d copies are left (%v)", left, err)
	}
}

// It ends where it was told to, and at the handler's word; a row above the limit is not
// fetched.
func TestSlotCopyEnds(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, outboxDDL)
	publish(t, db, "outbox")
	db.Exec(t, "INSERT INTO outbox(payload) VALUES ('1')")
	until := walEnd(t, db)
	db.Exec(t, "INSERT INTO outbox(payload) VALUES ('2')")
	db.Exec(t, `INSERT INTO outbox(payload) VALUES (to_jsonb(repeat('x', 5000)))`)
	h := newRecorder()
	if err := copySlot(t, db, nil).Read(within(t), until, h); err != nil || payloads(h) != "1" {
		t.Errorf("up to %s: %s (%v)", until, payloads(h), err)
	}
	h = newRecorder()
	h.onInsert = func(*event.Row) error { return ErrEnough }
	if err := copySlot(t, db, nil).Read(within(t), walEnd(t, db), h); err != nil || payloads(h) != "1" {
		t.Errorf("enough: %s (%v)", payloads(h), err)
	}
	h = newRecorder()
	h.onInsert = func(*event.Row) error { return errors.New("no more") }
	if err := copySlot(t, db, nil).Read(within(t), walEnd(t, db), h); err == nil || !strings.Contains(err.Error(), "no more") {
		t.Errorf("the handler's error came back as %v", err)
	}
	h = newRecorder()
	err := copySlot(t, db, func(cfg *CopyConfig) { cfg.MaxRowBytes = 1000 }).Read(within(t), walEnd(t, db), h)
	var refusal *event.Refusal
	if !errors.As(err, &refusal) || refusal.Reason != event.ReasonTooLarge || payloads(h) != "1 2" {
		t.Errorf("large row: %v after %s", err, payloads(h))
	}
}

// What cannot be copied says why, as the start checks do.
func TestSlotCopyRefusals(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	refused := func(slot, text string, class operr.Class) {
		t.Helper()
		_, err := CopySlot(within(t), CopyConfig{ConnString: db.DSN, Slot: slot, Publications: []string{db.Publication}})
		if operr.ClassOf(err) != class || !strings.Contains(err.Error(), text) || operr.HintOf(err) == "" {
			t.Errorf("%v of class %v, hint %q; want %q", err, operr.ClassOf(err), operr.HintOf(err), text)
		}
	}
	refused(db.Slot, "does not exist", operr.Slot)
	db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'test_decoding')", db.Slot))
	refused(db.Slot, "test_decoding", operr.Slot)
	db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", db.Slot))

	db.Exec(t, outboxDDL)
	newSlot(t, db)
	db.Exec(t, "INSERT INTO outbox(payload) VALUES ('1')")
	err := copySlot(t, db, nil).Read(within(t), walEnd(t, db), newRecorder())
	if db.VersionNum(t) < 180000 && (err == nil || operr.HintOf(err) != hintPublication) {
		t.Errorf("without a publication: %v, hint %q", err, operr.HintOf(err))
	}
}

// A publication is a publisher's own if it was made for its tables and nothing else.
func TestOtherMembers(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.Exec(t, outboxDDL)
	db.Exec(t, `CREATE SCHEMA "a.b"; CREATE TABLE "a.b".c (id int); CREATE TABLE parts (id int) PARTITION BY LIST (id);
		CREATE TABLE part_1 PARTITION OF parts FOR VALUES IN (1);
		CREATE PUBLICATION own FOR TABLE outbox, parts; CREATE PUBLICATION shared FOR TABLE outbox, "a.b".c; CREATE PUBLICATION everything FOR ALL TABLES`)
	tables := []Table{{"public", "outbox"}, {"public", "parts"}, {"a", "b.c"}}
	for name, want := range map[string]string{"own": "", "none": "", "shared": "table a.b.c", "everything": "all tables"} {
		got, err := OtherMembers(within(t), db.Conn(t), name, tables)
		if err != nil || got != want {
			t.Errorf("%s: %q (%v), want %q", name, got, err, want)
		}
	}
	if db.VersionNum(t) < 150000 {
		return
	}
	db.Exec(t, "CREATE PUBLICATION schemas FOR TABLES IN SCHEMA public")
	if got, err := OtherMembers(within(t), db.Conn(t), "schemas", tables); err != nil || got != "schema public" {
		t.Errorf("schemas: %q (%v)", got, err)
	}
}
