package publisher

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// drainLook is how often Drain looks by itself; acknowledgements wake it earlier.
const drainLook = 100 * time.Millisecond

// DrainError says what a Drain left.
type DrainError struct {
	// Unacknowledged events were appended and not acknowledged; Stuck of them are refused or stand
	// behind a refused event, and would never go.
	Unacknowledged, Stuck int64
	// Err is the context's cause where time ran out; nil where only stuck events are left.
	Err error
}

func (e *DrainError) Error() string {
	s := fmt.Sprintf("drain: %d events unacknowledged", e.Unacknowledged)
	if e.Stuck > 0 {
		s += fmt.Sprintf(", %d of them at or behind a refused event", e.Stuck)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *DrainError) Unwrap() error { return e.Err }

// Drain returns when nothing is left that may still be sent: nil, or a
// *DrainError where refused events are left or ctx ended. Nobody may append
// meanwhile.
func (p *Publisher) Drain(ctx context.Context) error {
	tick := time.NewTicker(drainLook)
	defer tick.Stop()
	for {
		p.flushAll()
		stuck := p.stuck.Load()
		left := p.pending.Load()
		switch {
		case left == 0:
			return nil
		case left <= stuck:
			return &DrainError{Unacknowledged: left, Stuck: stuck}
		}
		select {
		case <-p.progress:
		case <-tick.C:
		case <-ctx.Done():
			return &DrainError{Unacknowledged: p.pending.Load(), Stuck: p.stuck.Load(), Err: context.Cause(ctx)}
		case <-p.ctx.Done():
			return &DrainError{Unacknowledged: p.pending.Load(), Stuck: p.stuck.Load(), Err: errClosed}
		}
	}
}

// gate holds back new requests while the right to publish is in doubt (trap 20).
type gate struct {
	mu     sync.Mutex
	thawed chan struct{} // nil while open
}

// open says whether a request may start.
func (g *gate) open() bool { return g.closed() == nil }

// closed is nil while requests may start, else a channel that closes when they may again.
func (g *gate) closed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.thawed == nil {
		return nil
	}
	return g.thawed
}

// Freeze lets no new request start, retries included, until Thaw (trap 20).
// Requests on their way cannot be called back; their answers still count.
func (p *Publisher) Freeze() {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	if p.gate.thawed == nil {
		p.gate.thawed = make(chan struct{})
	}
}

// Thaw ends a Freeze.
func (p *Publisher) Thaw() {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	if p.gate.thawed != nil {
		close(p.gate.thawed)
		p.gate.thawed = nil
	}
}
