package topic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/postrider/postrider/internal/brokers"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/publisher"
)

const (
	// patience is how long brokers may answer nothing useful before a call gives up.
	patience = 30 * time.Second
	// The pause between attempts.
	pauseFirst, pauseMost = 50 * time.Millisecond, 2 * time.Second

	hintRights = "grant the user READ and DESCRIBE on the topic (and check its password)"
)

// ErrNoTopic is in the error's chain where the cluster does not know the topic.
var ErrNoTopic = errors.New("topic does not exist")

// Reader reads topics. It is safe for use from several goroutines; each scan has
// connections of its own.
type Reader struct {
	transport *brokers.Transport
	control   *brokers.Control
	clientID  string
	timeout   time.Duration
}

// NewReader takes what the publisher's configuration says about reaching the brokers:
// addresses, TLS, SASL, timeouts. The rest of it is not looked at. It does no I/O.
func NewReader(cfg publisher.Config) (*Reader, error) {
	err := cfg.Validate()
	if err == nil {
		var connection brokers.Config
		if connection, err = cfg.Connection(); err == nil {
			t := brokers.NewTransport(connection)
			return &Reader{
				transport: t, control: brokers.NewControl(t),
				clientID: connection.ClientID, timeout: connection.RequestTimeout,
			}, nil
		}
	}
	return nil, &operr.Error{Class: operr.Config, Op: "configure", Subject: "kafka", Err: err}
}

// Close cuts all connections; scans that run end with an error. It may be called twice.
func (r *Reader) Close() { r.transport.CloseAll() }

// Partitions is the topic's number of partitions. The error has ErrNoTopic in its chain
// where there is no such topic.
func (r *Reader) Partitions(ctx context.Context, topic string) (int32, error) {
	leaders, err := r.leaders(ctx, topic)
	return int32(len(leaders)), err
}

// leaders are the leaders' broker ids by partition, all known.
func (r *Reader) leaders(ctx context.Context, topic string) (leaders []int32, err error) {
	err = r.retry(ctx, "look up", topic, func() error {
		leaders, err = r.lookUp(ctx, topic)
		return err
	})
	return leaders, err
}

func (r *Reader) lookUp(ctx context.Context, topic string) ([]int32, error) {
	msg, err := r.control.Ask(ctx, &metadata.Request{TopicNames: []string{topic}, AllowAutoTopicCreation: false})
	if err != nil {
		return nil, err
	}
	res := msg.(*metadata.Response)
	addrs := make(map[int32]string, len(res.Brokers))
	for _, b := range res.Brokers {
		addrs[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	r.control.Update(addrs, res.ControllerID)
	for i := range res.Topics {
		if t := &res.Topics[i]; t.Name == topic {
			return leadersOf(t, addrs)
		}
	}
	return nil, errors.New("the brokers' answer lacks the topic")
}

func leadersOf(t *metadata.ResponseTopic, addrs map[int32]string) ([]int32, error) {
	switch code := kafka.Error(t.ErrorCode); code {
	case 0, kafka.LeaderNotAvailable:
	case kafka.UnknownTopicOrPartition:
		return nil, ErrNoTopic
	default:
		return nil, code
	}
	leaders := make([]int32, len(t.Partitions))
	for i := range leaders {
		leaders[i] = -1
	}
	for _, p := range t.Partitions {
		if i := int(p.PartitionIndex); i >= 0 && i < len(leaders) && addrs[p.LeaderID] != "" {
			leaders[i] = p.LeaderID
		}
	}
	for i, id := range leaders {
		if id < 0 {
			return nil, fmt.Errorf("partition %d: %w", i, kafka.LeaderNotAvailable)
		}
	}
	return leaders, nil
}

// retry calls do until it succeeds, fails for good, or patience is used up.
func (r *Reader) retry(ctx context.Context, op, topic string, do func() error) error {
	giveUp := time.Now().Add(patience)
	for n := 0; ; n++ {
		err := do()
		if err == nil {
			return nil
		}
		if cause := ctx.Err(); cause != nil {
			return cause
		}
		if !worthRetrying(err) || time.Now().After(giveUp) {
			return readError(op, topic, err)
		}
		if err := pause(ctx, n); err != nil {
			return err
		}
	}
}

func worthRetrying(err error) bool {
	return !errors.Is(err, ErrNoTopic) && !errors.Is(err, brokers.ErrClosed) && publisher.Transient(err)
}

func readError(op, topic string, err error) error {
	e := &operr.Error{Class: operr.Kafka, Op: op, Subject: "topic " + topic, Err: err, Transient: publisher.Transient(err)}
	switch {
	case errors.Is(err, ErrNoTopic):
		e.Hint = "check the topic's name and the user's DESCRIBE right"
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		e.Hint = hintRights
	}
	return e
}

// pause waits before attempt n+1, longer each time, with jitter.
func pause(ctx context.Context, n int) error {
	d := min(pauseFirst<<min(n, 10), pauseMost)
	return sleep(ctx, d/2+rand.N(d/2+1))
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
