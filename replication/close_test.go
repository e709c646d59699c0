package replication

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	wire "github.com/postrider/postrider/internal/walsendertest"
)

// trap 7: Close sends the last position, CopyDone and Terminate, also after Run has
// ended, and what was confirmed in between is in it.
func TestCloseSendsTheLastStatus(t *testing.T) {
	t.Parallel()
	s := run(t, send(wire.Begin(0x600, 1), wire.Commit(0x600, 0x700)))
	conn := await(t, "connection", s.conn)
	s.h.until(t, "commit", func() bool { return len(s.h.ends) == 1 })
	stop := errors.New("draining")
	s.cancel(stop)
	wantErr(t, s.end(t), stop)
	s.Confirm(0x700)
	if err := s.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	<-conn.Gone()
	var last wire.Status
	for st := range conn.Statuses() {
		last = st
	}
	if last.Flush != 0x700 || string(conn.Farewell) != "cX" {
		t.Fatalf("last status says %s, then %q", last.Flush, conn.Farewell)
	}
	if err := s.Close(within(t)); err != nil {
		t.Fatalf("second Close: %v", err)
	}
}

// Close does not wait for a handler that blocks, and its status goes out.
func TestCloseWhileTheHandlerBlocks(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := run(t, send(wire.Begin(0x600, 1), wire.Commit(0x600, 0x700)),
		handling(func(r *recorder) { r.onCommit = func(event.LSN) { <-release } }))
	conn := await(t, "connection", s.conn)
	s.h.until(t, "commit", func() bool { return len(s.h.ends) == 1 })
	s.Confirm(0x700)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	var last wire.Status
	for st := range conn.Statuses() {
		last = st
	}
	if last.Flush != 0x700 {
		t.Fatalf("last status says %s", last.Flush)
	}
	close(release)
	if s.end(t) == nil {
		t.Fatal("Run must say that the stream was closed")
	}
}

// trap 20, trap 23: a lost connection is noticed by the writer where nobody reads, and
// by the reader where somebody does.
func TestLostConnection(t *testing.T) {
	t.Parallel()
	t.Run("reading", func(t *testing.T) {
		t.Parallel()
		s := run(t, func(*wire.Conn) {})
		if err := s.end(t); !operr.IsTransient(err) {
			t.Fatalf("got %v, want something transient", err)
		}
	})
	t.Run("blocked", func(t *testing.T) {
		t.Parallel()
		armed, drop := make(chan struct{}), make(chan struct{})
		s := run(t, func(c *wire.Conn) {
			<-armed
			_ = c.XLogData(0, wire.Begin(0x600, 1))
			_ = c.XLogData(0, wire.Commit(0x600, 0x700))
			<-drop
		},
			senderTimeout(300*time.Millisecond))
		release := make(chan struct{})
		s.h.onCommit = func(event.LSN) { <-release }
		close(armed)
		s.h.until(t, "commit", func() bool { return len(s.h.ends) == 1 })
		close(drop)
		select {
		case <-s.Lost():
		case <-time.After(patience):
			t.Fatal("nobody noticed")
		}
		close(release)
		if err := s.end(t); !operr.IsTransient(err) || !strings.Contains(err.Error(), "send standby status") {
			t.Fatalf("got %v", err)
		}
		if err := s.Close(within(t)); err == nil {
			t.Fatal("Close must say that the last status was not sent")
		}
	})
}

func TestRunOnlyOnce(t *testing.T) {
	t.Parallel()
	s := run(t, untilGone)
	await(t, "status", await(t, "connection", s.conn).Statuses())
	if err := s.Run(context.Background(), 1, s.h); err == nil {
		t.Fatal("a second Run was accepted")
	}
}

// Close without Run says good-bye and confirms nothing.
func TestCloseWithoutRun(t *testing.T) {
	t.Parallel()
	conns := make(chan *wire.Conn, 1)
	srv := wire.Start(t, wire.Options{Script: func(c *wire.Conn) { conns <- c; <-c.Gone() }})
	session, err := Connect(within(t), Config{ConnString: srv.ConnString(), Slot: "s", Publications: []string{"p"}})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := session.Start(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	conn := await(t, "connection", conns)
	<-conn.Gone()
	if _, ok := <-conn.Statuses(); ok || string(conn.Farewell) != "cX" {
		t.Fatalf("a status was sent, or the farewell was %q", conn.Farewell)
	}
	if err := stream.Run(context.Background(), 1, newRecorder()); err == nil {
		t.Fatal("Run on a closed stream was accepted")
	}
}
