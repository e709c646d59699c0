package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// grayKinds are the aggregate types that go over one by one.
var grayKinds = []string{"order", "payment", "refund"}

// gray is a replacement by aggregate type: the steps, and what their scripts have announced.
type gray struct {
	*migration
	f    *fixture
	yaml func() string // writes a configuration
	rows *load
	// configs are those of the steps so far; the last is running.
	configs []string
	// twice is what the scripts have announced for a type at most, all what they have announced together.
	twice map[string]int
	all   int
	// open is a transaction that has written and not committed.
	open *pgx.Tx
	said []string
}

func (f *fixture) newGray() *gray {
	yaml := func() string { return f.yaml("") }
	return &gray{migration: f.newMigration(yaml()), f: f, yaml: yaml, twice: map[string]int{}}
}

// stepConfig is a configuration with publisher, slot and publication of its own.
func (g *gray) stepConfig() string {
	g.t.Helper()
	path := g.yaml()
	text, err := os.ReadFile(path)
	must(g.t, err)
	n := len(g.configs) + 1
	names := strings.NewReplacer("name: test,", fmt.Sprintf("name: step%d,", n), "slot: "+g.f.db.Slot, fmt.Sprintf("slot: %s_%d", g.f.db.Slot, n),
		"publication: "+g.f.db.Publication, fmt.Sprintf("publication: %s_%d", g.f.db.Publication, n))
	must(g.t, os.WriteFile(path, []byte(names.Replace(string(text))), 0o600))
	return path
}

// step runs the script to the rows that ours names. Which types come, stay and go is for the count of duplicates.
func (g *gray) step(script, ours string, come, stay, leave []string) {
	g.t.Helper()
	from := ""
	if len(g.configs) > 0 {
		from = g.configs[len(g.configs)-1]
	}
	config := g.stepConfig()
	said := g.run(script, "CONFIG="+config, "OURS="+ours, "FROM_CONFIG="+from, g.startRelay(config))
	g.configs = append(g.configs, config)
	g.commitOpen()
	for words, kinds := range map[string][]string{" events that come to": come, " that stay with": stay, " that go back": leave} {
		g.announced(numberBefore(g.t, said, words), kinds)
	}
	g.said = append(g.said, said)
	if n := g.f.scalar("SELECT count(*)::text FROM pg_replication_slots WHERE database = current_database() AND slot_name LIKE '" + g.f.db.Slot + "_%' AND slot_name !~ '(witness|dbz)'"); n != "1" {
		g.t.Errorf("after the step to %s there are %s slots", ours, n)
	}
	if out, err := exec.Command(g.binary, "checkpoint", "verify", "--config", config).CombinedOutput(); err != nil {
		g.t.Errorf("checkpoint verify after the step to %s: %v\n%s", ours, err, out)
	}
}

func (g *gray) announced(n int, kinds []string) {
	g.all += n
	for _, kind := range kinds {
		g.twice[kind] += n
	}
}

// writeLate begins a transaction that commits when the next step is over: while nobody, or the other one, publishes its types.
func (g *gray) writeLate() {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, g.f.db.DSN)
	must(g.t, err)
	tx, err := conn.Begin(ctx)
	must(g.t, err)
	for _, kind := range grayKinds {
		_, err := tx.Exec(ctx, "INSERT INTO outbox(aggregate_type, aggregate_id, payload) SELECT $1, 'late', to_jsonb(i) FROM generate_series(1, 3) i", kind)
		must(g.t, err)
		g.rows.rows.Add(3)
	}
	g.open = &tx
}

func (g *gray) commitOpen() {
	g.t.Helper()
	if g.open == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tx := *g.open
	must(g.t, tx.Commit(ctx))
	must(g.t, tx.Conn().Close(ctx))
	g.open = nil
}

// requireFew fails where a type has come twice more often than the scripts have announced.
func (g *gray) requireFew(total int) {
	g.t.Helper()
	if total > g.all {
		g.t.Errorf("%d duplicates, the scripts announced at most %d", total, g.all)
	}
	for _, kind := range grayKinds {
		ids, twice := g.f.idsOf(kind), 0
		for _, copies := range ids {
			twice += copies - 1
		}
		g.t.Logf("%s: %d events, %d twice, announced at most %d", kind, len(ids), twice, g.twice[kind])
		if twice > g.twice[kind] {
			g.t.Errorf("%s: %d duplicates, the scripts announced at most %d", kind, twice, g.twice[kind])
		}
	}
}

