package reissue

import (
	"slices"
	"sort"
	"sync"

	"github.com/postrider/postrider/publisher"
)

// window holds the events that the saved prefix does not cover: a ring, in the order
// of n. tail counts what entered, prefix what of it is resolved without a gap, saved
// what is durable.
type window struct {
	// room wakes the one that waits to enter; full tells the keeper that half is used. Both are hints.
	room, full chan struct{}

	mu                  sync.Mutex
	ring                []slot
	saved, prefix, tail uint64
	done                int64 // n of the saved prefix
	last                int64 // n that entered last
	refused             int64 // covered by done
	published           int64
	notes               []Note // not saved yet
}

type slot struct {
	n        int64
	resolved bool
}

func newWindow(size int, done, refused int64) *window {
	return &window{
		room: make(chan struct{}, 1), full: make(chan struct{}, 1),
		ring: make([]slot, size), done: done, last: done, refused: refused,
	}
}

func (w *window) at(i uint64) *slot { return &w.ring[i%uint64(len(w.ring))] }

// enter takes an event in; ok is false while there is no room.
func (w *window) enter(n int64) (ok bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n <= w.last {
		return false, errOrder
	}
	used := w.tail - w.saved
	if used >= uint64(len(w.ring)/2) {
		hint(w.full)
	}
	if used == uint64(len(w.ring)) {
		return false, nil
	}
	*w.at(w.tail) = slot{n: n}
	w.tail++
	w.last = n
	return true, nil
}

// acknowledge resolves published events.
func (w *window) acknowledge(runs []publisher.Run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range runs {
		w.settle(int64(r.Txn))
		w.published += int64(r.Count)
	}
}

// resolve resolves an event that is not published.
func (w *window) resolve(n int64, outcome string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, Note{n, outcome})
	w.settle(n)
}

// settle marks an event and lets the prefix grow. mu is held.
func (w *window) settle(n int64) {
	open := int(w.tail - w.prefix)
	i := w.prefix + uint64(sort.Search(open, func(i int) bool { return w.at(w.prefix+uint64(i)).n >= n }))
	if i < w.tail && w.at(i).n == n {
		w.at(i).resolved = true
	}
	for w.prefix < w.tail && w.at(w.prefix).resolved {
		w.prefix++
	}
}

// take gives what is to be saved; changed is false where nothing is.
func (w *window) take() (s Saved, upTo uint64, changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Done, s.Refused = w.done, w.refused
	if w.prefix == w.saved {
		return s, w.saved, false
	}
	s.Done = w.at(w.prefix - 1).n
	for _, note := range w.notes {
		if note.N <= s.Done {
			s.Notes = append(s.Notes, note)
		}
	}
	s.Refused += int64(len(s.Notes))
	return s, w.prefix, true
}

// keep forgets what was saved.
func (w *window) keep(s Saved, upTo uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.saved, w.done, w.refused = upTo, s.Done, s.Refused
	w.notes = slices.DeleteFunc(w.notes, func(n Note) bool { return n.N <= s.Done })
	hint(w.room)
}

// counts are done and refused as they were saved, and what was published in all.
func (w *window) counts() (done, refused, published int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done, w.refused, w.published
}

func hint(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
