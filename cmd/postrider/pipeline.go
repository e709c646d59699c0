package main

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/config"
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
func newRelay(*config.Config, pipelineSettings) (pipeline, error) {
	return nil, errors.New("the relay is not part of this build")
}
