package contender

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/bench/rig"
)

// peersEnv switches the tests of the peers on: they fetch programs, need Java, and take a minute.
const peersEnv = "POSTRIDER_BENCH_PEERS"

// Each peer brings a backlog, and then what is written while it runs, to Kafka as the benchmark's check wants it: key,
// bytes of the payload, id header, order within a key. Then it ends in order.
func TestPeersDeliver(t *testing.T) {
	s := newStack(t)
	for _, c := range []Contender{&Debezium{}, &Debezium{Tuned: true}, &Polling{}, &Polling{Tuned: true}, &Watermill{}} {
		t.Run(c.Name(), func(t *testing.T) { s.run(t, c) })
	}
}

const (
	backlogRows = 20_000 // several batches of every peer
	liveRows    = 50
	table       = "outbox"
	patience    = 2 * time.Minute
)

// stack is a rig with a backlog, one transaction a row.
type stack struct {
	*rig.Rig
	rows int
}

const setup = `CREATE TABLE outbox (
    event_id uuid PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL, aggregate_version bigint,
    event_type text NOT NULL, payload jsonb, headers jsonb, occurred_at timestamptz NOT NULL DEFAULT now());
CREATE PUBLICATION bench FOR TABLE outbox`

// The payload has what a JSON library would write otherwise: the order of its names, 0.0600, a large number, letters beyond ASCII, <.
const insertBacklog = `DO $$ BEGIN FOR i IN 1..%d LOOP
INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload)
VALUES (gen_random_uuid(), 'order', 'key-' || i %% 500, 'placed', ` + payload + `);
COMMIT; END LOOP; END $$`

const payload = `jsonb_build_object('zeta', i, 'a', 0.0600, 'big', 12345678901234567890.10, 'text', E'ü <"quoted"> \\ ' || repeat('x', 100))`

func newStack(t *testing.T) *stack {
	t.Helper()
	if os.Getenv(peersEnv) != "1" {
		t.Skip("set " + peersEnv + "=1 to run the benchmark's peers")
	}
	root, err := rig.FindRoot(".")
	must(t, err)
	r, err := rig.New(rig.Options{Root: root, Dir: t.TempDir()})
	must(t, err)
	must(t, r.Start(t.Context()))
	t.Cleanup(func() { must(t, r.Close()) })
	s := &stack{Rig: r, rows: backlogRows}
	s.exec(t, setup)
	must(t, r.CreateSlot(t.Context(), "base"))
	s.exec(t, `SET synchronous_commit = off`)
	s.exec(t, fmt.Sprintf(insertBacklog, backlogRows))
	s.exec(t, `RESET synchronous_commit`)
	return s
}

func (s *stack) exec(t *testing.T, sql string) {
	t.Helper()
	_, err := s.SQL().Exec(t.Context(), sql)
	must(t, err)
}

func (s *stack) run(t *testing.T, c Contender) {
	ctx := t.Context()
	must(t, c.Prepare(ctx, s.Rig))
	t.Logf("%s: %s; versions %v", c.Name(), c.Describe(), c.Versions())
	name := strings.ReplaceAll(c.Name(), "-", "_")
	job := Job{
		Rig: s.Rig, Name: name, Table: table, Slot: name, Publication: "bench", Topic: name, Partitions: 6,
		Brokers: s.Kafka().Bootstrap(), WorkDir: t.TempDir(), LogFile: filepath.Join(t.TempDir(), "log"),
	}
	client, err := s.Client(kgo.ConsumeTopics(job.Topic))
	must(t, err)
	defer client.Close()
	must(t, rig.CreateTopic(ctx, client, job.Topic, job.Partitions))
	must(t, s.CopySlot(ctx, "base", job.Slot))
	defer func() { must(t, s.DropSlot(context.Background(), job.Slot)) }()
	own, _ := c.(OwnTable)
	if own != nil {
		must(t, own.Fill(ctx, job))
	}

	start := time.Now()
	p, err := c.Start(ctx, job)
	must(t, err)
	defer func() {
		must(t, p.Stop(context.Background()))
		if t.Failed() {
			t.Logf("the end of its log:\n%s", p.LogTail())
		}
	}()
	records := consume(t, client, p, s.rows)
	t.Logf("%d events %v after its start", len(records), time.Since(start).Round(time.Millisecond))
	s.writeLive(t, own, job)
	records = append(records, consume(t, client, p, liveRows)...)
	s.verify(t, records)
	sample, err := rig.Read(p.PID)
	must(t, err)
	t.Logf("%.2f s of CPU, %d MiB", sample.CPU.Total(), sample.PeakRSS>>20)
}

// writeLive writes events as the contender's application would, and into the table too, which is what verify compares with.
func (s *stack) writeLive(t *testing.T, own OwnTable, job Job) {
	t.Helper()
	for i := range liveRows {
		var id, kind, key, typ, text string
		must(t, s.SQL().QueryRow(t.Context(), `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload)
			SELECT gen_random_uuid(), 'order', 'live', 'placed', `+payload+` FROM (SELECT $1::int AS i) v
			RETURNING event_id::text, aggregate_type, aggregate_id, event_type, payload::text`, i).Scan(&id, &kind, &key, &typ, &text))
		if own != nil {
			_, err := s.SQL().Exec(t.Context(), own.InsertSQL(job), id, kind, key, typ, text)
			must(t, err)
		}
	}
	s.rows += liveRows
}

// consume reads n records.
func consume(t *testing.T, client *kgo.Client, p *rig.Process, n int) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		select {
		case <-p.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	var records []*kgo.Record
	for len(records) < n {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d events arrived (%v)\n%s", len(records), n, p.Err(), p.LogTail())
		}
		records = append(records, fetches.Records()...)
	}
	return records
}

// verify compares the records with the table.
func (s *stack) verify(t *testing.T, records []*kgo.Record) {
	t.Helper()
	type event struct{ key, payload string }
	events, order := map[string]event{}, map[string][]string{}
	rows, err := s.SQL().Query(t.Context(), `SELECT event_id::text, aggregate_id, payload::text FROM outbox ORDER BY age(xmin) DESC`)
	must(t, err)
	for rows.Next() {
		var id string
		var e event
		must(t, rows.Scan(&id, &e.key, &e.payload))
		events[id], order[e.key] = e, append(order[e.key], id)
	}
	must(t, rows.Err())
	seen := map[string]bool{}
	for _, r := range records {
		id := header(r, "id")
		e, ok := events[id]
		switch {
		case !ok:
			t.Fatalf("a record has no id of the table: %q", r.Headers)
		case string(r.Key) != e.key, string(r.Value) != e.payload:
			t.Fatalf("event %s arrived as %q: %s\nwant %q: %s", id, r.Key, r.Value, e.key, e.payload)
		case seen[id]:
			continue
		case order[e.key][0] != id:
			t.Fatalf("key %s: event %s is out of order", e.key, id)
		}
		seen[id], order[e.key] = true, order[e.key][1:]
	}
	if len(seen) != len(events) {
		t.Fatalf("%d of %d events arrived", len(seen), len(events))
	}
	t.Logf("headers %s, value %s", records[0].Headers, records[0].Value)
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
