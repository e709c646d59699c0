package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/control"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// ask asks as a command does, and does not wait.
func (f *fixture) ask(verb control.Verb, actor string) control.Asked {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	f.scalar("SELECT 'a server that was restarted has ended the session'")
	asked, err := control.NewDesk(f.session(ctx), "test", actor).Ask(ctx, verb, "a test")
	must(f.t, err)
	return asked
}

// reply waits for the relay's last word on a command.
func (f *fixture) reply(asked control.Asked) control.Reply {
	f.t.Helper()
	if asked.Command == 0 {
		f.t.Fatal("no relay was asked")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := control.NewDesk(f.session(ctx), "test", "test").Await(ctx, asked.Command)
	must(f.t, err)
	return r
}

func lsnOf(t *testing.T, text string) event.LSN {
	t.Helper()
	lsn, err := event.ParseLSN(text)
	must(t, err)
	return lsn
}

// pause pauses the running relay and waits for its word.
func (f *fixture) pause() control.Answer {
	f.t.Helper()
	r := f.reply(f.ask(control.Pause, "ana"))
	if r.Problem != "" || r.Answer.State != control.Paused || r.Answer.Unacknowledged != 0 {
		f.t.Fatalf("the relay says %+v", r)
	}
	return r.Answer
}

// resume lets the running relay go on.
func (f *fixture) resume() {
	f.t.Helper()
	if r := f.reply(f.ask(control.Resume, "bob")); r.Problem != "" || r.Answer.State != control.Running {
		f.t.Fatalf("the relay says %+v", r)
	}
}

// awaitAtTheTap waits until the stream stands at an event that the pause holds: then
// what is not in the topic does not come.
func (r *running) awaitAtTheTap() {
	r.t.Helper()
	testkit.EventuallyTrue(r.t, patience, "no event waits", func() bool { return r.relay.Status().OldestUnconfirmed != nil })
}

// awaitReceiving waits until events were handed over that are not acknowledged.
func (r *running) awaitReceiving() {
	r.t.Helper()
	testkit.EventuallyTrue(r.t, patience, "nothing is under way", func() bool { return r.relay.Status().Unconfirmed > 0 })
}

// A paused relay publishes nothing and confirms what was published; the slot stays held
// and feedback goes on; event-free WAL is let go until the first event that waits.
// Resumed, it goes on in order, and nothing comes twice.
func TestPause(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.cfg.Replication.StatusInterval = statusEvery
	run := f.start()
	f.series("order", "k", 1, 3)
	f.awaitRecords(f.topic("order"), 3)
	answer := f.pause()
	stored := f.stored()
	if lsnOf(t, answer.Confirmed) > stored || f.scalar("SELECT events_published::text FROM postrider.checkpoint") != "3" {
		t.Errorf("it says that %s is confirmed, the row %s", answer.Confirmed, stored)
	}
	f.awaitConfirmed(stored)
	status := run.relay.Status()
	if status.Phase != "paused" || status.Ready || status.PausedBy != "ana" || status.PausedAt == nil || !strings.Contains(status.WaitsFor, "ana: postrider resume") {
		t.Errorf("status %+v", status)
	}
	if v := run.metric("postrider_paused"); v != 1 {
		t.Errorf("postrider_paused is %v", v)
	}
	f.db.Exec(t, "SELECT pg_logical_emit_message(true, 'foreign', repeat('x', 100000))")
	f.awaitConfirmed(f.walEnd())

	f.insert("order", "k", "4")
	end := f.walEnd()
	f.series("order", "k", 5, 6)
	run.awaitAtTheTap()
	f.db.Exec(t, "SELECT pg_logical_emit_message(true, 'foreign', repeat('x', 100000))")
	f.awaitStatuses(3)
	if got := f.confirmed(); got >= end {
		t.Errorf("confirmed up to %s, past an event that waits and ends at %s or before", got, end)
	}
	if age := run.metric("postrider_oldest_unconfirmed_seconds"); age <= 0 {
		t.Errorf("the oldest event that waits is %v s old", age)
	}
	if n := len(f.broker.ReadAll(t, f.topic("order"))); n != 3 {
		t.Errorf("%d records while paused", n)
	}
	if pid := f.awaitHolder(); pid == "" {
		t.Error("the slot is not held")
	}
	if again := f.ask(control.Pause, "eve"); again.Changed || again.Pausing.By != "ana" || f.reply(again).Answer.State != control.Paused {
		t.Errorf("asked again: %+v", again)
	}

	f.resume()
	f.awaitRecords(f.topic("order"), 6)
	if copies := f.requireSeries(f.topic("order"), 1, 6); copies != 0 {
		t.Errorf("%d copies", copies)
	}
	run.awaitPhase("streaming")
	f.awaitConfirmed(f.walEnd())
	run.mustStop()
	if got := f.scalar(`SELECT string_agg(concat_ws(' ', action, actor), ', ' ORDER BY id) FROM postrider.audit WHERE action IN ('pause', 'resume')`); got != "pause ana, resume bob" {
		t.Errorf("audit: %s", got)
	}
}

// kill -9 under load while it is being paused, and while it is: the next relay starts
// paused and says so; nothing is lost, and nothing that was published before comes again.
func TestKillWhilePaused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 3, nil)
	w := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	config := f.yaml("")
	relay := spawn(t, "run", "--config", config)
	relay.awaitLine("holding the slot")
	load := f.startLoad(3, 20, 2*time.Millisecond)
	for range pick(1, 5) {
		load.pauseAt(t, 200)
		var said struct {
			State    string
			Answered bool
			Held     *int64 `json:"bytes_held"`
		}
		must(t, json.Unmarshal([]byte(output(t, "pause", "--json", "--reason", "a test", "--config", config)), &said))
		if said.State != "paused" || !said.Answered || said.Held == nil {
			t.Fatalf("pause says %+v", said)
		}
		published := len(f.broker.ReadAll(t, f.topic("order")))
		load.pauseAt(t, 100)
		relay.kill()
		relay = spawn(t, "run", "--config", config)
		relay.awaitLine("paused: what was published is confirmed")
		load.pauseAt(t, 100)
		if show := output(t, "checkpoint", "show", "--config", config); !strings.Contains(show, "paused") {
			t.Errorf("checkpoint show:\n%s", show)
		}
		if n := len(f.broker.ReadAll(t, f.topic("order"))); n != published {
			t.Errorf("%d records, there were %d when it was paused", n, published)
		}
		output(t, "resume", "--config", config)
	}
	load.end()
	f.awaitConfirmed(f.walEnd())
	if code := relay.terminate(); code != 0 {
		t.Errorf("exit code %d: %s", code, relay.said())
	}
	if v := w.RequireKept(t); v.Duplicates != 0 {
		t.Errorf("%d duplicates: it was killed while nothing was on its way", v.Duplicates)
	}
}

