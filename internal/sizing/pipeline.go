package sizing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/router"
)

// pipeline is the relay of `postrider run`, at work on the workbench.
type pipeline struct {
	relay   *relay.Relay
	stop    context.CancelFunc
	abandon chan struct{}
	done    chan struct{}
	err     error // valid when done is closed
	stall   time.Duration
}

// startPipeline runs the relay until end is called.
func (w *workbench) startPipeline(ctx context.Context) (*pipeline, error) {
	source, known := router.Profile("default")
	if !known {
		return nil, errors.New("the default profile is gone")
	}
	source.Schema, source.Table = outbox.Schema, outbox.Name
	source.Routes = []router.Route{{Topic: w.name}}
	stream, kafka := w.cfg.Replication, w.cfg.Kafka
	stream.ConnString, stream.Slot, stream.Publications = w.dsn, w.name, []string{w.name}
	kafka.CreateTopics = nil // it exists
	p := &pipeline{abandon: make(chan struct{}), done: make(chan struct{}), stall: w.cfg.StallTimeout}
	var err error
	p.relay, err = relay.New(relay.Config{
		Publisher: w.name, Replication: stream, Router: router.Config{Sources: []router.Source{source}}, Kafka: kafka,
		Abandon: p.abandon, Log: w.cfg.Log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return nil, err
	}
	// An interrupted run is not drained: end does that, or abandons it.
	ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(p.done)
		p.err = p.relay.Run(ctx)
	}()
	return p, nil
}

// abandonWait bounds the end of a relay that was told to drop everything.
const abandonWait = 15 * time.Second

// end stops the relay, and drains it where the run went well: nil then says that all
// that was read is confirmed.
func (p *pipeline) end(drain bool) error {
	if !drain {
		close(p.abandon)
	}
	p.stop()
	if drain {
		<-p.done // within the relay's own time limit
		return p.err
	}
	select {
	case <-p.done:
	case <-time.After(abandonWait):
	}
	return nil
}

// look is how often the relay's state is read: a thousandth of a short drain.
const look = 2 * time.Millisecond

// await looks at the relay until enough says so. It ends with an error where ctx or the
// relay does, or where nothing is acknowledged for the stall time.
func (p *pipeline) await(ctx context.Context, enough func(relay.Status) bool) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	published, moved := uint64(0), time.Now()
	for {
		s := p.relay.Status()
		if enough(s) {
			return nil
		}
		if s.Published != published {
			published, moved = s.Published, time.Now()
		}
		if time.Since(moved) > p.stall {
			return p.stalled(s)
		}
		select {
		case <-tick.C:
		case <-p.done:
			if p.err == nil {
				return errors.New("the relay has ended by itself")
			}
			return p.err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// stalled says who is waited for.
func (p *pipeline) stalled(s relay.Status) error {
	e := &operr.Error{
		Class: operr.Kafka, Op: "measure", Err: fmt.Errorf("nothing was acknowledged for %s, with %s unconfirmed", p.stall, counted(s.Unconfirmed, "event")),
		Hint: "look at the brokers: are they up, and are min.insync.replicas in sync? --stall-timeout waits longer",
	}
	if s.Unconfirmed == 0 && !strings.HasPrefix(s.WaitsFor, "Kafka") {
		e.Class, e.Hint = operr.Postgres, "look at PostgreSQL's log; --stall-timeout waits longer"
		e.Err = fmt.Errorf("nothing came for %s; the relay is %s", p.stall, s.Phase)
	}
	if s.WaitsFor != "" {
		e.Err = fmt.Errorf("%w: %s", e.Err, s.WaitsFor)
	}
	return e
}
