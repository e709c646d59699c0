package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/postrider/postrider/bench/contender"
	"github.com/postrider/postrider/bench/plan"
	"github.com/postrider/postrider/bench/result"
	"github.com/postrider/postrider/bench/rig"
)

// peek has PostgreSQL decode the backlog in a SQL function: the limit of everything that decodes.
func (s *session) peek(ctx context.Context, step plan.Step, r *result.Result) (err error) {
	b, slot, err := s.limitSlot(ctx, step)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.rig.DropSlot(context.WithoutCancel(ctx), slot)) }()
	conn, err := s.rig.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	meter, err := s.rig.Watch(ctx, rig.MeterOptions{Backends: []int{int(conn.PgConn().PID())}})
	if err != nil {
		return err
	}
	defer meter.Stop()
	meter.Begin()
	began := time.Now()
	var messages int
	if err := conn.QueryRow(ctx, contender.PeekSQL, slot, b.End, b.Publication()).Scan(&messages); err != nil {
		return err
	}
	r.Seconds = time.Since(began).Seconds()
	r.Events = step.Params.Rows
	putCosts(meter.Cost(), r)
	if messages < step.Params.Rows {
		return fmt.Errorf("%d messages for %d rows", messages, step.Params.Rows)
	}
	return nil
}

// recvlogical reads the backlog with PostgreSQL's own client.
func (s *session) recvlogical(ctx context.Context, step plan.Step, r *result.Result) (err error) {
	b, slot, err := s.limitSlot(ctx, step)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.rig.DropSlot(context.WithoutCancel(ctx), slot)) }()
	job := contender.Job{Rig: s.rig, Slot: slot, Publication: b.Publication(), LogFile: filepath.Join(s.rig.LogDir(), slot+".log")}
	_ = os.Remove(job.LogFile) // of an earlier attempt
	p, err := contender.StartRecvlogical(job, b.End)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop(context.WithoutCancel(ctx))) }()
	meter, err := s.rig.Watch(ctx, rig.MeterOptions{PID: p.PID})
	if err != nil {
		return err
	}
	defer meter.Stop()
	began, err := s.taken(ctx, slot, p)
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	r.Seconds = time.Since(began).Seconds()
	r.Startup = began.Sub(p.Spawned).Seconds()
	r.Events = step.Params.Rows
	putCosts(meter.Cost(), r)
	r.CPU = p.CPU()
	return p.Err()
}

// taken waits until a slot is read.
func (s *session) taken(ctx context.Context, slot string, p *rig.Process) (time.Time, error) {
	for {
		state, err := s.rig.ReadSlot(ctx, slot, "0/0")
		if err != nil || state.PID != 0 {
			return time.Now(), err
		}
		select {
		case <-p.Done():
			return time.Now(), errors.Join(errors.New("it ended before it read"), p.Err())
		case <-ctx.Done():
			return time.Now(), context.Cause(ctx)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (s *session) limitSlot(ctx context.Context, step plan.Step) (*backlog, string, error) {
	b, err := s.backlog(ctx, step.Backlog)
	if err != nil {
		return nil, "", err
	}
	slot := jobName(step.Name)
	if err := s.rig.CopySlot(ctx, b.Slot(step.Params.Rows), slot); err != nil {
		return nil, "", err
	}
	return b, slot, s.rig.Quiet(ctx)
}
