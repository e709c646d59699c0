package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/sizing"
	"github.com/postrider/postrider/internal/testkit"
)

// benchArgs is a small run on a test's servers.
func benchArgs(db *testkit.DB, brokers []string, more ...string) []string {
	return append([]string{"bench", "--dsn", db.DSN, "--brokers", strings.Join(brokers, ","), "--yes"}, more...)
}

var benchName = regexp.MustCompile(`postrider_bench_[0-9a-f]{8}`)

// noTrace fails the test where a run has left something on PostgreSQL.
func noTrace(t *testing.T, db *testkit.DB, stderr string) (name string) {
	t.Helper()
	name = benchName.FindString(stderr)
	if name == "" {
		t.Fatalf("the run names nothing that it makes:\n%s", stderr)
	}
	left := scalar(t, db, `SELECT concat_ws(' ', (SELECT 'database' FROM pg_database WHERE datname = $1), (SELECT 'slot' FROM pg_replication_slots WHERE slot_name = $1),
		(SELECT 'session' FROM pg_stat_activity WHERE datname = $1 LIMIT 1))`, name)
	if left != "" {
		t.Errorf("%s is left behind: %s", name, left)
	}
	if touched := scalar(t, db, `SELECT concat_ws(' ', (SELECT 'schema' FROM pg_namespace WHERE nspname = 'postrider'), (SELECT 'publication' FROM pg_publication LIMIT 1),
		(SELECT 'table' FROM pg_tables WHERE schemaname = 'public' LIMIT 1))`); touched != "" {
		t.Errorf("the operator's database was touched: %s", touched)
	}
	return name
}

func noTopic(t *testing.T, broker *testkit.Broker, name string) {
	t.Helper()
	admin := kadm.NewClient(broker.Client(t))
	testkit.Eventually(t, patience, func() error {
		topics, err := admin.ListTopics(t.Context())
		if err == nil && topics.Has(name) {
			err = fmt.Errorf("topic %s is left behind", name)
		}
		return err
	})
}

func TestBenchMeasuresAndLeavesNothing(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Postgres(t), testkit.Kafka(t)
	r := runBinary(t, nil, benchArgs(db, broker.Bootstrap(), "--json", "--rows", "5003", "--rows-per-transaction", "3", "--payload", "300",
		"--partitions", "3", "--rate", "250", "--for", "1s")...)
	r.expect(t, exitDone, "It writes 5,253 rows", "pg_drop_replication_slot", "draining", "removing")
	var got sizing.Result
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatalf("standard output is not one JSON document: %v\n%s", err, r.out)
	}
	if got.Committed != 5253 || got.Delivered != 5253 || got.Lost+got.OutOfOrder+got.WrongBytes+got.Duplicates != 0 {
		t.Errorf("arrivals: %+v", got)
	}
	if got.Rows != 5003 || got.PayloadBytes != 300 || got.PerTx != 3 || got.Partitions != 3 || got.LatencyEvents != 250 || len(got.LeftBehind) != 0 {
		t.Errorf("what was asked for: %+v", got)
	}
	if got.EventsPerSecond <= 0 || got.DecodePerSecond <= 0 || got.CPUPerEvent <= 0 || got.PeakRSS <= 0 || got.WALPerEvent < 300 || got.LatencyP99 < got.LatencyP50 ||
		got.LatencyMax <= 0 || got.LatencyRate <= 0 || got.EventsPerBatch < 1 || got.Limit == "" || got.LimitText == "" {
		t.Errorf("figures: %+v", got)
	}
	noTopic(t, broker, noTrace(t, db, r.err))
}

