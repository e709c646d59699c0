package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reconcile"
	"github.com/postrider/postrider/internal/testkit"
)

// reconciledNow runs the command and reads its report.
func (s *stack) reconciledNow(t *testing.T, args ...string) (result, reconcile.Report) {
	t.Helper()
	r := runBinary(t, nil, append([]string{"reconcile", "--json", "--config", s.path}, args...)...)
	var got struct{ reconcile.Report }
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatalf("%v in %s, %s", err, r.out, r.err)
	}
	return r, got.Report
}

// awaitCovered waits until the checkpoint covers all rows and the topic has them.
func (s *stack) awaitCovered(t *testing.T, rows int64) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		r, got := s.reconciledNow(t)
		if r.code != exitDone || got.Agreed != rows || got.NotDue != 0 {
			return fmt.Errorf("code %d, %d agree, %d not due", r.code, got.Agreed, got.NotDue)
		}
		return nil
	})
}

// skipOne inserts a row that no stream brings: the slot is advanced by hand past it.
func (s *stack) skipOne(t *testing.T) (id string) {
	t.Helper()
	s.insertKey(t, "skipped", `{"n": "skipped"}`)
	s.db.Exec(t, fmt.Sprintf(`SELECT pg_replication_slot_advance('%s', pg_current_wal_lsn())`, s.db.Slot))
	testkit.EventuallyTrue(t, patience, "older transactions have ended", func() bool {
		return scalar(t, s.db, `SELECT bool_and(outbox.xmin::text::bigint < pg_snapshot_xmin(pg_current_snapshot())::text::bigint)::text FROM outbox`) == "true"
	})
	s.db.Exec(t, `UPDATE postrider.checkpoint SET confirmed_lsn = pg_current_wal_lsn(), snapshot = pg_current_snapshot()`)
	return scalar(t, s.db, `SELECT event_id::text FROM outbox WHERE aggregate_id = 'skipped'`)
}

// reconcile beside a running relay says that all is well, and what is not: with an exit code
// for cron, and a report for programs (case C41).
func TestReconcileOnTheRealBinary(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	p := startRun(t, s.path)
	p.ready()
	for n := range 30 {
		s.insertKey(t, fmt.Sprint("k", n%5), fmt.Sprintf(`{"n": %d}`, n))
	}
	s.awaitCovered(t, 30)
	r := runBinary(t, nil, "reconcile", "--config", s.path)
	r.expect(t, exitDone)
	for _, text := range []string{"30, of which 30 agree", "missing", "events: 30 records"} {
		if !strings.Contains(r.out, text) {
			t.Errorf("the report lacks %q:\n%s", text, r.out)
		}
	}
	for _, line := range strings.Split(r.out, "\n") {
		if len(line) > 100 {
			t.Errorf("a line of %d columns: %s", len(line), line)
		}
	}
	p.signal(syscall.SIGTERM)
	p.end().expect(t, exitDone)

	id := s.skipOne(t)
	s.db.Exec(t, `UPDATE outbox SET payload = '{"n": "other"}' WHERE payload ->> 'n' = '7'`)
	testkit.Eventually(t, patience, func() error {
		s.db.Exec(t, `UPDATE postrider.checkpoint SET snapshot = pg_current_snapshot()`)
		r, got := s.reconciledNow(t)
		if r.code != operr.Findings.ExitCode() || got.Missing != 1 || got.Different != 1 || got.Findings.Missing[0].EventID != id {
			return fmt.Errorf("code %d: %s", r.code, r.out)
		}
		// A replay publishes only what is older than all that ran when the snapshot was taken.
		if scalar(t, s.db, `SELECT bool_and(outbox.xmin::text::bigint < pg_snapshot_xmin(snapshot)::text::bigint)::text FROM outbox, postrider.checkpoint`) != "true" {
			return errors.New("transactions of other tests are older")
		}
		return nil
	})
	r = runBinary(t, nil, "reconcile", "--config", s.path)
	r.expect(t, operr.Findings.ExitCode(), "1 missing, 1 different", "Try: ", "--repair")
	if !strings.Contains(r.out, id) || !strings.Contains(r.out, "(value 1)") {
		t.Errorf("the report: %s", r.out)
	}
	s.repair(t, id)
	// Of other events nothing is wrong.
	runBinary(t, nil, "reconcile", "--aggregate", "k0", "--config", s.path).expect(t, exitDone)
	for _, wrong := range [][]string{{"--since", "yesterday"}, {"--since", "1h", "--until", "2h"}, {"--repair"}, {"--reason", "because"}, {"--max-rows", "-1"}} {
		runBinary(t, nil, append([]string{"reconcile", "--config", s.path}, wrong...)...).expect(t, operr.Config.ExitCode(), "Try: ")
	}
}

