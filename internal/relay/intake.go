package relay

import (
	"context"
	"sync"
	"sync/atomic"
)

// intake is the tap between the stream and the router. Once it is shut, the next call
// of the stream blocks until the link is given up: reading stops, feedback goes on,
// and deliveries can drain before the last status update.
//
// A stop shuts it between two transactions with events of ours, since of one that is
// cut in the middle nothing can be confirmed and all is published again. A halt shuts
// it at once.
type intake struct {
	shut atomic.Bool // at once
	// link ends, with a cause, when the link is given up.
	link context.Context

	// mu covers the rest.
	mu       sync.Mutex
	stopping bool // shut before the next transaction with events of ours
	inside   bool // between the first event of a transaction and its Commit
	between  chan struct{}
}

// newIntake makes an open tap. inside says that a transaction with events of ours was
// half received on an earlier link.
func newIntake(link context.Context, inside bool) *intake {
	return &intake{link: link, inside: inside, between: make(chan struct{})}
}

// close shuts the tap at once.
func (i *intake) close() { i.shut.Store(true) }

// stop shuts the tap before the next transaction's first event; the channel is closed
// when the stream is there. It may be called once.
func (i *intake) stop() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stopping = true
	if !i.inside {
		close(i.between)
	}
	return i.between
}

// enter lets the first event of a transaction in.
func (i *intake) enter() error {
	i.mu.Lock()
	stay := i.stopping && !i.inside
	i.inside = i.inside || !stay
	i.mu.Unlock()
	if stay {
		return i.wait()
	}
	return i.pass()
}

// end is the Commit of what enter let in.
func (i *intake) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.inside && i.stopping {
		close(i.between)
	}
	i.inside = false
}

// pass lets a row or a commit in.
func (i *intake) pass() error {
	if !i.shut.Load() {
		return nil
	}
	return i.wait()
}

func (i *intake) wait() error {
	<-i.link.Done()
	return context.Cause(i.link)
}
