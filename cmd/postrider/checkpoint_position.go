package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/parking"
)

// position is what the commands that look at a position, or change it, work with.
type position struct {
	cfg  *config.Config
	conn *pgx.Conn
	desk *checkpoint.Desk
	peek peek.Config
}

// withPosition opens it. The context that use gets ends with an interrupt.
func (f *configFlag) withPosition(ctx context.Context, command string, use func(context.Context, *position) error) error {
	cfg, err := f.load()
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	return withSQL(ctx, cfg, "checkpoint "+command, func(conn *pgx.Conn) error {
		return use(ctx, &position{
			cfg: cfg, conn: conn, peek: peekConfig(cfg),
			desk: checkpoint.NewDesk(conn, checkpoint.DeskConfig{Publisher: cfg.Publisher.Name, Slot: cfg.Postgres.Slot, Actor: actor()}),
		})
	})
}

func peekConfig(cfg *config.Config) peek.Config {
	return peek.Config{
		Publisher: cfg.Publisher.Name, Replication: cfg.ReplicationConfig(), Router: cfg.Router(),
		Limits: parking.Limits{Units: cfg.Parking.MaxHeldKeys, Events: cfg.Parking.MaxEvents},
	}
}

// walProgress shows on a terminal how far a long look is.
type walProgress struct {
	out   io.Writer
	from  event.LSN
	shown time.Time
	drawn bool
}

// newWALProgress shows nothing where nobody watches, and nothing of what is over in a moment.
func newWALProgress(out io.Writer) *walProgress {
	if !isTerminal(out) {
		out = io.Discard
	}
	return &walProgress{out: out, shown: time.Now()}
}

func (p *walProgress) reached(at, until event.LSN) {
	if p.from == 0 {
		p.from = at
	}
	if time.Since(p.shown) < time.Second/2 || until <= p.from {
		return
	}
	p.shown, p.drawn = time.Now(), true
	fmt.Fprintf(p.out, "\rreading the WAL: %3.0f%%", min(100, 100*float64(at-p.from)/float64(until-p.from)))
}

// done wipes the line.
func (p *walProgress) done() {
	if p.drawn {
		fmt.Fprint(p.out, "\r                       \r")
		p.drawn = false
	}
}
