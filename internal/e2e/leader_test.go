package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
)

// brokerTrouble begins one fault of the field case. refused counts the answers that it
// has spoiled, heal ends it.
type brokerTrouble func(fake *testkit.FakeBroker) (refused func() int64, heal func())

// answering has every request of a key answered with an error.
func answering(faults ...kfake.Fault) brokerTrouble {
	return func(fake *testkit.FakeBroker) (func() int64, func()) {
		var n atomic.Int64
		var ends []func()
		for _, fault := range faults {
			fault.Count = -1
			fault.When = func(r kmsg.Request) bool {
				if r.Key() == int16(kmsg.Produce) {
					n.Add(1)
				}
				return true
			}
			ends = append(ends, fake.Server.Cluster.Fault(fault).Remove)
		}
		return n.Load, func() {
			for _, end := range ends {
				end()
			}
		}
	}
}

func produceFault(err *kerr.Error) kfake.Fault {
	return kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: err}
}

// TestLeaderTrouble: a leader that moved, none, too few replicas before and after the
// append. No event is refused, nothing is confirmed past
// what is acknowledged, and when the fault has ended all goes on within seconds, in
// order and once (case C35a to d, traps 13 to 15, rule 13).
func TestLeaderTrouble(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]brokerTrouble{
		"a: code 6 though metadata name the leader": answering(produceFault(kerr.NotLeaderForPartition)),
		"b: no leader": answering(produceFault(kerr.NotLeaderForPartition),
			kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Err: kerr.LeaderNotAvailable}),
		"c: code 19":           answering(produceFault(kerr.NotEnoughReplicas)),
		"d: code 20, appended": answering(produceFault(kerr.NotEnoughReplicasAfterAppend)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := testkit.Kfake(t, devstack.KfakeOptions{Nodes: 2})
			f := newFixture(t, testkit.Postgres(t), fake.Broker)
			f.cfg.Kafka.RetryBackoffMax = f.cfg.Timers.BackoffMax
			f.createTopic("order", 12, nil)
			witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
			run := f.start()
			f.series("order", "k", 1, 20)
			f.awaitRecords(f.topic("order"), 20)
			refused, heal := begin(fake)
			f.series("order", "k", 21, 40)
			testkit.EventuallyTrue(t, patience, "the fault is not felt", func() bool { return refused() >= 5 })
			heal()
			healed := time.Now()
			f.series("order", "k", 41, 60)
			f.awaitRecords(f.topic("order"), 60)
			if took := time.Since(healed); took > 6*time.Second {
				t.Errorf("it took %s to go on", took)
			}
			run.mustStop()
			if v := witness.RequireKept(t); v.Delivered != 60 || v.Duplicates != 0 {
				t.Errorf("%s", v)
			}
			if copies := f.requireSeries(f.topic("order"), 1, 60); copies != 0 {
				t.Errorf("%d duplicates", copies)
			}
		})
	}
}

// TestCutConnections: the connection ends with the request on its way, so that nobody
// knows of it, or with the answer, so that the broker has the batch. Either way the same
// bytes go again, and the event is there once (case C35e, traps 11 and 14).
func TestCutConnections(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.createTopic("order", 12, nil)
	broker := script(t, fake, nil)
	proxy := f.kafkaProxy()
	f.cfg.Kafka.MaxInFlight = 1 // one connection that produces
	run := f.start()
	const rounds = 4
	n := 0
	publish := func() {
		t.Helper()
		n++
		f.insert("order", "k", fmt.Sprint(n))
		f.awaitRecords(f.topic("order"), n)
		run.awaitUnconfirmed(0)
	}
	for range rounds {
		for _, way := range []testkit.Direction{testkit.Requests, testkit.Answers} {
			publish() // it is connected then, and nothing else is on its way
			proxy.CutNext(way)
			publish()
		}
	}
	run.mustStop()
	if copies := f.requireSeries(f.topic("order"), 1, n); copies != 0 {
		t.Errorf("%d duplicates", copies)
	}
	// What came with a lost answer came twice; what was cut before came once.
	if seen := len(broker.batches(f.topic("order"))); seen != n+rounds {
		t.Errorf("the broker saw %d batches, want %d", seen, n+rounds)
	}
}

