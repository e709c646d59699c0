package run

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/postrider/postrider/bench/plan"
	"github.com/postrider/postrider/bench/result"
	"github.com/postrider/postrider/bench/rig"
)

// settle is for what a contender does behind its first events: garbage, connections, positions.
const settle = 5 * time.Second

// idle measures contenders at the same time, each of which has published a few events and has nothing to do any more.
func (s *session) idle(ctx context.Context, group []plan.Step) []result.Result {
	results := make([]result.Result, len(group))
	lives := make([]*live, len(group))
	backends := make([][]int, len(group))
	for i, step := range group {
		results[i] = blank(step)
		var err error
		if lives[i], backends[i], err = s.rest(ctx, step); err != nil {
			results[i].Error = err.Error()
		}
	}
	s.watchRest(ctx, lives, backends, results)
	for i, l := range lives {
		if err := l.closeAll(ctx); err != nil && results[i].Error == "" {
			results[i].Error = err.Error()
		}
	}
	return results
}

// rest starts a contender, sees that it works, and finds the backends that came with it.
func (s *session) rest(ctx context.Context, step plan.Step) (*live, []int, error) {
	before, err := s.rig.Backends(ctx)
	if err != nil {
		return &live{}, nil, err
	}
	l, err := s.goLive(ctx, step, 1, minWarmUp)
	if err != nil {
		return l, nil, err
	}
	if err := l.warmUp(ctx, minWarmUp, minWarmUp/plan.WarmUp); err != nil {
		return l, nil, err
	}
	l.writer.Close()
	l.arrivals.Stop() // its long polls are no business of the broker's at rest
	if err := sleep(ctx, settle); err != nil {
		return l, nil, err
	}
	after, err := s.rig.Backends(ctx)
	own := slices.DeleteFunc(after, func(pid int) bool { return slices.Contains(before, pid) })
	return l, own, err
}

// watchRest measures all at once and waits only as long as the longest asks for.
func (s *session) watchRest(ctx context.Context, lives []*live, backends [][]int, results []result.Result) {
	meters := make([]*rig.Meter, len(lives))
	seconds := 0.0
	for i, l := range lives {
		if results[i].Error != "" {
			continue
		}
		m, err := s.rig.Watch(ctx, rig.MeterOptions{PID: l.process.PID, Backends: slices.Concat([]int{}, backends[i])})
		if err != nil {
			results[i].Error = err.Error()
			continue
		}
		defer m.Stop()
		m.Begin()
		meters[i] = m
		seconds = max(seconds, results[i].Params.Seconds)
	}
	began := time.Now()
	err := sleep(ctx, time.Duration(seconds*float64(time.Second)))
	for i, m := range meters {
		if m == nil {
			continue
		}
		putCosts(m.Cost(), &results[i])
		results[i].Seconds = time.Since(began).Seconds()
		if err := errors.Join(err, lives[i].alive()); err != nil {
			results[i].Error = err.Error()
			continue
		}
		if results[i].Check, err = lives[i].verdict(ctx); err != nil {
			results[i].Error = err.Error()
		}
	}
}
