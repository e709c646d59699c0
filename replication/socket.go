package replication

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// tlsReadAhead is what one read takes for TLS, which asks for a record at a time.
const tlsReadAhead = 128 << 10

// socket is the connection as the dialer made it, below TLS. It is where reads of a busy stream are coalesced
// (rule 22), since only here a byte count says what waits in the kernel. Until stream is called it is a plain connection.
//
// One goroutine reads; deadlines, writes and Close are for any.
type socket struct {
	net.Conn
	wait gatherer // nil where this kind of connection has nothing to wait with

	// Of the reading goroutine.
	drained func() // nil until stream
	sizes   sizes
	pace    pace
	ahead   []byte // read ahead for small reads; nil without TLS
	rest    []byte // of ahead, not handed out yet

	last    atomic.Int64 // when bytes last came, in ns since 1970
	waiting atomic.Bool  // a read is blocked: the handler is not

	mu       sync.Mutex // orders who sets the read deadline
	deadline time.Time  // as the owner set it
}

// gatherer is how one kind of connection lets bytes gather.
type gatherer interface {
	// gather waits for more bytes, a few milliseconds at most. A read right after it ends with the next byte, or at
	// once where some are there.
	gather(s *socket)
	// rest is called before each read that gathers nothing: whatever gather has left set is undone.
	rest()
}

func newSocket(conn net.Conn) *socket {
	s := &socket{Conn: conn, wait: gathererOf(conn)}
	s.last.Store(time.Now().UnixNano())
	return s
}

// stream turns coalescing on. drained is called by the reading goroutine whenever what was read is used up, before
// it asks the kernel for more; messages counts what was taken out of it. underTLS says that reads come in small pieces.
// A nil drained turns it off.
func (s *socket) stream(drained func(), messages *int, underTLS bool) {
	s.drained, s.sizes.messages = drained, messages
	if drained == nil && s.wait != nil {
		s.wait.rest()
	}
	if underTLS && s.ahead == nil {
		s.ahead = make([]byte, tlsReadAhead)
	}
}

// Read implements net.Conn.
func (s *socket) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		if s.ahead == nil || len(p) >= len(s.ahead) {
			return s.fill(p)
		}
		n, err := s.fill(s.ahead)
		if n == 0 {
			return 0, err
		}
		s.rest = s.ahead[:n] // an error comes again
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// fill asks the kernel for bytes, once.
func (s *socket) fill(p []byte) (int, error) {
	streaming, gathered := s.drained != nil, false
	if streaming {
		s.drained()
		gathered = s.gather()
	}
	began := time.Now()
	s.waiting.Store(true)
	n, err := s.Conn.Read(p)
	s.waiting.Store(false)
	if n > 0 {
		now := time.Now()
		s.last.Store(now.UnixNano())
		if streaming {
			s.sizes.bytes += n
			s.pace.read(n, now.Sub(began), gathered)
		}
	}
	return n, err
}

// gather lets bytes gather where that pays, and says whether it did.
func (s *socket) gather() bool {
	if s.wait == nil {
		return false
	}
	if !s.pace.gathers() {
		s.wait.rest()
		return false
	}
	s.wait.gather(s)
	return true
}

// SetReadDeadline implements net.Conn.
func (s *socket) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	return s.Conn.SetReadDeadline(t)
}

// SetDeadline implements net.Conn.
func (s *socket) SetDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	return s.Conn.SetDeadline(t)
}

// limit puts a nearer deadline in the place of the owner's for as long as f runs. It does nothing where the owner's
// is nearer: an interrupt, which sets one in the past, is never covered up.
func (s *socket) limit(d time.Duration, f func() bool) bool {
	if !s.nearer(time.Now().Add(d)) {
		return false
	}
	defer s.restore()
	return f()
}

func (s *socket) nearer(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.deadline.IsZero() && s.deadline.Before(t) {
		return false
	}
	return s.Conn.SetReadDeadline(t) == nil
}

func (s *socket) restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.Conn.SetReadDeadline(s.deadline) // a connection that cannot says so at the read that follows
}

// lastActivity is when bytes last arrived.
func (s *socket) lastActivity() time.Time { return time.Unix(0, s.last.Load()) }

// idle is how long the reader has waited in vain; zero while a handler keeps it.
func (s *socket) idle() time.Duration {
	if !s.waiting.Load() {
		return 0
	}
	return time.Since(s.lastActivity())
}

// sizes knows how large the messages of late were.
type sizes struct {
	messages    *int // counted by their reader
	bytes       int
	counted     int
	sinceBytes  int
	meanOfBatch int
}

// sizesOver is how many messages a mean is taken over.
const sizesOver = 4096

// mean is the mean size of a message, in bytes on the wire; zero until enough were seen.
func (z *sizes) mean() int {
	if n := *z.messages - z.counted; n >= sizesOver {
		z.meanOfBatch = (z.bytes - z.sinceBytes) / n
		z.counted, z.sinceBytes = *z.messages, z.bytes
	}
	return z.meanOfBatch
}
