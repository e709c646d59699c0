package publisher

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"

	"github.com/postrider/postrider/event"
)

// fallbackMessageBytes is Kafka's default of max.message.bytes, used where
// DescribeConfigs is not allowed (rule 14).
const fallbackMessageBytes = 1048588

// topicState says what happens to a message for the topic.
type topicState uint8

const (
	// topicUnknown: partitions are not known yet; messages are held.
	topicUnknown topicState = iota
	// topicOpen: messages go to the lanes.
	topicOpen
	// topicBarrier: a new partition count waits until all lanes are drained; messages are held.
	topicBarrier
	// topicStopped: the topic cannot be; the first event was refused or a fatal error raised.
	topicStopped
)

// topic is what is known of a topic, its lanes, and the messages that wait for it.
type topic struct {
	p     *Publisher
	name  string
	acked prometheus.Counter

	// limit is max.message.bytes; exact says that the broker named it.
	limit atomic.Int64
	exact atomic.Bool
	// awaited: the cluster says that it does not exist.
	awaited atomic.Bool
	// barrier mirrors state == topicBarrier for the senders.
	barrier atomic.Bool
	// holding mirrors len(holds) > 0 for the senders.
	holding atomic.Bool

	// mu covers the rest. It is taken before lane.mu.
	mu     sync.Mutex
	state  topicState
	lanes  []*lane
	held   []heldMessage
	target int32 // partition count that waits at the barrier
	next   uint32
	holds  map[string]*hold

	// Owned by the metadata loop.
	auth   grace
	shrunk int // refreshes in a row with fewer partitions than there are lanes
}

// heldMessage is a copy of a message that has no partition yet.
type heldMessage struct {
	msg  event.Message
	txn  uint64
	size int64
}

// heldOverhead is what a held message costs besides its bytes; it is more than
// the same message costs in a lane, so that moving it there needs no new memory.
const heldOverhead = 256

func heldSize(msg *event.Message) int64 {
	n := heldOverhead + metaSize(msg) + len(msg.Key) + len(msg.Value)
	for i := range msg.Headers {
		n += 48 + len(msg.Headers[i].Name) + len(msg.Headers[i].Value)
	}
	return int64(n)
}

// copyMessage copies everything that msg refers to.
func copyMessage(msg *event.Message) event.Message {
	m := *msg
	m.EventID = slices.Clone(msg.EventID)
	m.Key = cloneBytes(msg.Key)
	m.Value = cloneBytes(msg.Value)
	m.AggregateType, m.EventType, m.AggregateVersion = slices.Clone(msg.AggregateType), slices.Clone(msg.EventType), slices.Clone(msg.AggregateVersion)
	m.Headers = slices.Clone(msg.Headers)
	for i := range m.Headers {
		m.Headers[i].Value = cloneBytes(m.Headers[i].Value)
	}
	return m
}

// cloneBytes keeps nil and empty apart: one is a tombstone, the other is not.
func cloneBytes(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

func newTopic(p *Publisher, name string) *topic {
	t := &topic{p: p, name: name, state: topicUnknown, acked: p.metrics.acked.WithLabelValues(name)}
	t.limit.Store(fallbackMessageBytes)
	return t
}

// place appends msg to its lane, or holds it. mu is held. It gives the memory
// that was taken and, where the message can never have a partition, the refusal.
func (t *topic) place(msg *event.Message, txn uint64) (l *lane, grown int, refusal *event.Refusal) {
	partition := msg.Partition
	switch {
	case partition < 0 && msg.Key != nil:
		partition = partitionOf(msg.Key, len(t.lanes))
	case partition < 0:
		// A null key has no order to keep.
		t.next++
		partition = int32(t.next % uint32(len(t.lanes)))
	case int(partition) >= len(t.lanes):
		return nil, 0, refusalOf(t.name, metaOf(msg, txn), event.ReasonPartition, fmt.Sprintf("partition %d of a topic with %d", partition, len(t.lanes)))
	}
	l = t.lanes[partition]
	return l, l.add(msg, txn, t.batchLimit()), nil
}

// batchLimit is the size at which a batch of several records is closed. With
// compression the broker judges the compressed size, which is known only later.
func (t *topic) batchLimit() int {
	if t.p.cfg.Compression != NoCompression {
		return t.p.cfg.BatchBytes
	}
	return min(t.p.cfg.BatchBytes, int(t.limit.Load()))
}

// hold keeps a copy of msg until the topic has partitions. mu is held.
func (t *topic) hold(msg *event.Message, txn uint64) int64 {
	h := heldMessage{msg: copyMessage(msg), txn: txn, size: heldSize(msg)}
	t.held = append(t.held, h)
	if t.state == topicStopped {
		t.p.stuck.Add(1)
	}
	return h.size
}

// open gives the topic its (additional) lanes and lets the held messages go, in order.
func (t *topic) open(leaders []int32) {
	t.mu.Lock()
	if t.state == topicStopped {
		t.mu.Unlock()
		return
	}
	before := int32(len(t.lanes))
	for i := before; i < int32(len(leaders)); i++ {
		t.lanes = append(t.lanes, &lane{
			p: t.p, topic: t, partition: i, leader: leaders[i],
			producer: producerState{identity: identity{producerID: -1}, ackedEnd: -1},
		})
	}
	t.p.lanes.Add(int64(len(leaders)) - int64(before))
	t.mu.Unlock()
	t.p.cfg.OnPartitions(t.name, before, int32(len(leaders)))
	for r := t.release(); r != nil; r = t.release() {
		t.p.refuseUnplaced(t, r.refusal, &r.msg, r.txn)
	}
}

type heldRefusal struct {
	refusal *event.Refusal
	msg     event.Message
	txn     uint64
}

// release moves the held messages into the lanes, up to one that has no place there: it has to be given back, and
// its key held, before what stands behind it may go. Nil says that all are released, and the topic is open.
func (t *topic) release() *heldRefusal {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state == topicStopped {
		return nil
	}
	for i := range t.held {
		h := t.held[i]
		_, grown, refusal := t.place(&h.msg, h.txn)
		t.p.window.adjust(int64(grown) - h.size)
		t.held[i] = heldMessage{}
		if refusal != nil {
			t.held = t.held[i+1:]
			return &heldRefusal{refusal, h.msg, h.txn}
		}
	}
	t.held = nil
	t.state = topicOpen
	t.barrier.Store(false)
	t.flush()
	return nil
}

// raiseBarrier holds new messages until everything before is acknowledged (rule 18).
func (t *topic) raiseBarrier(partitions int32) {
	t.mu.Lock()
	t.target = partitions
	if t.state == topicOpen {
		t.state = topicBarrier
		t.barrier.Store(true)
		t.flush()
	}
	t.mu.Unlock()
}

// flush lets all open batches go. mu is held.
func (t *topic) flush() {
	var last *sender
	for _, l := range t.lanes {
		if s := l.flush(); s != nil && s != last {
			last.notify()
			last = s
		}
	}
	last.notify()
}

// drained says that the topic stands at a barrier with nothing unacknowledged.
func (t *topic) drained() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != topicBarrier {
		return false
	}
	for _, l := range t.lanes {
		if !l.empty() {
			return false
		}
	}
	return true
}

