package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

const (
	// stillOursTimeout bounds the question after the slot's holder.
	stillOursTimeout = 10 * time.Second
	// closeWait bounds waiting for the server to have read the last status.
	closeWait = 2 * time.Second
)

// Stream is a replication connection that streams. One goroutine calls Run;
// Confirm, Confirmed, LastActivity and Lost may be called from any. Close must
// be called, whatever became of Run.
type Stream struct {
	slot      string
	stillOurs func(context.Context) (bool, error)
	log       *zerolog.Logger

	conn     net.Conn
	reader   *wireReader
	source   *streamSource
	feedback *feedback
	spin     spin

	mu      sync.Mutex // covers the fields below
	started bool       // the status timer runs
	running bool       // Run was called
	closed  bool
	err     error         // the first write error
	ran     chan struct{} // closed when Run has returned
	lost    chan struct{} // closed when err is set
}

func newStream(cfg Config, facts serverFacts, conn net.Conn, reader *wireReader) *Stream {
	st := &Stream{
		slot: cfg.Slot, stillOurs: cfg.StillOurs, log: cfg.Log,
		conn: conn, reader: reader, ran: make(chan struct{}), lost: make(chan struct{}),
	}
	silence := facts.walSenderTimeout
	if silence <= 0 {
		silence = defaultSilence
	}
	st.source = newStreamSource(conn, reader.src, silence)
	reader.src = st.source
	st.feedback = newFeedback(conn, statusInterval(cfg.StatusInterval, facts.walSenderTimeout), silence, st.source.idle, st.writeFailed)
	return st
}

// statusInterval is what was asked for, within a third of wal_sender_timeout.
func statusInterval(asked, senderTimeout time.Duration) time.Duration {
	d := maxStatusInterval
	if senderTimeout > 0 {
		d = min(d, senderTimeout/3)
	}
	if asked > 0 {
		d = min(d, asked)
	}
	return d
}

// Run reads until ctx ends, the connection breaks or the handler gives an
// error, and returns the reason. startConfirmed is the slot's
// confirmed_flush_lsn, read after Start: the first status repeats it and none
// is ever lower. It, or Hold, must be called soon after Start, once: the server
// waits for the first status no longer than wal_sender_timeout.
//
// After Run the status timer goes on, so that deliveries can be drained and
// confirmed; Close ends it.
func (st *Stream) Run(ctx context.Context, startConfirmed event.LSN, h Handler) error {
	if err := st.begin(startConfirmed, true); err != nil {
		return err
	}
	defer close(st.ran)
	st.source.ctx = ctx
	defer context.AfterFunc(ctx, st.source.interrupt)()
	st.source.stream(h.InputDrained, &st.reader.messages)
	defer st.source.stream(nil, nil)
	d := newDecoder(&progress{Handler: h, feedback: st.feedback})
	for {
		if err := st.step(ctx, d); err != nil {
			return st.ended(ctx, err)
		}
	}
}

// EarlyError is for a caller that finds, right after Start, that the slot is not
// held by this connection any more: the walsender has ended, and its last words
// wait to be read. It drops what came before them, so that Run is of no use
// afterwards; nil means that the server said nothing before ctx ended.
func (st *Stream) EarlyError(ctx context.Context) error {
	st.source.ctx = ctx
	defer context.AfterFunc(ctx, st.source.interrupt)()
	for {
		kind, body, err := st.reader.Next()
		if err == nil && kind != 'd' {
			err = st.outOfBand(kind, body)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return classify("read stream of", st.subject(), err)
		}
	}
}

// Hold starts the status timer ahead of Run, with the startConfirmed that Run will be
// given: for a caller with work to do first that may take longer than wal_sender_timeout.
func (st *Stream) Hold(startConfirmed event.LSN) error { return st.begin(startConfirmed, false) }

func (st *Stream) begin(startConfirmed event.LSN, run bool) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed || st.running || st.started && !run {
		return &operr.Error{Class: operr.Internal, Op: "run stream", Subject: st.subject(), Err: errors.New("already run or closed")}
	}
	st.running = run
	if st.started {
		return nil
	}
	st.started = true
	st.feedback.floor.Store(uint64(startConfirmed))
	raise(&st.feedback.seen, startConfirmed)
	go st.feedback.run()
	return nil
}

// step reads and handles one message.
func (st *Stream) step(ctx context.Context, d *decoder) error {
	var kind byte
	var body []byte
	err := st.patiently(ctx, func() (err error) {
		kind, body, err = st.reader.Next()
		return err
	})
	if errors.Is(err, errTooLarge) {
		return st.tooLarge(ctx, d, kind)
	}
	if err != nil {
		return err
	}
	if kind == 'd' {
		return st.copyData(d, body)
	}
	return st.outOfBand(kind, body)
}

// patiently repeats a read that timed out while the slot is still ours: a
// walsender may be silent for minutes (rule 8).
func (st *Stream) patiently(ctx context.Context, read func() error) error {
	for {
		err := read()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err := st.silent(ctx); err != nil {
			return err
		}
	}
}

// silent decides what a silence means. Only a clear "no" ends the stream: a
// question that cannot be asked is no answer, and TCP itself finds a dead link.
func (st *Stream) silent(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if st.isClosed() {
		return net.ErrClosed
	}
	if st.stillOurs == nil {
		return nil
	}
	ask, cancel := context.WithTimeout(ctx, stillOursTimeout)
	defer cancel()
	ours, err := st.stillOurs(ask)
	if err == nil && !ours {
		return ErrSlotTaken
	}
	if err != nil {
		st.log.Warn().Err(err).Str("slot", st.slot).Dur("silent_ms", st.source.idle()).
			Msg("the stream is silent and the slot's holder cannot be asked for; waiting")
	}
	return nil
}

