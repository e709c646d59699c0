package sizing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/publisher"
)

// brokerTimeout bounds each thing that is asked of the brokers.
const brokerTimeout = 10 * time.Second

// newClient is another client than the publisher's, under the same configuration: it
// makes the topic and reads back what was published.
func newClient(cfg publisher.Config, opts ...kgo.Opt) (*kgo.Client, error) {
	all := []kgo.Opt{kgo.SeedBrokers(cfg.Brokers...), kgo.ClientID(cfg.ClientID), kgo.MetadataMinAge(50 * time.Millisecond)}
	if cfg.TLS != nil {
		all = append(all, kgo.DialTLSConfig(cfg.TLS.Clone()))
	}
	if cfg.SASL != nil {
		mechanism, err := mechanism(*cfg.SASL)
		if err != nil {
			return nil, err
		}
		all = append(all, kgo.SASL(mechanism))
	}
	client, err := kgo.NewClient(append(all, opts...)...)
	if err != nil {
		return nil, &operr.Error{Class: operr.Config, Op: "configure", Subject: "the Kafka client", Err: err, Hint: "postrider config check"}
	}
	return client, nil
}

func mechanism(s publisher.SASL) (sasl.Mechanism, error) {
	switch strings.ToUpper(s.Mechanism) {
	case "PLAIN":
		return plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha512Mechanism(), nil
	}
	return nil, &operr.Error{Class: operr.Config, Op: "configure", Subject: "the Kafka client", Err: fmt.Errorf("unknown SASL mechanism %q", s.Mechanism)}
}

// probe asks the brokers as a relay does at its start: its errors name what is wrong.
func probe(ctx context.Context, cfg publisher.Config, topic string) error {
	p, err := publisher.New(cfg)
	if err != nil {
		return &operr.Error{Class: operr.Config, Op: "configure the publisher", Err: err, Hint: "postrider config check"}
	}
	defer p.Close() //nolint:errcheck // a prober holds nothing that could be lost
	ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	return p.Probe(ctx, []string{topic})
}

// topic is the one that a run publishes to.
type topic struct {
	cfg  publisher.Config
	name string
}

// create makes the topic and waits until each partition has a leader. refused says that
// the cluster has answered and that there is no topic.
func (t topic) create(ctx context.Context, partitions int) (refused bool, err error) {
	client, err := newClient(t.cfg)
	if err != nil {
		return true, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	replicas, settings := int16(-1), map[string]*string{}
	if spec := t.cfg.CreateTopics; spec != nil {
		replicas = spec.ReplicationFactor
		for name, value := range spec.Configs {
			settings[name] = &value
		}
	}
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, int32(partitions), replicas, settings, t.name); err != nil {
		return errors.As(err, new(*kerr.Error)), t.failed("create", err)
	}
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		n, err := endOffsets(ctx, admin, t.name)
		if err == nil && len(n) == partitions {
			tick.Stop()
			return false, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return false, t.failed("wait for the leaders of", errors.Join(ctx.Err(), err))
		}
	}
}

// remove deletes the topic; one that does not exist is no error.
func (t topic) remove(ctx context.Context) error {
	client, err := newClient(t.cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = kadm.NewClient(client).DeleteTopic(ctx, t.name)
	if err == nil || errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil
	}
	return t.failed("delete", err)
}

func (t topic) failed(op string, err error) error {
	e := &operr.Error{Class: operr.Kafka, Op: op, Subject: "topic " + t.name, Err: err}
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		e.Hint = "a user that may create, write, read and delete topics that begin with " + namePrefix
	case errors.Is(err, kerr.InvalidReplicationFactor):
		e.Hint = "kafka.topics.create.replication_factor in the configuration: not more than there are brokers"
	case errors.Is(err, kerr.PolicyViolation):
		e.Hint = "kafka.topics.create in the configuration, or --partitions, as the cluster's policy wants it"
	}
	return e
}

// endOffsets counts the records of each partition of a topic that began at 0.
func endOffsets(ctx context.Context, admin *kadm.Client, topic string) (map[int32]int64, error) {
	listed, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, err
	}
	ends := map[int32]int64{}
	for p, o := range listed[topic] {
		ends[p] = o.Offset
	}
	return ends, nil
}
