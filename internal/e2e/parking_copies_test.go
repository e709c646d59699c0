package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// deadLetter lets parked events of the fixture's route be copied to a topic, and gives its name.
func (f *fixture) deadLetter() string {
	f.onRefusal(router.OnRefusalParkAggregate)
	f.deadLetters = f.prefix + ".dead"
	f.cfg.Router.Sources[0].DeadLetterTopic = f.deadLetters
	return f.deadLetters
}

// copies says of each copy what it is: reason, original topic, key, value and what else
// is said of the value.
func copies(records []testkit.Record) (all []string) {
	for _, r := range records {
		reason, _ := r.Header("postrider-reason")
		topic, _ := r.Header("postrider-original-topic")
		omitted, _ := r.Header("postrider-value-omitted")
		value := string(r.Value)
		if r.Value == nil {
			value = "null"
		}
		all = append(all, fmt.Sprintf("%s %s %s %s %s", reason, topic, r.Key, value, omitted))
	}
	return all
}

// A copy of each parked event is in the dead-letter topic, once, in the order of
// parking, with the bytes and headers of the event; the events themselves are retried as ever.
func TestDeadLetterCopies(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	dead := f.deadLetter()
	f.createTopic("order", 1, map[string]string{"max.message.bytes": "2000"})
	f.broker.CreateTopic(t, dead, 1, nil)
	run := f.start()
	f.insert("order", "k", "1")
	f.insert("order", "k", bigPayload(2))
	f.insert("order", "k", "3")
	f.poison("order", "j")
	f.insert("order", "i", "1")
	f.awaitParked("too_large:parked held:parked null_payload:parked")
	records := f.awaitRecords(dead, 3)
	topic := f.topic("order")
	got := copies(records)
	slices.Sort(got[1:]) // the router's refusal may be written before the broker's
	if want := []string{
		"too_large " + topic + " k " + bigPayload(2) + " ", "held " + topic + " k 3 ", "null_payload " + topic + " j null true",
	}; !sameSet(got, want) {
		t.Fatalf("copies\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, r := range records {
		reason, _ := r.Header("postrider-reason")
		at, _ := r.Header("postrider-position")
		if want := f.scalar(fmt.Sprintf("SELECT commit_lsn || '/' || event_index FROM postrider.parked WHERE reason = '%s'", reason)); string(at) != want {
			t.Errorf("%s: position %s, want %s", reason, at, want)
		}
		if id, ok := r.Header("id"); string(reason) == "too_large" && (!ok || string(id) != f.scalar("SELECT event_id FROM postrider.parked WHERE reason = 'too_large'")) {
			t.Errorf("%s: id %s", reason, id)
		}
	}
	f.awaitConfirmed(f.walEnd())
	run.mustStop()
	f.alterTopic("order", "max.message.bytes", "100000")
	run = f.start()
	f.retryAll()
	f.awaitParked("too_large:published held:published null_payload:parked")
	if n := f.scalar("SELECT count(value)::text FROM postrider.parked WHERE state = 'published'"); n != "0" {
		t.Errorf("%s published events keep their value", n)
	}
	run.mustStop()
	if n := len(f.broker.ReadAll(t, dead)); n != 3 {
		t.Errorf("%d copies after all, want each once", n)
	}
	if k := ofKey(f.broker.ReadAll(t, topic), "k"); k != "1 "+bigPayload(2)+" 3" {
		t.Errorf("k has %s", k)
	}
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// case C38 (b): a copy that the dead-letter topic refuses goes without its value; where
// that is refused too it is given up, and its row says so. The event is parked all the same.
func TestDeadLetterTopicRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	dead := f.deadLetter()
	f.createTopic("order", 1, map[string]string{"max.message.bytes": "2000"})
	f.broker.CreateTopic(t, dead, 1, map[string]string{"max.message.bytes": "1000"})
	run := f.start()
	f.insert("order", "k", bigPayload(1))
	f.insert("order", strings.Repeat("j", 900), bigPayload(2))
	f.awaitParked("too_large:parked too_large:parked")
	f.awaitCount("SELECT count(*)::text FROM postrider.parked WHERE dead_letter_at IS NOT NULL", "2")
	if got := copies(f.awaitRecords(dead, 1)); len(got) != 1 || got[0] != "too_large "+f.topic("order")+" k null true" {
		t.Errorf("copies %v", got)
	}
	if got := f.scalar("SELECT string_agg(dead_letter_error, ' ') FROM postrider.parked"); !strings.HasPrefix(got, "too_large:") {
		t.Errorf("the row says %q", got)
	}
	if sent, lost := run.metric(`postrider_dead_letters_total{result="sent"}`), run.metric(`postrider_dead_letters_total{result="given_up"}`); sent != 1 || lost != 1 {
		t.Errorf("%v sent, %v given up", sent, lost)
	}
	f.awaitConfirmed(f.walEnd())
	run.mustStop()
}

// case C38 (b), trap 19: a dead-letter topic that is missing holds up nothing, not even
// the end of a run. Over kill -9 the copies wait; when the topic is there they are sent, once.
func TestDeadLetterTopicIsMissing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	dead := f.deadLetter()
	f.createTopic("order", 1, nil)
	config := f.edited("  topics: {create: {partitions: 12, replication_factor: -1}}\n", "")
	relay := spawn(t, "run", "--config", config)
	relay.awaitLine("holding the slot")
	for n := range 20 {
		f.poison("order", fmt.Sprintf("k%d", n))
	}
	f.insert("order", "j", "1")
	f.awaitCount("SELECT count(*)::text FROM postrider.parked", "20")
	f.awaitConfirmed(f.walEnd())
	if code := relay.terminate(); code != 0 {
		t.Fatalf("exit code %d: %s", code, relay.said())
	}
	relay = spawn(t, "run", "--config", config)
	relay.awaitLine("topic does not exist")
	relay.kill()
	f.broker.CreateTopic(t, dead, 1, nil)
	relay = spawn(t, "run", "--config", config)
	f.awaitRecords(dead, 20)
	f.awaitCount("SELECT count(*)::text FROM postrider.parked WHERE dead_letter_at IS NOT NULL", "20")
	if code := relay.terminate(); code != 0 {
		t.Errorf("exit code %d: %s", code, relay.said())
	}
	if n := len(f.broker.ReadAll(t, dead)); n != 20 {
		t.Errorf("%d copies, want 20", n)
	}
}

