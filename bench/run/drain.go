package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/bench/check"
	"github.com/postrider/postrider/bench/contender"
	"github.com/postrider/postrider/bench/plan"
	"github.com/postrider/postrider/bench/result"
	"github.com/postrider/postrider/bench/rig"
)

const (
	// clockTick is how often the topic's ends are asked for: the clock of a drain.
	clockTick = 10 * time.Millisecond
	// firstPatience is for a slow starter, patience for a drain that stands still.
	firstPatience = 120 * time.Second
	patience      = 60 * time.Second
	// confirmPatience is for a position that is stored once a second.
	confirmPatience = 2 * time.Minute
)

// drain has a contender publish a backlog, and judges what arrived before the speed counts.
func (s *session) drain(ctx context.Context, step plan.Step, r *result.Result) (err error) {
	b, err := s.backlog(ctx, step.Backlog)
	if err != nil {
		return err
	}
	r.At = time.Now().UTC().Format(time.RFC3339)
	j, err := s.newJob(ctx, step, b)
	if j != nil {
		defer func() { err = errors.Join(err, j.close(ctx)) }()
	}
	if err != nil {
		return err
	}
	if err := j.start(ctx); err != nil {
		return err
	}
	clock, err := j.drained(ctx, step.Params.Rows)
	if err != nil {
		return err
	}
	j.costs(ctx, r)
	r.Events = step.Params.Rows
	r.Seconds = clock.done.Sub(clock.began).Seconds()
	r.Startup = clock.first.Sub(j.process.Spawned).Seconds()
	if err := j.confirmed(ctx, b.End); err != nil {
		return err
	}
	if err := j.stop(ctx); err != nil {
		r.Note = j.c.Name() + ": " + err.Error()
	}
	r.Check, err = j.check(ctx, b.expected.From(int64(b.Rows-step.Params.Rows)+1))
	return err
}

// clock has the moments of a drain.
type clock struct {
	// began is when the slot was taken; for contenders without one, and for peers that take it long before
	// they read, it is first.
	began time.Time
	// first is when the first event was in the topic, done when the last one was.
	first, done time.Time
}

// drained waits until the topic has so many records.
func (j *job) drained(ctx context.Context, rows int) (clock, error) {
	var c clock
	tick := time.NewTicker(clockTick)
	defer tick.Stop()
	last, moved, limit := 0, time.Now(), firstPatience
	for {
		if err := j.takenAt(ctx, &c); err != nil {
			return c, err
		}
		n, err := j.offsets.Sum(ctx)
		if err != nil {
			return c, err
		}
		now := time.Now()
		if n > 0 && c.first.IsZero() {
			c.first = now
			if c.began.IsZero() {
				c.began = now
				j.meter.Begin()
			}
			limit = patience
		}
		if n >= rows {
			c.done = now
			return c, nil
		}
		if n != last {
			last, moved = n, now
		}
		if now.Sub(moved) > limit {
			return c, fmt.Errorf("%d of %d events arrived, none in the last %s\n%s", n, rows, limit, j.process.LogTail())
		}
		if err := j.alive(); err != nil {
			return c, fmt.Errorf("after %d of %d events %w", n, rows, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return c, context.Cause(ctx)
		}
	}
}

// takenAt notes when Postrider's slot was taken, that is START_REPLICATION.
func (j *job) takenAt(ctx context.Context, c *clock) error {
	if _, strict := j.c.(*contender.Postrider); !strict || !c.began.IsZero() {
		return nil
	}
	slot, err := j.Rig.ReadSlot(ctx, j.Slot, "0/0")
	if err != nil {
		return err
	}
	if slot.PID != 0 {
		c.began = time.Now()
		j.meter.Begin()
	}
	return nil
}

// costs puts what the meter has into the result.
func (j *job) costs(ctx context.Context, r *result.Result) {
	putCosts(j.meter.Cost(), r)
	if b, ok := j.c.(contender.Batches); ok {
		mean, err := b.BatchMean(ctx, j.Job)
		if err != nil {
			r.Note = "no batch mean: " + err.Error()
		}
		r.BatchMean = mean
	}
}

func putCosts(c rig.Cost, r *result.Result) {
	r.CPU, r.ServerCPU, r.BrokerCPU, r.PeakRSS, r.RSS = c.CPU, c.ServerCPU, c.BrokerCPU, c.PeakRSS, c.RSS
}

// confirmed waits until Postrider has confirmed everything to PostgreSQL: a drain that does not is none.
func (j *job) confirmed(ctx context.Context, end string) error {
	if _, strict := j.c.(*contender.Postrider); !strict {
		return nil
	}
	deadline := time.Now().Add(confirmPatience)
	for {
		slot, err := j.Rig.ReadSlot(ctx, j.Slot, end)
		if err != nil || slot.Confirmed {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("everything was published, but the slot is not confirmed up to %s after %s", end, confirmPatience)
		}
		if err := j.alive(); err != nil {
			return err
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// check reads the whole topic.
func (j *job) check(ctx context.Context, expected *check.Expected) (result.Check, error) {
	ends, err := j.offsets.Ends(ctx)
	if err != nil {
		return result.Check{}, err
	}
	client, err := j.kafka.Client()
	if err != nil {
		return result.Check{}, err
	}
	defer client.Close()
	return check.Topic(ctx, client, j.Topic, ends, expected)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
