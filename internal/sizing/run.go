package sizing

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/replication"
)

// Run measures. Everything that it makes is removed before it returns, also when ctx
// ends or a server fails; a removal that failed is in the error. A result is given
// wherever there is one, beside an error too. Errors are *operr.Error; the end of ctx
// is one of class DrainIncomplete.
func Run(ctx context.Context, cfg Config) (result *Result, err error) {
	began := time.Now()
	w := &workbench{cfg: cfg, name: newName()}
	w.dsn = cfg.InDatabase(w.name)
	show := &progress{out: cfg.Screen, terminal: cfg.Terminal}
	defer show.close()

	result, err = w.measure(ctx, show)
	if len(w.made) > 0 {
		show.phase(0, "removing database, slot and topic")
	}
	left, notCleared := w.clear(ctx)
	if result != nil {
		result.LeftBehind, result.Seconds = append([]string{}, left...), seconds(began)
		err = errors.Join(err, result.Err())
	}
	return result, errors.Join(interrupted(ctx, err, notCleared == nil), notCleared)
}

// interrupted words the end of ctx; all that failed for it is an echo.
func interrupted(ctx context.Context, err error, cleared bool) error {
	if ctx.Err() == nil || err == nil {
		return err
	}
	e := &operr.Error{Class: operr.DrainIncomplete, Op: "measure", Err: context.Cause(ctx)}
	if cleared {
		e.Err = fmt.Errorf("%w; what the run had made is removed", context.Cause(ctx))
	}
	return e
}

func (w *workbench) measure(ctx context.Context, show *progress) (*Result, error) {
	admin, err := replication.ConnectSQL(ctx, w.cfg.ConnString, appName)
	if err != nil {
		return nil, err
	}
	defer admin.Close(context.WithoutCancel(ctx))
	found, err := checkServer(ctx, admin)
	if err != nil {
		return nil, err
	}
	if err := probe(ctx, w.cfg.Kafka, w.name); err != nil {
		return nil, err
	}
	plan := newPlan(w.cfg, w.name, "PostgreSQL "+found.version+" at "+found.address)
	plan.Leftovers = found.leftovers
	if err := w.cfg.Confirm(plan); err != nil {
		return nil, err
	}
	show.phase(0, "making the database, the slot and the topic %s", w.name)
	if err := w.build(ctx, admin); err != nil {
		return nil, err
	}
	r := &Result{Postgres: found.version, Rows: w.cfg.Rows, PayloadBytes: w.cfg.Payload, PerTx: w.cfg.PerTx, Partitions: w.cfg.Partitions}
	if err := w.fill(ctx, r, show); err != nil {
		return nil, err
	}
	return r, nil
}

// fill measures into the result.
func (w *workbench) fill(ctx context.Context, r *Result, show *progress) error {
	conn, err := replication.ConnectSQL(ctx, w.dsn, appName)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	show.phase(w.cfg.Rows, "writing %s events", number(w.cfg.Rows))
	walBytes, end, err := load(ctx, conn, w.cfg, show.reached)
	if err != nil {
		return err
	}
	show.phase(0, "decoding them on the server, for nobody")
	decoding, err := peek(ctx, conn, w.name)
	if err != nil {
		return err
	}
	// What the run took so far is not the relay's.
	debug.FreeOSMemory()
	resetPeak()
	p, err := w.startPipeline(ctx)
	if err != nil {
		return err
	}
	show.phase(w.cfg.Rows, "draining")
	d, err := p.drain(ctx, w.cfg.Rows, end, show.reached)
	if err == nil {
		r.addDrain(d, decoding, walBytes)
		err = w.observe(ctx, p, r, show)
	}
	if stopped := p.end(err == nil); err == nil {
		err = stopped
	}
	return err
}

// observe reads back what was drained, then measures the latency of what is written,
// and checks all of it.
func (w *workbench) observe(ctx context.Context, p *pipeline, r *Result, show *progress) error {
	s := newSchedule(w.cfg)
	reader, stop, err := w.startReader(ctx, s)
	if err != nil {
		return err
	}
	defer stop()
	show.phase(w.cfg.Rows, "reading the topic back")
	r.Committed = w.cfg.Rows
	arrived, err := reader.all(ctx, w.cfg.StallTimeout, show.reached)
	if err != nil {
		return err
	}
	if w.cfg.Rate > 0 {
		show.phase(s.total, "writing %s events/s for %s", number(w.cfg.Rate), w.cfg.For)
		r.Committed += s.total
		if err := w.writeSlowly(ctx, p, s, uint64(r.Committed), show); err != nil {
			return err
		}
		if arrived, err = reader.all(ctx, w.cfg.StallTimeout, show.reached); err != nil {
			return err
		}
		l, err := s.result()
		if err != nil {
			return err
		}
		r.addLatency(l)
	}
	r.addArrivals(arrived)
	return nil
}

// writeSlowly returns when all that was written is acknowledged. A relay that fails
// meanwhile ends the writing.
func (w *workbench) writeSlowly(ctx context.Context, p *pipeline, s *schedule, published uint64, show *progress) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.run(ctx, w.dsn, show.reached) })
	group.Go(func() error { return p.await(ctx, func(now relay.Status) bool { return now.Published >= published }) })
	return group.Wait()
}