// A polling relay is replaced live by aggregate type, with the documented script: one type, a second, all; then back by the same
// steps, and to the poller alone. Nothing is lost or overtaken, transactions that commit while a type changes hands included, nor
// rows without a type; and no more comes twice than each script has said (trap 28, rule 21).
func TestMigrateFromPollingByType(t *testing.T) {
	t.Parallel()
	f := polled(t)
	if f.db.VersionNum(t) < 150000 {
		t.Skip("row filters came with 15")
	}
	f.db.Exec(t, "ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL")
	topics := []string{f.topic("")}
	f.createTopic("", 1, nil)
	load := &load{stop: make(chan struct{})}
	for _, kind := range grayKinds {
		f.createTopic(kind, 3, nil)
		topics = append(topics, f.topic(kind))
	}
	witness := testkit.NewWitness(t, f.db, "witness", f.broker, topics, f.expect)
	for _, kind := range grayKinds {
		f.write(load, 2, kind, 10*time.Millisecond)
	}
	t.Cleanup(load.end)
	p := f.startPoller("true")
	g := f.newGray()
	g.rows = load
	g.requests["stop"] = func() {
		p.end()
		g.writeLate()
	}
	g.requests["start"] = func() {
		p = f.startPoller(g.where())
		g.commitOpen()
	}
	more := func() { load.pauseAt(t, int64(pick(200, 10_000))) }

	more()
	g.step("polling-gray.sh", "aggregate_type = 'order'", []string{"order"}, nil, nil)
	more()
	f.db.Exec(t, "INSERT INTO outbox(aggregate_id, payload) VALUES ('untyped', '1')")
	load.rows.Add(1)
	testkit.EventuallyTrue(t, patience, "nothing is marked", func() bool {
		return numberBefore(t, g.run("polling-mark.sh", "CONFIG="+g.configs[0]), " rows that publisher step1 has") > 0
	})
	g.step("polling-gray.sh", "aggregate_type IN ('order', 'payment')", []string{"payment"}, []string{"order"}, nil)
	more()
	g.step("polling-gray.sh", "true", []string{"refund"}, []string{"order", "payment"}, nil)
	more()
	g.step("polling-gray.sh", "aggregate_type IN ('order', 'payment')", nil, []string{"order", "payment"}, []string{"refund"})
	more()
	g.step("polling-gray.sh", "aggregate_type = 'order'", nil, []string{"order"}, []string{"payment"})
	more()
	g.requests["start"] = func() {
		p.end()
		p = f.startPoller(g.where())
	}
	back := g.run("polling-back.sh", "CONFIG="+g.configs[len(g.configs)-1])
	g.announced(leftAtMost(t, back), []string{"order"})
	more()
	load.end()
	testkit.Eventually(t, patience, func() error {
		if n := f.scalar("SELECT count(*)::text FROM outbox WHERE dispatched_at IS NULL"); n != "0" {
			return fmt.Errorf("%s rows wait for the poller", n)
		}
		return nil
	})
	p.end()
	v := witness.Verdict(t)
	t.Logf("%s%s%d rows: %s", strings.Join(g.said, ""), back, load.rows.Load(), v)
	if v.Lost+v.OutOfOrder+v.Phantom+v.WrongBytes > 0 || int64(v.Committed) != load.rows.Load() {
		t.Fatalf("%s\n%s", v, strings.Join(v.Details, "\n"))
	}
	g.requireFew(v.Duplicates)
}

// Rows that the poller writes before it publishes them (a lease, a count of attempts) hide their age. They are waited for
// nevertheless (trap 28).
func TestMigrateFromAPollerThatLeases(t *testing.T) {
	t.Parallel()
	f := polled(t)
	f.createTopic("order", 1, nil)
	f.db.Exec(t, "ALTER TABLE outbox ADD attempts int NOT NULL DEFAULT 0")
	for n := range 5 {
		f.insert("order", "k", fmt.Sprint(n))
	}
	m := f.newMigration(f.yaml(""))
	ctx, cancel := context.WithCancel(context.Background())
	m.requests["stop"] = cancel
	served := make(chan struct{})
	go func() {
		defer close(served)
		f.leaseAndPublish(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-served
	})
	m.run("polling-cutover.sh")
	f.insert("order", "k", "5")
	records := f.awaitRecords(f.topic("order"), 6)
	if got := strings.Join(values(records), " "); got != "0 1 2 3 4 5" {
		t.Errorf("published %s", got)
	}
}

// leaseAndPublish writes the rows when there is a slot, and publishes them a while after the script has begun to wait for them,
// if it is not stopped before.
func (f *fixture) leaseAndPublish(ctx context.Context) {
	conn, err := pgx.Connect(ctx, f.db.DSN)
	if err != nil {
		f.t.Error(err)
		return
	}
	defer conn.Close(context.Background())
	await := func(sql string) bool {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for there := false; !there; {
			if err := conn.QueryRow(ctx, sql).Scan(&there); err != nil {
				return false
			}
			select {
			case <-ctx.Done():
				return false
			case <-tick.C:
			}
		}
		return true
	}
	if !await("SELECT to_regclass('postrider.checkpoint') IS NOT NULL AND EXISTS (SELECT FROM postrider.checkpoint WHERE birth_snapshot IS NOT NULL)") {
		return
	}
	_, err = conn.Exec(ctx, "UPDATE outbox SET attempts = attempts + 1")
	if err != nil || !await("SELECT to_regclass('postrider_migration_test') IS NOT NULL") {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(2 * time.Second): // what such a poller takes
	}
	p := &poller{f: f, client: f.broker.Client(f.t)}
	if _, err := p.batch(conn, "true"); err != nil {
		f.t.Error(err)
	}
}

