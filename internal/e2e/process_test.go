package e2e

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// binary builds the plain binary once, as users get it: static, no race detector.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "postrider-e2e-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "postrider")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/postrider/postrider/cmd/postrider")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// built gives the binary's path. A test that measures asks for it before it begins.
func built(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// yaml writes the fixture's configuration as a user would.
func (f *fixture) yaml(extra string) string {
	f.t.Helper()
	text := fmt.Sprintf(`publisher: {name: test, shutdown_timeout: 10s}
postgres: {dsn: %q, slot: %s, publication: %s}
kafka:
  brokers: [%s]
  topics: {create: {partitions: 12, replication_factor: -1}}
admin: {listen: "127.0.0.1:0"}
log: {format: json}
sources:
  - table: public.outbox
    mapping: {event_id: id, key: aggregate_id, payload: payload, aggregate_type: aggregate_type, event_type: event_type}
    routes:
      - topic: %s.${aggregate_type}
    on_refusal: %s
    dead_letter_topic: %q
%s`, f.db.DSN, f.db.Slot, f.db.Publication, strings.Join(f.broker.Bootstrap(), ", "), f.prefix, cmp.Or(f.policy, router.OnRefusalHalt), f.deadLetters, extra)
	path := filepath.Join(f.t.TempDir(), "postrider.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// process is the real binary.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr string
	exited chan struct{}
}

// spawn starts a command of the binary.
func spawn(t *testing.T, args ...string) *process {
	t.Helper()
	path := built(t)
	stderr, err := os.CreateTemp(t.TempDir(), "stderr-")
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	p := &process{t: t, cmd: exec.Command(path, args...), stderr: stderr.Name(), exited: make(chan struct{})}
	p.cmd.Stderr = stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.kill)
	return p
}

// kill is kill -9. It returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// terminate sends SIGTERM and gives the exit code.
func (p *process) terminate() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	return p.wait(patience)
}

// wait gives the exit code of a process that ends by itself.
func (p *process) wait(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("still running after %s; it said:\n%s", within, p.said())
		return -1
	}
}

// said is the end of what it wrote to standard error.
func (p *process) said() string {
	text, err := os.ReadFile(p.stderr)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// awaitLine waits until standard error holds a text.
func (p *process) awaitLine(text string) {
	p.t.Helper()
	testkit.Eventually(p.t, patience, func() error {
		all, err := os.ReadFile(p.stderr)
		if err != nil {
			return err
		}
		if !strings.Contains(string(all), text) {
			return fmt.Errorf("it has not said %q; it said:\n%s", text, p.said())
		}
		return nil
	})
}

// peakRSS is the most memory that the process has held, in bytes.
func (p *process) peakRSS() int64 {
	p.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return kb << 10
		}
	}
	p.t.Fatal("no VmHWM")
	return 0
}

// long says that the full numbers are asked for (make test-long).
func long() bool { return os.Getenv("POSTRIDER_TEST_LONG") == "1" }

// pick gives the size of a test: small in the normal run, full in the long one.
func pick[T any](small, full T) T {
	if long() {
		return full
	}
	return small
}

// countInLog counts the lines of a server's log that hold a text.
func countInLog(t *testing.T, path, text string) int {
	t.Helper()
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(log), text)
}
