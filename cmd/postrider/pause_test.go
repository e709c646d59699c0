package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// ask runs pause or resume and reads what it prints as JSON.
func (s *stack) ask(t *testing.T, code int, args ...string) paused {
	t.Helper()
	r := runBinary(t, nil, append(args, "--json", "--config", s.path)...)
	r.expect(t, code)
	var p paused
	if err := json.Unmarshal([]byte(r.out), &p); err != nil {
		t.Fatalf("%v in %s", err, r.out)
	}
	return p
}

// Without a relay the wish is kept, and who asks is told so; the relay starts paused, is
// not ready and says why; the words of both commands and of checkpoint show agree.
func TestPauseBeforeTheRelayRuns(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	p := s.ask(t, exitDone, "pause", "--reason", "an upgrade")
	if p.State != "paused" || !p.Changed || p.Relay != nil || p.Answered || p.PausedAt == nil || p.PausedBy == nil || p.Held == nil {
		t.Errorf("pause: %+v", p)
	}
	s.insert(t, `'{"n": 1}'`)
	run := startRun(t, s.path)
	run.waitFor("paused: nothing more is published until postrider resume")
	run.waitFor("paused: what was published is confirmed")
	if code, body := run.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "paused: since") || !strings.Contains(body, *p.PausedBy) {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, _ := run.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	if _, body := run.get("/metrics"); !strings.Contains(body, "postrider_paused 1") {
		t.Error("no metric says that it is paused")
	}
	again := s.ask(t, exitDone, "pause")
	if again.Changed || !again.Answered || again.Relay == nil || *again.PausedBy != *p.PausedBy {
		t.Errorf("pause again: %+v", again)
	}
	r := runBinary(t, nil, "checkpoint", "show", "--config", s.path)
	if !strings.Contains(r.out, "paused") || !strings.Contains(r.out, "by "+*p.PausedBy) {
		t.Errorf("checkpoint show:\n%s", r.out)
	}
	r = runBinary(t, nil, "pause", "--config", s.path)
	r.expect(t, exitDone)
	for _, text := range []string{"paused: what was published is confirmed", "WAL held back", "until lost", "no limit"} {
		if !strings.Contains(r.out, text) {
			t.Errorf("pause lacks %q:\n%s", text, r.out)
		}
	}
	for line := range strings.Lines(r.out) {
		if len(line) > 101 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	if n := scalar(t, s.db, `SELECT events_published::text FROM postrider.checkpoint`); n != "0" {
		t.Errorf("%s records while paused", n)
	}
	runBinary(t, nil, "checkpoint", "wait", "--now", "--timeout", "1s", "--config", s.path).expect(t, operr.Slot.ExitCode(), "Try: postrider resume")
	if p := s.ask(t, exitDone, "resume"); p.State != "running" || !p.Changed || !p.Answered || p.PausedAt != nil {
		t.Errorf("resume: %+v", p)
	}
	run.ready()
	runBinary(t, nil, "checkpoint", "wait", "--now", "--timeout", "20s", "--config", s.path).expect(t, exitDone)
	run.signal(syscall.SIGTERM)
	run.end().expect(t, exitDone)
	if p := s.ask(t, exitDone, "resume"); p.Changed || p.Relay != nil {
		t.Errorf("resume of nothing: %+v", p)
	}
}

// While Kafka is away a pause is not reached: the command says how many events are left,
// its code is 7, interrupted or out of time, and the pause stands.
func TestPauseWithoutBroker(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	run := startRun(t, s.path)
	run.ready()
	s.broker.Server.Halt()
	s.insert(t, `'{"n": 1}'`)
	run.unconfirmed()
	if p := s.ask(t, exitDone, "pause", "--no-wait"); p.State != "pausing" || p.Answered {
		t.Errorf("pause --no-wait: %+v", p)
	}
	r := runBinary(t, nil, "pause", "--timeout", "1500ms", "--config", s.path)
	r.expect(t, operr.DrainIncomplete.ExitCode(), "1 events are not acknowledged yet", "postrider resume takes it back")
	if !strings.Contains(r.out, "pausing: 1 events") {
		t.Errorf("it shows:\n%s", r.out)
	}
	waiting := startCommand(t, "pause", "--timeout", "0s", "--config", s.path)
	waitForText(t, s, `SELECT count(*) FILTER (WHERE taken_at IS NOT NULL AND answered_at IS NULL)::text FROM postrider.command`, "3")
	waiting.interrupt(t, syscall.SIGINT).expect(t, operr.DrainIncomplete.ExitCode(), "interrupted")
	if err := s.broker.Server.Start(); err != nil {
		t.Fatal(err)
	}
	if p := s.ask(t, exitDone, "pause"); p.State != "paused" || p.Changed {
		t.Errorf("pause, waited on: %+v", p)
	}
	run.signal(syscall.SIGTERM)
	run.end().expect(t, exitDone)
}

func TestPauseUsage(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	runBinary(t, nil, "pause", "--timeout", "-1s", "--config", s.path).expect(t, operr.Config.ExitCode(), "--timeout is -1s")
	s.db.Exec(t, `DELETE FROM postrider.checkpoint`)
	runBinary(t, nil, "resume", "--config", s.path).expect(t, operr.Slot.ExitCode(), "no checkpoint", "Try: ")
}

// waitForText waits until a query gives the text.
func waitForText(t *testing.T, s *stack, sql, want string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if got := scalar(t, s.db, sql); got != want {
			return fmt.Errorf("%s, want %s", got, want)
		}
		return nil
	})
}

// command is one of the binary's in the background.
type command struct {
	cmd       *exec.Cmd
	out, errs bytes.Buffer
}

func startCommand(t *testing.T, args ...string) *command {
	t.Helper()
	c := &command{cmd: exec.Command(binary, args...)}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.errs
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

// interrupt sends a signal and waits for the end.
func (c *command) interrupt(t *testing.T, s syscall.Signal) result {
	t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait() // its code is in ProcessState
	return result{code: c.cmd.ProcessState.ExitCode(), out: c.out.String(), err: c.errs.String()}
}
