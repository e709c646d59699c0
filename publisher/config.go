package publisher

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/postrider/postrider/internal/brokers"
)

// PartitionChange says what happens when a topic gets more partitions while
// the publisher runs. More partitions move keys, so the change takes effect
// only when nothing of the topic is unacknowledged (rule 18).
type PartitionChange string

const (
	// FollowPartitions adopts the new count at the next drained barrier of the topic.
	FollowPartitions PartitionChange = "follow"
	// PinPartitions keeps the count that was found first, for as long as the process lives.
	PinPartitions PartitionChange = "pin"
)

// Compression names the codec of record batches.
type Compression = compress.Compression

// The codecs that a batch may be compressed with.
const (
	NoCompression Compression = compress.None
	Gzip          Compression = compress.Gzip
	Snappy        Compression = compress.Snappy
	Lz4           Compression = compress.Lz4
	Zstd          Compression = compress.Zstd
)

// Defaults of Config, and its bounds.
const (
	DefaultWindow             = 32 << 20
	DefaultBatchBytes         = 512 << 10
	DefaultMaxRequestBytes    = 2 << 20
	DefaultMaxInFlight        = 4
	DefaultAuthorizationGrace = 5 * time.Minute
	DefaultMetadataMaxAge     = 30 * time.Second
	DefaultDialTimeout        = 10 * time.Second
	DefaultRequestTimeout     = 10 * time.Second
	DefaultProduceTimeout     = 30 * time.Second
	DefaultRetryBackoff       = 20 * time.Millisecond
	DefaultRetryBackoffMax    = 2 * time.Second

	minWindow       = 256 << 10
	maxRequestBytes = 8 << 20 // rule 14: above socket.request.max.bytes a broker just hangs up
	maxInFlight     = 4       // rule 14
)

// SASL is a user's credentials. Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
type SASL struct {
	Mechanism string
	Username  string
	Password  string
}

// TopicSpec is how a missing topic is created.
type TopicSpec struct {
	// Partitions: -1 leaves it to the broker's default.
	Partitions int32
	// ReplicationFactor: -1 leaves it to the broker's default.
	ReplicationFactor int16
	// Configs are topic settings such as "cleanup.policy": "compact".
	Configs map[string]string
}

// Run is a number of events of one transaction, acknowledged together.
type Run struct {
	// Txn is the ledger's transaction number, as given to Append.
	Txn   uint64
	Count int
}

