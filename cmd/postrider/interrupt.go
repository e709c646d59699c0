package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/operr"
)

// interruption remembers that a signal asked a command to end.
type interruption struct{ got atomic.Bool }

type interruptionKey struct{}

// withInterruption lets untilInterrupted tell what it hears.
func withInterruption(ctx context.Context) (context.Context, *interruption) {
	heard := new(interruption)
	return context.WithValue(ctx, interruptionKey{}, heard), heard
}

// untilInterrupted gives a context that SIGINT or SIGTERM ends. What the command does then is
// its own affair; a second signal ends the process, whatever it waits for. stop has to be
// called before the command returns.
func untilInterrupted(ctx context.Context) (_ context.Context, stop func()) {
	heard, _ := ctx.Value(interruptionKey{}).(*interruption)
	signalled, restore := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(signalled, restore)
	return signalled, func() {
		if heard != nil && signalled.Err() != nil && ctx.Err() == nil {
			heard.got.Store(true)
		}
		restore()
	}
}

// word turns what the end of a context made of a command into one error with one exit code,
// whatever the command was doing. A verdict that was reached stays one.
func (i *interruption) word(cmd *cobra.Command, err error) error {
	if err == nil || !i.got.Load() {
		return err
	}
	switch operr.ClassOf(err) {
	case operr.DrainIncomplete, operr.Findings, operr.Halted:
		return err
	}
	return &operr.Error{
		Class: operr.DrainIncomplete, Op: commandName(cmd), Err: fmt.Errorf("interrupted (%w)", plain(err)),
		Hint: "postrider checkpoint history, which tells whether anything was changed",
	}
}

// plain leaves the class and the hint of an error behind: they are about another cause.
func plain(err error) error { return errors.New(err.Error()) }
