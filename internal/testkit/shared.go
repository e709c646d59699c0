package testkit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// The environment that cmd/testservers sets; package servers, which this
// package does not import to keep the Docker client out of test binaries, has
// the same names.
const (
	postgresEnv    = "POSTRIDER_TEST_POSTGRES"
	kafkaEnv       = "POSTRIDER_TEST_KAFKA"
	kafkaKindEnv   = "POSTRIDER_TEST_KAFKA_KIND"
	requireRealEnv = "POSTRIDER_TEST_REQUIRE_REAL"
)

const serversCommand = "github.com/postrider/postrider/internal/testkit/cmd/testservers"

// server is one kind of shared server as this test binary knows it.
type server struct {
	kind string // testservers' word for it
	once sync.Once
	env  map[string]string
	err  error
	// stdin keeps the server alive: it ends when this pipe does, with the binary.
	stdin io.WriteCloser
}

var (
	sharedPostgres = server{kind: "postgres"}
	sharedKafka    = server{kind: "kafka"}
)

// need gives the value of an environment variable that describes the server,
// starting the server where nobody has.
func (s *server) need(t testing.TB, name string) string {
	t.Helper()
	if v := os.Getenv(name); v != "" {
		return v
	}
	s.once.Do(s.launch)
	if s.err != nil {
		t.Fatalf("testkit: start a %s for this test binary: %v", s.kind, s.err)
	}
	return s.env[name]
}

// launch runs the command as another process rather than the servers in this
// one: they then leave no goroutine behind for a leak check to find, and end in
// order even when this process is killed.
func (s *server) launch() {
	cmd := exec.Command("go", "run", serversCommand, "serve", s.kind)
	if s.stdin, s.err = cmd.StdinPipe(); s.err != nil {
		return
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		s.err = err
		return
	}
	stderr, err := os.CreateTemp("", "postrider-testservers-")
	if err != nil {
		s.err = err
		return
	}
	defer stderr.Close()
	defer os.Remove(stderr.Name())
	cmd.Stderr = stderr
	if s.err = cmd.Start(); s.err != nil {
		return
	}
	if s.env, s.err = readServed(stdout); s.err != nil {
		said, _ := os.ReadFile(stderr.Name())
		s.err = fmt.Errorf("%w\n%s", s.err, said)
	}
}

// readServed reads what `testservers serve` prints up to "ready".
func readServed(r io.Reader) (map[string]string, error) {
	env := map[string]string{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if line == "ready" {
			return env, nil
		}
		if about, ok := strings.CutPrefix(line, "# "); ok {
			fmt.Fprintln(os.Stderr, "test server for this binary alone:", about)
			continue
		}
		if k, v, ok := strings.Cut(line, "="); ok {
			env[k] = v
		}
	}
	return nil, errors.Join(errors.New("the server ended before it was ready"), lines.Err())
}

// requireReal says that a test may not settle for less than the real thing.
func requireReal() bool { return os.Getenv(requireRealEnv) == "1" }
