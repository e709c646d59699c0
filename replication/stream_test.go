package replication

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	wire "github.com/postrider/postrider/internal/walsendertest"
)

const slotLSN = event.LSN(0x500)

// streaming is a stream against a scripted walsender.
type streaming struct {
	*Stream
	srv    *wire.Server
	h      *recorder
	cancel context.CancelCauseFunc
	conn   chan *wire.Conn
	result chan error
}

// end is Run's result.
func (s *streaming) end(t *testing.T) error { t.Helper(); return await(t, "end of Run", s.result) }

type setupOption func(*Config, *wire.Options, *recorder)

// run starts a stream whose server does what script says; the stream is closed
// at the end of the test.
func run(t *testing.T, script func(*wire.Conn), opts ...setupOption) *streaming {
	t.Helper()
	s := &streaming{h: newRecorder(), conn: make(chan *wire.Conn, 1), result: make(chan error, 1)}
	options := wire.Options{Script: func(c *wire.Conn) { s.conn <- c; script(c) }}
	cfg := Config{Slot: "outbox_slot", Publications: []string{"outbox_pub"}}
	for _, o := range opts {
		o(&cfg, &options, s.h)
	}
	s.srv = wire.Start(t, options)
	cfg.ConnString = s.srv.ConnString()
	session, err := Connect(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if s.Stream, err = session.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	s.cancel = cancel
	go func() { s.result <- s.Run(ctx, slotLSN, s.h) }()
	t.Cleanup(func() {
		cancel(nil)
		_ = s.Close(within(t)) // tests that care call it themselves
	})
	return s
}

func senderTimeout(d time.Duration) setupOption {
	return func(_ *Config, o *wire.Options, _ *recorder) { o.WALSenderTimeout = d }
}

// handling sets the recorder's hooks.
func handling(set func(*recorder)) setupOption {
	return func(_ *Config, _ *wire.Options, r *recorder) { set(r) }
}

func untilGone(c *wire.Conn) { <-c.Gone() }

// send makes a script of messages, which then waits for the client to go.
func send(messages ...[]byte) func(*wire.Conn) {
	return func(c *wire.Conn) {
		for i, m := range messages {
			if c.XLogData(event.LSN(0x1000+i), m) != nil {
				return
			}
		}
		<-c.Gone()
	}
}

// rule 1: three reply requests with the same WAL end within a second mean
// shutdown.
func TestSpinMeansShutdown(t *testing.T) {
	t.Parallel()
	s := run(t, func(c *wire.Conn) {
		for range 3 {
			_ = c.KeepAlive(0x600, true)
		}
		<-c.Gone()
	})
	err := s.end(t)
	wantErr(t, err, ErrServerShutdown)
	if !operr.IsTransient(err) {
		t.Fatal("a shutdown must be transient")
	}
}

// rule 1, the other side: requests that were sent at rest, and only reached us
// together since reading was stopped, are no spin; nor is a moving WAL end.
func TestRequestsThatWaitedAreNoSpin(t *testing.T) {
	t.Parallel()
	s := run(t, func(c *wire.Conn) {
		at := time.Now()
		for i := range 5 {
			_ = c.KeepAliveAt(0x600, true, at.Add(time.Duration(i)*600*time.Millisecond))
		}
		for i := range 5 {
			_ = c.KeepAlive(event.LSN(0x700+i), true)
		}
		<-c.Gone()
	})
	s.h.until(t, "ten keepalives", func() bool { return len(s.h.walEnds) == 10 })
}

func TestSpin(t *testing.T) {
	t.Parallel()
	base := time.Unix(1_000_000, 0)
	ask := func(s *spin, lsn event.LSN, ms ...int) (fired bool) {
		for _, m := range ms {
			fired = s.asked(lsn, base.Add(time.Duration(m)*time.Millisecond))
		}
		return fired
	}
	if !ask(&spin{}, 1, 0, 500, 1000) || ask(&spin{}, 1, 0, 500, 1001) || ask(&spin{}, 1, 0, 1) {
		t.Fatal("three within a second, both ends counted")
	}
	s := &spin{}
	if ask(s, 1, 0, 10) || ask(s, 2, 20) || ask(s, 1, 30, 40) {
		t.Fatal("another WAL end starts anew")
	}
	s = &spin{}
	if ask(s, 1, 0, 5000, 5500) || !ask(s, 1, 6000) {
		t.Fatal("the window slides")
	}
}

// rule 1: 57P01 on the stream is a shutdown, and so is a stream that the server ends.
func TestServerEndsTheStream(t *testing.T) {
	t.Parallel()
	for name, msg := range map[string]pgproto3.BackendMessage{
		"57P01": &pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P01", Message: "terminating connection due to administrator command"},
		"57P03": &pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P03", Message: "the database system is shutting down"},
		"done":  &pgproto3.CopyDone{},
		"over":  &pgproto3.CommandComplete{CommandTag: []byte("COPY 0")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := run(t, func(c *wire.Conn) { _ = c.Send(msg); <-c.Gone() })
			err := s.end(t)
			wantErr(t, err, ErrServerShutdown)
			if !operr.IsTransient(err) {
				t.Fatal("must be transient")
			}
		})
	}
}

