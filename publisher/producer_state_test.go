package publisher

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/operr"
)

// rule 15: 45, 47 and 59 raise the epoch of this lane only, under the same id, from
// sequence 0, and lose nothing. A possible duplicate is counted only where an
// attempt was unanswered.
func TestLostProducerStateRaisesTheEpoch(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{kerr.OutOfOrderSequenceNumber, kerr.InvalidProducerEpoch, kerr.UnknownProducerID} {
		for _, unanswered := range []bool{false, true} {
			name := code.Message
			if unanswered {
				name += " after a lost answer"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				lostProducerState(t, code, unanswered)
			})
		}
	}
}

func lostProducerState(t *testing.T, code *kerr.Error, unanswered bool) {
	c := newCluster(t, kfake.SeedTopics(2, "t"))
	type head struct {
		id    int64
		epoch int16
		first int32
	}
	heads := make(chan [2]head, 1000) // by partition; only the one of the request is set
	c.ControlKey(produceKey, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, rp := range kreq.(*kmsg.ProduceRequest).Topics[0].Partitions {
			b, _ := decode(t, rp.Records)
			var h [2]head
			h[rp.Partition] = head{b.ProducerID, b.ProducerEpoch, b.FirstSequence}
			heads <- h
		}
		return nil, nil, false
	})
	var l line
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.Dial = l.dial })
	at := func(partition int32, n int) {
		m := message("t", "k", n)
		m.Partition = partition
		r.append(m, 1)
	}
	at(0, 0)
	at(1, 0)
	r.drain()
	forget := func() {
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{0}, Err: code, Count: -1, When: func(kreq kmsg.Request) bool {
			var b kmsg.RecordBatch
			return b.ReadFrom(kreq.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records) == nil && b.ProducerEpoch == 0
		}})
	}
	if unanswered {
		cut := func() bool { return true }
		l.cut.Store(&cut)
	} else {
		forget() // before anything is sent that it shall meet
	}
	at(0, 1)
	at(0, 2)
	r.p.Flush()
	if unanswered {
		until(t, "a lost answer", func() bool { return observeRetries(r.p) > 0 })
		forget()
	}
	l.cut.Store(nil)
	at(0, 3)
	r.drain()
	// This lane only. (A broker keeps epochs by partition; kfake by producer id, so the next batch of
	// the other lane meets 47 there and raises its own.)
	other := r.p.topicList()[0].lanes[1]
	other.mu.Lock()
	if got := other.producer.identity; got.epoch != 0 || got.sequence != 1 {
		t.Errorf("the other lane: %+v", got)
	}
	other.mu.Unlock()
	at(0, 4)
	at(1, 1)
	r.drain()
	if got := r.p.Stats().PossibleDuplicates; unanswered && got == 0 {
		t.Error("no possible duplicate counted")
	} else if !unanswered && got != 0 {
		t.Errorf("%d possible duplicates counted", got)
	}
	var last [2]head
	for len(heads) > 0 {
		for p, h := range <-heads {
			if h != (head{}) {
				last[p] = h
			}
		}
	}
	if last[0].epoch != 1 || last[0].id != last[1].id || last[0].first != 3 && !unanswered {
		t.Errorf("identities: %+v", last)
	}
	records := consume(t, c.ListenAddrs(), 7, "t")
	ids := firstOccurrences(idsByPartition(records)["t/0"])
	if want := "k-000000 k-000001 k-000002 k-000003 k-000004"; strings.Join(ids, " ") != want {
		t.Fatalf("partition 0: %v", ids)
	}
	if dup := int64(len(records) - 7); dup > r.p.Stats().PossibleDuplicates {
		t.Fatalf("%d duplicates, %d counted", dup, r.p.Stats().PossibleDuplicates)
	}
}

// rule 15: where the log ends before the last acknowledged record, the cluster has
// lost data: the offsets are named and the partition stops; it never skips.
func TestAcknowledgedDataLostIsFatal(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(2, "t"))
	r := newRig(t, c.ListenAddrs(), nil)
	for n := range 10 {
		m := message("t", "k", n)
		m.Partition = 1
		r.append(m, 1)
	}
	r.drain()
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.OutOfOrderSequenceNumber, Count: -1, Partitions: []int32{1}})
	c.ControlKey(int16(kmsg.ListOffsets), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.ListOffsetsRequest)
		res := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = "t"
		p := kmsg.NewListOffsetsResponseTopicPartition()
		p.Partition, p.Offset = 1, 7
		rt.Partitions = append(rt.Partitions, p)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	m := message("t", "k", 10)
	m.Partition = 1
	r.append(m, 2)
	r.p.Flush()
	var lost *AcknowledgedLostError
	select {
	case err := <-r.p.Fatal():
		if !errors.As(err, &lost) || *lost != (AcknowledgedLostError{Topic: "t", Partition: 1, Acknowledged: 9, End: 7}) {
			t.Fatal(err)
		}
		if !strings.Contains(operr.HintOf(err), "replay") {
			t.Fatalf("hint: %s", operr.HintOf(err))
		}
	case <-time.After(patience):
		t.Fatal("not fatal")
	}
	var left *DrainError
	if err := r.tryDrain(patience); !errors.As(err, &left) || left.Stuck != 1 || r.ackedOf(2) != 0 {
		t.Fatalf("drain: %v", err)
	}
}

// rule 15, rule 16: an identity that is not ours is fatal at once.
func TestFencedIdentityIsFatal(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.ProducerFenced, Count: -1})
	r := newRig(t, c.ListenAddrs(), nil)
	r.append(message("t", "k", 0), 1)
	r.p.Flush()
	select {
	case err := <-r.p.Fatal():
		if !errors.Is(err, kafka.ProducerFenced) {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("not fatal")
	}
}

// rule 15: at epoch 32,767 comes a new id.
func TestEpochRunsOut(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	r := newRig(t, c.ListenAddrs(), nil)
	r.append(message("t", "k", 0), 1)
	r.drain()
	l := r.p.topicList()[0].lanes[0]
	l.mu.Lock()
	old := l.producer.identity.producerID
	l.producer.identity.epoch = 32767
	l.mu.Unlock()
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidProducerEpoch})
	r.append(message("t", "k", 1), 1)
	r.drain()
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := l.producer.identity; got.producerID == old || got.epoch != 0 {
		t.Fatalf("%+v, was id %d", got, old)
	}
}

// trap 14, rule 11: a batch whose answer was lost is repeated byte for byte.
func TestRetriesAreByteForByteTheSame(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	var first atomic.Pointer[string]
	var repeats, others atomic.Int64
	c.ControlKey(produceKey, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		got := string(kreq.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records)
		switch p := first.Load(); {
		case p == nil:
			first.Store(&got)
		case *p == got:
			repeats.Add(1)
		default:
			others.Add(1)
		}
		return nil, nil, false
	})
	f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: 8})
	r := newRig(t, c.ListenAddrs(), nil)
	r.append(message("t", "k", 0), 1)
	r.p.Flush()
	until(t, "the first attempt", func() bool { return f.Hits() > 0 })
	for n := 1; n < 50; n++ { // collected meanwhile: they must not join the batch in flight
		r.append(message("t", "k", n), 1)
	}
	r.drain()
	if repeats.Load() != 8 || others.Load() == 0 {
		t.Fatalf("%d repeats, %d other batches", repeats.Load(), others.Load())
	}
	records := consume(t, c.ListenAddrs(), 50, "t")
	if wantOrder(t, records, "k", 50); len(records) != 50 {
		t.Fatalf("%d records", len(records))
	}
}