// The configuration's connection is used, here with TLS and a password, and nothing else of it.
func TestBenchTakesTheConfiguration(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	broker := testkit.PrivateKafka(t, devstack.KafkaOptions{Secure: true})
	path := writeConfig(t, fmt.Sprintf(`postgres: {dsn: %q, slot: of_the_shop, publication: of_the_shop}
kafka:
  brokers: [%s]
  tls: {ca_file: %q}
  sasl: {mechanism: SCRAM-SHA-512, username: %q, password: "${KAFKA_PASSWORD}"}
  topics: {create: {replication_factor: 1}}
sources: [{table: public.of_the_shop, profile: debezium}]
`, db.DSN, strings.Join(broker.Server.Bootstrap(), ", "), broker.Server.CAFile, broker.Server.User))
	secret := broker.Server.Password
	r := runBinary(t, []string{"KAFKA_PASSWORD=" + secret}, "bench", "--yes", "--config", path, "--rows", "1000", "--rate", "0")
	r.expect(t, exitDone)
	for _, text := range []string{"This machine: ", "Checked: all 1,000 events", "What limits the drain is "} {
		if !strings.Contains(r.out, text) {
			t.Errorf("standard output lacks %q:\n%s", text, r.out)
		}
	}
	if strings.Contains(r.out, "latency") || strings.Contains(r.out+r.err, secret) {
		t.Errorf("the latency that was not measured, or the password, is shown:\n%s%s", r.out, r.err)
	}
	noTopic(t, broker.Broker, noTrace(t, db, r.err))
}

// Where nobody can be asked nothing is made, and an older run's slot is pointed out.
func TestBenchMakesNothingUnasked(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Postgres(t), testkit.Kafka(t)
	old := "postrider_bench_old_" + db.Name[len(db.Name)-6:]
	db.Exec(t, "SELECT pg_create_logical_replication_slot('"+old+"', 'pgoutput')")
	r := runBinary(t, nil, "bench", "--dsn", db.DSN, "--brokers", strings.Join(broker.Bootstrap(), ","))
	r.expect(t, operr.Config.ExitCode(), "--yes", "It writes 110,000 rows", "An earlier run has left the slot "+old, "SELECT pg_drop_replication_slot('"+old+"')")
	noTopic(t, broker, noTrace(t, db, r.err))
}

func TestBenchRefusesOddFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flags, says string }{
		{"--rows 999", "--rows is 999; must be from 1000"},
		{"--payload 1", "--payload"},
		{"--rows-per-transaction 0", "--rows-per-transaction"},
		{"--partitions 0", "--partitions"},
		{"--rate -1", "--rate"},
		{"--for 1ms", "--for is 1ms; must be from 1s to 10m0s"},
		{"--stall-timeout 0s", "--stall-timeout"},
		{"--dsn postgres://h/d", "go together"},
		{"--dsn postgres://h/d --brokers h:1 --config x", "keep one"},
	} {
		r := runBinary(t, nil, append([]string{"bench"}, strings.Fields(c.flags)...)...)
		r.expect(t, operr.Config.ExitCode(), c.says)
	}
}

// A role that lacks a right hears so before anything is made.
func TestBenchNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Postgres(t), testkit.Kafka(t)
	role := db.Name + "_role"
	db.Exec(t, "CREATE ROLE "+role+" LOGIN REPLICATION PASSWORD 'pw'")
	t.Cleanup(func() { db.Exec(t, "DROP ROLE "+role) })
	r := runBinary(t, nil, "bench", "--yes", "--dsn", db.As(role, "pw"), "--brokers", strings.Join(broker.Bootstrap(), ","))
	r.expect(t, operr.Postgres.ExitCode(), "ALTER ROLE", "CREATEDB")
	r = runBinary(t, nil, benchArgs(db, []string{"127.0.0.1:1"})...)
	r.expect(t, operr.Kafka.ExitCode(), "127.0.0.1:1", "Try: ")
}

// interruptible is a run in the background whose standard error is followed.
type interruptible struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
	text  strings.Builder
}

func startBench(t *testing.T, args []string) *interruptible {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	b := &interruptible{t: t, cmd: exec.CommandContext(ctx, binary, args...)}
	b.cmd.Dir = t.TempDir()
	b.cmd.Env = []string{"HOME=" + b.cmd.Dir, "PATH=" + os.Getenv("PATH")}
	errs, err := b.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	b.lines = bufio.NewScanner(errs)
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return b
}