// Ctrl-C ends a comparison at once, with a code of its own, and nothing is left behind.
func TestReconcileEndsAtASignal(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	runBinary(t, nil, "run", "--until-lsn", "now", "--config", s.path).expect(t, exitDone)
	asked, answer := make(chan struct{}), make(chan struct{})
	defer close(answer)
	s.broker.Server.Cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(asked)
		s.broker.Server.Cluster.SleepControl(func() { <-answer })
		return nil, nil, false
	})
	cmd := exec.Command(binary, "reconcile", "--config", s.path)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	<-asked
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its code is in ProcessState
	result{code: cmd.ProcessState.ExitCode(), err: errs.String()}.expect(t, operr.DrainIncomplete.ExitCode(), "interrupted")
	if n := scalar(t, s.db, `SELECT count(*)::text FROM postrider.audit WHERE action = 'reconcile'`); n != "0" {
		t.Errorf("%s lines in the audit", n)
	}
}

// repair plans a replay of the two events that are not right, runs it, and finds them healed.
func (s *stack) repair(t *testing.T, missing string) {
	t.Helper()
	r, _ := s.reconciledNow(t, "--repair", "--reason", "a test")
	r.expect(t, operr.Findings.ExitCode(), "postrider replay --resume 1")
	var plan struct{ Repair repairPlan }
	if err := json.Unmarshal([]byte(r.out), &plan); err != nil || plan.Repair.Task != 1 || plan.Repair.Events != 2 || plan.Repair.NeedsApproval {
		t.Fatalf("%v in %s", err, r.out)
	}
	runBinary(t, nil, "replay", "--resume", "1", "--config", s.path).expect(t, exitDone)
	r, got := s.reconciledNow(t)
	r.expect(t, exitDone)
	if !got.OK || got.Healed != 1 || got.Copies.Replayed != 2 || got.Agreed != 31 || got.Duplicates != 0 {
		t.Errorf("after the replay: %s", r.out)
	}
	runBinary(t, nil, "trace", missing, "--config", s.path).expect(t, exitDone)
}

// trace says where an event is, on one screen.
func TestTraceOnTheRealBinary(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	rewrite(t, s.path, "on_refusal: halt", "on_refusal: park_aggregate")
	s.poisoned("poison")
	p := startRun(t, s.path)
	p.ready()
	s.insertKey(t, "good", `{"n": "good"}`)
	s.insertKey(t, "bad", `{"n": "poison"}`)
	s.awaitStates(t, "parked")
	s.awaitCovered(t, 1)
	p.signal(syscall.SIGTERM)
	p.end().expect(t, exitDone)
	skipped := s.skipOne(t)
	s.insertKey(t, "waiting", `{"n": 4}`)
	id := func(key string) string {
		return scalar(t, s.db, `SELECT event_id::text FROM outbox WHERE aggregate_id = $1`, key)
	}
	for _, c := range []struct {
		id    string
		code  int
		texts []string
	}{
		{id("good"), exitDone, []string{"published", "events, partition", "offset 0", "covers the row", "public.outbox", "committed"}},
		{id("bad"), exitDone, []string{"parked as number 1", "too_large"}},
		{skipped, operr.Findings.ExitCode(), []string{"missing", "covers the row"}},
		{id("waiting"), exitDone, []string{"not confirmed its transaction yet", "does not cover the row"}},
		{"7b7f0a3e-4f0e-4d5c-9f8e-2f7f6f0f6a11", operr.Findings.ExitCode(), []string{"not found anywhere", "no row", "events, partitions [0 1], from the beginning: 1 records"}},
		{"no-uuid", operr.Findings.ExitCode(), []string{"not found anywhere"}},
	} {
		r := runBinary(t, nil, "trace", c.id, "--config", s.path)
		r.expect(t, c.code)
		for _, text := range c.texts {
			if !strings.Contains(r.out, text) {
				t.Errorf("%s: %q is not in\n%s", c.id, text, r.out)
			}
		}
		var trail reconcile.Trail
		if r := runBinary(t, nil, "trace", c.id, "--json", "--config", s.path); json.Unmarshal([]byte(r.out), &trail) != nil || trail.EventID != c.id || trail.State == "" {
			t.Errorf("--json: %s", r.out)
		}
	}
	runBinary(t, nil, "trace", "--config", s.path).expect(t, operr.Config.ExitCode(), "the id of one event")
}
