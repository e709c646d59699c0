package demo

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/oracle"
)

// slotEvery is how often the position is looked at.
const slotEvery = 100 * time.Millisecond

// slotView is the relay's slot as PostgreSQL shows it.
type slotView struct {
	Confirmed event.LSN
	Lag       int64 // bytes of WAL behind the server
	Held      bool  // by a relay
}

// slotWatch keeps the latest view.
type slotWatch struct {
	dsn string

	mu   sync.Mutex
	view slotView
}

func newSlotWatch(dsn string) *slotWatch { return &slotWatch{dsn: dsn} }

func (s *slotWatch) now() slotView {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view
}

// end is the server's position: what is committed now ends at or before it.
func (s *slotWatch) end(ctx context.Context) (event.LSN, error) { return oracle.CurrentLSN(ctx, s.dsn) }

// run looks until ctx ends.
func (s *slotWatch) run(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return slotError(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tick := time.NewTicker(slotEvery)
	defer tick.Stop()
	for {
		if err := s.look(ctx, conn); err != nil {
			return slotError(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func slotError(err error) error {
	return &operr.Error{Class: operr.Postgres, Op: "look at", Subject: "slot " + relaySlot, Err: err}
}

func (s *slotWatch) look(ctx context.Context, conn *pgx.Conn) error {
	var view slotView
	var confirmed string
	err := conn.QueryRow(ctx, `SELECT confirmed_flush_lsn::text, (pg_current_wal_flush_lsn() - confirmed_flush_lsn)::bigint, active
		FROM pg_replication_slots WHERE slot_name = $1`, relaySlot).Scan(&confirmed, &view.Lag, &view.Held)
	if err != nil {
		return err
	}
	if view.Confirmed, err = event.ParseLSN(confirmed); err != nil {
		return err
	}
	s.mu.Lock()
	s.view = view
	s.mu.Unlock()
	return nil
}
