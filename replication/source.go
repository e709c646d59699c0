package replication

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// streamSource is the connection as the stream reads it: under a read deadline of
// its own (rule 9: never a context's, which would cut feedback too), with a
// clock for silence. How long bytes may gather before a read is the socket's to decide.
type streamSource struct {
	conn    net.Conn
	socket  *socket
	r       io.Reader // conn below pgconn's background reader, which may hold early bytes
	silence time.Duration
	ctx     context.Context // of Run; ends reading

	armed   time.Time // the read deadline; only the reading goroutine sets it ahead
	closing atomic.Bool
}

func newStreamSource(conn net.Conn, r io.Reader, silence time.Duration) *streamSource {
	return &streamSource{conn: conn, socket: socketOf(conn), r: r, silence: silence, ctx: context.Background()}
}

// socketOf finds the dialer's socket below TLS.
func socketOf(conn net.Conn) *socket {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	return conn.(*socket) // every connection comes from dialer
}

// stream lets reads coalesce; drained is called before each read that may have to wait, messages counts those read. A nil
// drained ends it.
func (s *streamSource) stream(drained func(), messages *int) {
	_, underTLS := s.conn.(*tls.Conn)
	s.socket.stream(drained, messages, underTLS)
}

// Read implements io.Reader. It may fail with os.ErrDeadlineExceeded after half
// a silence to one; nothing is lost then.
func (s *streamSource) Read(p []byte) (int, error) {
	if now := time.Now(); s.armed.Sub(now) < s.silence/2 {
		s.armed = now.Add(s.silence)
		if err := s.conn.SetReadDeadline(s.armed); err != nil {
			return 0, err
		}
	}
	// After the deadline was set, so that an interrupt cannot get lost.
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	if s.closing.Load() {
		return 0, net.ErrClosed
	}
	n, err := s.r.Read(p)
	if err != nil {
		s.armed = time.Time{}
	}
	return n, err
}

// close ends reading; the connection stays open for its owner.
func (s *streamSource) close() {
	s.closing.Store(true)
	s.interrupt()
}

// interrupt wakes a blocked Read; ctx has ended or the stream was closed.
func (s *streamSource) interrupt() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) }

func (s *streamSource) lastActivity() time.Time { return s.socket.lastActivity() }

// idle is how long the reader has waited in vain; zero while a handler keeps it.
func (s *streamSource) idle() time.Duration { return s.socket.idle() }
