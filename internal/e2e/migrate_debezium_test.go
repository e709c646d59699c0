package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
		ID: string(row.Get("event_id")), Topic: f.topic(string(row.Get("aggregate_type"))), Key: row.Get("aggregate_id"), Value: row.Get("payload"),
		Headers: []event.Header{{Name: "id", Value: row.Get("event_id")}, {Name: "eventType", Value: row.Get("event_type")}},
	}, row.Table == "outbox"
}

// What Debezium adds to its records by itself is nobody's event.
var ownHeaders = oracle.Config{IgnoreHeader: func(name string) bool { return strings.HasPrefix(name, "__debezium.") }}

// debeziumed is a database with an outbox as Event Router has it, and a connector with its slot, not started.
func debeziumed(t *testing.T) (f *fixture, c *connector, slot string) {
	t.Helper()
	db := testkit.Postgres(t)
	f = &fixture{t: t, db: db, broker: testkit.Kafka(t), prefix: strings.ReplaceAll(testkit.Unique(t), "_", "-"), policy: router.OnRefusalHalt}
	must(t, func() error { _, err := migrations.Apply(context.Background(), db.DSN); return err }())
	db.Exec(t, `CREATE TABLE outbox(event_id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL,
		event_type text NOT NULL DEFAULT 'X', payload jsonb)`)
	db.Exec(t, "CREATE PUBLICATION witness FOR TABLE outbox WITH (publish = 'insert')")
	slot = db.Slot + "_dbz"
	db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", slot))
	t.Cleanup(func() { db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", slot)) })
	return f, f.newConnector(slot, "witness"), slot
}

// debeziumYAML maps that outbox to what the connector makes of it.
func (f *fixture) debeziumYAML() string {
	f.t.Helper()
	path := f.yaml("")
	text, err := os.ReadFile(path)
	must(f.t, err)
	mapping := strings.NewReplacer("event_id: id,", "event_id: event_id,", "event_type: event_type}", "event_type: event_type, event_type_header: eventType}")
	must(f.t, os.WriteFile(path, []byte(mapping.Replace(string(text))), 0o600))
	return path
}

// awaitIDs waits until the topics of the types hold so many events.
func (f *fixture) awaitIDs(want int64, kinds ...string) {
	f.t.Helper()
	testkit.Eventually(f.t, 2*patience, func() error {
		n := 0
		for _, kind := range kinds {
			n += len(f.idsOf(kind))
		}
		if int64(n) < want {
			return fmt.Errorf("%d of %d events are in the topics", n, want)
		}
		return nil
	})
}

// idsOf are the event ids in the topic of a type, with how often each is there.
func (f *fixture) idsOf(kind string) map[string]int {
	f.t.Helper()
	ids := map[string]int{}
	for _, r := range f.broker.ReadAll(f.t, f.topic(kind)) {
		for _, h := range r.Headers {
			if h.Key == "id" {
				ids[string(h.Value)]++
			}
		}
	}
	return ids
}

// A real Debezium connector is shadowed, replaced live by the documented script, and taken back by the other one: nothing is lost or
// overtaken, and the bytes stay the same. It fetches Debezium, so it runs with POSTRIDER_TEST_LONG only.
func TestMigrateFromDebeziumAndBack(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("fetches Debezium and runs it for a minute: POSTRIDER_TEST_LONG=1 runs it")
	}
	f, c, slot := debeziumed(t)
	db := f.db
	f.createTopic("order", 6, nil)
	witness := testkit.NewWitnessWith(t, db, "witness", f.broker, []string{f.topic("order")}, f.expectDebezium, ownHeaders)
	c.start()
	load := f.startWriters(4, "order", 10*time.Millisecond)
	f.awaitRecords(f.topic("order"), 100)

	config := f.debeziumYAML()
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
	f.awaitIDs(load.rows.Load(), "order")
	c.stop()
	v := witness.Verdict(t)
	t.Logf("%s%s%s%d rows: %s", shadow, there, back, load.rows.Load(), v)
	if v.Lost+v.OutOfOrder+v.Phantom+v.WrongBytes > 0 || int64(v.Committed) != load.rows.Load() {
		t.Fatalf("%s\n%s", v, strings.Join(v.Details, "\n"))
	}
	if most := numberBefore(t, there, " come twice") + numberBefore(t, back, " of the rows that are"); v.Duplicates > most {
		t.Errorf("%d duplicates, the scripts announced at most %d", v.Duplicates, most)
	}
}

// leaveOut has the connector drop what Event Router sends to the topics of these types, by means of Connect's own.
func (c *connector) leaveOut(kinds ...string) {
	if len(kinds) == 0 {
		delete(c.options, "Extra")
		return
	}
	c.options["Extra"] = map[string]string{
		"transforms":                "outbox,gray",
		"transforms.gray.type":      "org.apache.kafka.connect.transforms.Filter",
		"transforms.gray.predicate": "ours",
		"predicates":                "ours",
		"predicates.ours.type":      "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
		"predicates.ours.pattern":   `.*\.(` + strings.Join(kinds, "|") + ")",
	}
}

// A real Debezium connector is replaced live by aggregate type, with the documented script: one type, a second, all; then back by
// the same steps, and to the connector alone. It fetches Debezium, so it runs with POSTRIDER_TEST_LONG only.
func TestMigrateFromDebeziumByType(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("fetches Debezium and runs it for some minutes: POSTRIDER_TEST_LONG=1 runs it")
	}
	f, c, slot := debeziumed(t)
	if f.db.VersionNum(t) < 150000 {
		t.Skip("row filters came with 15")
	}
	c.options["Topic"] = f.topic("${routedByValue}")
	load := &load{stop: make(chan struct{})}
	var topics []string
	for _, kind := range grayKinds {
		f.createTopic(kind, 3, nil)
		topics = append(topics, f.topic(kind))
	}
	witness := testkit.NewWitnessWith(t, f.db, "witness", f.broker, topics, f.expectDebezium, ownHeaders)
	c.start()
	for _, kind := range grayKinds {
		f.write(load, 2, kind, 20*time.Millisecond)
	}
	t.Cleanup(load.end)
	f.awaitRecords(f.topic("order"), 100)
	g := f.newGray()
	g.rows, g.yaml = load, f.debeziumYAML
	g.env = append(g.env, "DEBEZIUM_SLOT="+slot, "STOP_CONNECTOR="+g.ask("stop-connector"), "START_CONNECTOR="+g.ask("start-connector"))
	g.requests["stop-connector"] = func() {
		c.stop()
		g.writeLate()
	}
	g.requests["start-connector"] = func() {
		c.start()
		g.commitOpen()
	}
	step := func(ours string, come, stay, leave []string) {
		c.leaveOut(append(slices.Clone(come), stay...)...)
		g.step("debezium-gray.sh", ours, come, stay, leave)
		load.pauseAt(t, 2000)
	}
	order, payment, refund := grayKinds[:1], grayKinds[1:2], grayKinds[2:]
	step("aggregate_type = 'order'", order, nil, nil)
	step("aggregate_type IN ('order', 'payment')", payment, order, nil)
	step("true", refund, grayKinds[:2], nil)
	step("aggregate_type IN ('order', 'payment')", nil, grayKinds[:2], refund)
	step("aggregate_type = 'order'", nil, order, payment)
	c.leaveOut()
	back := g.run("debezium-back.sh", "CONFIG="+g.configs[len(g.configs)-1])
	g.commitOpen()
	g.announced(numberBefore(t, back, " of the rows that are"), order)
	load.pauseAt(t, 2000)
	load.end()
	f.awaitIDs(load.rows.Load(), grayKinds...)
	c.stop()
	v := witness.Verdict(t)
	t.Logf("%s%s%d rows: %s", strings.Join(g.said, ""), back, load.rows.Load(), v)
	if v.Lost+v.OutOfOrder+v.Phantom+v.WrongBytes > 0 || int64(v.Committed) != load.rows.Load() {
		t.Fatalf("%s\n%s", v, strings.Join(v.Details, "\n"))
	}
	g.requireFew(v.Duplicates)
}
