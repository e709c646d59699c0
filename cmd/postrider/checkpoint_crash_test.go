package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// startWalsender holds the stack's slot, as a relay would, until the function is called.
func startWalsender(t *testing.T, s *stack) (stop func()) {
	t.Helper()
	dsn, err := url.Parse(s.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	q := dsn.Query()
	q.Set("replication", "database")
	q.Set("application_name", "test-holder")
	dsn.RawQuery = q.Encode()
	conn, err := pgconn.Connect(t.Context(), dsn.String())
	if err != nil {
		t.Fatal(err)
	}
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = conn.Close(ctx)
		testkit.EventuallyTrue(t, patience, "the slot is held", func() bool {
			return scalar(t, s.db, "SELECT coalesce((SELECT active FROM pg_replication_slots WHERE slot_name = $1), false)::text", s.db.Slot) == "false"
		})
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	err = pglogrepl.StartReplication(t.Context(), conn, s.db.Slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + s.db.Publication + "'"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

// killedAt runs a command and ends it with SIGKILL in a window: after its first line in the
// audit has committed, and before the next statement that touches table does anything. The
// server is made to forget the statement that was on its way, as if it had never been sent.
func (s *stack) killedAt(t *testing.T, table string, args ...string) {
	t.Helper()
	s.db.Exec(t, `CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(7); PERFORM pg_advisory_unlock(7); RETURN NEW; END $$;
		CREATE TRIGGER pause AFTER INSERT ON postrider.audit FOR EACH ROW EXECUTE FUNCTION pause()`)
	gate, blocker := s.db.Conn(t), s.db.Conn(t)
	exec1 := func(conn *pgx.Conn, sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec1(gate, "SELECT pg_advisory_lock(7)")
	cmd := exec.Command(binary, append(append([]string{"checkpoint"}, args...), "--config", s.path)...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	await := func(what, sql string) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			select {
			case <-ended:
				t.Fatalf("it has ended before %s:\n%s", what, said.String())
			default:
			}
			if scalar(t, s.db, sql) != "true" {
				return errors.New(what)
			}
			return nil
		})
	}
	await("its audit is being written", "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 7 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))::text")
	locked := make(chan error, 1)
	go func() {
		_, err := blocker.Exec(context.Background(), "BEGIN; LOCK TABLE "+table+" IN ACCESS EXCLUSIVE MODE")
		locked <- err
	}()
	relation := fmt.Sprintf("relation = '%s'::regclass", table)
	await("the table is asked for", "SELECT EXISTS (SELECT FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND "+relation+")::text")
	exec1(gate, "SELECT pg_advisory_unlock(7)")
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	await("it waits for the table", "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND "+relation+")::text")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	exec1(gate, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'postrider checkpoint%' AND datname = current_database()")
	testkit.EventuallyTrue(t, patience, "its session lives", func() bool {
		return scalar(t, s.db, "SELECT count(*)::text FROM pg_stat_activity WHERE application_name LIKE 'postrider checkpoint%' AND datname = current_database()") == "0"
	})
	exec1(blocker, "ROLLBACK")
	s.db.Exec(t, "DROP TRIGGER pause ON postrider.audit; DROP FUNCTION pause()")
}

// Killed between row and slot, an advance has done what counts, and said so in the audit:
// nothing is skipped in silence, nothing is skipped that was not asked for, and the same
// again, or a run, goes on.
func TestAdvanceKilledBetweenRowAndSlot(t *testing.T) {
	t.Parallel()
	for _, next := range []string{"again", "run"} {
		t.Run(next, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, "")
			s.insertKey(t, "k", `{"n": 1}`)
			s.drained(t)
			s.insertKey(t, "k", `{"n": "skipped"}`)
			target := s.walEnd(t)
			s.insertKey(t, "k", `{"n": 3}`)
			args := []string{"advance", "--lsn", target.String(), "--yes", "--reason", "a test"}
			s.killedAt(t, "postrider.checkpoint", args...)

			stored := s.lsn(t, "SELECT confirmed_lsn::text FROM postrider.checkpoint")
			slot := s.lsn(t, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", s.db.Slot)
			if stored != target || slot >= target {
				t.Fatalf("stored %s, slot %s, target %s: not the window", stored, slot, target)
			}
			if n := scalar(t, s.db, "SELECT count(*)::text FROM postrider.audit WHERE action = 'advance' AND detail ->> 'reason' = 'a test'"); n != "1" {
				t.Errorf("%s lines in the audit", n)
			}
			s.checkpoint(t, "verify").expect(t, exitDone)
			if next == "again" {
				s.checkpoint(t, args...).expect(t, exitDone)
				if slot := s.lsn(t, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", s.db.Slot); slot != target {
					t.Errorf("the slot stands at %s", slot)
				}
			}
			s.drained(t)
			if n := len(s.broker.ReadAll(t, "events")); n != 2 {
				t.Errorf("%d records", n)
			}
		})
	}
}

// Killed before its row has committed, an advance has done nothing.
func TestAdvanceKilledBeforeTheRow(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.insertKey(t, "k", `{"n": 2}`)
	before := s.where(t)
	locked := s.db.Conn(t)
	if _, err := locked.Exec(t.Context(), "BEGIN; LOCK TABLE postrider.audit IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "checkpoint", "advance", "--now", "--yes", "--reason", "a test", "--config", s.path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.EventuallyTrue(t, patience, "it writes its audit", func() bool {
		return scalar(t, s.db, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'postrider.audit'::regclass)::text") == "true"
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	s.db.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'postrider checkpoint%' AND datname = current_database()")
	if _, err := locked.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if after := s.where(t); after != before {
		t.Errorf("row and slot were %s and are %s", before, after)
	}
	s.drained(t)
	if n := len(s.broker.ReadAll(t, "events")); n != 2 {
		t.Errorf("%d records", n)
	}
}

// Killed in each window of a drop: before the slot is gone nothing is; after that a run, and
// a set-up and a run, refuse rather than begin as if for the first time; done again, the
// rest goes.
func TestDropKilled(t *testing.T) {
	t.Parallel()
	for _, window := range []string{"before anything", "before the slot", "before the rows"} {
		t.Run(window, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, "")
			s.insertKey(t, "k", `{"n": 1}`)
			s.drained(t)
			s.insertKey(t, "k", `{"n": 2}`)
			name := scalar(t, s.db, "SELECT publisher FROM postrider.checkpoint")
			drop := []string{"drop", "--confirm", name, "--publication", "--reason", "a test"}
			if window != "before the rows" {
				s.dropCutOff(t, window == "before the slot", drop...)
				s.drained(t)
				if n := len(s.broker.ReadAll(t, "events")); n != 2 {
					t.Errorf("%d records", n)
				}
				s.checkpoint(t, drop...).expect(t, exitDone)
				return
			}
			s.killedAt(t, "postrider.parked", drop...)
			if got := scalar(t, s.db, "SELECT concat_ws(' ', (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1), (SELECT count(*) FROM postrider.checkpoint))", s.db.Slot); got != "0 1" {
				t.Fatalf("slots and rows: %s; not the window", got)
			}
			if got := scalar(t, s.db, "SELECT string_agg(action, ' ') FROM postrider.audit WHERE action LIKE 'drop%'"); got != "drop.begin" {
				t.Errorf("audit: %s", got)
			}
			runBinary(t, nil, "run", "--config", s.path).expect(t, operr.Slot.ExitCode(), "does not exist", "may be missing", "postrider recover")
			s.checkpoint(t, "wait", "--now").expect(t, operr.Slot.ExitCode(), "may be missing", "postrider recover")
			s.checkpoint(t, "verify").expect(t, operr.Findings.ExitCode(), "postrider recover")
			runBinary(t, nil, "setup", "--config", s.path).expect(t, exitDone)
			runBinary(t, nil, "run", "--config", s.path).expect(t, operr.Slot.ExitCode(), "postrider recover")
			s.checkpoint(t, drop...).expect(t, exitDone)
			if got := scalar(t, s.db, "SELECT concat_ws(' ', (SELECT count(*) FROM postrider.checkpoint), (SELECT count(*) FROM pg_publication))"); got != "0 0" {
				t.Errorf("rows and publications: %s", got)
			}
		})
	}
}

// dropCutOff ends a drop around its first line in the audit: killed before that has committed,
// or, with begun, with a relay that takes the slot between that and the slot's drop, so that
// the begin is all there is.
func (s *stack) dropCutOff(t *testing.T, begun bool, args ...string) {
	t.Helper()
	s.db.Exec(t, `CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(7); PERFORM pg_advisory_unlock(7); RETURN NEW; END $$;
		CREATE TRIGGER pause AFTER INSERT ON postrider.audit FOR EACH ROW EXECUTE FUNCTION pause()`)
	gate := s.db.Conn(t)
	if _, err := gate.Exec(t.Context(), "SELECT pg_advisory_lock(7)"); err != nil {
		t.Fatal(err)
	}
	before := s.where(t)
	cmd := exec.Command(binary, append(append([]string{"checkpoint"}, args...), "--config", s.path)...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	testkit.EventuallyTrue(t, patience, "its audit is being written", func() bool {
		return scalar(t, s.db, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 7 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))::text") == "true"
	})
	stop := func() {}
	if begun {
		stop = startWalsender(t, s)
	} else if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := gate.Exec(t.Context(), "SELECT pg_advisory_unlock(7)"); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); begun && (code != operr.Slot.ExitCode() || !strings.Contains(said.String(), "held by pid")) {
		t.Errorf("exit code %d: %s", code, said.String())
	}
	stop()
	testkit.EventuallyTrue(t, patience, "its session lives", func() bool {
		return scalar(t, s.db, "SELECT count(*)::text FROM pg_stat_activity WHERE application_name LIKE 'postrider checkpoint%' AND datname = current_database()") == "0"
	})
	want := map[bool]string{false: "0", true: "1"}[begun]
	if got := scalar(t, s.db, "SELECT count(*)::text FROM postrider.audit WHERE action LIKE 'drop%'"); got != want {
		t.Errorf("%s lines in the audit, want %s", got, want)
	}
	if after := s.where(t); after != before {
		t.Errorf("row and slot were %s and are %s", before, after)
	}
	s.db.Exec(t, "DROP TRIGGER pause ON postrider.audit; DROP FUNCTION pause()")
}

// An interrupt leaves everything as it was, and says so.
func TestPeekInterrupted(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	locked := s.db.Conn(t)
	if _, err := locked.Exec(t.Context(), "BEGIN; LOCK TABLE postrider.parked IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "checkpoint", "peek", "--config", s.path)
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	copies := "SELECT count(*)::text FROM pg_replication_slots WHERE database = $1 AND temporary"
	testkit.EventuallyTrue(t, patience, "the slot is copied", func() bool { return scalar(t, s.db, copies, s.db.Name) == "1" })
	testkit.EventuallyTrue(t, patience, "it waits", func() bool {
		return scalar(t, s.db, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'postrider.parked'::regclass)::text") == "true"
	})
	_ = cmd.Process.Signal(os.Interrupt)
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	if code := cmd.ProcessState.ExitCode(); code != operr.DrainIncomplete.ExitCode() || !strings.Contains(said.String(), "interrupted") {
		t.Errorf("exit code %d: %s", code, said.String())
	}
	testkit.EventuallyTrue(t, patience, "the copy is left behind", func() bool { return scalar(t, s.db, copies, s.db.Name) == "0" })
}