// until reads on to a line with the text; what follows the call may come too late for
// the phase that it names, never too early.
func (b *interruptible) until(text string) {
	b.t.Helper()
	for b.lines.Scan() {
		b.text.WriteString(b.lines.Text() + "\n")
		if strings.Contains(b.lines.Text(), text) {
			return
		}
	}
	b.t.Fatalf("ended before it said %q:\n%s", text, b.text.String())
}

func (b *interruptible) signal(s syscall.Signal) {
	b.t.Helper()
	if err := b.cmd.Process.Signal(s); err != nil {
		b.t.Fatal(err)
	}
}

func (b *interruptible) end() result {
	b.t.Helper()
	for b.lines.Scan() {
		b.text.WriteString(b.lines.Text() + "\n")
	}
	_ = b.cmd.Wait() // its code is looked at
	return result{code: b.cmd.ProcessState.ExitCode(), err: b.text.String()}
}

// Ctrl-C in every phase, and once more while it removes things, leaves nothing behind.
func TestBenchRemovesEverythingOnInterrupt(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Postgres(t), testkit.Kafka(t)
	for _, phase := range []string{"making the database", "writing 60,000", "decoding them", "draining", "reading the topic back", "events/s for"} {
		t.Run(phase, func(t *testing.T) {
			b := startBench(t, benchArgs(db, broker.Bootstrap(), "--rows", "60000", "--rate", "100", "--for", "5m"))
			b.until(phase)
			b.signal(syscall.SIGINT)
			b.until("removing database, slot and topic")
			b.signal(syscall.SIGTERM)
			r := b.end()
			r.expect(t, operr.DrainIncomplete.ExitCode(), "what the run had made is removed")
			noTopic(t, broker, noTrace(t, db, r.err))
		})
	}
}

// A reader of the output that goes away must not end the process before it has cleaned up.
func TestBenchSurvivesAClosedTerminal(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Postgres(t), testkit.Kafka(t)
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, benchArgs(db, broker.Bootstrap(), "--rows", "5000", "--rate", "0")...)
	cmd.Stderr = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	lines := bufio.NewScanner(in)
	var text strings.Builder
	for lines.Scan() && !strings.Contains(lines.Text(), "making the database") {
		text.WriteString(lines.Text() + "\n")
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	noTopic(t, broker, noTrace(t, db, text.String()))
}

// Brokers that go away in the middle end the run after --stall-timeout with their own
// exit code; PostgreSQL is clean, and the topic that cannot be deleted is named.
func TestBenchGivesUpOnDeadBrokers(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Postgres(t), testkit.Kfake(t, devstack.KfakeOptions{})
	b := startBench(t, benchArgs(db, broker.Server.Bootstrap(), "--rows", "2000", "--rate", "100", "--for", "5m", "--stall-timeout", "2s"))
	b.until("events/s for")
	broker.Server.Halt()
	r := b.end()
	r.expect(t, operr.Kafka.ExitCode(), "nothing was acknowledged for 2s", "kafka-topics.sh", "Try: ")
	noTrace(t, db, r.err)
}

// A PostgreSQL that restarts in the middle ends the run, and is cleaned up when it is back.
func TestBenchRemovesEverythingAfterARestart(t *testing.T) {
	t.Parallel()
	server, broker := testkit.PrivatePostgres(t, devstack.PostgresOptions{}), testkit.Kafka(t)
	db := testkit.NewDB(t, server.DSN())
	b := startBench(t, benchArgs(db, broker.Bootstrap(), "--rows", "2000", "--rate", "100", "--for", "5m"))
	b.until("events/s for")
	if err := server.Restart(t.Context(), devstack.Fast); err != nil {
		t.Fatal(err)
	}
	r := b.end()
	r.expect(t, operr.Postgres.ExitCode(), "removing database, slot and topic")
	noTopic(t, broker, noTrace(t, db, r.err))
}
