package relay

import (
	"context"
	"sync/atomic"
)

// intake is the tap between the stream and the router. Once closed, the next call
// of the stream blocks until the link is given up: reading stops, feedback goes on,
// and deliveries can drain before the last status update.
type intake struct {
	closed atomic.Bool
	// link ends, with a cause, when the link is given up.
	link context.Context
}

func (i *intake) close() { i.closed.Store(true) }

func (i *intake) pass() error {
	if !i.closed.Load() {
		return nil
	}
	<-i.link.Done()
	return context.Cause(i.link)
}