// case C34, trap 22: a publication made after the slot ends the stream for good, with
// the order explained.
func TestPublicationMissingOnTheStream(t *testing.T) {
	t.Parallel()
	s := run(t, func(c *wire.Conn) {
		_ = c.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "42704", Message: `publication "p2" does not exist`, Where: "in the change callback"})
		<-c.Gone()
	})
	err := s.end(t)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || operr.IsTransient(err) || !strings.Contains(operr.HintOf(err), "before the slot") {
		t.Fatalf("got %v, hint %q", err, operr.HintOf(err))
	}
}

// rule 7: the notice of version 18 is fatal, in any language; others are not.
func TestSkippedPublicationNotice(t *testing.T) {
	t.Parallel()
	for name, notice := range map[string]*pgproto3.NoticeResponse{
		"english":    {SeverityUnlocalized: "WARNING", Code: "55000", Message: `skipped loading publication "p"`},
		"translated": {SeverityUnlocalized: "WARNING", Code: "55000", Message: `Publikation »p« übersprungen`, Routine: "LoadPublications"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := run(t, func(c *wire.Conn) {
				_ = c.Send(&pgproto3.NoticeResponse{SeverityUnlocalized: "NOTICE", Code: "00000", Message: "harmless"})
				_ = c.Send(&pgproto3.ParameterStatus{Name: "TimeZone", Value: "UTC"})
				_ = c.Send(notice)
				<-c.Gone()
			})
			err := s.end(t)
			wantErr(t, err, ErrPublicationLost)
			if operr.IsTransient(err) {
				t.Fatal("must be final")
			}
		})
	}
}

// case C08: an unknown message ends the stream with its byte and position.
func TestUnknownMessageEndsTheStream(t *testing.T) {
	t.Parallel()
	s := run(t, send(wire.Begin(0x600, 1), []byte("Zebra")))
	err := s.end(t)
	if err == nil || operr.IsTransient(err) || !strings.Contains(err.Error(), `'Z' (0x5A) at LSN 0/1001`) {
		t.Fatalf("got %v", err)
	}
}

