package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/oracle"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/internal/testkit"
)

// exitNotDone is what an interrupted command ends with.
const exitNotDone = 7

// backfillRun is an outbox that was written to for long before a slot is made, and is
// written to all the time.
type backfillRun struct {
	*fixture
	witness *testkit.Witness
	load    *load
	config  string
}

// newBackfillRun fills the table with rows of the load's own keys, in transactions of
// some rows each, and begins the load.
func newBackfillRun(t *testing.T, rows int) *backfillRun {
	f := newFixture(t, testkit.Postgres(t), testkit.KafkaReal(t))
	f.db.Exec(t, "SELECT pg_drop_replication_slot('"+f.db.Slot+"')")
	f.createTopic("order", 6, nil)
	b := &backfillRun{fixture: f, config: f.yaml("")}
	marks := oracle.Config{IgnoreHeader: func(name string) bool { return name == reissue.BackfilledHeader }}
	// The slot is born past rows that are not published yet: what it confirms is not judged.
	unsampled := *f.db
	unsampled.Slot = "none"
	b.witness = testkit.NewWitnessWith(t, &unsampled, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect, marks)
	built(t)
	conn := f.db.Conn(t)
	_, err := conn.Exec(t.Context(), fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
		INSERT INTO outbox(aggregate_type, aggregate_id, payload)
		SELECT 'order', 'key-' || (i * 7 + n) %% 200, jsonb_build_object('i', i, 'n', n, 'pad', repeat('x', 60 + i %% 120)) FROM generate_series(1, 10) n;
		COMMIT; END LOOP; END $$`, rows/10))
	must(t, err)
	b.load = f.startLoad(4, 200, 7*time.Millisecond) // some 1,000 rows/s
	b.load.pauseAt(t, 200)
	return b
}

// setup makes the slot under the load: transactions are open all the time.
func (b *backfillRun) setup() {
	b.t.Helper()
	requireDone(b.t, spawn(b.t, "setup", "--lock-timeout", "60s", "--config", b.config))
	b.load.pauseAt(b.t, 200)
}

// backfill runs the command and gives its exit code and what it says.
func (b *backfillRun) backfill(args ...string) (code int, out map[string]any) {
	b.t.Helper()
	cmd := exec.Command(built(b.t), append([]string{"backfill", "--json", "--config", b.config}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if cmd.ProcessState == nil {
		b.t.Fatal(err)
	}
	b.t.Logf("backfill %v: exit code %d\n%s%s", args, cmd.ProcessState.ExitCode(), stderr.String(), text)
	_ = json.Unmarshal(text, &out) // nothing on stdout is said by a nil map
	return cmd.ProcessState.ExitCode(), out
}

// finish ends the load and lets the relay publish what came on the stream.
func (b *backfillRun) finish() oracle.Verdict {
	b.t.Helper()
	b.load.end()
	relay := spawn(b.t, "run", "--until-lsn", "now", "--config", b.config)
	if code := relay.wait(10 * time.Minute); code != 0 {
		b.t.Fatalf("run: exit code %d; it said:\n%s", code, relay.said())
	}
	return b.witness.RequireKept(b.t)
}

// TestBackfillUnderLoad: rows from before the slot come by backfill, those after it by run,
// while transactions commit all the time, some of them open when the slot was made: each
// id once, in the order of its key (trap 28, rule 6).
func TestBackfillUnderLoad(t *testing.T) {
	rows := pick(20_000, 1_000_000)
	b := newBackfillRun(t, rows)
	b.setup()
	began, before := time.Now(), b.load.rows.Load()
	code, out := b.backfill()
	took := time.Since(began)
	during := b.load.rows.Load() - before
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if v := b.finish(); v.Duplicates != 0 || v.Committed != v.Delivered {
		t.Errorf("%s", v)
	}
	total, _ := out["total"].(float64)
	if int(total) < rows || out["state"] != "done" || out["refused"] != 0.0 {
		t.Errorf("outcome %v", out)
	}
	t.Logf("%.0f rows from before the slot in %s (%.0f/s), while %d rows were inserted (%.0f/s)",
		total, took.Round(time.Millisecond), total/took.Seconds(), during, float64(during)/took.Seconds())
}

// TestBackfillKilled: kill -9 in the middle, then Ctrl-C in the middle of the resumed run.
// Nothing is lost or out of order; only the kill repeats events, no more than it says.
func TestBackfillKilled(t *testing.T) {
	t.Parallel()
	b := newBackfillRun(t, 6000)
	b.setup()
	killed := spawn(t, "backfill", "--rate", "3000", "--config", b.config)
	b.awaitRecords(b.topic("order"), 1500)
	killed.kill()
	requireExit(t, spawn(t, "run", "--config", b.config), exitSlot, "backfill", "is not ended")

	before := len(b.broker.ReadAll(t, b.topic("order")))
	interrupted := spawn(t, "backfill", "--resume", "--rate", "2000", "--config", b.config)
	b.awaitRecords(b.topic("order"), before+1000)
	if code := interrupted.terminate(); code != exitNotDone {
		t.Errorf("exit code %d after SIGTERM; it said:\n%s", code, interrupted.said())
	}
	interrupted.awaitLine("the last attempt was cut off: up to")
	code, out := b.backfill("--resume")
	if code != 0 || out["may_repeat"] != 0.0 {
		t.Errorf("exit code %d, %v", code, out)
	}
	v := b.finish()
	var limit int
	for line := range strings.Lines(interrupted.said()) {
		if _, rest, found := strings.Cut(line, "cut off: up to "); found {
			_, err := fmt.Sscan(rest, &limit)
			must(t, err)
		}
	}
	if v.Duplicates > limit || limit == 0 {
		t.Errorf("%d duplicates, %d were announced at most", v.Duplicates, limit)
	}
	t.Logf("%d events came twice, %d were announced at most", v.Duplicates, limit)
}
