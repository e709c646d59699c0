package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/bench/latency"
	"github.com/postrider/postrider/bench/plan"
	"github.com/postrider/postrider/bench/result"
)

// outage stops the broker (SIGSTOP: connections stay open, nothing answers) while events go on being written, and lets it go on. Memory is
// watched over all of it; then everything has to arrive.
func (s *session) outage(ctx context.Context, step plan.Step, r *result.Result) (err error) {
	rate := step.Params.RatePerSec
	warm, count := warmUpEvents(rate), int(rate*step.Params.Seconds)
	l, err := s.goLive(ctx, step, latency.Sessions(rate), warm+count)
	defer func() { err = errors.Join(err, l.closeAll(ctx)) }()
	if err != nil {
		return err
	}
	if err := l.warmUp(ctx, warm, rate); err != nil {
		return err
	}
	l.meter.Begin()
	began := time.Now()
	written, err := l.withoutBroker(ctx, count, rate)
	if err != nil {
		return err
	}
	back := time.Now()
	if err := l.arrived(ctx, firstPatience); err != nil {
		return err
	}
	l.costs(ctx, r)
	r.Events, r.Seconds = count, time.Since(began).Seconds()
	r.Note = fmt.Sprintf("%.1f s after the broker went on, all of the %d events that were written meanwhile (%.0f a second) had arrived",
		time.Since(back).Seconds(), count, written.Rate)
	r.Check, err = l.verdict(ctx)
	return err
}

// withoutBroker writes events while the broker stands still.
func (l *live) withoutBroker(ctx context.Context, count int, rate float64) (w latency.Written, err error) {
	if err := l.kafka.Pause(0); err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, l.kafka.Resume(0)) }()
	return l.write(ctx, count, rate)
}