func TestMalformedReplicationMessages(t *testing.T) {
	t.Parallel()
	for name, data := range map[string][]byte{
		"empty": {}, "short XLogData": []byte("w123"), "short keepalive": []byte("k123"), "unknown": []byte("x"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := run(t, func(c *wire.Conn) { _ = c.Send(&pgproto3.CopyData{Data: data}); <-c.Gone() })
			var p *ProtocolError
			if err := s.end(t); !errors.As(err, &p) || operr.IsTransient(err) {
				t.Fatalf("got %v", err)
			}
		})
	}
	s := run(t, func(c *wire.Conn) { _ = c.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'}); <-c.Gone() })
	var p *ProtocolError
	if err := s.end(t); !errors.As(err, &p) {
		t.Fatalf("got %v", err)
	}
}

// rule 8: silence is asked about and waited out; only a clear no ends the stream.
// Meanwhile the statuses ask for an answer.
func TestSilence(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	answers := []func() (bool, error){
		func() (bool, error) { return true, nil },
		func() (bool, error) { return false, os.ErrPermission },
		func() (bool, error) { return true, nil },
		func() (bool, error) { return false, nil },
	}
	s := run(t, untilGone, senderTimeout(200*time.Millisecond), func(c *Config, _ *wire.Options, _ *recorder) {
		c.StillOurs = func(context.Context) (bool, error) { return answers[asked.Add(1)-1]() }
	})
	conn := await(t, "connection", s.conn)
	err := s.end(t)
	wantErr(t, err, ErrSlotTaken)
	if !operr.IsTransient(err) || asked.Load() != 4 {
		t.Fatalf("asked %d times, got %v", asked.Load(), err)
	}
	for st := range conn.Statuses() {
		if st.ReplyRequested {
			return
		}
	}
	t.Fatal("no status asked for an answer")
}

// rule 9: a deadline that passes in the middle of a message loses nothing.
func TestDeadlineInTheMiddleOfAMessage(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	s := run(t, func(c *wire.Conn) {
		msg := frame('d', wire.XLogData(0x600, wire.Begin(0x600, 1)))
		for _, part := range [][]byte{msg[:3], msg[3:20], msg[20:]} {
			if c.Raw(part) != nil {
				return
			}
			select {
			case <-asked: // a whole silence
			case <-c.Gone():
				return
			}
		}
		<-c.Gone()
	}, senderTimeout(150*time.Millisecond), func(c *Config, _ *wire.Options, _ *recorder) {
		c.StillOurs = func(context.Context) (bool, error) { asked <- struct{}{}; return true, nil }
	})
	s.h.until(t, "begin", func() bool { return len(s.h.lines) == 1 && s.h.lines[0] == "begin 0/600" })
}

// The lanes are woken before each read that may block, and not between messages
// that have arrived.
func TestInputDrained(t *testing.T) {
	t.Parallel()
	var burst []byte
	for lsn := event.LSN(0x600); lsn < 0x600+100*0x10; lsn += 0x10 {
		burst = append(burst, frame('d', wire.XLogData(lsn, wire.Begin(lsn, 1)))...)
		burst = append(burst, frame('d', wire.XLogData(lsn, wire.Commit(lsn, lsn+0x10)))...)
	}
	s := run(t, func(c *wire.Conn) { _ = c.Raw(burst); <-c.Gone() })
	s.h.until(t, "100 commits and a drained buffer", func() bool { return s.h.drainedAt == 100 })
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	if s.h.drained > 10 {
		t.Fatalf("drained %d times in one burst", s.h.drained)
	}
}

type refuser struct {
	*recorder
	refusals []*event.Refusal
}

func (r *refuser) RowTooLarge(refusal *event.Refusal, rel *event.Relation) error {
	r.refusals = append(r.refusals, refusal)
	if rel.Name == "foreign" {
		return nil
	}
	return refusal
}

// A row above the limit is refused with its position, and not read into memory; the
// handler may pass over a foreign one, whose index stays taken. Other large
// messages are nobody's rows.
func TestRowTooLarge(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("x", 300_000)
	srv := wire.Start(t, wire.Options{Script: send(
		wire.Begin(0x600, 1), outbox("id"), wire.Relation(2, "public", "foreign", "id"),
		[]byte("U"+huge), row("a"), wire.Insert(2, []byte(huge)), row("b"), row(huge))})
	session, err := Connect(within(t), Config{ConnString: srv.ConnString(), Slot: "s", Publications: []string{"p"}, ReadBuffer: 8 << 10, MaxRowBytes: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := session.Start(within(t))
	if err != nil {
		t.Fatal(err)
	}
	h := &refuser{recorder: newRecorder()}
	err = stream.Run(within(t), slotLSN, h)
	var refusal *event.Refusal
	if !errors.As(err, &refusal) || refusal.Reason != event.ReasonTooLarge || refusal.Table != "public.outbox" ||
		refusal.Position != (event.Position{Commit: 0x600, Index: 3}) {
		t.Fatalf("got %v", err)
	}
	wantLines(t, h.lines, "begin 0/600", "relation public.outbox(id)", "insert 0 outbox: id=a",
		"relation public.foreign(id)", "insert 2 outbox: id=b")
	if h.ignored[OpUpdate] != 1 || len(h.refusals) != 2 {
		t.Fatalf("ignored %v, refusals %v", h.ignored, h.refusals)
	}
	if got := len(stream.reader.buf); got > 150_000 {
		t.Fatalf("the read buffer grew to %d bytes", got)
	}
	_ = stream.Close(within(t))
}

// The handler's error ends the stream and comes back as it was, not judged.
func TestHandlerErrorPassesUnchanged(t *testing.T) {
	t.Parallel()
	boom := &net.OpError{Op: "write", Err: errors.New("to somewhere else")}
	s := run(t, send(wire.Begin(0x600, 1), outbox("id"), row("a")),
		handling(func(r *recorder) { r.onInsert = func(*event.Row) error { return boom } }))
	if err := s.end(t); err != error(boom) { //nolint:errorlint // unchanged means the very same
		t.Fatalf("got %v", err)
	}
}
