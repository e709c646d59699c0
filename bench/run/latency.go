package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/bench/check"
	"github.com/postrider/postrider/bench/latency"
	"github.com/postrider/postrider/bench/outbox"
	"github.com/postrider/postrider/bench/plan"
	"github.com/postrider/postrider/bench/result"
)

const (
	// minWarmUp is how many events come at least before the ones that count.
	minWarmUp = 20
	// heldRate is the share of a rate below which it was not held.
	heldRate = 0.98
)

// live is a job whose events are written while it runs.
type live struct {
	*job
	writer   *latency.Writer
	consumer *kgo.Client
	arrivals *latency.Arrivals
	base     time.Time
	// next is the number of the next event.
	next int64
}

// goLive starts a contender on an empty table, with a writer, and a consumer for up to events events. The caller
// closes it, after an error too.
func (s *session) goLive(ctx context.Context, step plan.Step, sessions, events int) (l *live, err error) {
	l = &live{base: time.Now(), next: 1}
	if l.job, err = s.newJob(ctx, step, nil); err != nil {
		return l, err
	}
	if l.writer, err = latency.NewWriter(ctx, s.rig.Connect, sessions, l.insertSQL()); err != nil {
		return l, err
	}
	if l.consumer, err = l.kafka.Client(latency.ConsumerOptions(l.Topic)...); err != nil {
		return l, err
	}
	l.arrivals = latency.Await(ctx, l.consumer, l.base, 1, events)
	return l, l.start(ctx)
}

// write commits events and moves on.
func (l *live) write(ctx context.Context, count int, perSec float64) (latency.Written, error) {
	w, err := l.writer.Write(ctx, l.base, l.next, count, perSec)
	l.next += int64(count)
	return w, err
}

// warmUp writes until everything that was written has arrived.
func (l *live) warmUp(ctx context.Context, count int, perSec float64) error {
	if _, err := l.write(ctx, count, perSec); err != nil {
		return err
	}
	return l.arrived(ctx, firstPatience)
}

// arrived waits for all that was written.
func (l *live) arrived(ctx context.Context, patience time.Duration) error {
	if err := l.arrivals.Wait(ctx, int(l.next-1), patience, l.process.Done()); err != nil {
		return fmt.Errorf("%w\n%s", err, l.process.LogTail())
	}
	return nil
}

// expected are all events that were written.
func (l *live) expected() (*check.Expected, error) {
	e := check.NewExpected(1, l.next-1)
	for n := int64(1); n < l.next; n++ {
		if err := e.Add(n, []byte(outbox.Key(n)), []byte(outbox.Payload(n))); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// verdict ends the contender and judges the topic.
func (l *live) verdict(ctx context.Context) (result.Check, error) {
	if err := l.stop(ctx); err != nil {
		return result.Check{}, err
	}
	e, err := l.expected()
	if err != nil {
		return result.Check{}, err
	}
	return l.check(ctx, e)
}

func (l *live) closeAll(ctx context.Context) error {
	if l.arrivals != nil {
		l.arrivals.Stop()
	}
	if l.consumer != nil {
		l.consumer.Close()
	}
	if l.writer != nil {
		l.writer.Close()
	}
	if l.job == nil {
		return nil
	}
	return l.job.close(ctx)
}

// latency measures from commit to consumer at a rate.
func (s *session) latency(ctx context.Context, step plan.Step, r *result.Result) (err error) {
	rate := step.Params.RatePerSec
	warm, count := warmUpEvents(rate), int(rate*step.Params.Seconds)
	l, err := s.goLive(ctx, step, latency.Sessions(rate), warm+count)
	defer func() { err = errors.Join(err, l.closeAll(ctx)) }()
	if err != nil {
		return err
	}
	if err := l.warmUp(ctx, warm, max(rate, minWarmUp/plan.WarmUp)); err != nil {
		return err
	}
	first := l.next
	l.meter.Begin()
	written, err := l.write(ctx, count, rate)
	if err != nil {
		return err
	}
	late := l.arrived(ctx, patience)
	l.costs(ctx, r)
	r.Events, r.Seconds = count, step.Params.Seconds
	nanos, early := l.arrivals.Since(first, written.Commits)
	r.Latency = latency.Summary(nanos)
	r.Note = latencyNote(rate, written.Rate, early, count)
	if late != nil {
		return late
	}
	r.Check, err = l.verdict(ctx)
	return err
}

func warmUpEvents(rate float64) int { return max(minWarmUp, int(rate*plan.WarmUp)) }

func latencyNote(wanted, got float64, early, count int) string {
	note := ""
	if got < heldRate*wanted {
		note = fmt.Sprintf("the writer reached %.0f of %.0f events a second", got, wanted)
	}
	if share := float64(early) / float64(count); share > 0.01 {
		if note != "" {
			note += "; "
		}
		note += fmt.Sprintf("%.0f %% of the events were at the consumer before the writer heard of its commit and count as 0", 100*share)
	}
	return note
}
