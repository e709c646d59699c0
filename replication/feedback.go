package replication

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/event"
)

const (
	// minStatusGap keeps statuses below 10 a second, ever: a server that is
	// shutting down answers each one with the next request (rule 1).
	minStatusGap = 125 * time.Millisecond
	// statusWriteTimeout is the single writer's own deadline (rule 9). A status
	// is 39 bytes: where they do not fit the send buffer the link is dead.
	statusWriteTimeout = 15 * time.Second
	// statusLen is the body of a standby status update: 'r', write, flush,
	// apply, clock, reply flag.
	statusLen = 1 + 8 + 8 + 8 + 8 + 1
)

// feedback is the only writer on a streaming connection. Its timer runs
// whether or not anything arrives or is delivered (trap 6).
type feedback struct {
	conn     net.Conn
	interval time.Duration // longest pause between two statuses
	silence  time.Duration // without input for half of it, the status asks for an answer
	idle     func() time.Duration
	fail     func(error) // called once, with the first write error

	floor     atomic.Uint64 // the slot's position at the start: nothing lower is ever sent
	confirmed atomic.Uint64 // what Confirm was told
	seen      atomic.Uint64 // how far this stream has come; confirmed is clamped to it
	asked     atomic.Bool   // the server waits for a status
	wake      chan struct{}
	stop      chan struct{}
	done      chan struct{}

	mu       sync.Mutex // covers writing to conn and the fields below
	broken   bool
	lastSent time.Time
	lastLSN  event.LSN
}

func newFeedback(conn net.Conn, interval, silence time.Duration, idle func() time.Duration, fail func(error)) *feedback {
	return &feedback{
		conn: conn, interval: interval, silence: silence, idle: idle, fail: fail,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// raise lifts a to at least v.
func raise(a *atomic.Uint64, v event.LSN) (raised bool) {
	for {
		old := a.Load()
		if uint64(v) <= old {
			return false
		}
		if a.CompareAndSwap(old, uint64(v)) {
			return true
		}
	}
}

// confirm takes a new position; it never blocks and never lowers.
func (f *feedback) confirm(lsn event.LSN) {
	if raise(&f.confirmed, lsn) {
		f.nudge()
	}
}

// ask records that the server wants a status now.
func (f *feedback) ask() {
	f.asked.Store(true)
	f.nudge()
}

func (f *feedback) nudge() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// position is what the next status says. A position that this stream has not
// come to is not confirmed on it, whoever asked: the server would take it.
func (f *feedback) position() event.LSN {
	return event.LSN(max(f.floor.Load(), min(f.confirmed.Load(), f.seen.Load())))
}

// run sends the first status, which repeats the slot's own position, and then
// one per interval, or sooner where there is news.
func (f *feedback) run() {
	defer close(f.done)
	if f.send(event.LSN(f.floor.Load())) != nil {
		return
	}
	timer := time.NewTimer(f.wait())
	defer timer.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-f.wake:
		case <-timer.C:
		}
		wait := f.wait()
		if wait <= 0 {
			if f.send(f.position()) != nil {
				return
			}
			wait = f.wait()
		}
		timer.Reset(wait)
	}
}

// wait is the time until the next status is due.
func (f *feedback) wait() time.Duration {
	pause := f.interval
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asked.Load() || f.position() != f.lastLSN {
		pause = min(pause, minStatusGap)
	}
	return time.Until(f.lastSent.Add(pause))
}

// send writes one status.
func (f *feedback) send(lsn event.LSN) error {
	f.asked.Store(false)
	frame := appendStatus(make([]byte, 0, messageHeader+statusLen), lsn, time.Now(), f.idle() >= f.silence/2)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.write(frame); err != nil {
		return err
	}
	f.lastSent, f.lastLSN = time.Now(), lsn
	return nil
}

// write puts bytes on the wire; f.mu is held. After an error a message may be
// cut in the middle, so that the connection is of no more use.
func (f *feedback) write(frame []byte) error {
	if f.broken {
		return net.ErrClosed
	}
	err := f.conn.SetWriteDeadline(time.Now().Add(statusWriteTimeout))
	if err == nil {
		_, err = f.conn.Write(frame)
	}
	if err != nil {
		f.broken = true
		_ = f.conn.Close() // the write error is the one to report
		f.fail(fmt.Errorf("send standby status: %w", err))
	}
	return err
}

// finish ends the timer and says good-bye: the last status, so that nothing
// acknowledged is replayed (trap 7), CopyDone, Terminate. started tells that run was.
func (f *feedback) finish(started bool) error {
	var frame []byte
	if started {
		close(f.stop)
		<-f.done
		frame = appendStatus(frame, f.position(), time.Now(), false)
	}
	frame = append(frame, 'c', 0, 0, 0, 4, 'X', 0, 0, 0, 4)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.write(frame)
}

// appendStatus appends a CopyData message with a standby status update. Write,
// flush and apply are always the same and always set: a client that leaves
// flush zero to say "nothing yet" is at the mercy of its library (trap 4), and
// write must not run ahead of what may become flush (case C21).
func appendStatus(b []byte, lsn event.LSN, now time.Time, wantReply bool) []byte {
	b = append(b, 'd')
	b = binary.BigEndian.AppendUint32(b, 4+statusLen)
	b = append(b, 'r')
	for range 3 {
		b = binary.BigEndian.AppendUint64(b, uint64(lsn))
	}
	b = binary.BigEndian.AppendUint64(b, toPGMicros(now))
	if wantReply {
		return append(b, 1)
	}
	return append(b, 0)
}
