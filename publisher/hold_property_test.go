package publisher

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/postrider/postrider/event"
)

// case C20, rules 14 and 20: random arrivals, refusals, healing and retries over a few
// keys of one partition, while lanes run. A caller that does what the parked store does
// (a list per key, looked at before each Append) sees every event of every key once and
// in order: nothing is lost, nothing overtakes.
func TestHeldKeysAgreeWithModel(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	w := &lotWorld{parked: map[string][]*lotEvent{}, flying: map[string]int{}, back: map[string]bool{}, byTxn: map[uint64]*lotEvent{}, sent: map[string]int{}}
	refusing(t, c)
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) {
		cfg.OnAck, cfg.OnRefused = w.onAck, w.onRefused
	})
	w.p = r.p
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		w.run = runs // keys of their own for each run
		t.Repeat(map[string]func(*rapid.T){
			"arrive": w.arrive,
			"burst":  func(t *rapid.T) { w.burst(t) },
			"retry":  w.retry,
			"settle": func(*rapid.T) { w.settle() },
			"drain":  func(*rapid.T) { w.drain(r) },
			"":       func(*rapid.T) {},
		})
		w.finish(t, r)
	})
	total := 0
	for _, n := range w.sent {
		total += n
	}
	records := consume(t, c.ListenAddrs(), total, "t")
	if len(records) != total {
		t.Errorf("%d records, want %d", len(records), total)
	}
	byKey := map[string][]string{}
	for _, rec := range records {
		byKey[string(rec.Key)] = append(byKey[string(rec.Key)], header(rec, "id"))
	}
	for key, n := range w.sent {
		for i, id := range byKey[key] {
			if want := fmt.Sprintf("%s-%06d", key, i); id != want {
				t.Fatalf("key %s: number %d is %s: %v", key, i, id, byKey[key])
			}
		}
		if len(byKey[key]) != n {
			t.Fatalf("key %s: %d records, want %d", key, len(byKey[key]), n)
		}
	}
}

var poisonMark = []byte("poison")

// refusing answers with code 87 where a record's value says poison.
func refusing(t *testing.T, c *kfake.Cluster) {
	t.Helper()
	c.ControlKey(produceKey, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.ProduceRequest)
		rp := req.Topics[0].Partitions[0]
		_, records := decode(t, rp.Records)
		if !slices.ContainsFunc(records, func(r kmsg.Record) bool { return bytes.HasPrefix(r.Value, poisonMark) }) {
			return nil, nil, false
		}
		res := req.ResponseKind().(*kmsg.ProduceResponse)
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = req.Topics[0].Topic
		p := kmsg.NewProduceResponseTopicPartition()
		p.Partition, p.ErrorCode = rp.Partition, 87
		rt.Partitions = append(rt.Partitions, p)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
}

// lotEvent is a parked event: the model's row.
type lotEvent struct {
	n      int
	msg    event.Message
	flying bool
	acked  bool
}

// lotWorld is the caller: the parked lot and the retrier in a few lines.
type lotWorld struct {
	p   *Publisher
	run int

	mu     sync.Mutex
	parked map[string][]*lotEvent
	// flying events of a key are injected and not settled; back: one of them came back.
	flying map[string]int
	back   map[string]bool
	byTxn  map[uint64]*lotEvent
	sent   map[string]int
	txn    uint64
	landed []*lotEvent
}

func (w *lotWorld) onAck(runs []Run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range runs {
		if r.Txn >= Injected {
			e := w.byTxn[r.Txn]
			e.acked = true
			w.landed = append(w.landed, e)
		}
	}
}

func (w *lotWorld) onRefused(r *Refused) Disposal {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Txn >= Injected {
		w.landed = append(w.landed, w.byTxn[r.Txn])
		w.back[string(r.Message.Key)] = true
		return TakenWithKey
	}
	w.park(r.Message)
	if key := string(r.Message.Key); w.flying[key] > 0 {
		// It was in the lane before them.
		w.back[key] = true
		return TakenWithAll
	}
	return TakenWithKey
}

func (w *lotWorld) park(msg event.Message) {
	key := string(msg.Key)
	w.parked[key] = append(w.parked[key], &lotEvent{n: int(msg.Position.Index), msg: msg})
	slices.SortFunc(w.parked[key], func(a, b *lotEvent) int { return a.n - b.n })
}

func (w *lotWorld) key(t *rapid.T) string {
	return fmt.Sprintf("k%d.%d", w.run, rapid.IntRange(0, 2).Draw(t, "key"))
}

func (w *lotWorld) arrive(t *rapid.T) {
	w.one(t, w.key(t))
	w.p.Flush()
}

func (w *lotWorld) burst(t *rapid.T) {
	for range rapid.IntRange(2, 20).Draw(t, "n") {
		w.one(t, w.key(t))
	}
	w.p.Flush()
}

func (w *lotWorld) one(t *rapid.T, key string) {
	msg := message("t", key, w.sent[key])
	w.sent[key]++
	if rapid.IntRange(0, 6).Draw(t, "poison") == 0 {
		msg.Value = []byte("poison")
	}
	w.mu.Lock()
	if len(w.parked[key]) > 0 {
		w.park(copyMessage(&msg))
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	if err := w.p.Append(context.Background(), &msg, 1); err != nil {
		t.Fatal(err)
	}
}

// retry injects what is parked of a key; some of it is healed, the rest is refused again.
func (w *lotWorld) retry(t *rapid.T) {
	heal := rapid.IntRange(0, 2).Draw(t, "heal") > 0
	w.inject(t, w.key(t), heal)
}

func (w *lotWorld) inject(t *rapid.T, key string, heal bool) {
	w.mu.Lock()
	if w.flying[key] > 0 {
		w.mu.Unlock()
		return
	}
	list := slices.Clone(w.parked[key])
	txns := make([]uint64, len(list))
	for i, e := range list {
		if heal {
			e.msg.Value = []byte("healed")
		}
		e.flying = true
		w.txn++
		txns[i] = Injected | w.txn
		w.byTxn[txns[i]] = e
	}
	w.flying[key] = len(list)
	w.mu.Unlock()
	for i, e := range list {
		if err := w.p.Inject(context.Background(), &e.msg, txns[i]); err != nil {
			t.Fatal(err)
		}
	}
}

// settle notes what came back. A key is released under the lock in which arrivals look.
func (w *lotWorld) settle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.landed {
		key := string(e.msg.Key)
		e.flying = false
		if e.acked {
			w.parked[key] = slices.DeleteFunc(w.parked[key], func(o *lotEvent) bool { return o == e })
			if len(w.parked[key]) == 0 {
				w.p.Release("t", []byte(key))
			}
		}
		if w.flying[key]--; w.flying[key] == 0 && w.back[key] {
			w.back[key] = false
			w.p.Readmit("t", []byte(key))
		}
	}
	w.landed = nil
}

func (w *lotWorld) drain(r *rig) {
	r.drain()
	w.settle()
}

// finish heals and publishes all that is left of this run's keys.
func (w *lotWorld) finish(t *rapid.T, r *rig) {
	for round := 0; ; round++ {
		w.drain(r)
		left := 0
		for i := range 3 {
			key := fmt.Sprintf("k%d.%d", w.run, i)
			w.mu.Lock()
			left += len(w.parked[key])
			w.mu.Unlock()
			w.inject(t, key, true)
		}
		if left == 0 {
			return
		}
		if round > 10 {
			t.Fatalf("%d events are parked still", left)
		}
	}
}
