package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// TestCommitOrderDecides: T1 writes first and commits last. The LSN of its row is
// lower than that of T2's, its commit's is higher (case C17a, trap 2).
func TestCommitOrderDecides(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	r := f.start()
	r.awaitPhase("streaming")
	ctx := context.Background()
	t1, err := f.db.Conn(t).Begin(ctx)
	must(t, err)
	_, err = t1.Exec(ctx, "INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES ('order', 'k', '1')")
	must(t, err)
	f.insert("order", "k", "2")
	// T2 is out while T1 is open.
	f.awaitRecords(f.topic("order"), 1)
	must(t, t1.Commit(ctx))
	got := f.awaitRecords(f.topic("order"), 2)
	if v := values(got); !slices.Equal(v, []string{"2", "1"}) {
		t.Errorf("published %v, want T2's event and then T1's", v)
	}
	r.mustStop()
}

// TestRowsOfOneCommandSurviveAKill: the rows of a COPY and of a multi-row INSERT
// share one LSN. The relay is killed when two of three are acknowledged; none may be
// taken for known afterwards because of its LSN (case C17b, trap 2).
func TestRowsOfOneCommandSurviveAKill(t *testing.T) {
	t.Parallel()
	const three = `INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES
		('order', 'k', jsonb_build_object('n', 1, 'pad', repeat('x', 900))),
		('order', 'k', jsonb_build_object('n', 2, 'pad', repeat('x', 900))),
		('order', 'k', jsonb_build_object('n', 3, 'pad', repeat('x', 900)))`
	for name, write := range map[string]func(*fixture){
		"COPY": func(f *fixture) {
			var rows strings.Builder
			for n := 1; n <= 3; n++ {
				fmt.Fprintf(&rows, "00000000-0000-0000-0000-00000000000%d\torder\tk\t{\"n\": %d, \"pad\": \"%s\"}\n", n, n, strings.Repeat("x", 900))
			}
			// With the id, since a volatile default would make it insert row by row.
			_, err := f.db.Conn(f.t).PgConn().CopyFrom(context.Background(), strings.NewReader(rows.String()),
				"COPY outbox(id, aggregate_type, aggregate_id, payload) FROM STDIN")
			must(f.t, err)
			if n := f.scalar("SELECT count(DISTINCT lsn)::text FROM (" + f.peek() + ") c WHERE get_byte(data, 0) = ascii('I')"); n != "1" {
				f.t.Errorf("the rows have %s LSNs, want one", n)
			}
		},
		"INSERT": func(f *fixture) { f.db.Exec(f.t, three) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := testkit.Kfake(t, devstack.KfakeOptions{})
			f := newFixture(t, testkit.Postgres(t), fake.Broker)
			f.createTopic("order", 12, nil)
			f.watchCommits()
			// The third row's request is swallowed until the relay is dead.
			var dead atomic.Bool
			var batches atomic.Int32
			third := newLatch()
			broker := script(t, fake, func(_ *kfake.Cluster, req *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
				if dead.Load() || batches.Add(1) < 3 {
					return nil, nil, false
				}
				third.give()
				return nil, nil, true
			})
			// One row a batch.
			config := f.yamlWith("kafka:\n", "kafka:\n  batch_bytes: 1KiB\n")
			relay := spawn(t, "run", "--config", config)
			write(f)
			third.await(t, "the third row's batch")
			relay.kill()
			dead.Store(true)
			relay = spawn(t, "run", "--config", config)
			f.awaitConfirmed(f.walEnd())
			if code := relay.terminate(); code != 0 {
				t.Errorf("exit code %d; it said:\n%s", code, relay.said())
			}
			got, copies := firsts(t, f.broker.ReadAll(t, f.topic("order")))
			for i, v := range got {
				if want := fmt.Sprintf(`{"n": %d,`, i+1); !strings.HasPrefix(v, want) {
					t.Errorf("first occurrence %d begins with %.10s, want %s", i+1, v, want)
				}
			}
			if len(got) != 3 || copies != 2 {
				t.Errorf("%d distinct records and %d copies, want 3 and 2 (%d batches)", len(got), copies, len(broker.batches(f.topic("order"))))
			}
		})
	}
}

