package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// binary is the real program, built once for all tests of this package.
var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "postrider-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "postrider")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build postrider: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// result is what a run of the binary left.
type result struct {
	code     int
	out, err string
}

// patience bounds one run of the binary.
const patience = 60 * time.Second

// runBinary runs the program in an empty folder with nothing of the machine's PostgreSQL settings.
func runBinary(t *testing.T, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append([]string{"HOME=" + cmd.Dir, "PATH=" + os.Getenv("PATH")}, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %v: %v", args, err)
	}
	if code := cmd.ProcessState.ExitCode(); !documentedExit(args, code) {
		t.Errorf("%v: exit code %d is not among the documented ones\n%s", args, code, errs.String())
	}
	return result{code: cmd.ProcessState.ExitCode(), out: out.String(), err: errs.String()}
}

// expect checks the exit code and that standard error has every text.
func (r result) expect(t *testing.T, code int, inErr ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, r.out, r.err)
	}
	for _, text := range inErr {
		if !strings.Contains(r.err, text) {
			t.Errorf("standard error lacks %q:\n%s", text, r.err)
		}
	}
}

// writeConfig puts a configuration into a file of the test's own.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "postrider.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// unreachable names servers at which nobody listens.
const unreachable = `postgres:
  host: 127.0.0.1
  port: 1
  database: shop
  user: postrider
  password: ${PG_PASSWORD}
  slot: outbox_slot
  publication: outbox_pub
kafka:
  brokers: ["127.0.0.1:1"]
  sasl: {mechanism: PLAIN, username: postrider, password: "${KAFKA_PASSWORD}"}
sources:
  - table: public.outbox
    profile: default
admin: {listen: "127.0.0.1:0"}
`

const (
	pgSecret    = "hunter2-pg"
	kafkaSecret = "hunter2-kafka"
)

func secretEnv() []string {
	return []string{"PG_PASSWORD=" + pgSecret, "KAFKA_PASSWORD=" + kafkaSecret}
}

// rewrite replaces a text in a file.
func rewrite(t *testing.T, path, before, after string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), before) {
		t.Fatalf("%s lacks %q: %v", path, before, err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), before, after, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}
