package replication

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// streamSource is the socket as the stream reads it: under a read deadline of
// its own (rule 9: never a context's, which would cut feedback too), with a
// clock for silence. How long bytes may gather before a read is decided here and
// nowhere else: coalesced reads (rule 22) go into Read.
type streamSource struct {
	conn    net.Conn
	r       io.Reader // conn below pgconn's background reader, which may hold early bytes
	silence time.Duration
	ctx     context.Context // of Run; ends reading

	armed   time.Time // the read deadline; only the reading goroutine sets it ahead
	last    atomic.Int64
	waiting atomic.Bool // a read is blocked: the handler is not
	pace    pace
}

func newStreamSource(conn net.Conn, r io.Reader, silence time.Duration) *streamSource {
	s := &streamSource{conn: conn, r: r, silence: silence, ctx: context.Background()}
	s.last.Store(time.Now().UnixNano())
	return s
}

// Read implements io.Reader. It may fail with os.ErrDeadlineExceeded after half
// a silence to one; nothing is lost then.
func (s *streamSource) Read(p []byte) (int, error) {
	now := time.Now()
	if s.armed.Sub(now) < s.silence/2 {
		s.armed = now.Add(s.silence)
		if err := s.conn.SetReadDeadline(s.armed); err != nil {
			return 0, err
		}
	}
	// After the deadline was set, so that an interrupt cannot get lost.
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	if pause := s.pace.pause(); pause > 0 {
		time.Sleep(pause)
		now = time.Now()
	}
	s.waiting.Store(true)
	n, err := s.r.Read(p)
	s.waiting.Store(false)
	if n > 0 {
		arrived := time.Now()
		s.last.Store(arrived.UnixNano())
		s.pace.read(arrived.Sub(now), n, len(p))
	}
	if err != nil {
		s.armed = time.Time{}
	}
	return n, err
}

// interrupt wakes a blocked Read; ctx has ended or the stream was closed.
func (s *streamSource) interrupt() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) }

func (s *streamSource) lastActivity() time.Time { return time.Unix(0, s.last.Load()) }

// idle is how long the reader has waited in vain; zero while a handler keeps it.
func (s *streamSource) idle() time.Duration {
	if !s.waiting.Load() {
		return 0
	}
	return time.Since(s.lastActivity())
}