// TestPreparedTransactions: nothing is published before COMMIT PREPARED, and then in
// its order; nothing ever after ROLLBACK PREPARED (case C17c).
func TestPreparedTransactions(t *testing.T) {
	t.Parallel()
	// A prepared transaction holds up the making of every slot on its server.
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"max_prepared_transactions": "5"}})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
	r := f.start()
	for _, id := range []string{"committed", "rolled back"} {
		f.db.Exec(t, fmt.Sprintf("BEGIN; INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES ('order', 'k', '\"%s\"'); PREPARE TRANSACTION '%s'", id, id))
	}
	f.insert("order", "k", `"between"`)
	f.awaitRecords(f.topic("order"), 1)
	f.db.Exec(t, "ROLLBACK PREPARED 'rolled back'")
	f.db.Exec(t, "COMMIT PREPARED 'committed'")
	f.insert("order", "k", `"last"`)
	f.awaitRecords(f.topic("order"), 3)
	r.mustStop()
	if v := values(f.broker.ReadAll(t, f.topic("order"))); !slices.Equal(v, []string{`"between"`, `"committed"`, `"last"`}) {
		t.Errorf("published %v", v)
	}
}

// TestSavepoints: of a transaction that is rolled back in part, also of one that the
// server has to spill to disk while it decodes, just what committed is published, in
// the order of its rows (trap 12).
func TestSavepoints(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.cfg.Replication.ConnString += "&options=-c%20logical_decoding_work_mem%3D64kB"
	rows := pick(300, 20_000)
	insert := "INSERT INTO outbox(aggregate_type, aggregate_id, payload) SELECT 'order', 'k', to_jsonb(i) FROM generate_series(%d, %d) i;"
	f.db.Exec(t, "BEGIN;"+
		fmt.Sprintf(insert, 1, rows)+
		"SAVEPOINT a;"+fmt.Sprintf(insert, 100_001, 100_000+rows)+"ROLLBACK TO a;"+
		"SAVEPOINT b;"+fmt.Sprintf(insert, rows+1, 2*rows)+"SAVEPOINT c;"+fmt.Sprintf(insert, 200_001, 200_010)+"ROLLBACK TO c; RELEASE b;"+
		fmt.Sprintf(insert, 2*rows+1, 3*rows)+"COMMIT")
	f.db.Exec(t, "BEGIN; INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES ('order', 'k', '-1'); ROLLBACK")
	f.mustDrain()
	if copies := f.requireSeries(f.topic("order"), 1, 3*rows); copies != 0 {
		t.Errorf("%d duplicates", copies)
	}
}

// TestNoBatchOvertakesAFailedOne: 250 rows of one key leave in several batches. The
// broker refuses the first ones with a code that heals, for longer than any client's
// usual number of attempts; with one that makes the batch be split; and every third
// (case C18, traps 13 and 14).
func TestNoBatchOvertakesAFailedOne(t *testing.T) {
	t.Parallel()
	const rows = 250
	for name, refuse := range map[string]func(n int32) int16{
		"first twelve time out":     func(n int32) int16 { return codeIf(n <= 12, kerr.RequestTimedOut) },
		"first is too large":        func(n int32) int16 { return codeIf(n == 1, kerr.MessageTooLarge) },
		"every third has no leader": func(n int32) int16 { return codeIf(n%3 == 0, kerr.NotLeaderForPartition) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := testkit.Kfake(t, devstack.KfakeOptions{})
			f := newFixture(t, testkit.Postgres(t), fake.Broker)
			f.cfg.Kafka.BatchBytes = 2 << 10
			f.cfg.Kafka.RetryBackoffMax = f.cfg.Timers.Save
			var n atomic.Int32
			broker := script(t, fake, func(_ *kfake.Cluster, req *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
				if code := refuse(n.Add(1)); code != 0 {
					return answerCode(req, code), nil, true
				}
				return nil, nil, false
			})
			f.batch("order", "k", 1, rows, 0)
			f.mustDrain()
			if copies := f.requireSeries(f.topic("order"), 1, rows); copies != 0 {
				t.Errorf("%d duplicates", copies)
			}
			if name != "first is too large" {
				requireUnchangedRepeats(t, broker.batches(f.topic("order")), refuse)
			}
		})
	}
}

func codeIf(yes bool, err *kerr.Error) int16 {
	if yes {
		return err.Code
	}
	return 0
}

