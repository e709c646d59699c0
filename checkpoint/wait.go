package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// ErrWaitTimeout says that the time ran out before the position was reached.
var ErrWaitTimeout = errors.New("not confirmed in time")

// WaitConfig says what "checkpoint wait" waits for.
type WaitConfig struct {
	Publisher string
	Slot      string
	// Target is the position; 0 means now: the end of the WAL when Wait begins, so
	// that everything committed before is covered.
	Target event.LSN
	// Timeout bounds the wait; 0: only ctx does.
	Timeout time.Duration
	// Interval is the time between two looks; 0: 200 ms.
	Interval time.Duration
	// Empty, if set, says whether no event lies between what is published and the target:
	// where the last WAL holds none, a relay takes some seconds to know it. It is asked now
	// and then; while it fails the wait goes on.
	Empty func(ctx context.Context, until event.LSN) (bool, error)
}

// emptyAfter is when Empty is asked first; each next pause is twice as long.
const emptyAfter = 300 * time.Millisecond

// WaitResult is what was seen last. The JSON fields are a documented contract.
type WaitResult struct {
	Target    string `json:"target_lsn"`
	Reached   bool   `json:"reached"`
	Confirmed string `json:"confirmed_lsn"`
	// NoEvents says that it is reached because no event lies between Confirmed and Target.
	NoEvents bool `json:"no_events_between"`
	// Streaming says whether a relay was connected to the slot.
	Streaming     bool    `json:"streaming"`
	WaitedSeconds float64 `json:"waited_seconds"`
}

// Wait returns when every event of transactions that ended at or before the target
// is published (or parked) and that is durable: the stored position covers it, or on
// a quiet outbox the slot does, past the row that carries the idle latch. The error
// wraps ErrWaitTimeout when the time ran out; the result is filled in all the same.
func Wait(ctx context.Context, conn *pgx.Conn, cfg WaitConfig) (WaitResult, error) {
	begin := time.Now()
	w := waiter{conn: conn, cfg: cfg, ask: begin.Add(emptyAfter), pause: emptyAfter}
	err := w.target(ctx)
	if err == nil {
		if cfg.Timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, cfg.Timeout, ErrWaitTimeout)
			defer cancel()
		}
		err = w.poll(ctx)
	}
	w.result.WaitedSeconds = time.Since(begin).Seconds()
	return w.result, err
}

type waiter struct {
	conn   *pgx.Conn
	cfg    WaitConfig
	until  event.LSN
	paused bool
	result WaitResult
	// ask is when Empty is due, pause how long after that it is again.
	ask   time.Time
	pause time.Duration
}

// target settles the position and refuses one that lies in the future: nothing says
// that it was not mistyped (case C40).
func (w *waiter) target(ctx context.Context) error {
	var p walPosition
	if err := w.conn.QueryRow(ctx, `SELECT `+walPositionSQL).Scan(&p.insert, &p.block, &p.segment); err != nil {
		return w.failed(ctx, err)
	}
	end, err := p.end()
	if err != nil {
		return w.failed(ctx, err)
	}
	w.until = w.cfg.Target
	if w.until == 0 {
		w.until = end
	}
	w.result.Target = w.until.String()
	if w.until > end {
		return &operr.Error{
			Class: operr.Config, Op: "wait for", Subject: "position " + w.until.String(),
			Err:  fmt.Errorf("it lies in the future: the WAL ends at %s", end),
			Hint: "--now, which waits for everything committed so far",
		}
	}
	return nil
}

func (w *waiter) poll(ctx context.Context) error {
	interval := w.cfg.Interval
	if interval <= 0 {
		interval = 200 * time.Millisecond
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if done, err := w.look(ctx); done || err != nil {
			return err
		}
		if w.empty(ctx) {
			return nil
		}
		select {
		case <-ctx.Done():
			return w.failed(ctx, ctx.Err())
		case <-ticker.C:
		}
	}
}

func (w *waiter) look(ctx context.Context) (done bool, err error) {
	var stored, slot, walStatus *string
	var idle *bool
	var committed *time.Time
	err = w.conn.QueryRow(ctx, `
		SELECT c.confirmed_lsn::text, c.commit_time, c.idle, s.confirmed_flush_lsn::text, s.wal_status, s.active_pid IS NOT NULL, c.paused_at IS NOT NULL
		FROM (SELECT) one
		LEFT JOIN pg_replication_slots s ON s.slot_name = $2::text
		LEFT JOIN postrider.checkpoint c ON c.publisher = $1 AND c.slot = $2::text`,
		w.cfg.Publisher, w.cfg.Slot).Scan(&stored, &committed, &idle, &slot, &walStatus, &w.result.Streaming, &w.paused)
	if err != nil {
		return false, w.failed(ctx, err)
	}
	confirmed, err := durable(stored, slot, orEmpty(idle))
	if err != nil {
		return false, w.failed(ctx, err)
	}
	w.result.Confirmed = confirmed.String()
	w.result.Reached = confirmed >= w.until
	if w.result.Reached {
		return true, nil
	}
	var row *Row
	if stored != nil { // then a slot that is gone is not one that was never made
		row = &Row{Confirmed: confirmed}
		if committed != nil {
			row.CommitTime = *committed
		}
	}
	return false, usable(row, SlotState{Name: w.cfg.Slot, Exists: slot != nil, WALStatus: orEmpty(walStatus), Confirmed: confirmed})
}

// empty asks whether there is nothing to wait for.
func (w *waiter) empty(ctx context.Context) bool {
	if w.cfg.Empty == nil || time.Now().Before(w.ask) {
		return false
	}
	empty, err := w.cfg.Empty(ctx, w.until)
	w.pause *= 2
	w.ask = time.Now().Add(w.pause)
	w.result.NoEvents = empty && err == nil
	w.result.Reached = w.result.NoEvents
	return w.result.Reached
}

// durable is the position up to which everything is published for good. A slot past
// the row counts under the idle latch only; without it somebody else moved it.
func durable(stored, slot *string, idle bool) (event.LSN, error) {
	if stored == nil {
		return 0, nil
	}
	row, err := event.ParseLSN(*stored)
	if err != nil || slot == nil || !idle {
		return row, err
	}
	beyond, err := event.ParseLSN(*slot)
	return max(row, beyond), err
}

// failed tells the end of the time from a failing server. When the time ends during
// a query the connection is closed with it.
func (w *waiter) failed(ctx context.Context, err error) error {
	subject := "position " + w.result.Target
	if errors.Is(context.Cause(ctx), ErrWaitTimeout) {
		hint := "postrider checkpoint show: it tells how far behind the slot is"
		switch {
		case w.paused:
			hint = "postrider resume: it is paused"
		case !w.result.Streaming:
			hint = "postrider run: no relay is connected to the slot"
		}
		return &operr.Error{
			Class: operr.Slot, Op: "wait for", Subject: subject, Hint: hint, Transient: true,
			Err: fmt.Errorf("%w: confirmed up to %s after %s", ErrWaitTimeout, w.result.Confirmed, w.cfg.Timeout),
		}
	}
	return storeError("wait for", subject, err)
}
