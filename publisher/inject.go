package publisher

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/event"
)

// Injected is the first transaction number of events that come by Inject.
const Injected uint64 = 1 << 63

// injectLook is how often an Inject looks for room in a full window.
const injectLook = 5 * time.Millisecond

// Inject is Append for events that do not come from the stream, such as parked ones:
// any goroutine may call it. It goes behind what is in the event's partition already,
// and is sent at once. txn is from Injected on.
func (p *Publisher) Inject(ctx context.Context, msg *event.Message, txn uint64) error {
	need := appendNeeds(msg)
	for !p.window.reserve(need, 0) {
		select {
		case <-time.After(injectLook):
		case <-ctx.Done():
			return fmt.Errorf("inject: window of %d bytes is full: %w", p.window.size, context.Cause(ctx))
		case <-p.ctx.Done():
			return errClosed
		}
	}
	t := p.sharedTopic(msg.Topic)
	p.pending.Add(1)
	t.mu.Lock()
	if t.state != topicOpen {
		used := t.hold(msg, txn)
		t.mu.Unlock()
		p.window.adjust(used - need)
		return nil
	}
	l, grown, refusal := t.place(msg, txn)
	t.mu.Unlock()
	p.window.adjust(int64(grown) - need)
	if refusal != nil {
		p.refuseUnplaced(t, refusal, msg, txn)
		return nil
	}
	l.flush().notify()
	return nil
}
