package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/testkit"
)

// kafkaProxy leads the relay, and nobody else, to the broker through a proxy. The
// broker is one node; the address that it advertises is not used.
func (f *fixture) kafkaProxy() *testkit.TCPProxy {
	f.t.Helper()
	p := testkit.Proxy(f.t, f.broker.Bootstrap()[0])
	f.cfg.Kafka.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, p.Addr())
	}
	return p
}

// postgresProxy leads all of the relay's sessions through a proxy.
func (f *fixture) postgresProxy() *testkit.TCPProxy {
	f.t.Helper()
	u, err := url.Parse(f.db.DSN)
	if err != nil {
		f.t.Fatal(err)
	}
	p := testkit.Proxy(f.t, u.Host)
	u.Host = p.Addr()
	f.cfg.Replication.ConnString = u.String()
	return p
}

// walsender is the server process that streams the slot; "" while nobody holds it.
func (f *fixture) walsender() string {
	f.t.Helper()
	return f.scalar("SELECT coalesce((SELECT active_pid::text FROM pg_replication_slots WHERE slot_name = '" + f.db.Slot + "'), '')")
}

// awaitHolder waits until somebody holds the slot and gives the walsender.
func (f *fixture) awaitHolder() (pid string) {
	f.t.Helper()
	testkit.EventuallyTrue(f.t, patience, "nobody holds the slot", func() bool {
		pid = f.walsender()
		return pid != ""
	})
	return pid
}

// awaitStatuses waits until the server has got n more statuses from the slot's
// holder. It is how a test waits that nothing is confirmed: by what would have
// carried the confirmation.
func (f *fixture) awaitStatuses(n int) {
	f.t.Helper()
	sql := "SELECT coalesce((SELECT r.reply_time::text FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = '" + f.db.Slot + "'), '')"
	last := f.scalar(sql)
	for range n {
		testkit.EventuallyTrue(f.t, patience, "no status arrives", func() bool {
			now := f.scalar(sql)
			if now == last || now == "" {
				return false
			}
			last = now
			return true
		})
	}
}

// awaitUnconfirmed waits until the relay holds exactly n events that were not acknowledged.
func (r *running) awaitUnconfirmed(n int) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		if have := r.relay.Status().Unconfirmed; have != n {
			return fmt.Errorf("%d events are unconfirmed, want %d", have, n)
		}
		return nil
	})
}

// scripted is a fake broker with the Produce requests that it got.
type scripted struct {
	*testkit.FakeBroker
	t *testing.T

	mu   sync.Mutex
	seen []batchSeen
}

// batchSeen is one partition's part of a Produce request as it stood on the wire.
type batchSeen struct {
	topic     string
	partition int32
	acks      int16
	records   string
}

// script watches every Produce request of a fake broker and has it answered by
// decide: nil, nil, false lets the broker do its work. decide runs on the broker's
// own goroutine.
func script(t *testing.T, b *testkit.FakeBroker, decide func(*kfake.Cluster, *kmsg.ProduceRequest) (kmsg.Response, error, bool)) *scripted {
	s := &scripted{FakeBroker: b, t: t}
	cluster := b.Server.Cluster
	cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		req := r.(*kmsg.ProduceRequest)
		s.note(req)
		if decide == nil {
			return nil, nil, false
		}
		return decide(cluster, req)
	})
	return s
}

func (s *scripted) note(req *kmsg.ProduceRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			s.seen = append(s.seen, batchSeen{t.Topic, p.Partition, req.Acks, string(p.Records)})
		}
	}
}

// batches gives what was seen so far of the partitions of a topic.
func (s *scripted) batches(topic string) (all []batchSeen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.seen {
		if b.topic == topic {
			all = append(all, b)
		}
	}
	return all
}

// awaitBatches waits until n batches for the topic have come.
func (s *scripted) awaitBatches(topic string, n int) []batchSeen {
	s.t.Helper()
	testkit.Eventually(s.t, patience, func() error {
		if have := len(s.batches(topic)); have < n {
			return fmt.Errorf("%d batches came for %s, want %d", have, topic, n)
		}
		return nil
	})
	return s.batches(topic)
}

