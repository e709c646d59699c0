package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/router"
)

// errAnew says that what the generation knows does not hold any more: its lanes and
// its ledger are thrown away and a new one begins from the durable row.
var errAnew = errors.New("begin anew from the stored position")

// Relay is one publisher from start to stop.
type Relay struct {
	cfg     Config
	metrics *metrics
	state   state
	// linked says that this run has held the slot; before, see Timers.Start.
	linked bool
	began  time.Time
	// purges is when each source is to be purged next, over all links.
	purges []time.Time
	// dropped is what a generation that was thrown away left behind, until the next
	// one has found its position.
	dropped error
}

// New checks the configuration. It does no I/O.
func New(cfg Config) (*Relay, error) {
	cfg = cfg.withDefaults()
	if cfg.Publisher == "" {
		return nil, configError(errors.New("the publisher has no name"))
	}
	if len(cfg.Router.Sources) == 0 {
		return nil, configError(errors.New("there is no source table"))
	}
	if _, err := router.New(cfg.Router); err != nil {
		return nil, configError(err)
	}
	if err := cfg.Kafka.Validate(); err != nil {
		return nil, configError(err)
	}
	if n := len(cfg.Purge.Rules); n > 0 && n != len(cfg.Router.Sources) {
		return nil, configError(errors.New("not every source has a rule for the purge"))
	}
	return &Relay{cfg: cfg, metrics: newMetrics(cfg.Registerer)}, nil
}

func configError(err error) error {
	return &operr.Error{Class: operr.Config, Op: "configure the relay", Err: err, Hint: "postrider config check"}
}

// Run publishes until ctx ends (then it drains, within ShutdownTimeout), until
// Config.Until is reached, or until an error that time does not heal. The error is
// an *operr.Error; nil means that all that was received is published and confirmed.
func (r *Relay) Run(ctx context.Context) error {
	defer r.state.set(phaseStopped)
	r.began = time.Now()
	r.purges = firstPurges(r.cfg.Purge.Rules)
	if err := r.probeKafka(ctx); err != nil {
		return err
	}
	for {
		err := r.runGeneration(ctx)
		if !errors.Is(err, errAnew) || ended(err) {
			return err
		}
		r.cfg.Log.Warn().Err(err).Msg("beginning anew from the stored position")
		r.metrics.generations.Inc()
	}
}

// probeKafka is the synchronous look at the brokers before anything starts. A
// broker that is down is tried for Timers.Start; wrong credentials are said at once.
func (r *Relay) probeKafka(ctx context.Context) error {
	cfg := r.cfg.Kafka
	cfg.Log = r.cfg.Log
	cfg.Registerer = nil
	p, err := publisher.New(cfg)
	if err != nil {
		return configError(err)
	}
	defer p.Close() //nolint:errcheck // a prober holds nothing that could be lost
	rt, err := router.New(r.cfg.Router)
	if err != nil {
		return configError(err)
	}
	pause := backoff{lo: r.cfg.Timers.BackoffMin, hi: r.cfg.Timers.BackoffMax}
	said := "" // the same words once are enough for ten seconds
	for began := time.Now(); ; {
		err := p.Probe(ctx, rt.StaticTopics())
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil || !operr.IsTransient(err) || time.Since(began) > r.cfg.Timers.Start:
			return err
		}
		r.state.waitFor(fmt.Sprintf("Kafka: %v", err))
		if text := err.Error(); text != said {
			said = text
			r.cfg.Log.Warn().Err(err).Str("try", operr.HintOf(err)).Msg("Kafka does not answer; trying again")
		}
		if pause.wait(ctx) != nil {
			return nil
		}
	}
}

func (r *Relay) runGeneration(ctx context.Context) error {
	gen, err := newGeneration(r)
	if err != nil {
		return err
	}
	defer gen.close()
	return gen.run(ctx)
}