// rule 1: PostgreSQL can shut down fast while the stream stands at an event that a pause
// holds. When it is back the relay is paused still, and publishes nothing before resume.
func TestPostgresRestartsWhilePaused(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
	log := f.keepLog()
	run := f.start()
	f.series("order", "k", 1, 3)
	f.awaitRecords(f.topic("order"), 3)
	f.pause()
	f.series("order", "k", 4, 6)
	run.awaitAtTheTap()
	for _, mode := range []devstack.StopMode{devstack.Fast, devstack.Immediate} {
		began := time.Now()
		must(t, server.Halt(mode))
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the shutdown took %s", took)
		}
		must(t, server.Start(context.Background()))
		log.await(t, "reconnected; holding the slot again")
		run.awaitPhase("paused")
		run.awaitAtTheTap()
		if n := len(f.broker.ReadAll(t, f.topic("order"))); n != 3 {
			t.Errorf("%d records after a restart", n)
		}
	}
	f.resume()
	f.awaitRecords(f.topic("order"), 6)
	run.mustStop()
	if copies := f.requireSeries(f.topic("order"), 1, 6); copies != 0 {
		t.Errorf("%d copies", copies)
	}
}

// A pause does not wait for the end of a large transaction for ever: it is held in its
// middle, over a broken link too, and goes on there.
func TestPauseInsideATransaction(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.createTopic("order", 1, nil)
	var cut atomic.Bool
	cut.Store(true)
	script(t, fake, func(*kfake.Cluster, *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if cut.Load() {
			return nil, errHangUp, true
		}
		return nil, nil, false
	})
	proxy := f.postgresProxy()
	f.cfg.Kafka.Window = 256 << 10
	f.cfg.ShutdownTimeout = 400 * time.Millisecond
	log := f.keepLog()
	run := f.start()
	run.awaitPhase("streaming")
	const n = 4000
	f.batch("order", "k", 1, n, 200)
	run.awaitReceiving()
	asked := f.ask(control.Pause, "ana")
	log.await(t, "held in its middle")
	cut.Store(false)
	if r := f.reply(asked); r.Answer.State != control.Paused {
		t.Fatalf("the relay says %+v", r)
	}
	held := len(f.broker.ReadAll(t, f.topic("order")))
	if held == 0 || held >= n {
		t.Fatalf("%d of %d records: the test shows nothing", held, n)
	}
	if got := f.scalar("SELECT events_published::text FROM postrider.checkpoint"); got != "0" {
		t.Errorf("the row counts %s events inside a transaction", got)
	}
	proxy.Cut()
	log.await(t, "reconnected; holding the slot again")
	run.awaitPhase("paused")
	if now := len(f.broker.ReadAll(t, f.topic("order"))); now != held {
		t.Errorf("%d records after the reconnect, there were %d", now, held)
	}
	f.resume()
	f.awaitRecords(f.topic("order"), n)
	f.awaitConfirmed(f.walEnd())
	run.mustStop()
	if all := len(f.broker.ReadAll(t, f.topic("order"))); all != n {
		t.Errorf("%d records, want %d", all, n)
	}
}

