package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// logText keeps what a relay logs.
type logText struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// line gives the last line that holds all the texts, or "".
func (l *logText) line(texts ...string) (found string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.all.String()) {
		missing := false
		for _, text := range texts {
			missing = missing || !strings.Contains(line, text)
		}
		if !missing {
			found = line
		}
	}
	return found
}

func (l *logText) await(t *testing.T, texts ...string) string {
	t.Helper()
	var line string
	testkit.Eventually(t, patience, func() error {
		if line = l.line(texts...); line == "" {
			return fmt.Errorf("no line of the log has %q", texts)
		}
		return nil
	})
	return line
}

// keepLog has the fixture's relays log into a text, besides the test's own log.
func (f *fixture) keepLog() *logText {
	l := &logText{}
	f.cfg.Log = zerolog.New(zerolog.MultiLevelWriter(zerolog.NewTestWriter(f.t), l)).Level(zerolog.InfoLevel)
	return l
}

// heal does what a hint says where the operator takes the gap: the slot, if nothing comes
// from it any more, is made anew by hand, and its position accepted.
func (f *fixture) heal(hint string) {
	f.t.Helper()
	if !strings.Contains(hint, "postrider recover") {
		f.t.Fatalf("the hint does not name the command that finds what is missing: %s", hint)
	}
	if row := f.slotRow(); row == "none" || strings.Contains(row, "lost") {
		f.db.Exec(f.t, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '"+f.db.Slot+"'")
		f.db.Exec(f.t, "SELECT pg_create_logical_replication_slot('"+f.db.Slot+"', 'pgoutput')")
	} else if !strings.Contains(hint, "postrider checkpoint accept") {
		f.t.Fatalf("the hint does not name the command that accepts: %s", hint)
	}
	requireDone(f.t, spawn(f.t, "checkpoint", "accept", "--yes", "--reason", "a test", "--config", f.yaml("")))
}

// requireRefusedStart fails the test unless err is of the class, has a hint and names the texts.
func requireRefusedStart(t *testing.T, err error, class operr.Class, texts ...string) {
	t.Helper()
	if err == nil || operr.ClassOf(err) != class || operr.HintOf(err) == "" {
		t.Fatalf("the run ended with %v (class %d, try %q), want class %d and a hint", err, operr.ClassOf(err), operr.HintOf(err), class)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error lacks %q: %v", text, err)
		}
	}
}

// slotRow is everything that tells one slot from another made in its place.
func (f *fixture) slotRow() string {
	f.t.Helper()
	return f.scalar("SELECT coalesce((SELECT concat_ws(' ', slot_name, plugin, database, wal_status, confirmed_flush_lsn, active) FROM pg_replication_slots WHERE slot_name = '" + f.db.Slot + "'), 'none')")
}

// segments fills WAL segments; nothing of it is an event.
func (f *fixture) segments(n int) {
	f.t.Helper()
	for range n {
		f.db.Exec(f.t, "SELECT pg_logical_emit_message(false, 'fill', repeat('x', 100000))")
		f.db.Exec(f.t, "SELECT pg_switch_wal()")
	}
}

// setting changes a setting of a server that only this test uses.
func (f *fixture) setting(name, value string) {
	f.t.Helper()
	f.db.Exec(f.t, fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value))
	f.db.Exec(f.t, "SELECT pg_reload_conf()")
	testkit.EventuallyTrue(f.t, patience, name+" has not changed", func() bool {
		return f.scalar("SELECT current_setting('"+name+"')") == value
	})
}

// keepsLittleWAL are the settings of a server on which a slot can be lost.
var keepsLittleWAL = map[string]string{
	"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "1GB", "max_slot_wal_keep_size": "10GB",
}

// TestLostSlot: PostgreSQL gives up WAL that the slot needs. While it comes to that
// the relay warns; then the run ends, and a start refuses with exit code 5, the
// position and the command that heals. Nothing makes the slot anew by itself (case C32,
// traps 10 and 24).
func TestLostSlot(t *testing.T) {
	t.Parallel()
	requireLostSlotRefused(t, testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: keepsLittleWAL}).DSN())
}

