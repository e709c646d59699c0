package publisher

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// case C15: a missing topic is awaited, not refused; others flow; its events come
// in order once it exists; asking never creates it.
func TestMissingTopicIsAwaited(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(3, "there"), kfake.AllowAutoTopicCreation())
	r := newRig(t, c.ListenAddrs(), nil)
	for n := range 50 {
		r.append(message("billing", "k", n), 1)
		r.append(message("there", "k", n), 2)
		r.p.Flush()
	}
	until(t, "the other topic", func() bool { return r.ackedOf(2) == 50 })
	until(t, "the awaited topic's name", func() bool { return slices.Equal(r.p.Stats().AwaitedTopics, []string{"billing"}) })
	if c.TopicInfo("billing") != nil {
		t.Fatal("asking for metadata created the topic")
	}
	if r.ackedOf(1) != 0 || len(r.refusalsSoFar()) != 0 {
		t.Fatalf("acknowledged %d, refused %d of a missing topic", r.ackedOf(1), len(r.refusalsSoFar()))
	}
	if err := c.CreateTopic("billing", 3, nil); err != nil {
		t.Fatal(err)
	}
	created := time.Now()
	r.append(message("billing", "k", 50), 1)
	r.drain()
	if took := time.Since(created); took > 10*time.Second {
		t.Fatalf("%s after its creation", took)
	}
	wantOrder(t, consume(t, c.ListenAddrs(), 51, "billing"), "k", 51)
	if got := r.p.Stats().AwaitedTopics; len(got) != 0 {
		t.Fatalf("still awaited: %v", got)
	}
}

func TestMissingTopicIsCreatedWhereConfigured(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) {
		cfg.CreateTopics = &TopicSpec{Partitions: 5, ReplicationFactor: 1, Configs: map[string]string{"max.message.bytes": "2000"}}
	})
	for n := range 20 {
		r.append(message("made", "k", n), 1)
	}
	m := message("made", "k", 20)
	m.Value = make([]byte, 3000)
	r.append(m, 2)
	if err := r.tryDrain(patience); err == nil {
		t.Fatal("the created topic does not have its settings")
	}
	if got := len(c.TopicInfo("made").Configs); got == 0 {
		t.Fatal("no settings")
	}
	if r.p.Stats().Lanes != 5 {
		t.Fatalf("%d partitions", r.p.Stats().Lanes)
	}
	wantOrder(t, consume(t, c.ListenAddrs(), 20, "made"), "k", 20)
}

// case C15, C37 (e): a name that can never be is a refusal of the first event, not an outage.
func TestImpossibleTopic(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "there"))
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "bad", Err: kerr.InvalidTopicException, Count: -1})
	r := newRig(t, c.ListenAddrs(), nil)
	r.append(message("bad", "k", 0), 7)
	r.append(message("bad", "k", 1), 8)
	r.append(message("there", "k", 0), 9)
	var left *DrainError
	if err := r.tryDrain(patience); !errors.As(err, &left) || left.Stuck != 2 {
		t.Fatalf("drain: %v", err)
	}
	if got := r.refusalsSoFar(); len(got) != 1 || got[0].Reason != event.ReasonInvalidTopic || got[0].EventID != "k-000000" || r.refused[0] != 7 {
		t.Fatalf("%+v", got)
	}
	if r.ackedOf(9) != 1 {
		t.Fatal("other topics do not flow")
	}
}

// DESIGN 6, case C15: a refused authorisation is retried with an alarm, then fatal,
// and never refuses an event.
func TestAuthorizationGrace(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]kfake.Fault{
		"produce":             {Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.TopicAuthorizationFailed, Count: -1},
		"metadata":            {Keys: []kmsg.Key{kmsg.Metadata}, Topic: "t", Err: kerr.TopicAuthorizationFailed, Count: -1},
		"idempotent producer": {Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: kerr.ClusterAuthorizationFailed, Count: -1},
	} {
		for _, heals := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, heals %v", name, heals), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, kfake.SeedTopics(1, "t"))
				fault := c.Fault(f)
				r := newRig(t, c.ListenAddrs(), func(cfg *Config) {
					if cfg.AuthorizationGrace = 150 * time.Millisecond; heals {
						cfg.AuthorizationGrace = time.Minute
					}
				})
				r.append(message("t", "k", 0), 1)
				r.p.Flush()
				until(t, "an attempt", func() bool { return fault.Hits() > 2 })
				if heals {
					fault.Remove()
					r.drain()
					return
				}
				var err *operr.Error
				select {
				case got := <-r.p.Fatal():
					if !errors.As(got, &err) || err.Class != operr.Kafka || err.Hint == "" || err.Transient {
						t.Fatalf("%#v", got)
					}
				case <-time.After(patience):
					t.Fatal("not fatal after the grace time")
				}
				if len(r.refusalsSoFar()) != 0 || r.ackedOf(1) != 0 {
					t.Fatal("an event was refused or acknowledged")
				}
			})
		}
	}
}

