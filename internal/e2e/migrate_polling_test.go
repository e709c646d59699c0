package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/router"
)

// polledTable is what a polling relay wants: a number to order by, and a mark.
const polledTable = `CREATE TABLE outbox(
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), seq bigserial, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
  event_type text NOT NULL DEFAULT 'X', payload jsonb, created_at timestamptz NOT NULL DEFAULT now(), dispatched_at timestamptz);
  CREATE INDEX ON outbox (seq) WHERE dispatched_at IS NULL`

// poller is the usual polling relay: SKIP LOCKED, a batch at a time, marked after the broker's acknowledgement.
type poller struct {
	f         *fixture
	client    *kgo.Client
	published atomic.Int64
	cancel    context.CancelFunc
	done      chan struct{}
	err       error
}

func (f *fixture) startPoller(types string) *poller {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &poller{f: f, client: f.broker.Client(f.t), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = p.run(ctx, types)
	}()
	f.t.Cleanup(func() { p.end() })
	return p
}

// end lets it finish its batch.
func (p *poller) end() {
	p.cancel()
	<-p.done
	if p.err != nil {
		p.f.t.Errorf("poller: %v", p.err)
	}
}

func (p *poller) run(ctx context.Context, types string) error {
	conn, err := pgx.Connect(context.Background(), p.f.db.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		n, err := p.batch(conn, types)
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

func (p *poller) batch(conn *pgx.Conn, types string) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n := 0
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id::text, coalesce(aggregate_type, ''), aggregate_id, event_type, payload::text FROM outbox
			WHERE dispatched_at IS NULL AND (`+types+`) ORDER BY seq LIMIT 100 FOR UPDATE SKIP LOCKED`)
		if err != nil {
			return err
		}
		var ids []string
		var records []*kgo.Record
		var id, kind, key, eventType, payload string
		if _, err := pgx.ForEachRow(rows, []any{&id, &kind, &key, &eventType, &payload}, func() error {
			ids = append(ids, id)
			records = append(records, &kgo.Record{
				Topic: p.f.topic(kind), Key: []byte(key), Value: []byte(payload),
				Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}, {Key: "event_type", Value: []byte(eventType)}},
			})
			return nil
		}); err != nil || len(ids) == 0 {
			return err
		}
		if err := p.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}
		n = len(ids)
		p.published.Add(int64(n))
		_, err = tx.Exec(ctx, "UPDATE outbox SET dispatched_at = now() WHERE id::text = ANY($1)", ids)
		return err
	})
	return n, err
}

// polled is a database with a polled outbox, and no slot yet.
func polled(t *testing.T) *fixture {
	t.Helper()
	db := testkit.Postgres(t)
	f := &fixture{t: t, db: db, broker: testkit.Kafka(t), prefix: strings.ReplaceAll(testkit.Unique(t), "_", "-"), policy: router.OnRefusalHalt}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := migrations.Apply(ctx, db.DSN); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, polledTable)
	db.Exec(t, "CREATE PUBLICATION witness FOR TABLE outbox WITH (publish = 'insert')")
	return f
}

// writers commit events from several sessions, each of which owns its keys: then the order of seq is that of commits within a
// key, which a poller needs.
func (f *fixture) startWriters(sessions int, kind string, pause time.Duration) *load {
	l := &load{stop: make(chan struct{})}
	f.write(l, sessions, kind, pause)
	f.t.Cleanup(l.end)
	return l
}

// write adds sessions to a load.
func (f *fixture) write(l *load, sessions int, kind string, pause time.Duration) {
	for s := range sessions {
		l.wg.Go(func() {
			conn, err := pgx.Connect(context.Background(), f.db.DSN)
			if err != nil {
				f.t.Error(err)
				return
			}
			defer conn.Close(context.Background())
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-l.stop:
					return
				case <-tick.C:
				}
				_, err := conn.Exec(context.Background(), `INSERT INTO outbox(aggregate_type, aggregate_id, payload)
					SELECT $1, $2, jsonb_build_object('n', $3::int, 'part', i) FROM generate_series(1, 2) i`, kind, fmt.Sprintf("%s-%d-%d", kind, s, n%7), n)
				if err != nil {
					f.t.Error(err)
					return
				}
				l.rows.Add(2)
			}
		})
	}
}

// migration runs a script of docs/migrate as it is, with hooks that are commands.
type migration struct {
	t        *testing.T
	dir      string
	binary   string
	config   string
	env      []string
	requests map[string]func()
}

func (f *fixture) newMigration(config string) *migration {
	f.t.Helper()
	m := &migration{t: f.t, dir: f.t.TempDir(), binary: built(f.t), config: config, requests: map[string]func(){}}
	m.env = append(os.Environ(), "POSTRIDER="+m.binary, "CONFIG="+config, "PGURL="+f.db.DSN,
		m.startRelay(config),
		"STOP_RELAY="+fmt.Sprintf(`pid=$(cat %q); kill -TERM $pid; while kill -0 $pid 2>/dev/null; do sleep 0.1; done`, m.path("relay.pid")),
		"STOP_POLLER="+m.ask("stop"), "START_POLLER="+fmt.Sprintf(`printf %%s "$POLLER_WHERE" >%q; `, m.path("where"))+m.ask("start"))
	f.t.Cleanup(m.killRelay)
	return m
}

func (m *migration) path(name string) string { return filepath.Join(m.dir, name) }

// ask is a command that has the test do something, and returns when it is done.
func (m *migration) ask(what string) string {
	return fmt.Sprintf(`: >%q; while [ ! -e %q ]; do sleep 0.05; done; rm %q`, m.path(what), m.path(what+".done"), m.path(what+".done"))
}

func (m *migration) startRelay(config string) string {
	return "START_RELAY=" + fmt.Sprintf(`nohup %q run --config %q >>%q 2>&1 & echo $! >%q`, m.binary, config, m.path("relay.log"), m.path("relay.pid"))
}

// where is the condition that a script has START_POLLER start the poller with.
func (m *migration) where() string {
	m.t.Helper()
	text, err := os.ReadFile(m.path("where"))
	must(m.t, err)
	return string(text)
}

// killRelay ends what START_RELAY has started: it is no child of the test's.
func (m *migration) killRelay() {
	text, err := os.ReadFile(m.path("relay.pid"))
	if err != nil {
		return
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// run runs a script to its end.
func (m *migration) run(script string, env ...string) string {
	m.t.Helper()
	said, err := m.try(script, env...)
	if err != nil {
		log, _ := os.ReadFile(m.path("relay.log"))
		m.t.Fatalf("%s: %v\n%s\n%s", script, err, said, log)
	}
	return said
}

func (m *migration) try(script string, env ...string) (said string, err error) {
	m.t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("sh", filepath.Join("..", "..", "docs", "migrate", script))
	cmd.Env = append(slices.Clone(m.env), env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // the relay that it starts keeps no pipe of its
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline := time.After(4 * patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if errors.Is(err, exec.ErrWaitDelay) {
				err = nil
			}
			return out.String(), err
		case <-deadline:
			_ = cmd.Process.Kill()
			m.t.Fatalf("%s did not end: %v\n%s", script, <-ended, out.String())
		case <-tick.C:
			m.serve()
		}
	}
}

func (m *migration) serve() {
	for what, do := range m.requests {
		if os.Remove(m.path(what)) == nil {
			do()
			if err := os.WriteFile(m.path(what+".done"), nil, 0o600); err != nil {
				m.t.Fatal(err)
			}
		}
	}
}

// A polling relay is replaced live by the documented script, and comes back by the other one: nothing is lost or overtaken, and what
// comes twice is what both have published at the seams.
func TestMigrateFromPollingAndBack(t *testing.T) {
	t.Parallel()
	f := polled(t)
	f.createTopic("order", 6, nil)
	witness := testkit.NewWitness(t, f.db, "witness", f.broker, []string{f.topic("order")}, f.expect)
	p := f.startPoller("true")
	load := f.startWriters(4, "order", 5*time.Millisecond)
	load.pauseAt(t, int64(pick(500, 20_000)))

	m := f.newMigration(f.yaml(""))
	m.requests["stop"] = func() { p.end() }
	m.requests["start"] = func() { p = f.startPoller("true") }
	there := m.run("polling-cutover.sh")
	load.pauseAt(t, int64(pick(500, 20_000)))
	byPoller := p.published.Load()
	back := m.run("polling-back.sh")
	load.pauseAt(t, int64(pick(500, 20_000)))
	load.end()
	testkit.Eventually(t, patience, func() error {
		if n := f.scalar("SELECT count(*)::text FROM outbox WHERE dispatched_at IS NULL"); n != "0" {
			return fmt.Errorf("%s rows wait for the poller", n)
		}
		return nil
	})
	p.end()
	v := witness.Verdict(t)
	t.Logf("%d rows; the poller had published %d at the cutover: %s\n%s%s", load.rows.Load(), byPoller, v, there, back)
	if v.Lost+v.OutOfOrder+v.Phantom+v.WrongBytes > 0 || v.Committed == 0 || int64(v.Committed) != load.rows.Load() {
		t.Fatalf("%s\n%s", v, strings.Join(v.Details, "\n"))
	}
	if most := twiceAtMost(t, there) + leftAtMost(t, back); v.Duplicates > most {
		t.Fatalf("%d duplicates, the scripts announced at most %d", v.Duplicates, most)
	}
}

// twiceAtMost is what the cutover announces.
func twiceAtMost(t *testing.T, said string) int {
	return numberBefore(t, said, " events that the poller")
}

// leftAtMost is what the way back announces.
func leftAtMost(t *testing.T, said string) int { return numberBefore(t, said, " are left") }

func numberBefore(t *testing.T, said, words string) int {
	t.Helper()
	before, _, ok := strings.Cut(said, words)
	fields := strings.Fields(before)
	if !ok || len(fields) == 0 {
		t.Fatalf("nothing stands before %q in:\n%s", words, said)
	}
	n, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		t.Fatalf("no number stands before %q in:\n%s", words, said)
	}
	return n
}

// The shadow agrees with a poller that publishes the same, beside it and without touching slot or position; and names each field in which
// one differs, without showing what is private.
func TestShadowBesideAPoller(t *testing.T) {
	t.Parallel()
	f := polled(t)
	f.createTopic("order", 6, nil)
	f.db.Exec(t, fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE outbox WITH (publish = 'insert')", quoted(f.db.Publication)))
	config := f.yaml("")
	p := f.startPoller("true")
	load := f.startWriters(2, "order", 10*time.Millisecond)
	load.pauseAt(t, 20)
	out, code := f.shadow(config, "--for", "3s", "--json")
	if code != 0 || !strings.Contains(out, `"different": 0`) || strings.Contains(out, `"compared": 0,`) {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	if n := f.scalar("SELECT count(*)::text FROM pg_replication_slots WHERE slot_name NOT LIKE 'witness%' AND database = current_database()"); n != "0" {
		t.Errorf("%s slots are left", n)
	}
	wrong := strings.NewReplacer("payload: payload,", "payload: created_at,", "event_type: event_type}", "event_type: event_type, event_type_header: kind}")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(other, []byte(wrong.Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	out, code = f.shadow(other, "--for", "2s")
	for _, want := range []string{"value", "header kind", "header event_type", "different"} {
		if !strings.Contains(out, want) {
			t.Errorf("no word of %q", want)
		}
	}
	if code != 8 || strings.Contains(out, `"part"`) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	p.end()
	out, code = f.shadow(config, "--for", "1s", "--patience", "1s")
	if code != 8 || !strings.Contains(out, "missing") {
		t.Errorf("with no poller: exit code %d:\n%s", code, out)
	}
}

// shadow runs it to its end.
func (f *fixture) shadow(config string, args ...string) (out string, code int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, built(f.t), append([]string{"run", "--shadow", "--config", config}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		f.t.Fatal(err)
	}
	if stdout.Len() == 0 {
		f.t.Fatalf("it said nothing but:\n%s", stderr.String())
	}
	return stdout.String(), cmd.ProcessState.ExitCode()
}
