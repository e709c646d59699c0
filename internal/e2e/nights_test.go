package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
)

const nightsPage = "../../docs/nights.md"

// TestNights plays docs/nights.md: each section's blocks in a shop of its own. A line "# …"
// is something that happens, and has its step below; "$ …" is a command, with its exit code
// behind "# exit code" where that is not 0; the other lines have to come from it, in this
// order. … stands for lines that are left out; positions, times, ids and widths may differ.
func TestNights(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(nightsPage)
	must(t, err)
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: keepsLittleWAL})
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		if !strings.Contains(body, "```") {
			continue
		}
		t.Run(title, func(t *testing.T) {
			at := server
			if ruined[title] {
				at = testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: keepsLittleWAL})
			}
			n := newNight(t, at)
			for _, block := range codeBlocks(body) {
				n.play(block)
			}
		})
	}
}

// ruined are the nights after which the server is of no use to the next.
var ruined = map[string]bool{"PostgreSQL gave up the WAL": true, "The database was restored": true, "A standby was promoted": true}

// codeBlocks are the fenced parts of a page.
func codeBlocks(body string) (blocks []string) {
	for i, part := range strings.Split(body, "```\n") {
		if i%2 == 1 {
			blocks = append(blocks, part)
		}
	}
	return blocks
}

// night is a shop with a publisher, and a folder in which an operator works.
type night struct {
	t      *testing.T
	server *devstack.Postgres
	broker *testkit.FakeBroker
	dir    string
	relay  *process
	// vars are what the page's commands name.
	vars map[string]string
}

const nightDatabase = "shop"

func newNight(t *testing.T, server *devstack.Postgres) *night {
	t.Helper()
	n := &night{t: t, dir: t.TempDir(), broker: testkit.Kfake(t, devstack.KfakeOptions{}), vars: map[string]string{}}
	n.moveTo(server)
	n.sqlIn("postgres", "CREATE DATABASE "+nightDatabase)
	if !ruined[strings.ReplaceAll(filepath.Base(t.Name()), "_", " ")] {
		t.Cleanup(n.tidy)
	}
	n.must("setup", "--create-outbox")
	return n
}

