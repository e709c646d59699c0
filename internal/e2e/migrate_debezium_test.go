package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/oracle"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/router"
)

// connector is a Debezium connector in a Connect worker of its own, set up as the benchmark's.
type connector struct {
	t       *testing.T
	worker  string
	options map[string]any
	cmd     *exec.Cmd
	log     string
	exited  chan struct{}
}

func (f *fixture) newConnector(slot, publication string) *connector {
	f.t.Helper()
	dir := f.t.TempDir()
	worker := filepath.Join(dir, "worker")
	build := exec.Command("go", "build", "-C", filepath.Join("..", "..", "bench"), "-o", worker, "./peers/debezium/worker")
	if out, err := build.CombinedOutput(); err != nil {
		f.t.Fatalf("build the worker: %v\n%s", err, out)
	}
	conn, err := pgx.ParseConfig(f.db.DSN)
	if err != nil {
		f.t.Fatal(err)
	}
	return &connector{t: f.t, worker: worker, log: filepath.Join(dir, "log"), options: map[string]any{
		"Dir": f.t.TempDir(), "Host": conn.Host, "Port": conn.Port, "User": conn.User, "Password": conn.Password, "Database": conn.Database,
		"Slot": slot, "Publication": publication, "Table": "public.outbox", "Brokers": f.broker.Bootstrap(), "Topic": f.topic("order"), "Tuned": true,
	}}
}

func (c *connector) start() {
	c.t.Helper()
	options, err := json.Marshal(c.options)
	if err != nil {
		c.t.Fatal(err)
	}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	c.cmd = exec.Command(c.worker)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = bytes.NewReader(options), log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	cmd, exited := c.cmd, make(chan struct{})
	c.exited = exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
	})
}

// stop is the worker's graceful end.
func (c *connector) stop() {
	c.t.Helper()
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-time.After(2 * patience):
		text, _ := os.ReadFile(c.log)
		c.t.Fatalf("the connector does not stop\n%s", text[max(0, len(text)-4000):])
	}
}

// expectDebezium is what Event Router and Postrider make of a row, each with its own configuration.
func (f *fixture) expectDebezium(row oracle.Row) (oracle.Event, bool) {
	return oracle.Event{
		ID: string(row.Get("event_id")), Topic: f.topic("order"), Key: row.Get("aggregate_id"), Value: row.Get("payload"),
		Headers: []event.Header{{Name: "id", Value: row.Get("event_id")}, {Name: "eventType", Value: row.Get("event_type")}},
	}, row.Table == "outbox"
}

// A real Debezium connector is shadowed, replaced live by the documented script, and taken back by the other one: nothing is lost or
// overtaken, and the bytes stay the same. It fetches Debezium, so it runs with POSTRIDER_TEST_LONG only.
func TestMigrateFromDebeziumAndBack(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("fetches Debezium and runs it for a minute: POSTRIDER_TEST_LONG=1 runs it")
	}
	db := testkit.Postgres(t)
	f := &fixture{t: t, db: db, broker: testkit.Kafka(t), prefix: strings.ReplaceAll(testkit.Unique(t), "_", "-"), policy: router.OnRefusalHalt}
	must(t, func() error { _, err := migrations.Apply(context.Background(), db.DSN); return err }())
	db.Exec(t, `CREATE TABLE outbox(event_id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL,
		event_type text NOT NULL DEFAULT 'X', payload jsonb)`)
	db.Exec(t, "CREATE PUBLICATION witness FOR TABLE outbox WITH (publish = 'insert')")
	slot := db.Slot + "_dbz"
	db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", slot))
	t.Cleanup(func() { db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", slot)) })
	f.createTopic("order", 6, nil)
	// What Debezium adds to its records by itself is nobody's event.
	own := oracle.Config{IgnoreHeader: func(name string) bool { return strings.HasPrefix(name, "__debezium.") }}
	witness := testkit.NewWitnessWith(t, db, "witness", f.broker, []string{f.topic("order")}, f.expectDebezium, own)
	c := f.newConnector(slot, "witness")
	c.start()
	load := f.startWriters(4, "order", 10*time.Millisecond)
	f.awaitRecords(f.topic("order"), 100)

	config := f.yaml("")
	text, err := os.ReadFile(config)
	must(t, err)
	mapping := strings.NewReplacer("event_id: id,", "event_id: event_id,", "event_type: event_type}", "event_type: event_type, event_type_header: eventType}")
	must(t, os.WriteFile(config, []byte(mapping.Replace(string(text))), 0o600))
	db.Exec(t, fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE outbox WITH (publish = 'insert')", quoted(db.Publication)))
	shadow, code := f.shadow(config, "--for", "5s", "--ignore-header", "__debezium.*")
	if code != 0 {
		t.Errorf("the shadow beside the connector: exit code %d\n%s", code, shadow)
	}

	m := f.newMigration(config)
	m.env = append(m.env, "DEBEZIUM_SLOT="+slot, "STOP_CONNECTOR="+m.ask("stop-connector"), "START_CONNECTOR="+m.ask("start-connector"))
	m.requests["stop-connector"], m.requests["start-connector"] = c.stop, c.start
	there := m.run("debezium-cutover.sh")
	load.pauseAt(t, 2000)
	back := m.run("debezium-back.sh")
	load.pauseAt(t, 2000)
	load.end()
	testkit.Eventually(t, 2*patience, func() error {
		ids := map[string]bool{}
		for _, r := range f.broker.ReadAll(t, f.topic("order")) {
			for _, h := range r.Headers {
				if h.Key == "id" {
					ids[string(h.Value)] = true
				}
			}
		}
		if int64(len(ids)) < load.rows.Load() {
			return fmt.Errorf("%d of %d events are in the topic", len(ids), load.rows.Load())
		}
		return nil
	})
	c.stop()
	v := witness.Verdict(t)
	t.Logf("%s%s%s%d rows: %s", shadow, there, back, load.rows.Load(), v)
	if v.Lost+v.OutOfOrder+v.Phantom+v.WrongBytes > 0 || int64(v.Committed) != load.rows.Load() {
		t.Fatalf("%s\n%s", v, strings.Join(v.Details, "\n"))
	}
}
