// Package run carries a plan out on a rig and writes the results down.
package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/postrider/postrider/bench/check"
	"github.com/postrider/postrider/bench/contender"
	"github.com/postrider/postrider/bench/outbox"
	"github.com/postrider/postrider/bench/plan"
	"github.com/postrider/postrider/bench/result"
	"github.com/postrider/postrider/bench/rig"
)

// Options are what a run needs.
type Options struct {
	Rig        *rig.Rig
	Plan       plan.Plan
	Contenders []contender.Contender
	Store      *Store
	Out        io.Writer
	Quick      bool
}

// session is one run.
type session struct {
	rig        *rig.Rig
	plan       plan.Plan
	contenders map[string]contender.Contender
	store      *Store
	print      *progress

	backlogs map[string]*backlog
}

// backlog is a loaded table with what has to arrive of it.
type backlog struct {
	*outbox.Backlog
	expected *check.Expected
}

// Run prepares the contenders, starts the servers and takes every step of the plan. A step that fails is written down with its error, and the
// run goes on. The error is of what the run cannot go on without, or the end of ctx.
func Run(ctx context.Context, opts Options) (err error) {
	s := &session{
		rig: opts.Rig, plan: opts.Plan, store: opts.Store, contenders: map[string]contender.Contender{},
		backlogs: map[string]*backlog{}, print: newProgress(opts.Out, opts.Plan),
	}
	for _, c := range opts.Contenders {
		s.contenders[c.Name()] = c
	}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	s.print.line("starting PostgreSQL and Kafka")
	if err := s.rig.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.rig.Close()) }()
	if err := s.environment(ctx, opts.Quick); err != nil {
		return err
	}
	if err := s.rig.WarmBroker(ctx); err != nil {
		return fmt.Errorf("warm the broker up: %w", err)
	}
	s.print.did(plan.StartEstimate)
	return s.steps(ctx)
}

// prepare builds or fetches those that have a step to do.
func (s *session) prepare(ctx context.Context) error {
	prepared := map[string]bool{}
	for _, step := range s.plan.Steps {
		c := s.contenders[step.Contender]
		if c == nil || prepared[c.Name()] {
			continue
		}
		s.print.line("preparing %s", c.Name())
		if err := c.Prepare(ctx, s.rig); err != nil {
			return fmt.Errorf("prepare %s: %w", c.Name(), err)
		}
		prepared[c.Name()] = true
	}
	return nil
}

func (s *session) steps(ctx context.Context) error {
	for i := 0; i < len(s.plan.Steps); {
		group := s.group(i)
		for _, step := range group {
			s.print.begin(i, step)
			i++
		}
		results := s.measure(ctx, group)
		if ctx.Err() != nil {
			return context.Cause(ctx) // a step that was cut is not written down
		}
		for j, r := range results {
			s.print.end(group[j], r)
			if err := s.store.Add(r); err != nil {
				return err
			}
		}
		if err := s.dropBacklogs(ctx, s.plan.Steps[i:]); err != nil {
			return err
		}
	}
	return nil
}

// group is the step i with those behind it that are measured at the same time.
func (s *session) group(i int) []plan.Step {
	first := s.plan.Steps[i]
	end := i + 1
	for first.Group != "" && end < len(s.plan.Steps) && s.plan.Steps[end].Group == first.Group {
		end++
	}
	return s.plan.Steps[i:end]
}

// measure takes a group of steps; usually that is one.
func (s *session) measure(ctx context.Context, group []plan.Step) []result.Result {
	if group[0].Kind == result.KindIdle {
		return s.idle(ctx, group)
	}
	step := group[0]
	r := blank(step)
	if err := s.one(ctx, step, &r); err != nil {
		r.Error = err.Error()
	}
	return []result.Result{r}
}

func blank(step plan.Step) result.Result {
	return result.Result{
		Step: step.Name, Kind: step.Kind, Contender: step.Contender, Round: step.Round, Params: step.Params,
		At: time.Now().UTC().Format(time.RFC3339),
	}
}

func (s *session) one(ctx context.Context, step plan.Step, r *result.Result) error {
	switch {
	case step.Contender == contender.Peek:
		return s.peek(ctx, step, r)
	case step.Contender == contender.Recvlogical:
		return s.recvlogical(ctx, step, r)
	case step.Kind == result.KindLatency:
		return s.latency(ctx, step, r)
	case step.Kind == result.KindOutage:
		return s.outage(ctx, step, r)
	}
	return s.drain(ctx, step, r)
}

// backlog gives a loaded table.
func (s *session) backlog(ctx context.Context, table string) (*backlog, error) {
	if b := s.backlogs[table]; b != nil {
		return b, nil
	}
	spec, ok := s.plan.Backlogs[table]
	if !ok {
		return nil, fmt.Errorf("the plan has no backlog %s", table)
	}
	began := time.Now()
	loaded, err := outbox.Load(ctx, s.rig, spec)
	if err != nil {
		return nil, fmt.Errorf("load table %s: %w", table, err)
	}
	b := &backlog{Backlog: loaded}
	if b.expected, err = check.Read(ctx, s.rig.SQL(), table, 1, int64(loaded.Rows)); err != nil {
		return nil, err
	}
	if b.expected.Count() != loaded.Rows {
		return nil, fmt.Errorf("table %s has %d rows instead of %d", table, b.expected.Count(), loaded.Rows)
	}
	s.backlogs[table] = b
	s.print.did(plan.LoadEstimate(spec))
	s.print.line("loaded %s: %d rows, payloads of %.0f bytes, in %.1f s", table, loaded.Rows, loaded.PayloadBytes, time.Since(began).Seconds())
	return b, nil
}

// dropBacklogs gives back the disk of tables that no later step reads.
func (s *session) dropBacklogs(ctx context.Context, left []plan.Step) error {
	needed := map[string]bool{}
	for _, step := range left {
		needed[step.Backlog] = true
	}
	for table, b := range s.backlogs {
		if needed[table] {
			continue
		}
		delete(s.backlogs, table)
		if err := b.Remove(ctx, s.rig); err != nil {
			return err
		}
	}
	return nil
}
