package publisher

import (
	"sync"
)

// window bounds the memory of events that are not acknowledged. It counts the
// capacity of buffers, not the length of what is in them.
type window struct {
	size int64
	// released wakes the one appender that waits; a hint.
	released chan struct{}

	mu   sync.Mutex
	used int64
}

func newWindow(size int) *window {
	return &window{size: int64(size), released: make(chan struct{}, 1)}
}

// reserve takes n bytes if they fit. Where nothing is in use but what the
// caller holds already (own), any n fits: one event larger than the window
// must pass, alone.
func (w *window) reserve(n, own int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.used+n > w.size && w.used > own {
		return false
	}
	w.used += n
	return true
}

// adjust takes or gives back what a batch turned out to need: n may be
// negative. It never waits; it serves splitting and compressing, whose excess is
// bounded by one batch.
func (w *window) adjust(n int64) {
	w.mu.Lock()
	w.used += n
	w.mu.Unlock()
	if n < 0 {
		select {
		case w.released <- struct{}{}:
		default:
		}
	}
}

// inUse is the number of bytes reserved.
func (w *window) inUse() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used
}