// What is parked is not published. The way back leaves it to the poller, with what stands behind it; a step that would leave its
// key to a publisher that does not know of it does not begin.
func TestMigrateWithParkedEvents(t *testing.T) {
	t.Parallel()
	f := polled(t)
	f.policy = router.OnRefusalParkAggregate
	f.db.Exec(t, "ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL")
	f.createTopic("order", 1, nil)
	f.createTopic("", 1, nil)
	p := f.startPoller("true")
	g := f.newGray()
	g.requests["stop"] = func() { p.end() }
	g.requests["start"] = func() { p = f.startPoller("true") }
	g.run("polling-cutover.sh")
	f.db.Exec(t, "INSERT INTO outbox(aggregate_id, payload) VALUES ('k', '1')") // no type, no topic
	f.insert("order", "k", "2")
	testkit.EventuallyTrue(t, patience, "it is not parked", func() bool {
		return f.scalar("SELECT count(*)::text FROM postrider.parked WHERE state = 'parked'") != "0"
	})
	said, err := g.try("polling-gray.sh", "CONFIG="+g.stepConfig(), "OURS=true", "FROM_CONFIG="+g.config)
	if err == nil || !strings.Contains(said, "are parked") || strings.Contains(said, "3. the poller stops") {
		t.Errorf("the step: %v\n%s", err, said)
	}
	g.run("polling-back.sh")
	if got := values(f.awaitRecords(f.topic(""), 1)); strings.Join(got, " ") != "1" {
		t.Errorf("published %v", got)
	}
}

// The way back from a part marks rows of that part only: what is pending of the rest is the poller's still.
func TestMigrateBackLeavesTheRestAlone(t *testing.T) {
	t.Parallel()
	f := polled(t)
	if f.db.VersionNum(t) < 150000 {
		t.Skip("row filters came with 15")
	}
	f.createTopic("order", 1, nil)
	f.createTopic("refund", 1, nil)
	g := f.newGray()
	g.requests["stop"], g.requests["start"] = func() {}, func() {} // a poller that is down
	g.step("polling-gray.sh", "aggregate_type = 'order'", []string{"order"}, nil, nil)
	f.insert("refund", "k", "1")
	f.insert("order", "k", "1")
	f.awaitRecords(f.topic("order"), 1)
	testkit.EventuallyTrue(t, patience, "the row of the order is not ticked off", func() bool {
		return numberBefore(t, g.run("polling-mark.sh", "CONFIG="+g.configs[0]), " rows that publisher step1 has") > 0
	})
	if n := f.scalar("SELECT count(*)::text FROM outbox WHERE dispatched_at IS NULL"); n != "1" {
		t.Errorf("%s rows are pending, want the one of the rest", n)
	}
	g.requests["start"] = func() { f.startPoller(g.where()) }
	g.run("polling-back.sh", "CONFIG="+g.configs[0])
	f.awaitRecords(f.topic("refund"), 1)
}

// A step that was broken off can be begun again. One that is done cannot: its slot has moved on; nor can its publication be taken for
// other rows.
func TestMigrateStepIsBegunAgain(t *testing.T) {
	t.Parallel()
	f := polled(t)
	if f.db.VersionNum(t) < 150000 {
		t.Skip("row filters came with 15")
	}
	f.createTopic("order", 1, nil)
	f.insert("order", "k", "1")
	g := f.newGray()
	var p *poller
	g.requests["stop"] = func() { p.end() }
	g.requests["start"] = func() { p = f.startPoller(g.where()) }
	config := g.stepConfig()
	env := []string{"CONFIG=" + config, "OURS=aggregate_type = 'order'", g.startRelay(config)}

	cmd := exec.Command("sh", filepath.Join("..", "..", "docs", "migrate", "polling-gray.sh"))
	cmd.Env = append(slices.Clone(g.env), env...)
	must(t, cmd.Start())
	testkit.EventuallyTrue(t, patience, "it does not wait for the poller", func() bool {
		return f.scalar("SELECT (to_regclass('postrider_migration_step1') IS NOT NULL)::text") == "true"
	})
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	f.insert("order", "k", "2") // on the stream
	p = f.startPoller("true")
	g.run("polling-gray.sh", env...)
	f.insert("order", "k", "3")
	testkit.EventuallyTrue(t, patience, "something is lost", func() bool { return len(f.idsOf("order")) == 3 })

	for want, ours := range map[string]string{"has run already": "OURS=aggregate_type = 'order'", "not from this step": "OURS=aggregate_type = 'refund'"} {
		said, err := g.try("polling-gray.sh", append(slices.Clone(env), ours)...)
		if err == nil || !strings.Contains(said, want) || strings.Contains(said, "3. the poller stops") {
			t.Errorf("%s: %v\n%s", ours, err, said)
		}
	}
}
