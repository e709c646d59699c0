package relay

import (
	"context"
	"errors"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/publisher"
)

// finish ends a run in order: stop reading, drain what was handed over, store and
// confirm it, send the last status, and say what is left. refusal is the event that
// the pipeline halted at, nil for an ordinary end.
func (l *link) finish(refusal *event.Refusal) error {
	g := l.gen
	g.relay.state.set(phaseDraining)
	ctx, stop := l.drainContext()
	defer stop()
	if refusal == nil {
		refusal = l.endOfTransaction(ctx)
	}
	l.intake.close()
	l.retrier.stop()
	drained := l.drain(ctx)
	if err := l.drainParked(ctx); err != nil {
		drained = errors.Join(drained, err)
	}
	l.stopCopiers()
	if err := l.retrier.settle(ctx); err != nil {
		g.log.Warn().Err(err).Msg("parked events that were published just now could not be noted; they will be published again")
	}
	if refusal == nil {
		refusal = l.refusedMeanwhile(drained)
	}

	closing, stopClosing := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer stopClosing()
	stored := l.stopKeeper(closing)
	// Last, and in what is left of the time to stop: nothing waits for them.
	g.relay.receipts.Close(ctx)
	return l.outcome(refusal, errors.Join(drained, stored))
}

// endOfTransaction reads on to the end of the transaction at hand, for no longer than
// half of what the drain may take. A refused event ends the wait.
func (l *link) endOfTransaction(ctx context.Context) *event.Refusal {
	ctx, cancel := context.WithTimeout(ctx, l.gen.cfg.ShutdownTimeout/2)
	defer cancel()
	select {
	case <-l.intake.stop():
	case refusal := <-l.gen.halts:
		return refusal
	case err := <-l.broken:
		l.broken <- err // for drain
	case <-ctx.Done():
	}
	return nil
}

// drainContext ends after ShutdownTimeout, or when the operator abandons the drain.
func (l *link) drainContext() (context.Context, context.CancelFunc) {
	timed, stop := context.WithTimeoutCause(context.Background(), l.gen.cfg.ShutdownTimeout,
		errors.New("publisher.shutdown_timeout has passed"))
	ctx, abandon := context.WithCancelCause(timed)
	go func() {
		select {
		case <-l.gen.cfg.Abandon: // nil: never
			abandon(errors.New("abandoned by a second signal"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { abandon(context.Canceled); stop() }
}

// drain waits for acknowledgements while the link holds.
func (l *link) drain(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	result := make(chan error, 1)
	go func() { result <- l.gen.publisher.Drain(ctx) }()
	select {
	case err := <-result:
		return err
	case err := <-l.broken:
		cancel(err)
		return errors.Join(err, <-result)
	case err := <-l.gen.publisher.Fatal():
		cancel(err)
		return errors.Join(err, <-result)
	}
}

// refusalWait bounds the moment between a lane's stop at a refused event and the word of it.
const refusalWait = time.Second

// refusedMeanwhile gives the refusal that came up while the run was ending already,
// after a signal or at its target: that is a halt all the same.
func (l *link) refusedMeanwhile(drained error) *event.Refusal {
	select {
	case refusal := <-l.gen.halts:
		return refusal
	default:
	}
	var left *publisher.DrainError
	if !errors.As(drained, &left) || left.Stuck == 0 || left.Err != nil {
		return nil //nolint:nilerr // no refusal; the caller reports the error itself
	}
	select {
	case refusal := <-l.gen.halts:
		return refusal
	case <-time.After(refusalWait):
		return nil
	}
}

// stopKeeper waits for the keeper's current round, then stores and confirms once
// more. The stream stays up until the link is closed: its last status carries this.
func (l *link) stopKeeper(ctx context.Context) error {
	l.keeper.stop()
	return l.keeper.last(ctx)
}

// outcome words the end of a run.
func (l *link) outcome(refusal *event.Refusal, problem error) error {
	g := l.gen
	left := g.comesAgain()
	confirmed := g.row().Confirmed
	log := g.log.Info().Stringer("confirmed", confirmed).Int("unconfirmed_events", left)
	switch {
	case refusal != nil:
		log.Msg("halted")
		return haltError(refusal, confirmed, problem)
	case unprovable(problem):
		log.Msg("stopped: the position cannot be trusted")
		return problem
	case left > 0 || problem != nil:
		log.Msg("stopped before everything was confirmed")
		return drainError(left, confirmed, problem)
	default:
		log.Msg("stopped; everything that was received is confirmed")
		return nil
	}
}

// unprovable says that going on might skip events; that is more than an incomplete drain.
func unprovable(problem error) bool {
	return operr.ClassOf(problem) == operr.Slot && !operr.IsTransient(problem)
}

func haltError(refusal *event.Refusal, confirmed event.LSN, problem error) error {
	var err error = refusal
	if problem != nil {
		err = errors.Join(refusal, problem)
	}
	return &operr.Error{
		Class: operr.Halted, Op: "halt", Subject: "at an event that cannot be published (confirmed up to " + confirmed.String() + ")",
		Err: err, Hint: refusalHint(refusal.Reason),
	}
}

// refusalHint says what heals a refusal: the row is in the WAL as it is, so either
// the configuration learns to take it, or the broker does.
func refusalHint(reason event.Reason) string {
	switch reason {
	case event.ReasonTooLarge:
		return "a larger max.message.bytes of the topic (or postgres max_row_bytes), then start again"
	case event.ReasonNullPayload:
		return "mapping.null_payload: tombstone, if a NULL payload is meant as one, then start again"
	case event.ReasonEmptyKey:
		return "mapping.empty_key: allow, if an empty key is meant, then start again"
	case event.ReasonInvalidTopic, event.ReasonNoRoute, event.ReasonNullRoute:
		return "a route that gives this row a legal topic, then start again"
	case event.ReasonMissingColumn:
		return "a mapping that names the columns listed above, for one run, and then the present one; the row is read from the WAL as it was written, so renaming the column back does not help"
	case event.ReasonTimestamp:
		return "no mapping.timestamp, or a column whose values Kafka accepts, then start again"
	default:
		return "a configuration that can take this row, then start again; the row itself cannot be changed any more, it is read from the WAL"
	}
}
