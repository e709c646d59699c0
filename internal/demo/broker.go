package demo

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
)

// broker can be taken away for a while.
type broker interface {
	Bootstrap() []string
	// Client is another code than Postrider's own.
	Client(opts ...kgo.Opt) (*kgo.Client, error)
	// cut ends every connection and takes no new one; the records stay.
	cut() error
	// restore returns when the broker answers again.
	restore(ctx context.Context) error
	Stop() error
	String() string
}

// startBroker starts one of the two kinds; dir "" is a temporary folder.
func startBroker(ctx context.Context, realKafka bool, dir string) (broker, error) {
	if !realKafka {
		// Written through: what was acknowledged must be there after the cut.
		k, err := devstack.StartKfake(devstack.KfakeOptions{Dir: dir, Sync: true})
		if err != nil {
			return nil, brokerError("start", err)
		}
		return embeddedBroker{k}, nil
	}
	k, err := devstack.StartKafka(ctx, devstack.KafkaOptions{Dir: dir})
	if err != nil {
		e := &operr.Error{Class: operr.Kafka, Op: "start", Subject: "Kafka", Err: err}
		if errors.Is(err, devstack.ErrNoKafka) {
			e.Hint = "install Java 17 and Maven, or leave --real-kafka out: the demo brings a broker of its own"
		}
		return nil, e
	}
	return realBroker{k}, nil
}

type embeddedBroker struct{ *devstack.Kfake }

var _ broker = embeddedBroker{}

func (b embeddedBroker) cut() error {
	b.Halt()
	return nil
}

func (b embeddedBroker) restore(context.Context) error { return b.Start() }

func (b embeddedBroker) String() string { return "an embedded broker (kfake)" }

type realBroker struct{ *devstack.Kafka }

var _ broker = realBroker{}

func (b realBroker) cut() error { return b.Halt() }

func (b realBroker) restore(ctx context.Context) error { return b.Start(ctx) }

func (b realBroker) String() string { return "Apache Kafka " + b.Version }