func requireLostSlotRefused(t *testing.T, server string) {
	t.Helper()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.NewDB(t, server), fake.Broker)
	log := f.keepLog()
	config := f.yaml("")
	run := f.start()
	f.series("order", "k", 1, 3)
	f.awaitRecords(f.topic("order"), 3)
	f.awaitConfirmed(f.walEnd())
	fake.Server.Halt()
	f.insert("order", "k", "4")
	run.awaitUnconfirmed(1)

	f.segments(6)
	f.setting("max_wal_size", "32MB")
	log.await(t, `"level":"warn"`, `"wal_status":"extended"`, f.db.Slot, "safe_wal_bytes")
	f.setting("max_slot_wal_keep_size", "1MB")
	log.await(t, `"level":"warn"`, `"wal_status":"unreserved"`)
	f.db.Exec(t, "CHECKPOINT")
	confirmed := f.confirmed()
	requireRefusedStart(t, run.wait(patience), operr.Slot, f.db.Slot, "wal_status=lost", confirmed.String(), "may be missing")

	before := f.slotRow()
	if !strings.Contains(before, "lost") {
		t.Fatalf("the slot is not lost: %s", before)
	}
	must(t, fake.Server.Start())
	said := requireExit(t, spawn(t, "run", "--config", config), operr.Slot.ExitCode(), f.db.Slot, "wal_status=lost", confirmed.String(), "may be missing")
	if after := f.slotRow(); after != before {
		t.Errorf("the slot was %s and is %s", before, after)
	}

	f.heal(said)
	f.insert("order", "k", "5")
	requireDone(t, spawn(t, "run", "--until-lsn", "now", "--config", config))
	if v := values(f.awaitRecords(f.topic("order"), 4)); strings.Join(v, " ") != "1 2 3 5" {
		t.Errorf("published %v; 4 was given up", v)
	}
}

// requireExit waits for a process to end by itself and fails the test unless it said
// one error with all the texts, and one thing to try. It gives what it said.
func requireExit(t *testing.T, p *process, code int, texts ...string) string {
	t.Helper()
	got := p.wait(patience)
	said := p.said()
	text, err := os.ReadFile(p.stderr)
	must(t, err)
	_, problem, _ := strings.Cut("\n"+string(text), "\npostrider: ")
	if got != code {
		t.Fatalf("exit code %d, want %d; it said:\n%s", got, code, said)
	}
	if problem == "" || strings.Contains(problem, "\npostrider: ") || strings.Count(problem, "\nTry: ") != 1 {
		t.Fatalf("want one error and one thing to try; it said:\n%s", said)
	}
	for _, text := range texts {
		if !strings.Contains(problem, text) {
			t.Errorf("the error lacks %q: %s", text, problem)
		}
	}
	t.Logf("postrider: %s", problem)
	return problem
}

// requireDone waits for a process that has no reason to fail.
func requireDone(t *testing.T, p *process) {
	t.Helper()
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit code %d; it said:\n%s", code, p.said())
	}
}

