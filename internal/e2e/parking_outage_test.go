package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/oracle"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/router"
)

// kafkaLine is the relay's way to the brokers, to be cut and to fail.
type kafkaLine struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
	fails error
}

func (w *kafkaLine) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	fails := w.fails
	w.mu.Unlock()
	if fails != nil {
		return nil, fails
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		w.conns = map[net.Conn]struct{}{}
	}
	w.conns[conn] = struct{}{}
	return conn, nil
}

// cut ends all connections; new ones fail with err until it is nil.
func (w *kafkaLine) cut(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails = err
	for conn := range w.conns {
		_ = conn.Close()
		delete(w.conns, conn)
	}
}

// outage is a trouble that says nothing about any event.
type outage struct {
	name string
	// leaks: events pass while it lasts.
	leaks bool
	begin func(t *testing.T, cluster *kfake.Cluster, w *kafkaLine) (end func())
}

func failing(name string, err error) outage {
	return outage{name: name, begin: func(_ *testing.T, _ *kfake.Cluster, w *kafkaLine) func() {
		w.cut(err)
		return func() { w.cut(nil) }
	}}
}

func faulty(name string, err *kerr.Error, keys ...kmsg.Key) outage {
	return outage{name: name, begin: func(_ *testing.T, c *kfake.Cluster, w *kafkaLine) func() {
		fault := c.Fault(kfake.Fault{Keys: keys, Err: err, Count: -1})
		w.cut(nil)
		return fault.Remove
	}}
}

func outages() []outage {
	return []outage{
		failing("the broker is down", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}),
		failing("names are not resolved", &net.DNSError{Err: "no such host", Name: "b", IsNotFound: true}),
		failing("TLS fails", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}),
		failing("the user is unknown", kafka.SASLAuthenticationFailed),
		failing("a plain error", errors.New("no call gets through")),
		faulty("metadata are not to be had", kerr.BrokerNotAvailable, kmsg.Metadata, kmsg.Produce),
		faulty("replicas are missing", kerr.NotEnoughReplicas, kmsg.Produce),
		faulty("the right to write is gone", kerr.TopicAuthorizationFailed, kmsg.Produce),
		faulty("the producer's epoch is outdated", kerr.InvalidProducerEpoch, kmsg.Produce),
		{name: "idle connections are closed", leaks: true, begin: func(t *testing.T, _ *kfake.Cluster, w *kafkaLine) func() {
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for tick := time.NewTicker(30 * time.Millisecond); ; {
					select {
					case <-stop:
						tick.Stop()
						return
					case <-tick.C:
						w.cut(nil)
					}
				}
			}()
			end := sync.OnceFunc(func() { close(stop); <-done })
			t.Cleanup(end)
			return end
		}},
	}
}

// case C37 (a) to (d), trap 19: no outage parks anything, whatever it is called. The
// position stays where it is, a stop in the middle of it parks nothing either, and
// afterwards everything is delivered, in order and once.
func TestNoOutageParks(t *testing.T) {
	t.Parallel()
	for _, o := range outages() {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			fake := testkit.Kfake(t, devstack.KfakeOptions{})
			f := newFixture(t, testkit.Postgres(t), fake.Broker)
			f.onRefusal(router.OnRefusalParkAggregate)
			var w kafkaLine
			f.cfg.Kafka.Dial = w.dial
			f.cfg.ShutdownTimeout = time.Second
			f.createTopic("order", 3, nil)
			witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
			run := f.start()
			load := f.startLoad(2, 20, 10*time.Millisecond)
			load.pauseAt(t, 50)
			end := o.begin(t, fake.Server.Cluster, &w)
			load.pauseAt(t, 20) // what was on its way has come to a stand
			f.insert("order", "key-0", `"in the outage"`)
			mark := f.walEnd()
			over := time.NewTimer(pick(700*time.Millisecond, 20*time.Second))
			<-over.C // the outage itself: there is nothing to wait for
			if at := f.confirmed(); !o.leaks && at >= mark {
				t.Errorf("confirmed up to %s in the outage, past %s", at, mark)
			}
			load.end()
			if !o.leaks {
				if err := run.stop(); operr.ClassOf(err) != operr.DrainIncomplete {
					t.Errorf("stopped in the outage with %v", err)
				}
			}
			end()
			if !o.leaks {
				run = f.start()
			}
			f.awaitConfirmed(f.walEnd())
			run.mustStop()
			f.requireNothingParked(run)
			witness.RequireKept(t)
		})
	}
}

// requireNothingParked: not a row, not an attempt.
func (f *fixture) requireNothingParked(run *running) {
	f.t.Helper()
	if got := f.parkedStates(); got != "" {
		f.t.Errorf("parked: %.200s", got)
	}
	if n := f.scalar("SELECT count(*)::text FROM postrider.audit WHERE action LIKE 'parked.%'"); n != "0" {
		f.t.Errorf("%s lines of audit about parked events", n)
	}
	if text := refusals(run); text != "" {
		f.t.Errorf("counted as refused: %s", text)
	}
}

// refusals are the series of refused events that a run has.
func refusals(run *running) string {
	families, err := run.registry.Gather()
	must(run.t, err)
	var found []string
	for _, family := range families {
		if strings.Contains(family.GetName(), "refused") {
			for _, m := range family.GetMetric() {
				found = append(found, fmt.Sprint(family.GetName(), m))
			}
		}
	}
	return strings.Join(found, " ")
}

