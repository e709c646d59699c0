package replication

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// gatherMark is how many bytes a busy stream waits for: some 200 events of 200 bytes.
	gatherMark = 64 << 10
	// gatherFor bounds that wait, and so what gathering may add to an event's latency.
	gatherFor = 1500 * time.Microsecond
	// nearBuffer is the receive buffer of a connection within one machine. Linux takes twice as much, and announces a
	// window of 128 KiB.
	nearBuffer = 96 << 10
	// nearHold is how long a reader within one machine lets that window fill; the runtime may make 2 ms of it.
	nearHold = 1500 * time.Microsecond
	// nearShut is how long it holds the window shut where it was found open, at most once in so many reads.
	nearShut      = 10 * time.Millisecond
	nearShutEvery = 16
	// nearFull is what a read brings at least from behind a closed window; one that brings nearLow comes from a sender
	// that would close it if it did not send packet by packet.
	nearFull = nearBuffer
	nearLow  = nearBuffer / 4
	// nearSmall: a window each nearHold (80 MB/s) is more than a sender of smaller messages could send one by one.
	nearSmall = 480
	// unixPause is short: the kernel lets a sender have a few hundred small messages unread on a Unix socket (its send
	// buffer counts each with its overhead), and then blocks it.
	unixPause = 150 * time.Microsecond
	// sleepSlack is what the kernel sleeps longer than it is asked to.
	sleepSlack = 50 * time.Microsecond
)

// tuneDial sets what has to stand before the connection is made: TCP_USER_TIMEOUT, and the buffer of a near one, since
// a window can be kept small only from the first packet on.
func tuneDial(c syscall.RawConn, address string, userTimeout time.Duration) error {
	var set error
	err := c.Control(func(fd uintptr) {
		if userTimeout > 0 {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
		}
		if near(address) { // no connection fails for it: without it reads are only dearer
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, nearBuffer)
		}
	})
	if err != nil {
		return err
	}
	return set
}

func gathererOf(conn net.Conn) gatherer {
	switch c := conn.(type) {
	case *net.UnixConn:
		return pauser(unixPause)
	case *net.TCPConn:
		raw, err := c.SyscallConn()
		if err != nil {
			return nil
		}
		far := &rcvlowat{raw: raw, mark: gatherMark, limit: gatherFor}
		if near(c.RemoteAddr().String()) {
			return &holder{nap: time.Sleep, large: far}
		}
		return far
	}
	return nil
}

// nap sleeps as the kernel does: the runtime's own timers are no finer than a millisecond in a process at rest. For longer
// waits they are the better choice, since they keep no thread in the kernel.
func nap(d time.Duration) {
	if d > sleepSlack {
		ts := unix.NsecToTimespec(int64(d - sleepSlack))
		_ = unix.Nanosleep(&ts, nil) // a signal may end it early
	}
}

// pauser gathers by a pause: on Unix sockets, whose wake-ups no mark holds back.
type pauser time.Duration

func (d pauser) gather(*socket) { nap(time.Duration(d)) }

func (pauser) rest() {}

// holder gathers within one machine. There the sender's own CPU pays for each small packet's way through the whole
// stack, up to our receive queue, whoever is woken; only a closed window makes its next messages join in its send
// queue, and then leave in pieces of up to 64 KiB. So the reader lets its small window fill, and where it finds it open
// on a stream that could fill it, it holds it shut for longer, once: what then joins behind it keeps it shut at the
// reads that follow, while without such a reserve the sender falls back to single packets and, so slowed, stays there
// (docs/decisions/0005). Where messages are large there is little to join, and a window each hold would be a limit: they
// gather by the mark.
//
// The long hold comes late in a busy stretch, so that a burst on a quiet stream does not meet it.
type holder struct {
	nap   func(time.Duration)
	reads int // since the last long hold, or of this stretch
	seen  int // bytes, at the last gathering
	large gatherer
}

func (h *holder) gather(s *socket) {
	if s.sizes.mean() >= nearSmall {
		h.large.gather(s)
		return
	}
	h.large.rest()
	h.nap(h.hold(s.sizes.bytes))
}

// hold is how long to wait, where so many bytes were read in all.
func (h *holder) hold(bytes int) time.Duration {
	got := bytes - h.seen
	h.seen = bytes
	h.reads++
	if h.reads > nearShutEvery && got >= nearLow && got < nearFull {
		h.reads = 0
		return nearShut
	}
	return nearHold
}

func (h *holder) rest() {
	h.reads = 0
	h.large.rest()
}

// rcvlowat gathers by SO_RCVLOWAT (socket(7)): below the mark the kernel does not wake the reader.
//
// Two facts decide its shape [both tried]. A read that does not block returns less than the mark: Go's Read, which tries
// before it waits, would only rarely wait. And with the mark set, less than the mark does not end a blocked read: it
// stays set only where a read finds something at once, and is lowered before any that may have to wait.
type rcvlowat struct {
	raw    syscall.RawConn
	mark   int
	limit  time.Duration
	raised bool
}

func (g *rcvlowat) gather(s *socket) {
	if g.set(g.mark) && !s.limit(g.limit, g.await) {
		g.rest()
	}
}

func (g *rcvlowat) rest() { g.set(1) }

// await blocks until the mark is reached, the peer has closed, or the read deadline; the runtime's poller may also
// hold a wake-up from before. It says whether there is something to read.
//
// The kernel is asked first, with its own measure: an end that came before the wait wakes nobody any more.
func (g *rcvlowat) await() bool {
	asked, queued := false, uint32(0)
	err := g.raw.Read(func(fd uintptr) bool {
		n, failed := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		done := asked || failed != nil || n > 0
		asked = true
		if done {
			queued, _ = unix.IoctlGetUint32(int(fd), unix.TIOCINQ) // a C int; an end has none
		}
		return done
	})
	return err == nil && queued > 0
}

// set sets the mark; false where it stays as it was.
func (g *rcvlowat) set(mark int) bool {
	raise := mark > 1
	if raise == g.raised {
		return true
	}
	var failed error
	err := g.raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, mark)
	})
	if err != nil || failed != nil {
		return false
	}
	g.raised = raise
	return true
}