// tidy leaves the server to the next night.
func (n *night) tidy() {
	if n.relay != nil {
		n.relay.kill()
	}
	n.await("the slot is held still", "SELECT NOT coalesce(bool_or(active), false) FROM pg_replication_slots")
	n.sqlIn("postgres", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
	n.sqlIn("postgres", "DROP DATABASE "+nightDatabase+" WITH (FORCE)")
	n.sqlIn("postgres", "DROP ROLE IF EXISTS orders")
}

// moveTo makes another server the shop's.
func (n *night) moveTo(server *devstack.Postgres) {
	n.t.Helper()
	n.server = server
	n.configure("postrider.yaml", server.DatabaseDSN(nightDatabase), "{create: {partitions: 3, replication_factor: 1}}")
}

func (n *night) configure(file, dsn, topics string) {
	n.t.Helper()
	text := fmt.Sprintf(`publisher: {name: orders, shutdown_timeout: 2s}
postgres: {dsn: %q, slot: orders, publication: orders}
kafka: {brokers: [%s], topics: %s}
sources:
  - table: public.outbox
    mapping: {event_id: event_id, key: aggregate_id, payload: payload, aggregate_type: aggregate_type, event_type: event_type, timestamp: occurred_at}
    routes: [{topic: "shop.${aggregate_type}"}]
admin: {listen: "127.0.0.1:0"}
`, dsn, strings.Join(n.broker.Bootstrap(), ", "), topics)
	must(n.t, os.WriteFile(filepath.Join(n.dir, file), []byte(text), 0o600))
}

func (n *night) sqlIn(database, sql string) {
	n.t.Helper()
	conn, err := pgx.Connect(context.Background(), n.server.DatabaseDSN(database))
	must(n.t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(context.Background(), sql)
	must(n.t, err)
}

func (n *night) sql(sql string) {
	n.t.Helper()
	n.sqlIn(nightDatabase, sql)
}

func (n *night) ask(sql string) (answer string) {
	n.t.Helper()
	conn, err := pgx.Connect(context.Background(), n.server.DatabaseDSN(nightDatabase))
	must(n.t, err)
	defer conn.Close(context.Background())
	must(n.t, conn.QueryRow(context.Background(), sql).Scan(&answer))
	return answer
}

func (n *night) await(what, sql string) {
	n.t.Helper()
	testkit.Eventually(n.t, patience, func() error {
		if n.ask("SELECT ("+sql+")::text") == "true" {
			return nil
		}
		if n.relay != nil {
			return fmt.Errorf("%s; the relay said %s", what, n.relay.said())
		}
		return errors.New(what)
	})
}

// orders commits events of seven keys.
func (n *night) orders(count int) {
	n.t.Helper()
	n.sql(fmt.Sprintf(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload)
		SELECT gen_random_uuid(), 'order', 'o' || i %% 7, 'OrderPlaced', jsonb_build_object('n', i) FROM generate_series(1, %d) i`, count))
}

// run runs a command in the shop's folder.
func (n *night) run(args ...string) (said string, code int) {
	n.t.Helper()
	binary := built(n.t) // which may take longer than the command
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir, cmd.Env = n.dir, append(os.Environ(), "PGHOST=", "PGUSER=")
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

func (n *night) must(args ...string) {
	n.t.Helper()
	if said, code := n.run(args...); code != 0 {
		n.t.Fatalf("postrider %s: exit code %d: %s", strings.Join(args, " "), code, said)
	}
}

// start starts the relay.
func (n *night) start() {
	n.t.Helper()
	n.relay = spawn(n.t, "run", "--config", filepath.Join(n.dir, "postrider.yaml"))
	n.holds()
}

// holds waits until a relay holds the slot.
func (n *night) holds() {
	n.t.Helper()
	n.await("no relay holds the slot", "SELECT coalesce(bool_or(active), false) FROM pg_replication_slots WHERE slot_name = 'orders'")
}

func (n *night) stop() {
	n.t.Helper()
	n.relay.terminate()
	n.await("the slot is held still", "SELECT NOT bool_or(active) FROM pg_replication_slots WHERE slot_name = 'orders'")
	n.relay = nil
}

// publish lets a relay publish all there is, and tick it off.
func (n *night) publish() {
	n.t.Helper()
	next := n.ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
	own := n.relay == nil
	if own {
		n.start()
	}
	n.await("nothing is ticked off", "SELECT coalesce(pg_snapshot_xmin(max(snapshot::text)::pg_snapshot) >= '"+next+"'::xid8, false) FROM postrider.checkpoint")
	if own {
		n.stop()
	}
}

// play runs a block.
func (n *night) play(block string) {
	n.t.Helper()
	var command string
	var want []string
	check := func() {
		if command != "" {
			n.check(command, want)
		}
		command, want = "", nil
	}
	for line := range strings.Lines(block) {
		line = strings.TrimRight(line, "\n")
		switch happening, is := strings.CutPrefix(line, "# "); {
		case is:
			check()
			step, known := nightSteps[happening]
			if !known {
				n.t.Fatalf("no step is known for %q", happening)
			}
			step(n)
		case strings.HasPrefix(line, "$ "):
			check()
			command = line
		default:
			want = append(want, line)
		}
	}
	check()
}

// check runs a command and compares what it says with the page.
func (n *night) check(line string, want []string) {
	n.t.Helper()
	command, code, _ := strings.Cut(strings.TrimPrefix(line, "$ postrider "), " # exit code ")
	said, got := n.run(shellWords(os.Expand(command, func(name string) string { return n.vars[name] }))...)
	if os.Getenv("POSTRIDER_SHOW_NIGHTS") != "" {
		fmt.Printf("%s # exit code %d\n%s", line, got, said)
		return
	}
	if code == "" {
		code = "0"
	}
	if fmt.Sprint(got) != strings.TrimSpace(code) {
		n.t.Errorf("%s ended with %d\n%s", line, got, said)
	}
	rest := settled(said)
	for _, part := range leftOut(want) {
		_, after, found := strings.Cut(rest, settled(part))
		if !found {
			n.t.Errorf("%s does not say (any more, or here)\n%s\nIt says\n%s", line, part, said)
			return
		}
		rest = after
	}
}

// leftOut splits lines at those that are left out.
func leftOut(lines []string) (parts []string) {
	var part []string
	for _, line := range append(lines, "…") {
		begun, cut := strings.CutSuffix(line, "…")
		part = append(part, begun)
		if !cut {
			continue
		}
		if text := strings.Join(part, "\n"); strings.TrimSpace(text) != "" {
			parts = append(parts, text)
		}
		part = nil
	}
	return parts
}

// shellWords splits at blanks outside of quotes.
func shellWords(s string) (words []string) {
	for i, part := range strings.Split(strings.ReplaceAll(s, "'", `"`), `"`) {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}

// unsettled is what differs from run to run.
var unsettled = []struct {
	is *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "ID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00)?`), "TIME"},
	{regexp.MustCompile(`\b[0-9A-F]+/[0-9A-F]+\b`), "LSN"},
	{regexp.MustCompile(`\b\d+:\d+\b`), "SNAPSHOT"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`\b\d{15,}\b`), "SYSTEM"},
	{regexp.MustCompile(`\b[\w.-]+:\d+\b`), "HOLDER"},
	{regexp.MustCompile(`\b[\w-]+@[\w.-]+`), "WHO"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ?([KMG]iB|B|bytes|ms|s|m)\b`), "AMOUNT"},
	{regexp.MustCompile(`(transaction|pid|PID|offset|partition) +\d+`), "$1 N"},
	{regexp.MustCompile(`\s+`), " "},
}

func settled(text string) string {
	for _, u := range unsettled {
		text = u.is.ReplaceAllString(text, u.as)
	}
	return strings.TrimSpace(text)
}
