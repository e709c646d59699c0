package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/replication"
)

// parkSession is the link's session for parked events. It is one of its own, since its
// commits may wait for a synchronous standby, and is opened when it is first needed.
type parkSession struct {
	link *link
	sys  checkpoint.System

	// mu covers conn and every use of it.
	mu   sync.Mutex
	conn *pgx.Conn
}

func (s *parkSession) do(ctx context.Context, fn func(*parking.Store) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.connect(ctx); err != nil {
		return err
	}
	g := s.link.gen
	return fn(parking.NewStore(s.conn, parking.Config{
		Publisher: g.cfg.Publisher, Slot: g.cfg.Replication.Slot, SystemID: s.sys.ID, Timeline: s.sys.Timeline,
		Holder: g.cfg.Holder, WalsenderPID: s.link.session.BackendPID(), Timeout: g.cfg.Timers.Statement,
	}))
}

func (s *parkSession) connect(ctx context.Context) error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	cfg := s.link.gen.cfg
	conn, err := replication.ConnectSQL(ctx, cfg.Replication.ConnString, "postrider "+cfg.Publisher+" (parking)")
	if err != nil {
		return err
	}
	// With several hosts in the connection string it may be another server (rule 5).
	sys, err := checkpoint.NewStore(conn, checkpoint.StoreConfig{Publisher: cfg.Publisher, StatementTimeout: cfg.Timers.Statement}).System(ctx)
	if err == nil && sys != s.sys {
		err = otherServer(s.sys, sys)
	}
	if err != nil {
		_ = conn.Close(ctx)
		return err
	}
	s.conn = conn
	return nil
}

func (s *parkSession) close(ctx context.Context) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.Close(ctx)
	}
}

// parkEvents writes what the queue holds, until the link is given up. What cannot be
// written is tried again for ever: nothing is confirmed past it (case C38).
func (l *link) parkEvents(ctx context.Context) error {
	p := l.gen.park
	pause := backoff{lo: l.gen.cfg.Timers.BackoffMin, hi: l.gen.cfg.Timers.BackoffMax}
	for failures := 0; ctx.Err() == nil; {
		items := p.queue.head()
		if len(items) == 0 {
			select {
			case <-ctx.Done():
			case <-p.queue.wake:
			}
			continue
		}
		err := l.writeParked(ctx, items)
		if err == nil {
			failures = 0
			pause.reset()
			continue
		}
		if err := l.tolerateStore(ctx, err, &failures, "events cannot be parked; nothing is confirmed past them"); err != nil {
			return err
		}
		if pause.wait(ctx) != nil {
			return nil //nolint:nilerr // the link was given up; what is not written stays in the queue
		}
	}
	return nil
}

func (l *link) writeParked(ctx context.Context, items []parkItem) error {
	events := make([]*parking.Event, len(items))
	for i := range items {
		events[i] = items[i].event
	}
	var after event.LSN
	err := l.parking.do(ctx, func(store *parking.Store) error {
		err := store.Park(ctx, events)
		if err == nil && l.slot.Failover {
			// Read after the commit; where that fails the same events are parked again.
			after, err = store.WALEnd(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	l.gen.parked(items, after)
	l.gen.park.queue.drop(len(items))
	return nil
}

// tolerateStore lets an error of the store pass that does not mean that the slot is
// lost or that the server shuts down.
func (l *link) tolerateStore(ctx context.Context, err error, failures *int, msg string) error {
	switch {
	case ctx.Err() != nil:
		return nil //nolint:nilerr // the link was given up; the error is its echo
	case errors.Is(err, parking.ErrFenced):
		return errors.Join(errNotHeld(), err)
	case isShutdown(err):
		return errors.Join(replication.ErrServerShutdown, err)
	}
	if *failures++; *failures == 1 || *failures%30 == 0 {
		l.gen.log.Error().Err(err).Int("consecutive_errors", *failures).Msg(msg)
	}
	return nil
}

// drainParked waits until everything that was refused is durable.
func (l *link) drainParked(ctx context.Context) error {
	tick := time.NewTicker(parkLook)
	defer tick.Stop()
	for !l.gen.park.queue.empty() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-l.broken:
			return err
		}
	}
	return nil
}
