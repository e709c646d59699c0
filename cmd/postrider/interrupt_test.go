package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// locked holds every table that a command looks at, so that each waits.
func (s *stack) locked(t *testing.T) (unlock func()) {
	t.Helper()
	conn := s.db.Conn(t)
	exec1 := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec1(`BEGIN; LOCK TABLE postrider.checkpoint, postrider.audit, postrider.parked, postrider.task, postrider.task_item, postrider.command, outbox
		IN ACCESS EXCLUSIVE MODE`)
	return func() { exec1("ROLLBACK") }
}

// watch gives a count of the sessions of the stack's commands, of those that wait for a lock or of all.
func (s *stack) watch(t *testing.T) (sessions func(waiting bool) int) {
	t.Helper()
	conn := s.db.Conn(t) // one for all looks
	return func(waiting bool) (n int) {
		t.Helper()
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'postrider %'
			AND (NOT $1 OR wait_event_type = 'Lock')`, waiting).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// signalled starts the program, signals it when ready says so, and gives what it left.
func signalled(t *testing.T, signals []os.Signal, ready func() bool, args ...string) result {
	t.Helper()
	cmd := exec.Command(binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	defer func() { _ = cmd.Process.Kill(); <-ended }()
	testkit.Eventually(t, patience, func() error {
		select {
		case <-ended:
			t.Fatalf("%v has ended already: %s%s", args, out.String(), errs.String())
		default:
		}
		if !ready() {
			return errors.New("it does not wait yet")
		}
		return nil
	})
	for _, signal := range signals {
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatalf("%v goes on: %s", args, errs.String())
	}
	return result{code: cmd.ProcessState.ExitCode(), out: out.String(), err: errs.String()}
}

// Interrupted while it waits for the server, every command ends with one code, says so, says
// what to do, and leaves nothing behind on the server that could still be carried out.
func TestInterruptWhileItWaits(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.db.Exec(t, `INSERT INTO postrider.task (publisher, kind, state, reason, created_by, total, snapshot) SELECT publisher, 'replay', 'planned', 'x', 'a@b', 0, '1:1:' FROM postrider.checkpoint`)
	name := scalar(t, s.db, "SELECT publisher FROM postrider.checkpoint")
	before, sessions := s.where(t), s.watch(t)
	unlock := s.locked(t)
	reason := []string{"--reason", "a test"}
	for _, args := range [][]string{
		{"checkpoint", "show"},
		{"checkpoint", "list"},
		{"checkpoint", "peek"},
		{"checkpoint", "wait", "--now"},
		{"checkpoint", "verify"},
		append([]string{"checkpoint", "advance", "--now"}, reason...),
		{"checkpoint", "history"},
		append([]string{"checkpoint", "accept", "--yes"}, reason...),
		append([]string{"checkpoint", "drop", "--confirm", name}, reason...),
		append([]string{"pause"}, reason...),
		append([]string{"resume"}, reason...),
		{"backfill", "--dry-run"},
		{"backfill"},
		{"recover"},
		append([]string{"recover", "--yes"}, reason...),
		append([]string{"replay", "--all", "--yes"}, reason...),
		{"replay", "--resume", "1"},
		{"replay", "list"},
		{"replay", "show", "1"},
		{"replay", "approve", "1"},
		append([]string{"replay", "cancel", "1"}, reason...),
		{"reconcile"},
		append([]string{"reconcile", "--repair"}, reason...),
		{"trace", "an-id"},
		{"purge", "--older-than", "0s"},
		{"purge", "--older-than", "0s", "--dry-run"},
		{"parked", "list"},
		{"parked", "show", "1"},
		{"parked", "retry", "--all"},
		append([]string{"parked", "discard", "--all"}, reason...),
		{"parked", "assign", "--all", "--to", "x"},
		{"parked", "export"},
		append([]string{"parked", "erase", "--all"}, reason...),
		{"run", "--shadow"},
		{"doctor", "--only", "mapping"},
	} {
		for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			if signal == syscall.SIGTERM && args[0] == "purge" {
				continue // it takes its time, and is the same
			}
			r := signalled(t, []os.Signal{signal}, func() bool { return sessions(true) > 0 }, append(args, "--config", s.path)...)
			r.expect(t, operr.DrainIncomplete.ExitCode(), "interrupted", "Try: ")
			if r.out != "" && args[0] != "purge" {
				t.Errorf("%v %s: printed %s", args, signal, r.out)
			}
			if t.Failed() {
				t.Fatalf("it was %v, %s", args, signal)
			}
			testkit.Eventually(t, 10*time.Second, func() error {
				if n := sessions(false); n > 0 {
					return fmt.Errorf("%v %s: %d sessions are left", args, signal, n)
				}
				return nil
			})
		}
	}
	unlock()
	if after := s.where(t); after != before {
		t.Errorf("row and slot were %s and are %s", before, after)
	}
	s.drained(t)
}

// A second signal ends at once what cannot end itself.
func TestSecondInterrupt(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.latched(t)
	sessions := s.watch(t)
	unlock := s.locked(t)
	defer unlock()
	begin := time.Now()
	r := signalled(t, []os.Signal{syscall.SIGTERM}, func() bool { return sessions(true) > 0 }, "purge", "--older-than", "0s", "--config", s.path)
	if r.code != operr.DrainIncomplete.ExitCode() {
		t.Errorf("one signal: exit code %d after %s: %s", r.code, time.Since(begin), r.err)
	}
	// The first has to be heard before the second, or they count as one.
	cmd := exec.Command(binary, "purge", "--older-than", "0s", "--config", s.path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	defer func() { _ = cmd.Process.Kill(); <-ended }()
	testkit.EventuallyTrue(t, patience, "it waits", func() bool { return sessions(true) > 0 })
	testkit.Eventually(t, patience, func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
			return nil
		case <-time.After(20 * time.Millisecond):
			return errors.New("it goes on")
		}
	})
	if code := cmd.ProcessState.ExitCode(); code != -1 {
		t.Errorf("two signals: exit code %d, want the signal's end", code)
	}
}

// deaf takes connections and never says a word.
func deaf(t *testing.T) (addr string, taken chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken = make(chan struct{}, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			taken <- struct{}{}
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return listener.Addr().String(), taken
}

// Interrupted while it connects to a server that does not answer: the same.
func TestInterruptWhileItConnects(t *testing.T) {
	t.Parallel()
	addr, taken := deaf(t)
	host, port, _ := strings.Cut(addr, ":")
	text := strings.NewReplacer("${PG_PASSWORD}", "x", "${KAFKA_PASSWORD}", "x", "host: 127.0.0.1", "host: "+host, "port: 1\n", "port: "+port+"\n").Replace(unreachable)
	path := writeConfig(t, text)
	for _, args := range [][]string{
		{"checkpoint", "show"},
		{"checkpoint", "wait", "--now"},
		{"pause"},
		{"backfill"},
		{"recover"},
		{"replay", "list"},
		{"replay", "--all"},
		{"reconcile"},
		{"trace", "x"},
		{"purge", "--older-than", "0s"},
		{"parked", "list"},
		{"setup"},
		{"run", "--shadow"},
		{"doctor"},
	} {
		r := signalled(t, []os.Signal{syscall.SIGINT}, func() bool {
			select {
			case <-taken:
				return true
			default:
				return false
			}
		}, append(args, "--config", path)...)
		r.expect(t, operr.DrainIncomplete.ExitCode(), "interrupted", "Try: ")
		for len(taken) > 0 {
			<-taken
		}
	}
}

// The same with brokers that do not answer, or are not there.
func TestShadowWithoutKafka(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	addr, taken := deaf(t)
	brokers := strings.Join(s.broker.Server.Bootstrap(), ", ")
	rewrite(t, s.path, brokers, addr)
	r := signalled(t, []os.Signal{syscall.SIGINT}, func() bool {
		select {
		case <-taken:
			return true
		default:
			return false
		}
	}, "run", "--shadow", "--config", s.path)
	r.expect(t, operr.DrainIncomplete.ExitCode(), "interrupted before anything was compared", "Try: ")
	rewrite(t, s.path, addr, "127.0.0.1:1")
	// --for is the time of the comparison, not of the attempts to reach the brokers.
	runBinary(t, nil, "run", "--shadow", "--for", "1s", "--config", s.path).expect(t, operr.Kafka.ExitCode(), "127.0.0.1:1", "Try: ")
}

// What was decided stays decided, whatever a signal says; all else becomes one answer.
func TestInterruptionIsWorded(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{Use: "postrider"}
	sub := &cobra.Command{Use: "act"}
	cmd.AddCommand(sub)
	heard := new(interruption)
	fault := &operr.Error{Class: operr.Postgres, Op: "do", Err: io.EOF, Hint: "something else"}
	if got := heard.word(sub, fault); !errors.Is(got, fault) || operr.ClassOf(got) != fault.Class {
		t.Errorf("no signal: %v", got)
	}
	heard.got.Store(true)
	if got := heard.word(sub, nil); got != nil {
		t.Errorf("it was done: %v", got)
	}
	got := heard.word(sub, fault)
	if operr.ClassOf(got) != operr.DrainIncomplete || got.Error() != "act: interrupted (do: EOF)" || operr.HintOf(got) == fault.Hint {
		t.Errorf("%v, try %s", got, operr.HintOf(got))
	}
	for _, class := range []operr.Class{operr.DrainIncomplete, operr.Findings, operr.Halted} {
		decided := &operr.Error{Class: class, Op: "do", Err: io.EOF}
		if got := heard.word(sub, decided); !errors.Is(got, decided) || operr.ClassOf(got) != class {
			t.Errorf("%v became %v", decided, got)
		}
	}
}