// TestLeadersMoveUnderLoad: partitions change their leaders, and a broker goes and
// another comes, all the time (case C35, rule 13).
func TestLeadersMoveUnderLoad(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{Nodes: 3})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	const partitions = 12
	f.createTopic("order", partitions, nil)
	f.createTopic("invoice", partitions, nil)
	topics := []string{f.topic("order"), f.topic("invoice")}
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, topics, f.expect)
	run := f.start()
	load := f.startLoad(2, 20, time.Millisecond)
	rng := rand.New(rand.NewPCG(35, 0))
	cluster := fake.Server.Cluster
	for round := range pick(30, 300) {
		switch round % 10 {
		case 3:
			cluster.ShufflePartitionLeaders()
		case 6:
			must(t, cluster.RemoveNode(2))
		case 9:
			_, _, err := cluster.AddNode(2, 0)
			must(t, err)
		default:
			node := int32(rng.IntN(2))
			must(t, cluster.MoveTopicPartition(topics[round%2], int32(rng.IntN(partitions)), node))
		}
		load.pauseAt(t, 15)
	}
	load.end()
	f.awaitConfirmed(f.walEnd())
	run.mustStop()
	if v := witness.RequireKept(t); v.Delivered == 0 || v.Duplicates != 0 {
		t.Errorf("%s", v)
	}
}

// TestRealLeaderDies: of three real brokers one is killed under load, with it the
// leader of a third of the partitions; in the long run each in turn, and it comes back
// (case C35).
func TestRealLeaderDies(t *testing.T) {
	t.Parallel()
	kafka := testkit.PrivateKafka(t, devstack.KafkaOptions{Nodes: 3, MinISR: 2})
	f := newFixture(t, testkit.Postgres(t), kafka.Broker)
	f.createTopic("order", 6, nil)
	f.createTopic("invoice", 6, nil)
	topics := []string{f.topic("order"), f.topic("invoice")}
	witness := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, topics, f.expect)
	config := f.yaml("")
	run := spawn(t, "run", "--config", config)
	load := f.startLoad(2, 20, 20*time.Millisecond)
	load.pauseAt(t, 100)
	for i := range kafka.Server.Nodes() {
		must(t, kafka.Server.Kill(i))
		load.pauseAt(t, 100)
		f.awaitThrough() // without it
		if !long() {
			break
		}
		must(t, kafka.Server.StartNode(context.Background(), i))
		f.awaitInSync(topics, 3)
		load.pauseAt(t, 100)
	}
	load.end()
	f.awaitThrough()
	if code := run.terminate(); code != 0 {
		t.Errorf("exit code %d; it said:\n%s", code, run.said())
	}
	// A dead leader's answers are lost; the brokers' own state knows the repeats.
	if v := witness.RequireKept(t); v.Delivered == 0 || v.Duplicates != 0 {
		t.Errorf("%s", v)
	}
}

// awaitThrough waits until all that is committed now is published and confirmed, by an
// event behind it: a relay confirms event-free WAL at its leisure.
func (f *fixture) awaitThrough() {
	f.t.Helper()
	at := f.walEnd()
	f.insert("order", "mark", "{}")
	f.awaitConfirmed(at)
}

// awaitInSync waits until every partition has so many replicas in sync.
func (f *fixture) awaitInSync(topics []string, replicas int) {
	f.t.Helper()
	admin := kadm.NewClient(f.broker.Client(f.t))
	testkit.EventuallyTrue(f.t, patience, "replicas are not in sync", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		details, err := admin.ListTopics(ctx, topics...)
		if err != nil || len(details) != len(topics) {
			return false
		}
		for _, topic := range details {
			for _, p := range topic.Partitions {
				if len(p.ISR) < replicas {
					return false
				}
			}
		}
		return true
	})
}
