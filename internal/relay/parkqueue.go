package relay

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider/parking"
)

const (
	// parkQueueBytes bounds what waits to become durable. While the store cannot be
	// written it fills, and then reading stops as at a full window.
	parkQueueBytes = 16 << 20
	// parkBatch events, and parkBatchBytes, go into one transaction.
	parkBatch      = 500
	parkBatchBytes = 4 << 20
	// parkLook stands behind a lost hint.
	parkLook = 50 * time.Millisecond
)

// parkItem is an event that is to be parked, and its transaction in the ledger.
type parkItem struct {
	event *parking.Event
	txn   uint64
	// late: a lane gave it back, when events behind it may have been parked already.
	// follow: its predecessor may be gone by now.
	late, follow bool
}

// parkQueue holds parked events that are not durable yet, in the order in which they
// came. It outlives links.
type parkQueue struct {
	limit int
	// wake is a hint to the writer, room to those who wait for it.
	wake, room chan struct{}

	mu    sync.Mutex
	items []parkItem
	bytes int
}

func newParkQueue() *parkQueue {
	return &parkQueue{limit: parkQueueBytes, wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put waits for room. The error is the context's cause; the event was not taken then.
func (q *parkQueue) put(ctx context.Context, item parkItem) error {
	for !q.offer(item) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-q.room:
		case <-time.After(parkLook):
		}
	}
	hint(q.wake)
	return nil
}

// offer takes one event of any size into an empty queue.
func (q *parkQueue) offer(item parkItem) bool {
	size := item.event.Size()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes > 0 && q.bytes+size > q.limit {
		return false
	}
	q.items = append(q.items, item)
	q.bytes += size
	return true
}

// head gives the oldest events, which stay until drop.
func (q *parkQueue) head() []parkItem {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, bytes := 0, 0
	for n < len(q.items) && n < parkBatch && (n == 0 || bytes < parkBatchBytes) {
		bytes += q.items[n].event.Size()
		n++
	}
	return q.items[:n:n]
}

// drop forgets the n oldest events.
func (q *parkQueue) drop(n int) {
	q.mu.Lock()
	for i := range n {
		q.bytes -= q.items[i].event.Size()
		q.items[i] = parkItem{}
	}
	if q.items = q.items[n:]; len(q.items) == 0 {
		q.items = nil
	}
	q.mu.Unlock()
	hint(q.room)
}

func (q *parkQueue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) == 0
}

// hint wakes whoever waits; one token is enough.
func hint(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