// first is the first message that waits for the topic; nil where there is none, or
// where the topic has stopped at it.
func (t *topic) first() *heldMessage {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state == topicStopped || len(t.held) == 0 {
		return nil
	}
	return &t.held[0]
}

// stop ends a topic that cannot be. What waits for it is stuck.
func (t *topic) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != topicStopped && len(t.lanes) == 0 {
		t.state = topicStopped
		t.p.stuck.Add(int64(len(t.held)))
		t.p.progressed()
	}
}

// setAwaited notes whether the cluster knows the topic.
func (t *topic) setAwaited(awaited bool) {
	if t.awaited.Swap(awaited) == awaited {
		return
	}
	if awaited {
		t.p.metrics.awaited.WithLabelValues(t.name).Set(1)
		t.p.log.Warn().Str(keyTopic, t.name).Msg("topic does not exist: its events wait for it")
		return
	}
	t.p.metrics.awaited.DeleteLabelValues(t.name)
	t.p.log.Info().Str(keyTopic, t.name).Msg("topic exists now")
}

const (
	resourceTopic   = 2
	maxMessageBytes = "max.message.bytes"
)

// readLimits asks for max.message.bytes of topics. A broker that will not tell
// leaves the fallback, and then has the last word on size itself.
func (p *Publisher) readLimits(ctx context.Context, topics []*topic) error {
	if len(topics) == 0 {
		return nil
	}
	req := &describeconfigs.Request{}
	byName := make(map[string]*topic, len(topics))
	for _, t := range topics {
		byName[t.name] = t
		req.Resources = append(req.Resources, describeconfigs.RequestResource{
			ResourceType: resourceTopic, ResourceName: t.name, ConfigNames: []string{maxMessageBytes},
		})
	}
	msg, err := p.control.Ask(ctx, req)
	if err != nil {
		return fmt.Errorf("read %s: %w", maxMessageBytes, err)
	}
	for _, r := range msg.(*describeconfigs.Response).Resources {
		t := byName[r.ResourceName]
		if t == nil {
			continue
		}
		if r.ErrorCode != 0 {
			p.log.Debug().Str(keyTopic, t.name).Err(kafka.Error(r.ErrorCode)).Msg("max.message.bytes is not readable")
			t.exact.Store(false)
			continue
		}
		for _, e := range r.ConfigEntries {
			if n, err := strconv.Atoi(e.ConfigValue); e.ConfigName == maxMessageBytes && err == nil && n > 0 {
				t.limit.Store(int64(n))
				t.exact.Store(true)
			}
		}
	}
	return nil
}

// createTopics makes missing topics as configured.
func (p *Publisher) createTopics(ctx context.Context, missing []*topic) error {
	spec := p.cfg.CreateTopics
	if spec == nil || len(missing) == 0 {
		return nil
	}
	req := &createtopics.Request{TimeoutMs: int32(p.cfg.RequestTimeout.Milliseconds())}
	var configs []createtopics.RequestConfig
	for name, value := range spec.Configs {
		configs = append(configs, createtopics.RequestConfig{Name: name, Value: value})
	}
	for _, t := range missing {
		req.Topics = append(req.Topics, createtopics.RequestTopic{
			Name: t.name, NumPartitions: spec.Partitions, ReplicationFactor: spec.ReplicationFactor, Configs: configs,
		})
	}
	msg, err := p.control.AskController(ctx, req)
	if err != nil {
		return fmt.Errorf("create topics: %w", err)
	}
	for _, r := range msg.(*createtopics.Response).Topics {
		code := kafka.Error(r.ErrorCode)
		switch code {
		case 0:
			p.log.Info().Str(keyTopic, r.Name).Msg("topic created")
		case kafka.TopicAlreadyExists:
			// Somebody else was faster.
		default:
			p.alarmed.raise(alarmTopicCreation, r.Name)
			p.log.Error().Str(keyTopic, r.Name).Err(code).Str("detail", r.ErrorMessage).Msg("topic cannot be created; its events wait")
			continue
		}
		p.alarmed.clear(alarmTopicCreation, r.Name)
	}
	return nil
}