// TestPositionIsBound: a stored position says something about one slot of one server
// only. Each start is refused with what may be missing and the command that heals; nothing
// is published or confirmed before that (trap 10, rule 3, case C31d).
func TestPositionIsBound(t *testing.T) {
	t.Parallel()
	recreate := "SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')"
	for _, c := range []struct {
		name string
		// spoil is SQL; SLOT is the slot. An event was committed and not published before it.
		spoil string
		names []string
		// again: the event is published after the remedy, since the slot still has it.
		again bool
	}{
		{"slot dropped", "SELECT pg_drop_replication_slot('SLOT')", []string{"does not exist"}, false},
		{"slot recreated", recreate, []string{"moved or created anew"}, false},
		{"slot advanced by hand", "SELECT pg_replication_slot_advance('SLOT', pg_current_wal_lsn())", []string{"moved or created anew"}, false},
		{"row of another system", "UPDATE postrider.checkpoint SET system_id = '7'", []string{"system identifier 7"}, true},
		{"row of another slot", "UPDATE postrider.checkpoint SET slot = 'another_slot'", []string{"another_slot"}, true},
		{"row of a timeline that is no ancestor", "UPDATE postrider.checkpoint SET timeline = 9", []string{"timeline 9"}, true},
		{
			"row of an older slot of the name", "UPDATE postrider.checkpoint SET slot_birth_lsn = pg_current_wal_lsn()",
			[]string{"not the slot for which"},
			true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.insert("order", "k", "1")
			f.mustDrain()
			// Without the latch: with it, see TestDoubtfulStart.
			f.db.Exec(t, "UPDATE postrider.checkpoint SET idle = false")
			stored := f.stored()
			f.insert("order", "k", "2")
			for _, sql := range strings.Split(strings.ReplaceAll(c.spoil, "SLOT", f.db.Slot), "; ") {
				f.db.Exec(t, sql)
			}
			before := f.slotRow()
			err := f.drain()
			requireRefusedStart(t, err, operr.Slot, append(c.names, f.db.Slot, stored.String())...)
			if after := f.slotRow(); after != before {
				t.Errorf("the slot was %s and is %s", before, after)
			}
			if got := len(f.broker.ReadAll(t, f.topic("order"))); got != 1 {
				t.Errorf("%d records before the remedy, want 1", got)
			}
			f.heal(operr.HintOf(err))
			f.insert("order", "k", "3")
			f.mustDrain()
			want := "1 3"
			if c.again {
				want = "1 2 3"
			}
			got, _ := firsts(t, f.broker.ReadAll(t, f.topic("order")))
			if strings.Join(got, " ") != want {
				t.Errorf("published %v after the remedy, want %s", got, want)
			}
		})
	}
}

// idleUntilCrash runs a relay until it has published one event, latched the row and
// confirmed foreign WAL past it, and ends it as a crash does: it writes nothing more.
// around, if it is not nil, is called before the event and gives what is called after it.
func (f *fixture) idleUntilCrash(around func() (after func())) {
	f.t.Helper()
	proxy := f.postgresProxy()
	cfg := f.cfg
	f.cfg.Replication.ConnString = f.db.DSN // for what comes after
	cfg.Timers.Watch = 50 * time.Millisecond
	cfg.Replication.StatusInterval = statusEvery
	cfg.ShutdownTimeout = time.Second
	run := startRelay(f.t, cfg)
	run.awaitPhase("streaming")
	after := func() {}
	if around != nil {
		after = around()
	}
	f.insert("order", "k", "1")
	f.awaitRecords(f.topic("order"), 1)
	after()
	testkit.EventuallyTrue(f.t, patience, "the idle row is not written", func() bool {
		return f.scalar("SELECT idle::text FROM postrider.checkpoint") == "true"
	})
	f.db.Exec(f.t, "SELECT pg_logical_emit_message(true, 'foreign', repeat('x', 1000))")
	f.awaitConfirmed(f.walEnd())
	if f.confirmed() <= f.stored() {
		f.t.Fatalf("confirmed %s, stored %s: the test shows nothing", f.confirmed(), f.stored())
	}
	proxy.Refuse(true)
	proxy.Cut()
	_ = run.stop()
	testkit.EventuallyTrue(f.t, patience, "the slot is still held", func() bool { return f.walsender() == "" })
}

// TestIdleLatchOverACrash: the slot stands past the row, over WAL without events, when
// the relay dies. The next one proves that nothing lies between, publishes nothing
// twice and goes on (rules 3 and 4).
func TestIdleLatchOverACrash(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	log := f.keepLog()
	f.idleUntilCrash(nil)
	slot := f.confirmed()
	f.insert("order", "k", "2")
	f.mustDrain()
	log.await(t, "proving that nothing lies between", `"suspects":1`)
	if v := values(f.broker.ReadAll(t, f.topic("order"))); strings.Join(v, " ") != "1 2" {
		t.Errorf("published %v", v)
	}
	if f.confirmed() <= slot || f.stored() != f.confirmed() {
		t.Errorf("confirmed %s, stored %s, the slot stood at %s", f.confirmed(), f.stored(), slot)
	}
}