// case C37 (a): a real broker is away for ten minutes (`make test-long`).
func TestBrokerAwayForLong(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateKafka(t, devstack.KafkaOptions{})
	f := newFixture(t, testkit.Postgres(t), broker.Broker)
	f.requireHarmless(nil, pick(3*time.Second, 10*time.Minute), func() func() {
		must(t, broker.Server.HaltNode(0))
		return func() { must(t, broker.Server.StartNode(context.Background(), 0)) }
	})
}

// case C37, rule 12: the user of the relay (not that of the tests) is deleted and made again before the grace
// time is over; its connections have to authenticate anew meanwhile.
func TestExpiredCredential(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateKafka(t, devstack.KafkaOptions{Secure: true})
	f := newFixture(t, testkit.Postgres(t), broker.Broker)
	config, err := broker.Server.TLS()
	must(t, err)
	f.cfg.Kafka.TLS = config
	f.cfg.Kafka.SASL = &publisher.SASL{Mechanism: "SCRAM-SHA-512", Username: "expiring", Password: "relay-secret"}
	var w kafkaLine
	f.cfg.Kafka.Dial = w.dial
	admin := kadm.NewClient(f.broker.Client(t))
	change := func(gone []kadm.DeleteSCRAM, made []kadm.UpsertSCRAM) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		results, err := admin.AlterUserSCRAMs(ctx, gone, made)
		must(t, err)
		must(t, results.Error())
	}
	user := func() []kadm.UpsertSCRAM { // a call salts what it is given
		return []kadm.UpsertSCRAM{{User: "expiring", Mechanism: kadm.ScramSha512, Iterations: 4096, Password: "relay-secret"}}
	}
	change(nil, user())
	testkit.Eventually(t, patience, f.drain) // the broker hears of the user a little later
	f.requireHarmless(nil, pick(3*time.Second, 2*time.Minute), func() func() {
		change([]kadm.DeleteSCRAM{{User: "expiring", Mechanism: kadm.ScramSha512}}, nil)
		w.cut(nil)
		return func() { change(nil, user()) }
	})
}

// case C14, C37: events of a topic that is made five minutes later wait for it; those of
// other topics do not.
func TestTopicMissingForLong(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.KafkaReal(t))
	f.cfg.Kafka.CreateTopics = nil
	const late = 200
	f.requireHarmless(func() {
		for n := range late / 2 {
			f.insert("late", "k", fmt.Sprint(n))
		}
	}, pick(2*time.Second, 5*time.Minute), func() func() {
		return func() {
			for n := range late / 2 {
				f.insert("late", "k", fmt.Sprint(late/2+n))
			}
			f.createTopic("late", 3, nil)
		}
	})
	for n, value := range values(f.broker.ReadAll(t, f.topic("late"))) {
		if value != fmt.Sprint(n) {
			t.Fatalf("event %d of the late topic is %s", n, value)
		}
	}
	if n := len(f.broker.ReadAll(t, f.topic("late"))); n != late {
		t.Errorf("%d events in the late topic", n)
	}
}

// requireHarmless runs a relay under load through an outage. Nothing is parked and
// everything is delivered afterwards, in order and once.
func (f *fixture) requireHarmless(before func(), lasts time.Duration, begin func() (end func())) {
	t := f.t
	f.onRefusal(router.OnRefusalParkAggregate)
	f.createTopic("order", 3, nil)
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, func(row oracle.Row) (oracle.Event, bool) {
		e, ours := f.expect(row)
		return e, ours && e.Topic == f.topic("order")
	})
	run := f.start()
	if before != nil {
		before()
	}
	load := f.startLoad(2, 20, 40*time.Millisecond) // some 80 rows/s
	load.pauseAt(t, 50)
	if before == nil {
		f.awaitConfirmed(f.walEnd())
	}
	end := begin()
	over := time.NewTimer(lasts)
	<-over.C // the outage itself: there is nothing to wait for
	rows := load.rows.Load()
	end()
	healed := time.Now()
	load.pauseAt(t, 50)
	load.end()
	mark := f.walEnd()
	testkit.Eventually(t, 4*patience, func() error {
		if now := f.confirmed(); now < mark {
			return fmt.Errorf("confirmed up to %s, want %s", now, mark)
		}
		return nil
	})
	took := time.Since(healed)
	run.mustStop()
	f.requireNothingParked(run)
	v := witness.RequireKept(t)
	if v.Duplicates != 0 {
		t.Errorf("%d duplicates", v.Duplicates)
	}
	t.Logf("%s of outage, %d rows by its end; all of %d confirmed %s after it: %s", lasts, rows, load.rows.Load(), took.Round(time.Millisecond), v)
}

// case C37, rule 15: a fenced producer ends the relay, since another one may be at work;
// it parks nothing, and the next start delivers what was left.
func TestFencedProducerParksNothing(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.onRefusal(router.OnRefusalParkAggregate)
	f.createTopic("order", 3, nil)
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
	run := f.start()
	load := f.startLoad(2, 20, 5*time.Millisecond)
	load.pauseAt(t, 50)
	fault := fake.Server.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.ProducerFenced, Count: -1})
	if err := run.wait(patience); operr.ClassOf(err) != operr.Kafka {
		t.Errorf("ended with %v", err)
	}
	f.requireNothingParked(run)
	fault.Remove()
	load.pauseAt(t, 50)
	run = f.start()
	load.pauseAt(t, 50)
	load.end()
	f.awaitConfirmed(f.walEnd())
	run.mustStop()
	f.requireNothingParked(run)
	witness.RequireKept(t)
}