// Config configures a Publisher. acks is not among the fields: it is -1 (all
// in-sync replicas) and cannot be set otherwise (trap 15).
type Config struct {
	// Brokers are the bootstrap addresses, "host:port". At least one.
	Brokers []string
	// ClientID names the publisher in the brokers' logs and quotas. Default "postrider".
	ClientID string
	// TLS is nil for plain text. An empty ServerName becomes the broker's host.
	TLS *tls.Config
	// SASL is nil where brokers ask for no credentials.
	SASL *SASL
	// SASLMechanism takes precedence over SASL; it admits mechanisms of other modules, such as AWS MSK IAM.
	SASLMechanism sasl.Mechanism
	// Compression of record batches. Default none.
	Compression Compression
	// BatchBytes is the size, before compression, at which a batch is closed. The topic's
	// max.message.bytes bounds it further; a larger record travels alone. Default 512 KiB.
	BatchBytes int
	// MaxRequestBytes bounds a request that carries the batches of several partitions. A single
	// larger batch travels alone. Default 2 MiB, at most 8 MiB.
	MaxRequestBytes int
	// Window is the capacity in bytes of all buffers that hold unacknowledged events; Append blocks
	// when it is used up. Default 32 MiB, at least 256 KiB.
	Window int
	// MaxInFlight is the number of requests, each on a connection of its own, that a broker may have
	// unanswered. A partition never has more than one (trap 14). Default 4, at most 4.
	MaxInFlight int
	// CreateTopics makes missing topics; nil waits for somebody else to create them.
	CreateTopics *TopicSpec
	// PartitionChange: follow (default) or pin.
	PartitionChange PartitionChange
	// AuthorizationGrace is how long a refused authorisation or authentication is retried before it is
	// fatal: rights are often granted, and passwords rotated, in the wrong order. Default 5 min.
	AuthorizationGrace time.Duration
	// MetadataMaxAge is how old the knowledge about topics may get without a reason to ask. Default 30 s.
	MetadataMaxAge time.Duration
	// DialTimeout covers TCP, TLS, version negotiation and SASL together. Default 10 s.
	DialTimeout time.Duration
	// RequestTimeout covers every request but Produce. Default 10 s.
	RequestTimeout time.Duration
	// ProduceTimeout is how long a broker may wait for its replicas; the answer is awaited for
	// RequestTimeout longer (rule 12). Default 30 s.
	ProduceTimeout time.Duration
	// RetryBackoff is the first pause before a retry; it doubles up to RetryBackoffMax, with jitter.
	// Defaults 20 ms and 2 s.
	RetryBackoff    time.Duration
	RetryBackoffMax time.Duration
	// Dial opens a TCP connection; nil is net.Dialer with TCP keepalive.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// OnAck is called once for each acknowledged batch, from several goroutines at once. The slice is
	// valid until it returns. It must not block for long: it holds up a connection.
	OnAck func(runs []Run)
	// OnDelivered is called once for each acknowledged batch, after OnAck and as it is, with where the batch
	// stands. Nil, and nobody asks: it then costs nothing.
	OnDelivered func(*Delivery)
	// OnRefused is called once for each record that cannot be published, after everything before it in
	// its partition was acknowledged, from several goroutines at once. It says what happens to the
	// partition. It may block: that holds up a connection. Nil stops the partition.
	OnRefused func(*Refused) Disposal
	// OnPartitions is called when a topic's partition count was found (before is 0) or adopted. May be nil.
	OnPartitions func(topic string, before, after int32)

	// Log may be the zero Logger.
	Log zerolog.Logger
	// Registerer receives the metrics; nil keeps them unregistered.
	Registerer prometheus.Registerer
}

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	setDefault(&c.ClientID, "postrider")
	setDefault(&c.BatchBytes, DefaultBatchBytes)
	setDefault(&c.MaxRequestBytes, DefaultMaxRequestBytes)
	setDefault(&c.Window, DefaultWindow)
	setDefault(&c.MaxInFlight, DefaultMaxInFlight)
	setDefault(&c.PartitionChange, FollowPartitions)
	setDefault(&c.AuthorizationGrace, DefaultAuthorizationGrace)
	setDefault(&c.MetadataMaxAge, DefaultMetadataMaxAge)
	setDefault(&c.DialTimeout, DefaultDialTimeout)
	setDefault(&c.RequestTimeout, DefaultRequestTimeout)
	setDefault(&c.ProduceTimeout, DefaultProduceTimeout)
	setDefault(&c.RetryBackoff, DefaultRetryBackoff)
	setDefault(&c.RetryBackoffMax, DefaultRetryBackoffMax)
	if c.OnAck == nil {
		c.OnAck = func([]Run) {}
	}
	if c.OnRefused == nil {
		c.OnRefused = func(*Refused) Disposal { return Stop }
	}
	if c.OnPartitions == nil {
		c.OnPartitions = func(string, int32, int32) {}
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports all problems at once. Zero fields stand for their defaults.
func (c Config) Validate() error {
	c = c.withDefaults()
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if len(c.Brokers) == 0 {
		problem("brokers: empty")
	}
	for i, b := range c.Brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			problem("brokers[%d]: %q is not host:port", i, b)
		}
	}
	for _, b := range []struct {
		name          string
		value, lo, hi int
	}{
		{"batch_bytes", c.BatchBytes, 1 << 10, maxRequestBytes},
		{"max_request_bytes", c.MaxRequestBytes, 1 << 10, maxRequestBytes},
		{"window", c.Window, minWindow, 1 << 31},
		{"max_in_flight", c.MaxInFlight, 1, maxInFlight},
		{"compression", int(c.Compression), int(NoCompression), int(Zstd)},
	} {
		if b.value < b.lo || b.value > b.hi {
			problem("%s: %d is not between %d and %d", b.name, b.value, b.lo, b.hi)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"authorization_grace", c.AuthorizationGrace},
		{"metadata_max_age", c.MetadataMaxAge},
		{"dial_timeout", c.DialTimeout},
		{"request_timeout", c.RequestTimeout},
		{"produce_timeout", c.ProduceTimeout},
		{"retry_backoff", c.RetryBackoff},
		{"retry_backoff_max", c.RetryBackoffMax},
	} {
		if d.value < time.Millisecond {
			problem("%s: %s is below 1ms", d.name, d.value)
		}
	}
	if c.RetryBackoff > c.RetryBackoffMax {
		problem("retry_backoff: %s is above retry_backoff_max %s", c.RetryBackoff, c.RetryBackoffMax)
	}
	if c.PartitionChange != FollowPartitions && c.PartitionChange != PinPartitions {
		problem("partition_change: %q is neither %q nor %q", c.PartitionChange, FollowPartitions, PinPartitions)
	}
	if _, err := c.mechanism(); err != nil {
		problem("sasl: %w", err)
	}
	if t := c.CreateTopics; t != nil {
		if t.Partitions == 0 || t.Partitions < -1 {
			problem("topics.create.partitions: %d is neither -1 nor at least 1", t.Partitions)
		}
		if t.ReplicationFactor == 0 || t.ReplicationFactor < -1 {
			problem("topics.create.replication_factor: %d is neither -1 nor at least 1", t.ReplicationFactor)
		}
	}
	return errors.Join(problems...)
}

// Connection is the part of the configuration by which brokers are reached, for what asks
// them besides a Publisher. The error is one that Validate gives too.
func (c Config) Connection() (brokers.Config, error) {
	c = c.withDefaults()
	mechanism, err := c.mechanism()
	if err != nil {
		return brokers.Config{}, err
	}
	return brokers.Config{
		Bootstrap: c.Brokers, ClientID: c.ClientID, TLS: c.TLS, SASL: mechanism,
		DialTimeout: c.DialTimeout, RequestTimeout: c.RequestTimeout, Dial: c.Dial,
		Transient: func(err error) bool { return judgeError(err).verdict != unauthorized },
	}, nil
}

// mechanism is the SASL mechanism, nil where there is none.
func (c Config) mechanism() (sasl.Mechanism, error) {
	switch {
	case c.SASLMechanism != nil:
		return c.SASLMechanism, nil
	case c.SASL == nil:
		return nil, nil
	case c.SASL.Username == "":
		return nil, errors.New("username: empty")
	}
	switch strings.ToUpper(c.SASL.Mechanism) {
	case "PLAIN":
		return plain.Mechanism{Username: c.SASL.Username, Password: c.SASL.Password}, nil
	case "SCRAM-SHA-256":
		return scram.Mechanism(scram.SHA256, c.SASL.Username, c.SASL.Password)
	case "SCRAM-SHA-512":
		return scram.Mechanism(scram.SHA512, c.SASL.Username, c.SASL.Password)
	}
	return nil, fmt.Errorf("mechanism: %q is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512", c.SASL.Mechanism)
}