// TestLatchWaitsForOpenTransactions: while a transaction is open that was so when the
// event came, no snapshot can tell the event's row from a missing one. The latch waits
// for its end, and the start after a crash is proved (rules 3 and 4).
func TestLatchWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	// An open transaction holds up the making of every slot on its server.
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
	f.idleUntilCrash(func() func() {
		conn := f.db.Conn(t)
		_, err := conn.Exec(context.Background(), "BEGIN; CREATE TABLE foreign_work()")
		must(t, err)
		return func() {
			f.awaitConfirmed(f.stored())
			f.awaitStatuses(5)
			_, err := conn.Exec(context.Background(), "COMMIT")
			must(t, err)
		}
	})
	f.insert("order", "k", "2")
	f.mustDrain()
	if v := values(f.broker.ReadAll(t, f.topic("order"))); strings.Join(v, " ") != "1 2" {
		t.Errorf("published %v", v)
	}
}

// TestDoubtfulStart: under the latch a slot that was made anew looks like one that was
// confirmed over event-free WAL. The rows of the table tell: where none is missing the
// start is proved, where one is it is refused, names it, and the hint heals
// (rules 3 and 4, trap 10).
func TestDoubtfulStart(t *testing.T) {
	t.Parallel()
	for name, missing := range map[string]bool{"proved": false, "a row is missing": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.idleUntilCrash(nil)
			f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
			if missing {
				f.insert("order", "k", "2")
			}
			f.db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", f.db.Slot))
			slot, stored := f.confirmed(), f.stored()
			f.insert("order", "k", "3")
			if missing {
				err := f.drain()
				requireRefusedStart(t, err, operr.Slot, f.scalar("SELECT id::text FROM outbox WHERE payload = '2'"))
				if strings.Contains(err.Error(), f.scalar("SELECT id::text FROM outbox WHERE payload = '1'")) {
					t.Errorf("the first event is published and ticked off: %v", err)
				}
				if f.confirmed() != slot || f.stored() != stored {
					t.Errorf("confirmed %s stored %s, want %s and %s", f.confirmed(), f.stored(), slot, stored)
				}
				// In doubt once more, until somebody has looked.
				requireRefusedStart(t, f.drain(), operr.Slot)
				f.heal(operr.HintOf(err))
			}
			f.mustDrain()
			if got, _ := firsts(t, f.broker.ReadAll(t, f.topic("order"))); strings.Join(got, " ") != "1 3" {
				t.Errorf("published %v", got)
			}
		})
	}
}

// TestPublicationYoungerThanTheSlot: rows that were written between slot and
// publication cannot be decoded. The run ends with an error that explains the order,
// without an endless retry (case C34a, trap 22).
func TestPublicationYoungerThanTheSlot(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.requireLatePublicationRefused()
}

