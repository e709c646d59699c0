package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// crashWindow is a place in a parked event's life where the relay is killed.
type crashWindow struct {
	name string
	// retrying: the window lies in a retry.
	retrying bool
	// open brings the relay into the window and keeps it there, until shut.
	open func(*fixture, *process, *atomic.Bool) (shut func())
}

const guardSQL = `CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
	CREATE TRIGGER guard BEFORE UPDATE ON postrider.parked FOR EACH ROW WHEN (NEW.state = 'published') EXECUTE FUNCTION guard()`

func crashWindows() []crashWindow {
	return []crashWindow{
		{
			name: "before the park is durable",
			open: func(f *fixture, p *process, _ *atomic.Bool) func() {
				f.db.Exec(f.t, "ALTER TABLE postrider.parked ADD CONSTRAINT no CHECK (false) NOT VALID")
				f.poisoned()
				p.awaitLine("events cannot be parked")
				return func() { f.db.Exec(f.t, "ALTER TABLE postrider.parked DROP CONSTRAINT no") }
			},
		},
		{
			name: "durable, not confirmed",
			open: func(f *fixture, _ *process, _ *atomic.Bool) func() {
				unpin := f.pinPosition()
				f.poisoned()
				f.awaitParked("null_payload:parked held:parked held:parked")
				return unpin
			},
		},
		{
			name: "stored, not confirmed",
			open: func(f *fixture, _ *process, _ *atomic.Bool) func() {
				unpin := f.pinPosition()
				f.poisoned()
				f.awaitParked("null_payload:parked held:parked held:parked")
				last := f.walEnd()
				f.insert("order", "j", "2")
				f.awaitRecords(f.topic("order"), 3)
				release := f.deafen()
				unpin()
				f.awaitCount("SELECT (confirmed_lsn > '"+last.String()+"')::text FROM postrider.checkpoint", "true")
				return func() {
					release()
					if at := f.confirmed(); at > last {
						f.t.Errorf("the slot is confirmed up to %s, past %s: the window was not open", at, last)
					}
				}
			},
		},
		{
			name: "in the middle of a retry", retrying: true,
			open: func(f *fixture, _ *process, cut *atomic.Bool) func() {
				cut.Store(true)
				f.retryAll()
				f.awaitParked("null_payload:publishing held:publishing held:publishing")
				return func() { cut.Store(false) }
			},
		},
		{
			name: "acknowledged, not noted", retrying: true,
			open: func(f *fixture, p *process, _ *atomic.Bool) func() {
				f.db.Exec(f.t, guardSQL)
				f.retryAll()
				p.awaitLine("parked events cannot be retried now")
				f.awaitRecords(f.topic("order"), 5)
				return func() { f.db.Exec(f.t, "DROP TRIGGER guard ON postrider.parked") }
			},
		},
	}
}

// deafen stops the walsender, so that it hears no confirmation. release, to be called
// when the relay is dead, ends it without its having heard of any.
func (f *fixture) deafen() (release func()) {
	f.t.Helper()
	text := f.scalar("SELECT active_pid::text FROM pg_replication_slots WHERE slot_name = '" + f.db.Slot + "'")
	pid, err := strconv.Atoi(text)
	must(f.t, err)
	title, err := os.ReadFile("/proc/" + text + "/cmdline")
	if err != nil || !strings.Contains(string(title), "walsender") {
		f.t.Skip("the server's processes are not this machine's")
	}
	must(f.t, syscall.Kill(pid, syscall.SIGSTOP))
	release = sync.OnceFunc(func() {
		f.scalar("SELECT pg_terminate_backend(" + text + ")::text")
		must(f.t, syscall.Kill(pid, syscall.SIGCONT))
		f.awaitCount("SELECT active::text FROM pg_replication_slots WHERE slot_name = '"+f.db.Slot+"'", "false")
	})
	f.t.Cleanup(release)
	return release
}

// poisoned commits a good event, one that is refused, two behind it, and one beside.
func (f *fixture) poisoned() {
	f.t.Helper()
	f.insert("order", "k", "1")
	f.poison("order", "k")
	f.insert("order", "k", "3")
	f.insert("order", "k", "4")
	f.insert("order", "j", "1")
}

// cases C20, C38, rule 20: kill -9 in each window of a parked event's life. Afterwards
// it has one row, nothing is lost, the order of its key holds, and what was noted as
// published is not published again.
func TestKillInEachWindow(t *testing.T) {
	t.Parallel()
	for _, window := range crashWindows() {
		for round := range pick(1, 10) {
			t.Run(fmt.Sprintf("%s/%d", window.name, round+1), func(t *testing.T) {
				t.Parallel()
				window.crash(t)
			})
		}
	}
}

func (c *crashWindow) crash(t *testing.T) {
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.onRefusal(router.OnRefusalParkAggregate)
	f.createTopic("order", 1, nil)
	w := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	var cut atomic.Bool
	script(t, fake, func(*kfake.Cluster, *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if cut.Load() {
			return nil, errHangUp, true
		}
		return nil, nil, false
	})
	config := f.yaml("")
	relay := spawn(t, "run", "--config", config)
	relay.awaitLine("holding the slot")
	if !c.retrying {
		shut := c.open(f, relay, &cut)
		relay.kill()
		shut()
		relay = spawn(t, "run", "--config", config)
	} else {
		f.poisoned()
	}
	f.awaitParked("null_payload:parked held:parked held:parked")
	f.awaitConfirmed(f.walEnd())
	if code := relay.terminate(); code != 0 {
		t.Fatalf("exit code %d: %s", code, relay.said())
	}

	healed(t, config)
	relay = spawn(t, "run", "--config", config)
	relay.awaitLine("holding the slot")
	if c.retrying {
		shut := c.open(f, relay, &cut)
		relay.kill()
		shut()
		relay = spawn(t, "run", "--config", config)
	} else {
		f.retryAll()
	}
	f.awaitParked("null_payload:published held:published held:published")
	f.insert("order", "k", "5")
	f.awaitConfirmed(f.walEnd())
	if code := relay.terminate(); code != 0 {
		t.Fatalf("exit code %d: %s", code, relay.said())
	}
	c.judge(t, f, w)
}

// judge looks at what is in the topic. What a retry published is repeated only where
// the relay was killed before it could note that.
func (c *crashWindow) judge(t *testing.T, f *fixture, w *testkit.Witness) {
	t.Helper()
	k := ofKey(f.broker.ReadAll(t, f.topic("order")), "k")
	want := map[string]string{
		"before the park is durable": "1 1  3 4 5", "durable, not confirmed": "1 1  3 4 5", "stored, not confirmed": "1  3 4 5",
		"in the middle of a retry": "1  3 4 5", "acknowledged, not noted": "1  3 4  3 4 5",
	}[c.name]
	if c.name == "before the park is durable" && k == "1  3 4 5" {
		k = want // the good event before it was confirmed already
	}
	if k != want {
		t.Errorf("k has %q, want %q", k, want)
	}
	f.tellParked(w)
	w.RequireKept(t)
}

// healed lets a configuration take what it refused.
func healed(t *testing.T, config string) {
	t.Helper()
	text, err := os.ReadFile(config)
	must(t, err)
	fixed := strings.Replace(string(text), "event_type: event_type}", "event_type: event_type, null_payload: tombstone}", 1)
	must(t, os.WriteFile(config, []byte(fixed), 0o600))
}
