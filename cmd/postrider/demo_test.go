package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/demo"
	"github.com/postrider/postrider/internal/devstack"
)

// demoFolder is an empty folder for temporary files that PostgreSQL's own user
// may enter, which testing's is not.
func demoFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "postrider-demotest-") //nolint:usetesting // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// demoEnv also lets PostgreSQL be fetched into the user's own cache, once.
func demoEnv(folder string) []string {
	env := []string{"TMPDIR=" + folder, "HOME=" + os.Getenv("HOME")}
	if cache, ok := os.LookupEnv(devstack.CacheEnv); ok {
		env = append(env, devstack.CacheEnv+"="+cache)
	}
	return env
}

// nothingLeft fails the test where a demo has left a file or a process.
func nothingLeft(t *testing.T, folder string) {
	t.Helper()
	left, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		t.Errorf("left behind: %s", entry.Name())
	}
	processes, err := exec.Command("ps", "-eo", "pid,args").Output()
	if err != nil {
		t.Skip("ps: ", err)
	}
	for line := range strings.Lines(string(processes)) {
		if strings.Contains(line, folder) {
			t.Errorf("still running: %s", line)
		}
	}
}

// The promise is kept through a cut of the broker and a kill -9 of the relay, and
// the exit code says so.
func TestDemoKeepsThePromise(t *testing.T) {
	t.Parallel()
	folder := demoFolder(t)
	got := runBinary(t, demoEnv(folder), "demo", "--duration", "3s", "--json")
	if got.code != exitDone {
		t.Fatalf("exit code %d\n%s\n%s", got.code, got.out, got.err)
	}
	var v demo.Result
	if err := json.Unmarshal([]byte(got.out), &v); err != nil {
		t.Fatalf("standard output is not one JSON document: %v\n%s", err, got.out)
	}
	if !v.Kept || v.Committed == 0 || v.Delivered != v.Committed || v.Lost+v.OutOfOrder+v.Phantom+v.WrongBytes+v.UnsafeConfirmations != 0 {
		t.Errorf("verdict: %+v", v)
	}
	// Without these the verdict would be cheap.
	if v.BrokerCuts != 1 || v.RelayKills != 1 || v.RolledBack == 0 || v.Samples == 0 || v.Transactions >= v.Committed {
		t.Errorf("nothing was asked of the relay: %+v", v)
	}
	for _, milestone := range []string{"the broker is CUT", "the broker is back", "the relay is KILLED", "ended in order"} {
		if !strings.Contains(got.err, milestone) {
			t.Errorf("standard error does not tell %q:\n%s", milestone, got.err)
		}
	}
	nothingLeft(t, folder)
}

// Ctrl-C in the middle leaves no process and no folder.
func TestDemoEndsCleanlyOnInterrupt(t *testing.T) {
	t.Parallel()
	folder := demoFolder(t)
	cmd := exec.CommandContext(t.Context(), binary, "demo")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, demoEnv(folder)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	var screen strings.Builder
	interrupt := sync.OnceFunc(func() { _ = cmd.Process.Signal(syscall.SIGINT) })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		screen.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "arrived") {
			interrupt()
		}
	}
	_ = cmd.Wait() // the exit code is looked at below
	if code := cmd.ProcessState.ExitCode(); code != 7 || strings.Contains(screen.String(), "Verdict") {
		t.Errorf("exit code %d, want 7 and no verdict:\n%s", code, screen.String())
	}
	nothingLeft(t, folder)
}

func TestDemoRefusesOddDurations(t *testing.T) {
	t.Parallel()
	for _, d := range []string{"1s", "0s", "-3s", "11m", "soon"} {
		got := runBinary(t, nil, "demo", "--duration", d)
		if got.code != 2 || got.out != "" || !strings.Contains(got.err, "--duration") {
			t.Errorf("%s: exit code %d\n%s%s", d, got.code, got.out, got.err)
		}
	}
}