// A dead-letter topic that may not be written to, beyond the grace time, ends nothing;
// when it may, the copies go.
func TestDeadLetterTopicIsForbidden(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	f := newFixture(t, testkit.Postgres(t), fake.Broker)
	dead := f.deadLetter()
	f.cfg.Kafka.AuthorizationGrace = 200 * time.Millisecond
	f.createTopic("order", 1, nil)
	f.broker.CreateTopic(t, dead, 1, nil)
	allowed := make(chan struct{})
	script(t, fake, func(_ *kfake.Cluster, req *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		select {
		case <-allowed:
			return nil, nil, false
		default:
		}
		if req.Topics[0].Topic == dead {
			return answerCode(req, 29), nil, true
		}
		return nil, nil, false
	})
	run := f.start()
	f.poison("order", "k")
	f.insert("order", "j", "1")
	testkit.EventuallyTrue(t, patience, "copies have failed for good, twice", func() bool {
		return run.metric(`postrider_dead_letters_total{result="failed"}`) >= 2
	})
	f.insert("order", "j", "2")
	f.awaitConfirmed(f.walEnd())
	run.awaitPhase("streaming")
	close(allowed)
	f.awaitRecords(dead, 1)
	f.awaitCount("SELECT count(*)::text FROM postrider.parked WHERE dead_letter_at IS NOT NULL", "1")
	run.mustStop()
	if j := ofKey(f.broker.ReadAll(t, f.topic("order")), "j"); j != "1 2" {
		t.Errorf("j has %s", j)
	}
}
