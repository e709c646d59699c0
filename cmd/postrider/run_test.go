package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// stack is a database that is set up, a fake broker and a configuration for both.
type stack struct {
	db     *testkit.DB
	broker *testkit.FakeBroker
	path   string
}

func newStack(t *testing.T, extra string, kafkaOpts ...kfake.Opt) *stack {
	t.Helper()
	return newStackOn(t, testkit.Postgres(t), extra, kafkaOpts...)
}

func newStackOn(t *testing.T, db *testkit.DB, extra string, kafkaOpts ...kfake.Opt) *stack {
	t.Helper()
	s := &stack{db: db, broker: testkit.Kfake(t, devstack.KfakeOptions{Extra: kafkaOpts})}
	s.path = writeConfig(t, fmt.Sprintf(`publisher: {shutdown_timeout: 1s}
postgres: {dsn: %q, slot: %s, publication: %q}
kafka:
  brokers: [%s]
  topics: {create: {partitions: 2, replication_factor: 1}}
%sadmin: {listen: "127.0.0.1:0"}
sources:
  - table: public.outbox
    profile: default
    routes: [{topic: events, on_refusal: halt}]
`, s.db.DSN, s.db.Slot, s.db.Publication, strings.Join(s.broker.Server.Bootstrap(), ", "), extra))
	setupSteps(t, "--config", s.path, "--create-outbox")
	return s
}

func (s *stack) insert(t *testing.T, payload string) {
	t.Helper()
	s.db.Exec(t, `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload)
		VALUES (gen_random_uuid(), 'order', '42', 'OrderPlaced', `+payload+`)`)
}

func TestRunUntilNowPublishesAndEnds(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insert(t, `'{"a":1}'`)
	runBinary(t, nil, "run", "--until-lsn", "now", "--config", s.path).expect(t, exitDone, "everything that was read is published and confirmed")
	records := s.broker.ReadAll(t, "events")
	if len(records) != 1 || string(records[0].Key) != "42" || string(records[0].Value) != `{"a": 1}` {
		t.Errorf("records: %+v", records)
	}
	end := scalar(t, s.db, `SELECT confirmed_lsn::text FROM postrider.checkpoint WHERE slot = $1`, s.db.Slot)
	runBinary(t, nil, "checkpoint", "wait", "--lsn", end, "--timeout", "1s", "--config", s.path).expect(t, exitDone)
	runBinary(t, nil, "run", "--until-lsn", end, "--config", s.path).expect(t, exitDone)
	if again := s.broker.ReadAll(t, "events"); len(again) != 1 {
		t.Errorf("%d records after a second run", len(again))
	}
}

// A refused event halts with its own code, names the event, and nothing is confirmed past it.
func TestRunHaltsAtARefusedEvent(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insert(t, `NULL`)
	id := scalar(t, s.db, `SELECT event_id::text FROM outbox`)
	runBinary(t, nil, "run", "--config", s.path).expect(t, operr.Halted.ExitCode(), id, "null_payload", "public.outbox")
}

func TestRunWithoutSlot(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", s.db.Slot))
	runBinary(t, nil, "run", "--config", s.path).expect(t, operr.Slot.ExitCode(), s.db.Slot, "Try: ")
}

func TestRunWithWrongKafkaPassword(t *testing.T) {
	t.Parallel()
	s := newStack(t, "  sasl: {mechanism: PLAIN, username: relay, password: "+kafkaSecret+"}\n  authorization_grace: 1s\n",
		kfake.EnableSASL(), kfake.Superuser("PLAIN", "relay", "another"))
	r := runBinary(t, nil, "run", "--config", s.path)
	r.expect(t, operr.Kafka.ExitCode(), "Try: ")
	if strings.Contains(r.out+r.err, kafkaSecret) {
		t.Errorf("the password is shown:\n%s", r.err)
	}
}

// process is a run of the binary in the background.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	admin string
	log   chan string   // lines of standard error
	ended chan struct{} // closed at the end
	text  strings.Builder
}

