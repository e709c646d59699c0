package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/postrider/postrider/internal/operr"
)

// hardEnd is how long the pipeline may take to return after the second signal,
// before the process ends without its word.
const hardEnd = 5 * time.Second

// signalError is the cause of a context that a signal has ended.
type signalError struct{ signal os.Signal }

func (e *signalError) Error() string { return "stopped by signal: " + e.signal.String() }

// signalWatch turns the first SIGTERM or SIGINT into the end of a context and the
// second into the closing of a channel.
type signalWatch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	second chan struct{}

	received chan os.Signal
	quit     chan struct{}
	stopped  sync.WaitGroup
}

func watchSignals(ctx context.Context, log zerolog.Logger) *signalWatch {
	w := &signalWatch{second: make(chan struct{}), quit: make(chan struct{}), received: make(chan os.Signal, 2)}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	signal.Notify(w.received, syscall.SIGTERM, syscall.SIGINT)
	w.stopped.Go(func() { w.wait(log) })
	return w
}

func (w *signalWatch) wait(log zerolog.Logger) {
	for n := 1; n <= 2; n++ {
		select {
		case got := <-w.received:
			if n == 1 {
				log.Info().Stringer("signal", got).Msg("draining; a second signal ends at once")
				w.cancel(&signalError{got})
				continue
			}
			log.Warn().Stringer("signal", got).Msg("ending at once")
			close(w.second)
		case <-w.quit:
			return
		}
	}
}

// attend runs the pipeline under the watched context. After the second signal it
// waits for the pipeline's word on what stayed unconfirmed, but not for ever.
func (w *signalWatch) attend(run func(context.Context) error) error {
	result := make(chan error, 1)
	go func() { result <- run(w.ctx) }()
	select {
	case err := <-result:
		return err
	case <-w.second:
	}
	last := time.NewTimer(hardEnd)
	defer last.Stop()
	select {
	case err := <-result:
		return err
	case <-last.C:
		return &operr.Error{
			Class: operr.DrainIncomplete, Op: "end", Subject: "after the second signal",
			Err:  errors.Join(fmt.Errorf("the relay did not stop within %s", hardEnd), context.Cause(w.ctx)),
			Hint: "postrider checkpoint show: what is not confirmed will be sent again",
		}
	}
}

// stop gives the signals back to the process.
func (w *signalWatch) stop() {
	signal.Stop(w.received)
	close(w.quit)
	w.stopped.Wait()
	w.cancel(nil)
}