func (f *fixture) requireLatePublicationRefused() {
	f.t.Helper()
	f.db.Exec(f.t, "DROP PUBLICATION "+quoted(f.db.Publication))
	f.insert("order", "k", "1")
	f.db.Exec(f.t, fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE outbox WITH (publish = 'insert')", quoted(f.db.Publication)))
	f.insert("order", "k", "2")
	before := f.confirmed()
	said := requireExit(f.t, spawn(f.t, "run", "--config", f.yaml("")), operr.Postgres.ExitCode(), f.db.Publication)
	for _, text := range []string{"publication before the slot", "new slot"} {
		if !strings.Contains(said, text) {
			f.t.Errorf("the remedy lacks %q: %s", text, said)
		}
	}
	if f.confirmed() != before {
		f.t.Errorf("confirmed moved from %s to %s", before, f.confirmed())
	}
	// What the stream cannot give, the table does.
	if done := f.recover("--yes", "--new-slot"); done.code != 0 || done.Published != 2 {
		f.t.Errorf("recover --new-slot: %d, %d published", done.code, done.Published)
	}
	f.insert("order", "k", "3")
	f.ran()
	f.requireSeries(f.topic("order"), 1, 3)
}

// TestDroppedPublication: the publication goes while the relay runs, and comes back or
// not. The run ends within a look at it, and nothing that was written meanwhile is
// confirmed (case C34b, rule 7).
func TestDroppedPublication(t *testing.T) {
	t.Parallel()
	for name, how := range publicationLosses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newFixture(t, testkit.Postgres(t), testkit.Kafka(t)).requireLossNoticed(how)
		})
	}
}

// publicationLosses are SQL; $P is the publication, INSERT commits an event.
var publicationLosses = map[string]string{
	"dropped":                     "DROP PUBLICATION $P; INSERT",
	"dropped in the quiet":        "DROP PUBLICATION $P",
	"dropped and made again":      "DROP PUBLICATION $P; INSERT; CREATE PUBLICATION $P FOR TABLE outbox WITH (publish = 'insert')",
	"table taken out":             "ALTER PUBLICATION $P DROP TABLE outbox; INSERT",
	"table out and in again":      "ALTER PUBLICATION $P DROP TABLE outbox; INSERT; ALTER PUBLICATION $P ADD TABLE outbox",
	"operations changed and back": "ALTER PUBLICATION $P SET (publish = 'update'); INSERT; ALTER PUBLICATION $P SET (publish = 'insert')",
	"inserts not published":       "ALTER PUBLICATION $P SET (publish = 'update'); INSERT",
}

// requireLossNoticed changes the publication under a running relay.
func (f *fixture) requireLossNoticed(how string) {
	f.t.Helper()
	f.cfg.Replication.StatusInterval = statusEvery
	run := f.start()
	run.awaitPhase("streaming")
	f.insert("order", "k", "1")
	f.awaitRecords(f.topic("order"), 1)
	var limit event.LSN // after the change, before the event that follows it
	for _, sql := range strings.Split(strings.ReplaceAll(how, "$P", quoted(f.db.Publication)), "; ") {
		if sql == "INSERT" {
			f.insert("order", "k", "2")
			continue
		}
		f.db.Exec(f.t, sql)
		if limit == 0 {
			limit = f.walEnd()
		}
	}
	began := time.Now()
	requireRefusedStart(f.t, run.wait(patience), operr.Postgres, "publication")
	if took := time.Since(began); took > 5*time.Second {
		f.t.Errorf("noticed after %s, want some looks of %s", took, f.cfg.Timers.Watch)
	}
	// On 18 what follows a lost publication is free of events as far as the stream shows.
	if at := f.confirmed(); at > limit {
		f.t.Errorf("confirmed %s, past %s, where the publication had changed", at, limit)
	}
}

// TestBlockedSetup is case C34c at the whole level: setup waits for a slot behind an
// open transaction no longer than it was told, names who is in the way and leaves
// nothing behind.
func TestBlockedSetup(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
	f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
	conn := f.db.Conn(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := conn.Exec(ctx, "BEGIN; INSERT INTO outbox(aggregate_type, aggregate_id) VALUES ('order', 'k')")
	must(t, err)
	began := time.Now()
	requireExit(t, spawn(t, "setup", "--lock-timeout", "500ms", "--config", f.yaml("")), operr.Slot.ExitCode(),
		f.db.Slot, fmt.Sprintf("pid %d", conn.PgConn().PID()), "no slot was left behind")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("setup took %s with a limit of 500 ms", took)
	}
	if n := f.scalar("SELECT count(*)::text FROM pg_replication_slots"); n != "0" {
		t.Errorf("%s slots were left behind", n)
	}
}