// growTopic adds partitions through another client.
func growTopic(t *testing.T, c *kfake.Cluster, topic string, count int32) {
	t.Helper()
	req := kmsg.NewPtrCreatePartitionsRequest()
	rt := kmsg.NewCreatePartitionsRequestTopic()
	rt.Topic, rt.Count = topic, count
	req.Topics, req.TimeoutMillis = append(req.Topics, rt), 1000
	res, err := req.RequestWith(t.Context(), admin(t, c.ListenAddrs()))
	if err != nil {
		t.Fatal(err)
	}
	if code := res.Topics[0].ErrorCode; code != 0 {
		t.Fatal(kerr.ErrorForCode(code))
	}
}

// rule 18, case C16, trap 18: more partitions are adopted only when nothing of the
// topic is unacknowledged, so that order holds within each period.
func TestMorePartitionsAreAdoptedAtADrainedBarrier(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(6, "t"))
	changes := make(chan [2]int32, 10)
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) {
		cfg.MetadataMaxAge = 20 * time.Millisecond
		cfg.OnPartitions = func(_ string, before, after int32) { changes <- [2]int32{before, after} }
	})
	const keys, each = 8, 200
	n := 0
	more := func(count int) {
		for range count {
			for k := range keys {
				r.append(message("t", keyName(k), n), 1)
			}
			n++
			r.p.Flush()
		}
	}
	more(each / 4)
	r.drain()
	if got := <-changes; got != [2]int32{0, 6} {
		t.Fatalf("%v", got)
	}
	// Something is unacknowledged while the count is found: it must land by the old count, first.
	hold := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
	more(each / 4)
	growTopic(t, c, "t", 12)
	until(t, "the barrier", func() bool { return r.p.topicList()[0].barrier.Load() })
	more(each / 4)
	if len(changes) != 0 {
		t.Fatal("adopted while events were unacknowledged")
	}
	hold.Remove()
	if got := <-changes; got != [2]int32{6, 12} {
		t.Fatalf("%v", got)
	}
	more(each / 4)
	r.drain()
	records := consume(t, c.ListenAddrs(), keys*each, "t")
	if len(records) != keys*each {
		t.Fatalf("%d records", len(records))
	}
	for _, rec := range records {
		var k int
		if _, err := fmt.Sscanf(header(rec, "id")[len(rec.Key)+1:], "%d", &k); err != nil {
			t.Fatal(err)
		}
		if want := partitionOf(rec.Key, map[bool]int{true: 6, false: 12}[k < each/2]); rec.Partition != want {
			t.Fatalf("%s is in partition %d, want %d", header(rec, "id"), rec.Partition, want)
		}
	}
	for k := range keys {
		var ids []string
		for _, period := range []bool{true, false} {
			for _, rec := range records {
				if id := header(rec, "id"); string(rec.Key) == keyName(k) && (id < fmt.Sprintf("%s-%06d", keyName(k), each/2)) == period {
					ids = append(ids, id)
				}
			}
		}
		if !slices.IsSorted(ids) || len(ids) != each {
			t.Fatalf("key %s: order lost", keyName(k))
		}
	}
}

// rule 18: pin keeps the old count and raises an alarm.
func TestMorePartitionsMayBePinned(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(3, "t"))
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) {
		cfg.MetadataMaxAge, cfg.PartitionChange = 20*time.Millisecond, PinPartitions
	})
	r.append(message("t", "k", 0), 1)
	r.drain()
	growTopic(t, c, "t", 9)
	until(t, "the alarm", func() bool {
		r.p.alarmed.mu.Lock()
		defer r.p.alarmed.mu.Unlock()
		return len(r.p.alarmed.raised[alarmPartitions]) == 1
	})
	for k := range 20 {
		r.append(message("t", keyName(k), 0), 1)
	}
	r.drain()
	for _, rec := range consume(t, c.ListenAddrs(), 21, "t") {
		if rec.Partition >= 3 || rec.Partition != partitionOf(rec.Key, 3) {
			t.Fatalf("key %s in partition %d", rec.Key, rec.Partition)
		}
	}
}

// rules 15, 18: a recreated topic is noticed, by its offsets or its partition count.
func TestRecreatedTopicIsNoticed(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int32{3, 2} {
		t.Run(fmt.Sprintf("%d partitions after 3", partitions), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.SeedTopics(3, "t"))
			r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.MetadataMaxAge = 20 * time.Millisecond })
			for n := range 30 {
				r.append(message("t", keyName(n%5), n/5), 1)
			}
			r.drain()
			if err := c.DeleteTopic("t"); err != nil {
				t.Fatal(err)
			}
			if err := c.CreateTopic("t", partitions, nil); err != nil {
				t.Fatal(err)
			}
			if partitions == 3 {
				// Somebody else was first: the partitions take any sequence of an unknown producer.
				for p := range partitions {
					fill(t, c, "t", p)
				}
				for n := range 30 {
					r.append(message("t", keyName(n%5), 6+n/5), 1)
					r.p.Flush()
				}
			}
			var reset *LogResetError
			select {
			case err := <-r.p.Fatal():
				if !errors.As(err, &reset) || reset.Topic != "t" {
					t.Fatal(err)
				}
			case <-time.After(patience):
				t.Fatal("not noticed")
			}
			if partitions == 3 && reset.Base >= reset.Acknowledged+1 || partitions == 2 && reset.Partitions != 2 {
				t.Fatalf("%+v", reset)
			}
		})
	}
}

// fill appends one record by another client.
func fill(t *testing.T, c *kfake.Cluster, topic string, partition int32) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: partition, Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}
