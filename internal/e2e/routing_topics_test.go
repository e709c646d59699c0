package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// namesAsked notes every topic that Metadata and CreateTopics requests name.
func namesAsked(b *testkit.FakeBroker) func() []string {
	var mu sync.Mutex
	var names []string
	note := func(name string) {
		mu.Lock()
		names = append(names, name)
		mu.Unlock()
	}
	cluster := b.Server.Cluster
	for _, key := range []kmsg.Key{kmsg.Metadata, kmsg.CreateTopics} {
		cluster.ControlKey(key.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			switch req := r.(type) {
			case *kmsg.MetadataRequest:
				for _, t := range req.Topics {
					note(*t.Topic)
				}
			case *kmsg.CreateTopicsRequest:
				for _, t := range req.Topics {
					note(t.Topic)
				}
			}
			return nil, nil, false
		})
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(names)
	}
}

// TestInvalidTopicsHalt: a value that gives no legal topic halts at its event before a
// broker is asked about that name, and is never replaced in silence; the longest legal
// name is a topic (case C15).
func TestInvalidTopicsHalt(t *testing.T) {
	t.Parallel()
	fake := testkit.Kfake(t, devstack.KfakeOptions{})
	asked := namesAsked(fake)
	f := newFixtureWith(t, testkit.Postgres(t), fake.Broker, textTable("text"))
	routes := f.cfg.Router.Sources[0].Routes
	raw := []router.Route{{Topic: "${aggregate_type}"}}
	for _, bad := range []struct {
		name   string
		routes []router.Route
	}{
		{"My Type", routes},
		{"https://x#T", routes},
		{"..", routes},
		{"", routes},
		{"", raw},
		{strings.Repeat("a", 300), routes},
		{strings.Repeat("a", 250), raw},
		{"Größe", routes},
		{"заказ", raw},
	} {
		f.cfg.Router.Sources[0].Routes = bad.routes
		before := f.confirmed()
		f.db.Exec(t, "INSERT INTO outbox VALUES ("+literal("bad "+bad.name[:min(len(bad.name), 20)])+", "+literal(bad.name)+", 'k', 'X', 'x')")
		err := f.drain()
		requireRefusal(t, err, event.ReasonInvalidTopic, "aggregate_type", "outbox")
		if text := err.Error(); len(text) > 2000 {
			t.Errorf("%q: the error has %d bytes", bad.name, len(text))
		}
		if at := f.confirmed(); at > f.walEnd() || at < before {
			t.Errorf("%q: confirmed %s", bad.name, at)
		}
		f.skipAll()
		f.db.Exec(t, "DELETE FROM outbox")
	}
	f.cfg.Router.Sources[0].Routes = raw
	longest := strings.Repeat("b", 249)
	f.db.Exec(t, "INSERT INTO outbox VALUES ('1', 'Order', 'k', 'X', 'x'), ('2', '"+longest+"', 'k', 'X', 'x'), ('3', '-', 'k', 'X', 'x'), ('4', '...', 'k', 'X', 'x'), ('5', 'A.b_c-9', 'k', 'X', 'x')")
	f.mustDrain()
	for _, topic := range []string{"Order", longest, "-", "...", "A.b_c-9"} {
		f.awaitRecords(topic, 1)
	}
	legal := []string{f.topic("skipped"), "Order", longest, "-", "...", "A.b_c-9"}
	for _, name := range asked() {
		if !slices.Contains(legal, name) {
			t.Errorf("a broker was asked about %q", name)
		}
	}
}

// TestMissingTopicIsWaitedFor: events of a topic that does not exist wait for it, named
// in metric and status, unconfirmed and in order; those of other topics go out
// meanwhile. Whoever creates the topic sees them within ten seconds (case C15).
func TestMissingTopicIsWaitedFor(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), alterTable)
	f.cfg.Kafka.CreateTopics = nil
	f.cfg.ShutdownTimeout = 100 * time.Millisecond // nothing can be drained
	f.createTopic("order", 1, nil)
	r := f.start()
	f.put("1", "payload")
	f.awaitRecords(f.topic("order"), 1)
	low := f.walEnd()
	for i := range 20 {
		f.db.Exec(t, fmt.Sprintf("INSERT INTO outbox VALUES ('b%d', 'billing', 'k%d', 'X', '%d')", i, i%3, i))
	}
	f.put("2", "payload")
	// The other topic does not wait; the slot does.
	f.awaitRecords(f.topic("order"), 2)
	awaited := fmt.Sprintf("postrider_publisher_awaited_topic{topic=%q}", f.topic("billing"))
	testkit.EventuallyTrue(t, patience, "the metric does not name the topic", func() bool { return r.metric(awaited) == 1 })
	if s := r.relay.Status(); !slices.Contains(s.Publishing.AwaitedTopics, f.topic("billing")) || s.Unconfirmed < 20 {
		t.Errorf("the status does not name the topic: %+v", s)
	}
	if at := f.confirmed(); at > f.walEnd() || f.stored() > low && f.stored() != 0 && at > low {
		t.Errorf("confirmed %s, past %s, though events wait", at, low)
	}
	// A stop does not lose them, and says that they are left.
	err := r.stop()
	requireClass(t, err, operr.DrainIncomplete, "2")
	r = f.start()
	testkit.EventuallyTrue(t, patience, "the metric does not name the topic again", func() bool { return r.metric(awaited) == 1 })
	f.createTopic("billing", 3, nil)
	created := time.Now()
	records := f.awaitRecords(f.topic("billing"), 20)
	if took := time.Since(created); took > 10*time.Second {
		t.Errorf("delivered %s after the topic was created", took)
	}
	last := map[string]int{}
	for _, rec := range records {
		var n int
		if _, err := fmt.Sscan(string(rec.Value), &n); err != nil || last[string(rec.Key)] > n {
			t.Errorf("key %s: %s comes after %d (%v)", rec.Key, rec.Value, last[string(rec.Key)], err)
		}
		last[string(rec.Key)] = n
	}
	if len(records) != 20 {
		t.Errorf("%d records, want 20", len(records))
	}
	testkit.EventuallyTrue(t, patience, "the metric still names the topic", func() bool { return r.metric(awaited) == 0 })
	r.mustStop()
}

