package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
)

// replayed is a topic's records, told apart by their mark.
type replayed struct {
	// order has the numbers of a key's events in the order of offsets: first occurrences, and those of each replay.
	order map[string]map[string][]int
	// early are events whose copy comes before the event itself.
	early []int
}

func (f *fixture) replayed(aggregateType string) replayed {
	f.t.Helper()
	r := replayed{order: map[string]map[string][]int{}}
	seen := map[int]bool{}
	for _, rec := range f.broker.ReadAll(f.t, f.topic(aggregateType)) {
		var payload struct{ N int }
		if err := json.Unmarshal(rec.Value, &payload); err != nil {
			f.t.Fatal(err)
		}
		mark, _ := rec.Header("postrider-replayed")
		if mark == nil {
			seen[payload.N] = true
		} else if !seen[payload.N] {
			r.early = append(r.early, payload.N)
		}
		byKey := r.order[string(mark)]
		if byKey == nil {
			byKey = map[string][]int{}
			r.order[string(mark)] = byKey
		}
		byKey[string(rec.Key)] = append(byKey[string(rec.Key)], payload.N)
	}
	return r
}

// distinct counts records and events.
func distinct(byKey map[string][]int) (records int, events map[int]bool) {
	events = map[int]bool{}
	for _, ns := range byKey {
		records += len(ns)
		for _, n := range ns {
			events[n] = true
		}
	}
	return records, events
}

// rewindsOnly is order promise 2: first occurrences rise.
func rewindsOnly(ns []int) bool {
	highest, seen := 0, map[int]bool{}
	for _, n := range ns {
		if !seen[n] && n < highest {
			return false
		}
		seen[n], highest = true, max(highest, n)
	}
	return true
}

// records is the number of records in a topic, rows that of the table.
func (f *fixture) records(aggregateType string) (n int) {
	f.t.Helper()
	ends, err := f.broker.EndOffsets(f.t.Context(), f.topic(aggregateType))
	must(f.t, err)
	for _, end := range ends {
		n += int(end)
	}
	return n
}

func (f *fixture) rows() int {
	f.t.Helper()
	n, err := strconv.Atoi(f.scalar("SELECT count(*)::text FROM outbox"))
	must(f.t, err)
	return n
}

func fillOrders(f *fixture, from, to int) {
	f.db.Exec(f.t, fmt.Sprintf(`INSERT INTO outbox(aggregate_type, aggregate_id, payload, created_at)
		SELECT 'order', 'k' || n %% 50, jsonb_build_object('N', n), clock_timestamp() FROM generate_series(%d, %d) n`, from, to))
}

// keepWriting adds orders, behind those up to last, until stop, which gives the last one.
func (f *fixture) keepWriting(last int) (stop func() int) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			default:
				fillOrders(f, last+1, last+20)
				last += 20
			}
		}
	}()
	once := sync.OnceFunc(func() { close(quit) })
	stop = func() int {
		once()
		<-ended
		return last
	}
	f.t.Cleanup(func() { stop() })
	return stop
}

// awaitCovered waits until the checkpoint covers what was committed before.
func (f *fixture) awaitCovered() {
	f.t.Helper()
	number := func(sql string) int64 {
		n, err := strconv.ParseInt(f.scalar(sql), 10, 64)
		if err != nil {
			f.t.Fatal(err)
		}
		return n
	}
	next := number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
	testkit.Eventually(f.t, patience, func() error {
		covered := number("SELECT coalesce(max(pg_snapshot_xmin(snapshot)::text), '0') FROM postrider.checkpoint")
		if covered < next {
			return fmt.Errorf("covered up to %d, want %d", covered, next)
		}
		return nil
	})
}

// Killed in the middle, a replay goes on where it was: nothing is missing, order per key rewinds at most, and what is
// repeated is bounded by its window; all the while the relay publishes new events, whose first occurrences keep their order (promise 2).
func TestReplayIsKilledBesideARunningRelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.KafkaReal(t))
	f.createTopic("order", 12, nil)
	events := pick(30_000, 300_000)
	const window = 10_000 // reissue.DefaultWindow
	config := f.yaml("replay: {approval_above: 1000000}\n")
	fillOrders(f, 1, events)
	relay := f.start()
	f.awaitCovered()

	stopWriting := f.keepWriting(events)
	p := spawn(t, "replay", "--all", "--yes", "--reason", "a test", "--rate", fmt.Sprint(events/10), "--config", config)
	testkit.Eventually(t, patience, func() error {
		done, err := strconv.Atoi(f.scalar("SELECT coalesce(max(done), 0)::text FROM postrider.task"))
		must(t, err)
		if copies := f.records("order") - f.rows(); done == 0 || copies < done+500 {
			return fmt.Errorf("%d are saved, at least %d published; it said:\n%s", done, copies, p.said())
		}
		return nil
	})
	p.kill() // in the middle of what is not saved
	saved := f.scalar("SELECT done::text FROM postrider.task")
	total, _ := strconv.Atoi(f.scalar("SELECT total::text FROM postrider.task"))
	if code := spawn(t, "replay", "--resume", "1", "--rate", "0", "--config", config).wait(patience); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	all := stopWriting()
	f.awaitConfirmed(f.walEnd())
	relay.mustStop()

	r := f.replayed("order")
	for key, ns := range r.order[""] {
		if !slices.IsSorted(ns) {
			t.Errorf("%s: first occurrences are out of order", key)
		}
	}
	if records, distinct := distinct(r.order[""]); records != all || len(distinct) != all {
		t.Errorf("the relay published %d records of %d events, want %d", records, len(distinct), all)
	}
	if len(r.early) > 0 {
		t.Errorf("%d copies come before the event itself", len(r.early))
	}
	for key, ns := range r.order["1"] {
		if !rewindsOnly(ns) {
			t.Errorf("%s: the replay leapfrogs", key)
		}
	}
	records, copied := distinct(r.order["1"])
	if total < events || len(copied) != total || records > total+window {
		t.Errorf("%d copies of %d events, want %d and at most %d more", records, len(copied), total, window)
	}
	t.Logf("killed at %s of %d: %d repeated; %d new events meanwhile", saved, total, records-total, all-events)
}

// A replay outlives an outage of the broker: it waits, and publishes the rest.
func TestReplayWaitsForTheBroker(t *testing.T) {
	t.Parallel()
	kafka := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), kafka.Broker)
	f.createTopic("order", 3, nil)
	fillOrders(f, 1, 300)
	relay := f.start()
	f.awaitCovered()
	relay.mustStop()
	config := f.yaml("")
	p := spawn(t, "replay", "--all", "--yes", "--reason", "a test", "--rate", "100", "--config", config)
	testkit.Eventually(t, patience, func() error {
		if done := f.scalar("SELECT coalesce(max(done), 0)::text FROM postrider.task"); done == "0" {
			return fmt.Errorf("nothing is done; it said:\n%s", p.said())
		}
		return nil
	})
	kafka.Server.Halt()
	must(t, kafka.Server.Start())
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.said())
	}
	if _, events := distinct(f.replayed("order").order["1"]); len(events) != 300 {
		t.Errorf("%d events", len(events))
	}
	out, err := exec.Command(built(t), "replay", "list", "--all", "--config", config).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