// A run that is ended while a pause holds a transaction in its middle does not wait for
// that transaction's end.
func TestStopInsideAPausedTransaction(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.createTopic("order", 1, nil)
	f.cfg.Kafka.Window = 256 << 10
	f.cfg.ShutdownTimeout = 300 * time.Millisecond
	log := f.keepLog()
	run := f.start()
	run.awaitPhase("streaming")
	fake.Server.Halt()
	f.batch("order", "k", 1, 4000, 200)
	run.awaitReceiving()
	asked := f.ask(control.Pause, "ana")
	log.await(t, "held in its middle")
	must(t, fake.Server.Start())
	if r := f.reply(asked); r.Answer.State != control.Paused {
		t.Fatalf("the relay says %+v", r)
	}
	if err := run.stop(); operr.ClassOf(err) != operr.DrainIncomplete {
		t.Errorf("stopped with %v", err)
	}
	f.cfg.ShutdownTimeout = 10 * time.Second
	run = f.start()
	run.awaitPhase("paused")
	f.resume()
	f.awaitConfirmed(f.walEnd())
	run.mustStop()
}

// While the broker is away a pause is under way and says how much is left; who asks for
// the contrary meanwhile wins, and the first is told so.
func TestPauseIsOvertaken(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.createTopic("order", 1, nil)
	run := f.start()
	run.awaitPhase("streaming")
	fake.Server.Halt()
	f.series("order", "k", 1, 3)
	run.awaitUnconfirmed(3)
	asked := f.ask(control.Pause, "ana")
	testkit.Eventually(t, patience, func() error {
		r, err := control.NewDesk(f.session(t.Context()), "test", "ana").Look(t.Context(), asked.Command)
		if err != nil || !r.Taken || r.Done || r.Answer.State != control.Draining || r.Answer.Unacknowledged != 3 {
			return fmt.Errorf("the relay says %+v, %w", r, err)
		}
		return nil
	})
	run.awaitPhase("pausing")
	f.resume()
	if r := f.reply(asked); !strings.Contains(r.Problem, "resumed it since") {
		t.Errorf("the relay says %+v", r)
	}
	must(t, fake.Server.Start())
	f.awaitRecords(f.topic("order"), 3)
	run.mustStop()
}

// Parked events are not published while paused, asked for or not.
func TestPauseHoldsRetries(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.onRefusal(router.OnRefusalParkAggregate)
	f.createTopic("order", 1, map[string]string{"max.message.bytes": "2000"})
	run := f.start()
	f.insert("order", "k", bigPayload(1))
	f.awaitParked("too_large:parked")
	f.pause()
	f.alterTopic("order", "max.message.bytes", "100000")
	f.retryAll()
	f.insert("order", "k", "2")
	run.awaitAtTheTap()
	if got := f.parkedStates(); got != "too_large:retry" {
		t.Errorf("parked: %s", got)
	}
	f.resume()
	testkit.Eventually(t, patience, func() error {
		got := f.parkedStates()
		if strings.HasPrefix(got, "too_large:parked") {
			f.retryAll() // the broker had not heard yet of the topic's new limit
		}
		if got != "too_large:published held:published" {
			return fmt.Errorf("parked: %s", got)
		}
		return nil
	})
	records := f.awaitRecords(f.topic("order"), 2)
	if k := ofKey(records, "k"); k != bigPayload(1)+" 2" {
		t.Errorf("k has %s", k)
	}
	run.mustStop()
}

// A standby that takes over from a paused relay is paused, too.
func TestStandbyTakesOverPaused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	first := f.start()
	first.awaitPhase("streaming")
	second := startRelay(t, f.rival())
	second.awaitPhase("standby")
	f.pause()
	first.mustStop()
	second.awaitPhase("paused")
	f.insert("order", "k", "1")
	second.awaitAtTheTap()
	if n := f.scalar(`SELECT events_published::text FROM postrider.checkpoint`); n != "0" {
		t.Errorf("%s events", n)
	}
	f.resume()
	f.awaitRecords(f.topic("order"), 1)
	second.mustStop()
}