// TestCollidingTopics: Kafka refuses to create a topic whose name differs from another's
// in . and _ only. That event waits under an alarm that names the topic; two types are
// never merged (case C15).
func TestCollidingTopics(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, testkit.Postgres(t), testkit.KafkaReal(t), alterTable)
	f.createTopic("a_b", 1, nil)
	f.cfg.ShutdownTimeout = 100 * time.Millisecond
	r := f.start()
	f.db.Exec(t, "INSERT INTO outbox VALUES ('1', 'a.b', 'k', 'X', '1'), ('2', 'a_b', 'k', 'X', '2')")
	f.awaitRecords(f.topic("a_b"), 1)
	testkit.EventuallyTrue(t, patience, "no alarm", func() bool {
		return r.metric(`postrider_publisher_alarm{kind="topic_creation"}`) == 1 &&
			r.metric(fmt.Sprintf("postrider_publisher_awaited_topic{topic=%q}", f.topic("a.b"))) == 1
	})
	requireClass(t, r.stop(), operr.DrainIncomplete)
	f.requireRecords(f.topic("a_b"), `key "k" value "2" id="2" event_type="X"`)
}

// TestNoRightToPublish: what the user may not do is retried under an alarm for
// authorization_grace, while other topics flow; then it is an error that names the
// topic. A right that is granted in time heals it. A real broker decides (case C15).
func TestNoRightToPublish(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateKafka(t, devstack.KafkaOptions{Settings: map[string]string{
		"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"allow.everyone.if.no.acl.found": "true",
		"super.users":                    "User:nobody",
		"auto.create.topics.enable":      "false",
		"early.start.listeners":          "CONTROLLER",
	}})
	admin := kadm.NewClient(broker.Client(t))
	for name, tt := range map[string]struct {
		exists bool
		denied []kadm.ACLOperation
	}{
		"write":    {true, []kadm.ACLOperation{kadm.OpWrite}},
		"describe": {true, []kadm.ACLOperation{kadm.OpDescribe, kadm.OpWrite}},
		"create":   {false, []kadm.ACLOperation{kadm.OpCreate}},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.exists {
				t.Parallel() // begins when the one that denies for the whole cluster has ended
			}
			f := newFixtureWith(t, testkit.Postgres(t), broker.Broker, alterTable)
			f.createTopic("order", 1, nil)
			if tt.exists {
				f.createTopic("secret", 1, nil)
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			on := func() *kadm.ACLBuilder {
				return kadm.NewACLs().ResourcePatternType(kadm.ACLPatternLiteral).Topics(f.topic("secret"))
			}
			// A topic with any ACL needs one for everything.
			allowed := on().Operations(kadm.OpAll).Allow("User:ANONYMOUS").AllowHosts("*")
			denied := on().Operations(tt.denied...).Deny("User:ANONYMOUS").DenyHosts("*")
			if !tt.exists {
				// The right to create any topic would be enough.
				denied, allowed = denied.Clusters(), allowed.Clusters()
			}
			for _, acl := range []*kadm.ACLBuilder{allowed, denied} {
				results, err := admin.CreateACLs(ctx, acl)
				must(t, err)
				for _, r := range results {
					must(t, r.Err)
				}
			}
			before := f.confirmed()
			f.db.Exec(t, "INSERT INTO outbox VALUES ('1', 'secret', 'k', 'X', '1'), ('2', 'order', 'k', 'X', '2')")
			f.cfg.Kafka.AuthorizationGrace = 500 * time.Millisecond
			r := f.start()
			if name == "create" {
				// Somebody else may still create it: it is waited for like any missing topic.
				testkit.EventuallyTrue(t, patience, "no alarm", func() bool { return r.metric(`postrider_publisher_alarm{kind="topic_creation"}`) == 1 })
				f.cfg.ShutdownTimeout = time.Second
			} else {
				requireClass(t, r.wait(patience), operr.Kafka, f.topic("secret"))
			}
			f.awaitRecords(f.topic("order"), 1)
			if at := f.stored(); at > f.walEnd() || at < before {
				t.Errorf("stored %s", at)
			}
			if name != "create" {
				f.cfg.Kafka.AuthorizationGrace = patience
				r = f.start()
				testkit.EventuallyTrue(t, patience, "no alarm", func() bool { return r.metric(`postrider_publisher_alarm{kind="authorization"}`) == 1 })
			}
			_, err := admin.DeleteACLs(ctx, denied)
			must(t, err)
			f.awaitRecords(f.topic("secret"), 1)
			r.mustStop()
		})
	}
}