// startRun starts the relay and waits until its admin server says where it listens.
func startRun(t *testing.T, path string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, "run", "--config", path), log: make(chan string, 1000), ended: make(chan struct{})}
	errs, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(errs)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	var line struct{ Admin string }
	if err := json.Unmarshal([]byte(p.waitFor("starting")), &line); err != nil || line.Admin == "" {
		t.Fatalf("the first line of the log names no admin address: %v", err)
	}
	p.admin = line.Admin
	return p
}

func (p *process) read(errs io.Reader) {
	lines := bufio.NewScanner(errs)
	for lines.Scan() {
		select {
		case p.log <- lines.Text():
		default: // nobody waits for that many
		}
	}
	_ = p.cmd.Wait() // its code is in ProcessState
	close(p.log)
	close(p.ended)
}

// waitFor gives the first line of the log that has the text.
func (p *process) waitFor(text string) string {
	p.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		select {
		case line, ok := <-p.log:
			if !ok {
				p.t.Fatalf("ended before %q was logged:\n%s", text, p.text.String())
			}
			p.text.WriteString(line + "\n")
			if strings.Contains(line, text) {
				return line
			}
		case <-deadline.C:
			p.t.Fatalf("%q was not logged:\n%s", text, p.text.String())
		}
	}
}

// end waits for the process and gives what it said since the last wait.
func (p *process) end() result {
	p.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-p.ended:
	case <-deadline.C:
		p.t.Fatal("the process did not end")
	}
	for line := range p.log {
		p.text.WriteString(line + "\n")
	}
	return result{code: p.cmd.ProcessState.ExitCode(), err: p.text.String()}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// get asks the admin server.
func (p *process) get(path string) (int, string) {
	res, err := http.Get("http://" + p.admin + path) //nolint:noctx // bounded by the polling around it
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

func (p *process) ready() {
	p.t.Helper()
	testkit.Eventually(p.t, patience, func() error {
		if code, body := p.get("/readyz"); code != http.StatusOK {
			return errors.New(body)
		}
		return nil
	})
}

// unconfirmed waits until an event was received and is not acknowledged.
func (p *process) unconfirmed() {
	p.t.Helper()
	testkit.Eventually(p.t, patience, func() error {
		_, body := p.get("/status.json")
		var status struct {
			Unconfirmed int `json:"unconfirmed_events"`
		}
		if err := json.Unmarshal([]byte(body), &status); err != nil || status.Unconfirmed == 0 {
			return errors.Join(err, errors.New("nothing is unconfirmed: "+body))
		}
		return nil
	})
}

// SIGTERM drains and ends with 0; the admin server shows the process meanwhile.
func TestSignalDrains(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	p := startRun(t, s.path)
	p.ready()
	for path, want := range map[string]string{"/healthz": "ok", "/metrics": "postrider_build_info", "/status.json": `"phase": "streaming"`} {
		if code, body := p.get(path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d lacks %q", path, code, want)
		}
	}
	s.insert(t, `'{}'`)
	runBinary(t, nil, "checkpoint", "wait", "--now", "--timeout", "20s", "--config", s.path).expect(t, exitDone)
	p.signal(syscall.SIGTERM)
	p.end().expect(t, exitDone, "draining; a second signal ends at once", "everything that was read is published and confirmed")
}

// With the broker gone a drain cannot end: exit code 7 after shutdown_timeout, or
// at once after a second signal, with what stayed unconfirmed.
func TestSignalWithoutBroker(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]string{"timeout": "1s", "second signal": "10m"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, "")
			rewrite(t, s.path, "shutdown_timeout: 1s", "shutdown_timeout: "+config)
			p := startRun(t, s.path)
			p.ready()
			s.broker.Server.Halt()
			s.insert(t, `'{}'`)
			p.unconfirmed()
			p.signal(syscall.SIGINT)
			if name == "second signal" {
				p.waitFor("draining; a second signal ends at once")
				p.signal(syscall.SIGTERM)
			}
			p.end().expect(t, operr.DrainIncomplete.ExitCode(), "postrider: ", "1 event")
		})
	}
}
