package receipts

import (
	"sync"

	"github.com/postrider/postrider/publisher"
)

// Buffer is the memory that receipts may take before they are written: some 80,000 events
// with ids of 36 characters.
const Buffer = 8 << 20

// queue is what waits to be written, in the order in which it came. Its channels are
// hints: some waits, and half of the room is used.
type queue struct {
	some, half chan struct{}

	mu     sync.Mutex
	limit  int
	size   int
	closed bool
	list   []*publisher.Delivery
}

func newQueue(limit int) *queue {
	return &queue{some: make(chan struct{}, 1), half: make(chan struct{}, 1), limit: limit}
}

// put takes d in, or says no: then it is still the caller's.
func (q *queue) put(d *publisher.Delivery) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.size+d.Size() > q.limit {
		return false
	}
	q.list = append(q.list, d)
	q.size += d.Size()
	hint(q.some)
	if q.size > q.limit/2 {
		hint(q.half)
	}
	return true
}

// first gives the oldest, of about as many events as asked for. They stay in the queue,
// until drop.
func (q *queue) first(events int) []*publisher.Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for have := 0; n < len(q.list) && have < events; n++ {
		have += q.list[n].Count
	}
	return q.list[:n:n]
}

// drop takes the n oldest out, and gives their memory back.
func (q *queue) drop(n int) {
	q.mu.Lock()
	gone := q.list[:n:n]
	for _, d := range gone {
		q.size -= d.Size()
	}
	if q.list = q.list[n:]; len(q.list) == 0 {
		q.list = nil
	}
	q.mu.Unlock()
	for i, d := range gone {
		d.Release()
		gone[i] = nil
	}
}

// close lets nothing more in, and gives the number of events that it still held.
func (q *queue) close() (left int) {
	q.mu.Lock()
	q.closed = true
	n := len(q.list)
	for _, d := range q.list {
		left += d.Count
	}
	q.mu.Unlock()
	q.drop(n)
	return left
}

func hint(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
