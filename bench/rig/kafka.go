package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/devstack"
)

// KafkaSettings is what of the broker is not as Kafka has it. The JVM keeps to its first compiler, which is through after
// seconds: the second would compile for minutes, at the expense of whichever contender is on then.
const KafkaSettings = "one KRaft node, heap 1 GiB, serial collector, C1 compiler alone, 2 network and 4 I/O threads"

const kafkaHeapMB = 1024

func startKafka(ctx context.Context, secure bool) (*devstack.Kafka, error) {
	return devstack.StartKafka(ctx, devstack.KafkaOptions{HeapMB: kafkaHeapMB, Secure: secure})
}

// SecureKafka is a broker that is reached by TLS with SCRAM-SHA-512 alone. It is started when it is first asked for.
func (r *Rig) SecureKafka(ctx context.Context) (*devstack.Kafka, error) {
	if r.secure != nil {
		return r.secure, nil
	}
	var err error
	r.secure, err = startKafka(ctx, true)
	return r.secure, err
}

// StopSecureKafka ends it, so that it takes nothing from the steps without TLS.
func (r *Rig) StopSecureKafka() error {
	if r.secure == nil {
		return nil
	}
	defer func() { r.secure = nil }()
	return r.secure.Stop()
}

// BrokerPID is the process of a broker.
func BrokerPID(k *devstack.Kafka) (int, error) {
	node := filepath.Dir(k.LogFile(0))
	text, err := os.ReadFile(node + ".pid")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// Client is a franz-go client of the plain broker.
func (r *Rig) Client(opts ...kgo.Opt) (*kgo.Client, error) { return r.kafka.Client(opts...) }

// CreateTopic makes a topic on the broker of client and waits until it has its leaders.
func CreateTopic(ctx context.Context, client *kgo.Client, topic string, partitions int) error {
	adm := kadm.NewClient(client)
	// Records of the largest step have 20 KB of payload; batches may be as large as a contender makes them.
	configs := map[string]*string{"max.message.bytes": kadm.StringPtr("16777216")}
	resp, err := adm.CreateTopic(ctx, int32(partitions), 1, configs, topic)
	if err := errors.Join(err, resp.Err); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return err
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		offsets, err := NewOffsets(ctx, client, topic, partitions)
		if err == nil {
			_, err = offsets.Sum(ctx)
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// DeleteTopic gives the disk back.
func DeleteTopic(ctx context.Context, client *kgo.Client, topic string) error {
	resp, err := kadm.NewClient(client).DeleteTopic(ctx, topic)
	if err := errors.Join(err, resp.Err); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return err
	}
	return nil
}

// Offsets asks for the ends of a topic's partitions with one small request, often enough to be a clock.
type Offsets struct {
	broker *kgo.Broker
	req    *kmsg.ListOffsetsRequest
}

// NewOffsets asks the leader of all partitions: there is one node.
func NewOffsets(ctx context.Context, client *kgo.Client, topic string, partitions int) (*Offsets, error) {
	brokers, err := kadm.NewClient(client).ListBrokers(ctx)
	if err != nil {
		return nil, err
	}
	if len(brokers) != 1 {
		return nil, fmt.Errorf("%d brokers instead of one", len(brokers))
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	for i := range partitions {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = int32(i), -1
		t.Partitions = append(t.Partitions, p)
	}
	req.Topics = append(req.Topics, t)
	return &Offsets{broker: client.Broker(int(brokers[0].NodeID)), req: req}, nil
}

// Ends are the partitions' next offsets, which is the number of records of a topic that nothing was removed from.
func (o *Offsets) Ends(ctx context.Context) ([]int64, error) {
	resp, err := o.broker.RetriableRequest(ctx, o.req)
	if err != nil {
		return nil, err
	}
	answer, ok := resp.(*kmsg.ListOffsetsResponse)
	if !ok {
		return nil, fmt.Errorf("ListOffsets was answered by %T", resp)
	}
	ends := make([]int64, len(o.req.Topics[0].Partitions))
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, err
			}
			ends[p.Partition] = p.Offset
		}
	}
	return ends, nil
}

// Sum is the number of records of the topic.
func (o *Offsets) Sum(ctx context.Context) (int, error) {
	ends, err := o.Ends(ctx)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, n := range ends {
		sum += n
	}
	return int(sum), nil
}
