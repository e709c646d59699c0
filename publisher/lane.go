package publisher

import (
	"sync"
	"time"

	"github.com/postrider/postrider/event"
)

// laneState says who has to act next on a lane.
type laneState uint8

const (
	// laneIdle: nothing is on its way; an open batch may collect.
	laneIdle laneState = iota
	// laneReady: queued at the sender of its leader.
	laneReady
	// laneSending: a worker of a sender owns flight, producer state and failures.
	laneSending
	// laneWaiting: backs off until its timer fires or its leader moves.
	laneWaiting
	// laneHomeless: wants to send and has no leader.
	laneHomeless
	// laneStopped: stands at a refused record, or acknowledged data is lost. Final.
	laneStopped
)

// lane is one partition: the batches that wait in order, and the one that is
// in flight, re-sent unchanged until it is acknowledged or refused (trap 14).
//
//	append -> queue (last one open) -> flight -> acknowledged
//	                                     ^  |
//	                                     +--+ same bytes again
type lane struct {
	p         *Publisher
	topic     *topic
	partition int32

	// dirty belongs to the appending goroutine: it is in the list of lanes to wake.
	dirty bool

	// mu covers all below. It is taken after topic.mu and before sender.mu,
	// and never held over I/O or a callback.
	mu       sync.Mutex
	state    laneState
	leader   int32 // broker id; -1: none known
	queuedAt *sender
	queue    []*batch
	// flushed: the open batch is to be sent although it is not full.
	flushed bool
	// alone: the partition is slow, or has a question to ask first: it shares no request.
	alone    bool
	retryAt  time.Time
	onLeader bool // waits because of its leader: a new one ends the waiting
	timer    *time.Timer
	events   int64 // appended and neither acknowledged nor refused

	// Owned by the worker while laneSending, else covered by mu.
	flight   *batch
	producer producerState
	failures int
	auth     grace
}

// add copies msg into the open batch and gives the change of memory held. A
// batch that it closes wakes the sender.
func (l *lane) add(msg *event.Message, txn uint64, limit int) (grown int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var (
		open   *batch
		closed bool
	)
	if n := len(l.queue); n > 0 {
		open = l.queue[n-1]
	}
	if open == nil || open.full(msg, limit) {
		if open != nil {
			open.sealed, closed = true, true
		}
		open = newBatch()
		open.attributes = l.p.session.attributes()
		l.queue = append(l.queue, open)
	}
	open.add(msg, txn)
	l.events++
	before := open.reserved
	open.reserved = open.capacity()
	if open.wireSize() >= limit {
		open.sealed, closed = true, true
	}
	if l.state == laneStopped {
		l.p.stuck.Add(1)
	} else if closed {
		l.kick().notify()
	}
	return open.reserved - before
}

// flush lets the open batch go. It gives the sender to notify: whoever flushes
// many lanes does so once they are all queued, so that they share a request.
func (l *lane) flush() *sender {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) > 0 {
		l.flushed = true
	}
	return l.kick()
}

// sendable says that there is a batch to send. mu is held.
func (l *lane) sendable() bool {
	return l.flight != nil || len(l.queue) > 1 || len(l.queue) == 1 && (l.flushed || l.queue[0].sealed)
}

// kick queues an idle lane at its leader's sender if it has something to send,
// and gives that sender; nil where nothing was queued. mu is held.
func (l *lane) kick() *sender {
	if l.state != laneIdle || !l.sendable() {
		return nil
	}
	s := l.p.sender(l.leader)
	if s == nil {
		l.state = laneHomeless
		l.p.wantMetadata()
		return nil
	}
	l.state, l.queuedAt = laneReady, s
	s.push(l, l.alone)
	return s
}

// setLeader notes what metadata say and moves a lane that waits for it.
func (l *lane) setLeader(leader int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	moved := leader != l.leader
	l.leader = leader
	switch {
	case l.state == laneHomeless && leader >= 0,
		moved && l.state == laneReady,
		moved && leader >= 0 && l.state == laneWaiting && l.onLeader:
		l.state, l.queuedAt = laneIdle, nil
		l.kick().notify()
	}
}

// nextSize is about how many bytes the next batch adds to a request.
func (l *lane) nextSize() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state != laneReady:
		// It has moved on since it was queued; its flight is another worker's.
		return 0
	case l.flight != nil:
		return l.flight.wireSize()
	case len(l.queue) > 0:
		return l.queue[0].wireSize()
	}
	return 0
}

// take gives the lane to a worker of s. It says no where the lane has moved on
// since it was queued.
func (l *lane) take(s *sender) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != laneReady || l.queuedAt != s {
		return false
	}
	l.state, l.queuedAt = laneSending, nil
	if l.flight == nil {
		l.flight = l.pop()
	}
	return true
}

// pop takes the head of the queue. mu is held.
func (l *lane) pop() *batch {
	b := l.queue[0]
	n := copy(l.queue, l.queue[1:])
	l.queue[n] = nil
	l.queue = l.queue[:n]
	if n == 0 {
		l.flushed = false
	}
	b.sealed = true
	return b
}

// putBack returns a lane that was taken and not sent. alone makes it travel by itself.
func (l *lane) putBack(alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alone = l.alone || alone
	l.state = laneIdle
	l.kick().notify()
}

// settle ends a flight that was acknowledged and lets the next batch go. It gives
// the sender to notify: the worker that settles goes on with its own.
func (l *lane) settle(slow bool) *sender {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events -= int64(l.flight.count)
	l.flight = nil
	l.failures = 0
	l.auth.clear()
	l.alone = slow
	l.state, l.onLeader = laneIdle, false
	return l.kick()
}

// replace puts other batches in the place of the flight, in order.
func (l *lane) replace(parts ...*batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flight = parts[0]
	l.queue = append(append([]*batch(nil), parts[1:]...), l.queue...)
}

// wait backs off: the same batch again after the pause. Where the leader (via)
// was to blame, a new one ends the waiting.
func (l *lane) wait(pause time.Duration, via int32, onLeader, alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alone = l.alone || alone
	if onLeader && l.leader != via {
		l.state = laneIdle
		l.kick().notify()
		return
	}
	l.state, l.onLeader = laneWaiting, onLeader
	l.retryAt = time.Now().Add(pause)
	if l.timer == nil {
		l.timer = time.AfterFunc(pause, l.wake)
	} else {
		l.timer.Reset(pause)
	}
}

// wake ends a back-off. A timer that fires for an earlier one does nothing.
func (l *lane) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == laneWaiting && !time.Now().Before(l.retryAt) {
		l.state = laneIdle
		l.kick().notify()
	}
}

// stop ends the lane for good. Its events count as stuck. Why was reported before,
// so that whoever finds events stuck has been told.
func (l *lane) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == laneStopped {
		return
	}
	l.state = laneStopped
	l.p.stopped.Add(1)
	l.p.stuck.Add(l.events)
	l.p.progressed()
}

// empty says that nothing of the partition is unacknowledged.
func (l *lane) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events == 0
}

// halt stops the timer; the publisher is closing.
func (l *lane) halt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
}
