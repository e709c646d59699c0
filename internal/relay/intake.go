package relay

import (
	"context"
	"sync"
	"sync/atomic"
)

// intake is the tap between the stream and the router. While it is shut, the next call
// of the stream blocks: reading stops, feedback goes on, and deliveries can drain.
//
// A stop shuts it for good between two transactions with events of ours, since of one
// that is cut in the middle nothing can be confirmed and all is published again. A halt
// shuts it for good at once. A pause holds it, in either way, until it is released.
type intake struct {
	// look says that pass has to look closer.
	look atomic.Bool
	// link ends, with a cause, when the link is given up.
	link context.Context

	// mu covers the rest.
	mu       sync.Mutex
	shut     bool // at once, for good
	stopping bool // before the next transaction with events of ours, for good
	inside   bool // between the first event of a transaction and its Commit
	held     hold
	released chan struct{} // closed when a hold is taken off; nil where there is none
	between  chan struct{}
	reached  bool // between is closed
}

// hold is how a pause holds the tap.
type hold int

const (
	flowing hold = iota
	// holdBetween shuts it before the next transaction's first event.
	holdBetween
	// holdNow shuts it inside a transaction too.
	holdNow
)

// newIntake makes an open tap. inside says that a transaction with events of ours was
// half received on an earlier link.
func newIntake(link context.Context, inside bool) *intake {
	return &intake{link: link, inside: inside, between: make(chan struct{})}
}

// close shuts the tap at once.
func (i *intake) close() {
	i.mu.Lock()
	i.shut = true
	i.mu.Unlock()
	i.look.Store(true)
}

// stop shuts the tap before the next transaction's first event; the channel is closed
// when the stream is there, or held inside a transaction. It may be called once.
func (i *intake) stop() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stopping = true
	if !i.inside || i.held == holdNow {
		i.arrive()
	}
	return i.between
}

// hold holds the tap for a pause, or lets it flow again.
func (i *intake) hold(h hold) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held = h
	i.look.Store(i.shut || h == holdNow)
	switch {
	case h != flowing && i.released == nil:
		i.released = make(chan struct{})
	case h == flowing && i.released != nil:
		close(i.released)
		i.released = nil
	}
	if h == holdNow && i.stopping {
		i.arrive()
	}
}

// still says that no further event is handed over while the hold lasts.
func (i *intake) still() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.held == holdNow || i.held == holdBetween && !i.inside
}

// enter lets the first event of a transaction in.
func (i *intake) enter() error {
	for {
		i.mu.Lock()
		stay := !i.inside && (i.stopping || i.held != flowing)
		i.inside = i.inside || !stay
		released := i.released
		if i.stopping {
			released = nil // for good
		}
		i.mu.Unlock()
		if !stay {
			return i.pass()
		}
		if err := i.wait(released); err != nil {
			return err
		}
	}
}

// end is the Commit of what enter let in.
func (i *intake) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.inside && i.stopping {
		i.arrive()
	}
	i.inside = false
}

// pass lets a row or a commit in.
func (i *intake) pass() error {
	for i.look.Load() {
		i.mu.Lock()
		shut, held, released := i.shut, i.held, i.released
		i.mu.Unlock()
		switch {
		case shut:
			released = nil // for good
		case held != holdNow:
			return nil
		}
		if err := i.wait(released); err != nil {
			return err
		}
	}
	return nil
}

// wait returns nil when released is closed, or the link's end; nil waits for that alone.
func (i *intake) wait(released <-chan struct{}) error {
	select {
	case <-released:
		return nil
	case <-i.link.Done():
		return context.Cause(i.link)
	}
}

// arrive tells who waits for the stop; mu is held.
func (i *intake) arrive() {
	if !i.reached {
		i.reached = true
		close(i.between)
	}
}
