package latency

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/bench/outbox"
)

// Writer commits events one by one, over as many sessions as a rate needs. Parameters of its statement: event_id,
// aggregate_type, aggregate_id, event_type, payload.
type Writer struct {
	sql   string
	conns []*pgx.Conn
}

// Sessions for a rate: a durable commit takes milliseconds, and many share one flush.
func Sessions(perSec float64) int { return min(48, 2+int(perSec/100)) }

// NewWriter opens the sessions; connect gives one.
func NewWriter(ctx context.Context, connect func(context.Context) (*pgx.Conn, error), sessions int, sql string) (*Writer, error) {
	w := &Writer{sql: sql}
	for range sessions {
		conn, err := connect(ctx)
		if err != nil {
			w.Close()
			return nil, err
		}
		w.conns = append(w.conns, conn)
		if _, err := conn.Prepare(ctx, "insert", sql); err != nil {
			w.Close()
			return nil, fmt.Errorf("prepare %s: %w", sql, err)
		}
	}
	return w, nil
}

// Close ends the sessions.
func (w *Writer) Close() {
	for _, conn := range w.conns {
		conn.Close(context.Background())
	}
}

// Written is what a run of the writer gives.
type Written struct {
	// Commits are the moments at which the commits returned, from the first event on, in nanoseconds since base.
	Commits []int64
	// Rate is what was reached, events a second.
	Rate float64
}

// Write commits count events from number first on, evenly spread at perSec. Each session has its share of the schedule, so one slow commit delays no
// other session's events.
func (w *Writer) Write(ctx context.Context, base time.Time, first int64, count int, perSec float64) (Written, error) {
	out := Written{Commits: make([]int64, count)}
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for s, conn := range w.conns {
		group.Go(func() error {
			timer := time.NewTimer(0)
			defer timer.Stop()
			for i := s; i < count; i += len(w.conns) {
				due := start.Add(time.Duration(float64(i) / perSec * float64(time.Second)))
				if wait := time.Until(due); wait > 0 {
					timer.Reset(wait)
					select {
					case <-timer.C:
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
				n := first + int64(i)
				if _, err := conn.Exec(ctx, "insert", outbox.ID(n), "order", outbox.Key(n), "OrderPlaced", outbox.Payload(n)); err != nil {
					return err
				}
				out.Commits[i] = int64(time.Since(base))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return Written{}, err
	}
	out.Rate = float64(count) / time.Since(start).Seconds()
	return out, nil
}
