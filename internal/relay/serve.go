package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/control"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

// serve runs the link until it breaks or the run is over. Nil means: over, all well.
func (l *link) serve(ctx context.Context) error {
	g := l.gen
	l.keeper = newKeeper(l)
	// Before anything that may freeze it again.
	g.publisher.Thaw()
	l.launch(l.runStream)
	l.launch(l.keeper.run)
	l.launch(l.parkEvents)
	l.launch(l.retrier.run)
	l.launch(l.attend.run)
	for _, c := range l.copiers {
		l.launch(c.run)
	}
	if p := newPurger(l); p != nil {
		l.launch(p.run(ctx))
	}
	l.launch(l.watchShutdown)
	l.launch(l.watchWire)
	g.relay.state.streaming(l.stream.LastActivity)
	select {
	case <-ctx.Done():
		return l.finish(nil)
	case <-g.reached:
		return l.finish(nil)
	case refusal := <-g.halts:
		return l.finish(refusal)
	case err := <-g.publisher.Fatal():
		return l.giveUp(err)
	case err := <-l.broken:
		return err
	}
}

// giveUp ends a run that cannot publish any more: what was acknowledged before is
// stored and confirmed, as after any other end.
func (l *link) giveUp(cause error) error {
	l.intake.close()
	ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
	defer stop()
	if err := l.stopKeeper(ctx); err != nil {
		l.gen.log.Warn().Err(err).Msg("the last position could not be stored")
	}
	return cause
}

// launch runs fn in a goroutine of the link; its error breaks the link.
func (l *link) launch(fn func(context.Context) error) {
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		if err := fn(l.ctx); err != nil && l.ctx.Err() == nil {
			// Sending stops before anybody else hears of it (trap 20).
			l.gen.publisher.Freeze()
			l.broken <- err
		}
	}()
}

func (l *link) runStream(ctx context.Context) error {
	h := &handler{gen: l.gen, gate: checkpoint.NewGate(l.gen.ledger), intake: l.intake, ctx: ctx, roots: l.roots}
	if at := l.gen.row().Confirmed; at > l.slot.ConfirmedFlush {
		// The row is durable proof; the slot was saved earlier (trap 9).
		l.stream.Confirm(at)
	}
	err := l.stream.Run(ctx, l.slot.ConfirmedFlush, h)
	if err == nil {
		err = &operr.Error{Class: operr.Postgres, Transient: true, Op: "read the stream", Err: errors.New("it ended")}
	}
	return err
}

// watchShutdown holds a session open and does nothing with it. In a fast shutdown SQL
// sessions are ended first: its 57P01 is heard while reading stands still (rule 1).
func (l *link) watchShutdown(ctx context.Context) error {
	for {
		heard, err := l.watch.WaitForNotification(ctx)
		switch {
		case err == nil && heard.Channel == control.Channel:
			hint(l.attend.wake)
		case err == nil:
			l.gen.park.retries.ask()
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the link was given up; the error is its echo
		case isShutdown(err):
			return fmt.Errorf("%w (the watch session was ended)", replication.ErrServerShutdown)
		default:
			return &operr.Error{Class: operr.Postgres, Transient: true, Op: "hold the watch session open", Err: err}
		}
	}
}

// watchWire hears of a connection that feedback could not be written to, also while
// a full window keeps anybody from reading it (trap 20).
func (l *link) watchWire(ctx context.Context) error {
	select {
	case <-l.stream.Lost():
		return &operr.Error{Class: operr.Postgres, Transient: true, Op: "report to the slot", Err: errors.New("the connection is gone")}
	case <-ctx.Done():
		return nil
	}
}

// isShutdown knows admin_shutdown, crash_shutdown and cannot_connect_now.
func isShutdown(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "57P01" || pg.Code == "57P02" || pg.Code == "57P03")
}

// stillOurs asks whether the slot is still streamed to our walsender (rule 8).
func (l *link) stillOurs(ctx context.Context) (ours bool, err error) {
	err = l.sql.do(func(conn *pgx.Conn) error {
		slot, err := replication.ReadSlot(ctx, conn, l.gen.cfg.Replication.Slot)
		ours = slot.ActivePID == l.session.BackendPID()
		return err
	})
	return ours, err
}
