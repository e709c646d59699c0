package publisher

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/event"
)

// poisoned answers a Produce request for one partition with code where any of its
// records has the value "poison". named: the answer says which (Produce v8).
func poisoned(t *testing.T, c *kfake.Cluster, code int16, named bool) *atomic.Int64 {
	t.Helper()
	var answers atomic.Int64
	c.ControlKey(produceKey, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.ProduceRequest)
		rp := req.Topics[0].Partitions[0]
		_, records := decode(t, rp.Records)
		var guilty []kmsg.ProduceResponseTopicPartitionErrorRecord
		for i, r := range records {
			if bytes.Equal(r.Value, []byte("poison")) {
				e := kmsg.NewProduceResponseTopicPartitionErrorRecord()
				e.RelativeOffset = int32(i)
				guilty = append(guilty, e)
			}
		}
		if len(guilty) == 0 {
			return nil, nil, false
		}
		answers.Add(1)
		res := req.ResponseKind().(*kmsg.ProduceResponse)
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = req.Topics[0].Topic
		p := kmsg.NewProduceResponseTopicPartition()
		p.Partition, p.ErrorCode = rp.Partition, code
		if named {
			p.ErrorRecords = guilty
		}
		rt.Partitions = append(rt.Partitions, p)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	return &answers
}

// cases C18 (second run), C37 (e), trap 16: of a batch with one record that can
// never be published, exactly what precedes it is published, and the record is
// named. Nothing behind it in its partition goes out; other partitions flow.
func TestOneRefusedRecordStopsItsPartitionThere(t *testing.T) {
	t.Parallel()
	reasons := map[int16]event.Reason{
		10: event.ReasonTooLarge, 87: event.ReasonInvalidRecord, 32: event.ReasonTimestamp, 17: event.ReasonInvalidTopic,
	}
	for code, reason := range reasons {
		for _, named := range []bool{false, true} {
			for _, at := range []int{0, 1, 37, 99} {
				t.Run(fmt.Sprintf("code %d named %v at %d", code, named, at), func(t *testing.T) {
					t.Parallel()
					c := newCluster(t, kfake.SeedTopics(1, "t", "other"))
					answers := poisoned(t, c, code, named)
					r := newRig(t, c.ListenAddrs(), nil)
					r.append(message("other", "o", 0), 1)
					r.append(message("t", "warm", 0), 1)
					r.drain() // the topic is known: what follows is one batch
					for n := range 100 {
						m := message("t", "k", n)
						if n == at {
							m.Value = []byte("poison")
						}
						r.append(m, uint64(n+10))
					}
					var left *DrainError
					if err := r.tryDrain(patience); !errors.As(err, &left) || left.Stuck != int64(100-at) || left.Unacknowledged != left.Stuck {
						t.Fatalf("drain: %v", err)
					}
					got := r.refusalsSoFar()
					if len(got) != 1 || got[0].Reason != reason || got[0].EventID != fmt.Sprintf("k-%06d", at) ||
						got[0].Position.Index != uint64(at) || got[0].Position.Commit != event.LSN(0x1000+at) || r.refused[0] != uint64(at+10) {
						t.Fatalf("refusals: %+v", got)
					}
					for n := range 100 {
						if acked := r.ackedOf(uint64(n+10)) == 1; acked != (n < at) {
							t.Fatalf("event %d: acknowledged %v", n, acked)
						}
					}
					r.append(message("other", "o", 1), 2)
					r.append(message("t", "k", 100), 2)
					if err := r.tryDrain(patience); !errors.As(err, &left) || left.Stuck != int64(101-at) {
						t.Fatalf("drain: %v", err)
					}
					records := consume(t, c.ListenAddrs(), at+3, "t", "other")
					if len(records) != at+3 {
						t.Fatalf("%d records, want %d", len(records), at+3)
					}
					wantOrder(t, records, "o", 2)
					if at > 0 {
						wantOrder(t, records, "k", at)
					}
					if n := answers.Load(); named && n > 3 || n > 9 {
						t.Errorf("%d refused attempts to find the record", n)
					}
				})
			}
		}
	}
}

// rule 14: a batch of which an earlier attempt is unanswered is not split: a part
// of it that is sent again would be a duplicate that the broker cannot see. Here the
// first attempt was appended, its answer lost, and the limit lowered.
func TestRefusedAfterAnUnansweredAttemptIsNotSplit(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	var l line
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.Dial = l.dial })
	r.append(message("t", "k", 0), 1)
	r.drain()
	cut := func() bool { return true }
	l.cut.Store(&cut)
	f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Observe: true, Count: -1})
	defer f.Remove()
	var refusing atomic.Bool
	c.ControlKey(produceKey, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if !refusing.Load() {
			refusing.Store(true)
			return nil, nil, false // appended; the line loses the answer
		}
		l.cut.Store(nil)
		req := kreq.(*kmsg.ProduceRequest)
		if _, records := decode(t, req.Topics[0].Partitions[0].Records); len(records) != 10 {
			t.Errorf("a batch of %d records was sent", len(records))
		}
		if f.Hits() >= 3 {
			return nil, nil, false // somebody has raised the limit
		}
		res := req.ResponseKind().(*kmsg.ProduceResponse)
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = "t"
		p := kmsg.NewProduceResponseTopicPartition()
		p.ErrorCode = kerr.MessageTooLarge.Code
		rt.Partitions = append(rt.Partitions, p)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	for n := 1; n <= 10; n++ {
		r.append(message("t", "k", n), 2)
	}
	r.drain()
	records := consume(t, c.ListenAddrs(), 11, "t")
	wantOrder(t, records, "k", 11)
	if len(records) != 11 {
		t.Fatalf("%d records, want 11", len(records))
	}
}

// The same, and the end offset shows that nothing of the batch was appended: it is split.
func TestRefusedAfterAnUnansweredAttemptThatWasNotAppended(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	r := newRig(t, c.ListenAddrs(), nil)
	r.append(message("t", "warm", 0), 1)
	r.drain()
	c.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		return nil, errors.New("cut before it is read"), true
	})
	poisoned(t, c, 87, false)
	for n := range 10 {
		m := message("t", "k", n)
		if n == 6 {
			m.Value = []byte("poison")
		}
		r.append(m, 2)
	}
	var left *DrainError
	if err := r.tryDrain(patience); !errors.As(err, &left) || left.Stuck != 4 {
		t.Fatalf("drain: %v", err)
	}
	wantOrder(t, consume(t, c.ListenAddrs(), 7, "t"), "k", 6)
	if got := r.refusalsSoFar(); len(got) != 1 || got[0].EventID != "k-000006" {
		t.Fatalf("%v", got)
	}
}

func TestSplitPoint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		count  int32
		guilty []int32
		want   int32
	}{
		{10, nil, 5},
		{2, nil, 1},
		{3, nil, 1},
		{10, []int32{7, 3}, 3},
		{10, []int32{0}, 1},
		{10, []int32{9}, 9},
		{10, []int32{-1, 10, 11}, 5},
		{10, []int32{-1, 4}, 4},
	} {
		if got := splitPoint(c.count, c.guilty); got != c.want {
			t.Errorf("splitPoint(%d, %v) = %d, want %d", c.count, c.guilty, got, c.want)
		}
	}
}