// requireUnchangedRepeats: what follows a refused batch is the same batch, byte for
// byte, and no batch is sent again after it was accepted (trap 14).
func requireUnchangedRepeats(t *testing.T, seen []batchSeen, refuse func(int32) int16) {
	t.Helper()
	accepted := map[string]bool{}
	for i, b := range seen {
		if i > 0 && refuse(int32(i)) != 0 && b.records != seen[i-1].records {
			t.Errorf("request %d differs from the refused one before it", i+1)
		}
		if accepted[b.records] {
			t.Errorf("request %d repeats a batch that was acknowledged", i+1)
		}
		accepted[b.records] = refuse(int32(i+1)) == 0
	}
	if len(accepted) < 3 {
		t.Fatalf("only %d batches: the test shows nothing", len(accepted))
	}
}

// TestRefusedRecordHalts: a record that the broker never takes is found within its
// batch; what precedes it goes out, nothing behind it does, and the position stays
// before it. After the broker has changed its mind all is published in order (case
// C18, traps 13, 16, 17 and 24).
func TestRefusedRecordHalts(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.createTopic("order", 12, nil)
	var healed atomic.Bool
	fake.Server.Cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: f.topic("order"), Err: kerr.MessageTooLarge, Count: -1,
		When: func(r kmsg.Request) bool { return !healed.Load() && poisoned(r.(*kmsg.ProduceRequest)) },
	})
	written := f.watchCommits()
	f.series("order", "k", 1, 5)
	f.db.Exec(t, `INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES
		('order', 'k', '6'), ('order', 'k', '"poison"'), ('order', 'k', '8'), ('other', 'j', '9')`)
	f.insert("order", "k", "10")
	err := f.drain()
	var known *operr.Error
	if !errors.As(err, &known) || known.Class != operr.Halted {
		t.Fatalf("the run ended with %v, want a halt", err)
	}
	if id := f.scalar(`SELECT id::text FROM outbox WHERE payload = '"poison"'`); !strings.Contains(err.Error(), id) {
		t.Errorf("the error does not name the event %s: %v", id, err)
	}
	f.requireSeries(f.topic("order"), 1, 6)
	all := written.all()
	if at := f.confirmed(); at < all[4].end || at > all[5].commit {
		t.Errorf("confirmed %s, want the end of the fifth transaction, from %s and not past %s", at, all[4].end, all[5].commit)
	}
	healed.Store(true)
	f.mustDrain()
	got, _ := firsts(t, f.broker.ReadAll(t, f.topic("order")))
	if want := "1 2 3 4 5 6 \"poison\" 8 10"; strings.Join(got, " ") != want {
		t.Errorf("first occurrences are %v, want %s", got, want)
	}
}

func poisoned(req *kmsg.ProduceRequest) bool {
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			if strings.Contains(string(p.Records), "poison") {
				return true
			}
		}
	}
	return false
}

// TestRandomBrokerFaultsKeepOrder: seeded faults of every transient kind, before and
// after the append, and lost answers; one topic a seed (case C18, traps 13 to 15).
func TestRandomBrokerFaultsKeepOrder(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	f.cfg.Kafka.BatchBytes = 1 << 10
	f.cfg.Kafka.RetryBackoffMax = f.cfg.Timers.Save
	rng := rand.New(rand.NewPCG(18, 0))
	codes := []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.RequestTimedOut, kerr.NotEnoughReplicas,
		kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition, kerr.NetworkException,
	}
	script(t, fake, func(_ *kfake.Cluster, req *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		switch rng.IntN(5) {
		case 0:
			return answerCode(req, codes[rng.IntN(len(codes))].Code), nil, true
		case 1:
			return nil, errHangUp, true
		}
		return nil, nil, false
	})
	// These two append first.
	after := rand.New(rand.NewPCG(18, 1))
	fake.Server.Cluster.Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicasAfterAppend, Count: -1, When: func(kmsg.Request) bool { return after.IntN(8) == 0 }},
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: -1, When: func(kmsg.Request) bool { return after.IntN(8) == 0 }},
	)
	seeds := pick(10, 200)
	for seed := range seeds {
		f.batch(fmt.Sprintf("s%d", seed), "k", 1, 100, 0)
	}
	f.mustDrain()
	for seed := range seeds {
		if copies := f.requireSeries(f.topic(fmt.Sprintf("s%d", seed)), 1, 100); copies != 0 {
			t.Errorf("seed %d: %d duplicates in a run without a crash", seed, copies)
		}
	}
}
