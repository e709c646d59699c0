package relay

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is a capped exponential pause with full jitter above the minimum, so
// that many relays do not come back to a restarted server in step.
type backoff struct {
	lo, hi time.Duration
	next   time.Duration
}

func (b *backoff) reset() { b.next = 0 }

// pause gives the next pause.
func (b *backoff) pause() time.Duration {
	b.next = min(b.hi, max(b.lo, 2*b.next))
	return b.lo + rand.N(b.next-b.lo+1)
}

// wait pauses, or returns early with the context's end.
func (b *backoff) wait(ctx context.Context) error {
	t := time.NewTimer(b.pause())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
