package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/parking"
)

// pipeline is what the run command drives.
type pipeline interface {
	// Run publishes until ctx ends, then drains and returns; nil means that all
	// that was received is published and confirmed. The context's cause says why it ended.
	Run(ctx context.Context) error
	// Ready is nil while events can flow; its error says what is waited for.
	Ready() error
	// Status is shown as JSON.
	Status() any
}

// pipelineSettings is what the command line and the process add to the configuration.
type pipelineSettings struct {
	// UntilLSN and UntilNow make the run end by itself; neither: it goes on.
	UntilLSN event.LSN
	UntilNow bool
	// Abandon, when closed, ends a drain at once.
	Abandon    <-chan struct{}
	Log        zerolog.Logger
	Registerer prometheus.Registerer
}

// newRelay connects the configuration to the relay.
func newRelay(cfg *config.Config, s pipelineSettings) (pipeline, error) {
	r, err := relay.New(relay.Config{
		Publisher:       cfg.Publisher.Name,
		Replication:     cfg.ReplicationConfig(),
		Router:          cfg.Router(),
		Kafka:           cfg.PublisherConfig(),
		Parking:         parking.Limits{Units: cfg.Parking.MaxHeldKeys, Events: cfg.Parking.MaxEvents},
		Purge:           purgeConfig(cfg),
		ShutdownTimeout: time.Duration(cfg.Publisher.ShutdownTimeout),
		Until:           relay.Until{LSN: s.UntilLSN, Now: s.UntilNow},
		Abandon:         s.Abandon,
		Log:             s.Log,
		Registerer:      s.Registerer,
	})
	if err != nil {
		return nil, err
	}
	return relayPipeline{r}, nil
}

// relayPipeline puts the relay's status into the words of the probes.
type relayPipeline struct{ *relay.Relay }

var _ pipeline = relayPipeline{}

// Ready says in which phase the relay is while events cannot flow.
func (p relayPipeline) Ready() error {
	s := p.Relay.Status()
	switch {
	case s.Ready:
		return nil
	case s.WaitsFor != "":
		return fmt.Errorf("%s: %s", s.Phase, s.WaitsFor)
	default:
		return errors.New(s.Phase)
	}
}

// Status is relay.Status.
func (p relayPipeline) Status() any { return p.Relay.Status() }