// answerCode is the answer to a request, with one code for all its partitions.
func answerCode(req *kmsg.ProduceRequest, code int16) kmsg.Response {
	res := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode, rp.BaseOffset = p.Partition, code, -1
			rt.Partitions = append(rt.Partitions, rp)
		}
		res.Topics = append(res.Topics, rt)
	}
	return res
}

// errHangUp makes the fake broker close the connection.
var errHangUp = errors.New("hang up")

// latch is a signal that is given once.
type latch struct {
	once sync.Once
	c    chan struct{}
}

func newLatch() *latch { return &latch{c: make(chan struct{})} }

func (l *latch) give() { l.once.Do(func() { close(l.c) }) }

func (l *latch) given() bool {
	select {
	case <-l.c:
		return true
	default:
		return false
	}
}

func (l *latch) await(t *testing.T, what string) {
	t.Helper()
	select {
	case <-l.c:
	case <-time.After(patience):
		t.Fatalf("not within %s: %s", patience, what)
	}
}

// series commits n events of one key, each in a transaction of its own.
func (f *fixture) series(aggregateType, key string, from, to int) {
	f.t.Helper()
	// Not in a DO block's implicit transaction: COMMIT in a loop needs a session without one.
	f.db.Exec(f.t, fmt.Sprintf(`DO $$ BEGIN FOR i IN %d..%d LOOP
		INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES (%s, %s, to_jsonb(i)); COMMIT; END LOOP; END $$`,
		from, to, literal(aggregateType), literal(key)))
}

// batch commits n events of one key in one transaction, each with a padded payload.
func (f *fixture) batch(aggregateType, key string, from, to, pad int) {
	f.t.Helper()
	f.db.Exec(f.t, fmt.Sprintf(`INSERT INTO outbox(aggregate_type, aggregate_id, payload)
		SELECT %s, %s, CASE %d WHEN 0 THEN to_jsonb(i) ELSE jsonb_build_object('n', i, 'pad', repeat('x', %d)) END FROM generate_series(%d, %d) i`,
		literal(aggregateType), literal(key), pad, pad, from, to))
}

// firsts gives the values of the records in the order of their first occurrences,
// and how many copies came on top. It fails the test if the records are of more than
// one partition.
func firsts(t *testing.T, records []testkit.Record) (distinct []string, copies int) {
	t.Helper()
	seen := map[string]bool{}
	for _, r := range records {
		if r.Partition != records[0].Partition {
			t.Fatalf("records in partitions %d and %d", records[0].Partition, r.Partition)
		}
		id, _ := r.Header("id")
		if seen[string(id)] {
			copies++
			continue
		}
		seen[string(id)] = true
		distinct = append(distinct, string(r.Value))
	}
	return distinct, copies
}

// requireSeries fails the test unless the topic holds the numbers from..to of one
// key in this order of first occurrence; it gives the number of duplicates.
func (f *fixture) requireSeries(topic string, from, to int) (copies int) {
	f.t.Helper()
	got, copies := firsts(f.t, f.broker.ReadAll(f.t, topic))
	var want []string
	for i := from; i <= to; i++ {
		want = append(want, fmt.Sprint(i))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		f.t.Fatalf("first occurrences are %v, want %d to %d", got, from, to)
	}
	return copies
}

// yamlWith is yaml with a part of it replaced.
func (f *fixture) yamlWith(part, by string) string {
	f.t.Helper()
	path := f.yaml("")
	text, err := os.ReadFile(path)
	must(f.t, err)
	if !strings.Contains(string(text), part) {
		f.t.Fatalf("the configuration has no %q", part)
	}
	must(f.t, os.WriteFile(path, []byte(strings.Replace(string(text), part, by, 1)), 0o600))
	return path
}

// signal sends SIGTERM and does not wait.
func (p *process) signal() {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
}