// copyData handles XLogData and keepalives.
func (st *Stream) copyData(d *decoder, b []byte) error {
	if len(b) == 0 {
		return &ProtocolError{LSN: d.commit, Problem: "empty CopyData message"}
	}
	switch b[0] {
	case 'w':
		if len(b) < xlogDataHeader {
			return &ProtocolError{LSN: d.commit, Problem: fmt.Sprintf("XLogData of %d bytes", len(b))}
		}
		return d.message(event.LSN(binary.BigEndian.Uint64(b[1:])), b[xlogDataHeader:])
	case 'k':
		return st.keepAlive(d, b)
	default:
		return &ProtocolError{LSN: d.commit, Problem: fmt.Sprintf("unknown replication message %q (0x%02X)", rune(b[0]), b[0])}
	}
}

func (st *Stream) keepAlive(d *decoder, b []byte) error {
	if len(b) != 1+8+8+1 {
		return &ProtocolError{LSN: d.commit, Problem: fmt.Sprintf("keepalive of %d bytes", len(b))}
	}
	walEnd := event.LSN(binary.BigEndian.Uint64(b[1:]))
	reply := b[17] != 0
	if reply && st.spin.asked(walEnd, fromPGMicros(binary.BigEndian.Uint64(b[9:]))) {
		return fmt.Errorf("%w: it keeps asking for the position %s", ErrServerShutdown, walEnd)
	}
	d.h.KeepAlive(walEnd)
	if reply {
		st.feedback.ask()
	}
	return nil
}

// tooLarge handles a message above MaxRowBytes without reading it into memory.
func (st *Stream) tooLarge(ctx context.Context, d *decoder, kind byte) error {
	var size int
	var head []byte
	err := st.patiently(ctx, func() (err error) {
		size, head, err = st.reader.Oversized()
		return err
	})
	if err != nil {
		return err
	}
	if kind != 'd' || len(head) < xlogDataHeader || head[0] != 'w' {
		return &ProtocolError{LSN: d.commit, Problem: fmt.Sprintf("message %q of %d bytes", rune(kind), size)}
	}
	start := event.LSN(binary.BigEndian.Uint64(head[1:]))
	if err := d.oversized(start, size-xlogDataHeader, head[xlogDataHeader:]); err != nil {
		return err
	}
	drop, err := st.reader.Discard()
	for done := false; err == nil && !done; {
		err = st.patiently(ctx, func() (err error) {
			done, err = drop.Step(st.reader)
			return err
		})
	}
	return err
}

// ended gives Run's error its final form.
func (st *Stream) ended(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil && (errors.Is(err, cause) || errors.Is(err, context.Cause(ctx))) {
		return context.Cause(ctx)
	}
	if own := (handlerError{}); errors.As(err, &own) {
		return own.error
	}
	if st.isClosed() {
		err = net.ErrClosed // the server hangs up at our farewell: which of the two is seen first says nothing
	}
	if first := st.writeError(); first != nil {
		err = first // a closed connection is only its echo
	}
	return classify("read stream of", st.subject(), err)
}

func (st *Stream) subject() string { return fmt.Sprintf("slot %q", st.slot) }

// Confirm reports lsn to the server: on the timer, and promptly where less than
// ten statuses a second allow it. It never blocks; a lower position than one
// confirmed before changes nothing.
func (st *Stream) Confirm(lsn event.LSN) { st.feedback.confirm(lsn) }

// Confirmed is the position that the next status carries.
func (st *Stream) Confirmed() event.LSN { return st.feedback.position() }

// LastActivity is when bytes last arrived. A quiet stream is asked for a sign of
// life, so that it stays within a wal_sender_timeout while the link lives and
// reading is not stopped (trap 23).
func (st *Stream) LastActivity() time.Time { return st.source.lastActivity() }

// Lost is closed when a status could not be written: the connection is gone,
// also where nobody reads because a handler blocks (trap 20).
func (st *Stream) Lost() <-chan struct{} { return st.lost }

func (st *Stream) writeFailed(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err == nil {
		st.err = err
		close(st.lost)
	}
}

func (st *Stream) writeError() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.err
}

func (st *Stream) isClosed() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.closed
}

// Close sends the last status, CopyDone and Terminate, and waits (until ctx, at
// most 2 s) for the server to hang up: closing a socket with unread input
// resets it, and the server could lose the status. The error says that the last
// status was not sent; what was confirmed with it will come again. It may be
// called twice.
func (st *Stream) Close(ctx context.Context) error {
	st.mu.Lock()
	if st.closed {
		st.mu.Unlock()
		return nil
	}
	st.closed = true
	started, running := st.started, st.running
	st.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, closeWait)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = st.conn.Close() })() // nothing waits longer, a stuck write neither
	err := st.feedback.finish(started)
	if st.stopped(ctx, running) && err == nil {
		st.awaitHangup()
	}
	_ = st.conn.Close() // all that mattered has been written
	return classify("send last status", st.subject(), err)
}

// stopped interrupts Run and waits for it; false where a handler still blocks.
func (st *Stream) stopped(ctx context.Context, running bool) bool {
	if !running {
		return true
	}
	st.source.close()
	select {
	case <-st.ran:
		return true
	case <-ctx.Done():
		return false
	}
}

// awaitHangup reads until the server has closed, or Close's context has.
func (st *Stream) awaitHangup() {
	if st.conn.SetReadDeadline(time.Time{}) == nil {
		_, _ = io.Copy(io.Discard, st.conn) // any end will do
	}
}
