package replication

import (
	"bytes"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	wire "github.com/postrider/postrider/internal/walsendertest"
)

// case C21, trap 4, rule 10: the first status is 34 bytes and says write = flush
// = apply = the slot's own position, before anything was confirmed.
func TestFirstStatusRepeatsTheSlot(t *testing.T) {
	t.Parallel()
	s := run(t, untilGone)
	got := await(t, "status", await(t, "connection", s.conn).Statuses())
	want := []byte{'r', 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 5, 0}
	if len(got.Raw) != 34 || !bytes.Equal(got.Raw[:25], want) || got.Raw[33] != 0 {
		t.Fatalf("got % x", got.Raw)
	}
	if sent := fromPGMicros(beUint64(got.Raw[25:])); time.Since(sent).Abs() > time.Minute {
		t.Fatalf("the clock says %s", sent)
	}
}

func beUint64(b []byte) (v uint64) {
	for _, c := range b[:8] {
		v = v<<8 | uint64(c)
	}
	return v
}

// case C21, case C22, trap 3: what was received is confirmed by nobody but
// Confirm, whatever keepalives say, inside of a transaction or between two.
func TestReceivingConfirmsNothing(t *testing.T) {
	t.Parallel()
	s := run(t, func(c *wire.Conn) {
		_ = c.KeepAlive(0x9000, true)
		_ = c.XLogData(0, wire.Begin(0x600, 1))
		_ = c.XLogData(0, outbox("id"))
		_ = c.XLogData(0, row("a"))
		_ = c.KeepAlive(0x9100, true)
		_ = c.XLogData(0, wire.Commit(0x600, 0x700))
		_ = c.KeepAlive(0x9200, true)
		<-c.Gone()
	}, senderTimeout(300*time.Millisecond))
	conn := await(t, "connection", s.conn)
	for range 6 {
		got := await(t, "status", conn.Statuses())
		if got.Write != slotLSN || got.Flush != slotLSN || got.Apply != slotLSN {
			t.Fatalf("status says %s/%s/%s with nothing confirmed", got.Write, got.Flush, got.Apply)
		}
	}
	s.h.until(t, "keepalives", func() bool { return len(s.h.walEnds) == 3 })
}

// trap 1, case C23: exactly what was confirmed goes out, promptly; never less
// than before and never beyond what this stream has brought.
func TestConfirm(t *testing.T) {
	t.Parallel()
	s := run(t, send(wire.Begin(0x600, 1), wire.Commit(0x600, 0x700), wire.Begin(0x700, 2), wire.Commit(0x700, 0x800)))
	conn := await(t, "connection", s.conn)
	await(t, "first status", conn.Statuses())
	s.h.until(t, "two commits", func() bool { return len(s.h.ends) == 2 })
	s.Confirm(0x700)
	if got := await(t, "status", conn.Statuses()); got.Flush != 0x700 || got.Write != 0x700 || got.Apply != 0x700 {
		t.Fatalf("status says %+v", got)
	}
	s.Confirm(0x600) // never falls
	if s.Confirmed() != 0x700 {
		t.Fatalf("the position fell to %s", s.Confirmed())
	}
	s.Confirm(0x900) // the stream has come to 0x800
	if got := await(t, "status", conn.Statuses()); got.Flush != 0x800 {
		t.Fatalf("status says %s, want 0/800", got.Flush)
	}
	if s.Confirmed() != 0x800 {
		t.Fatalf("Confirmed says %s", s.Confirmed())
	}
}

// trap 6, rule 9: a handler that blocks stops reading, and the statuses go on at
// a third of wal_sender_timeout; with input waiting, no answer is asked for.
func TestStatusesGoOnWhileTheHandlerBlocks(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := run(t, send(wire.Begin(0x600, 1), outbox("id"), row("a"), wire.Commit(0x600, 0x700)), senderTimeout(600*time.Millisecond),
		handling(func(r *recorder) { r.onInsert = func(*event.Row) error { <-release; return nil } }))
	conn := await(t, "connection", s.conn)
	last := await(t, "status", conn.Statuses())
	for range 5 {
		got := await(t, "status", conn.Statuses())
		if gap := got.At.Sub(last.At); gap > 500*time.Millisecond {
			t.Fatalf("%s between two statuses", gap)
		}
		last = got
	}
	close(release)
	s.h.until(t, "commit", func() bool { return len(s.h.ends) == 1 })
}

// trap 6: a busy stream reports too.
func TestStatusesGoOnWhileTheStreamIsBusy(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	s := run(t, func(c *wire.Conn) {
		for lsn := event.LSN(0x600); c.XLogData(lsn, wire.Begin(lsn, 1)) == nil && c.XLogData(lsn, wire.Commit(lsn, lsn+0x10)) == nil; lsn += 0x10 {
			select {
			case <-stop:
				<-c.Gone()
				return
			default:
			}
		}
	}, senderTimeout(600*time.Millisecond))
	conn := await(t, "connection", s.conn)
	for range 4 {
		await(t, "status", conn.Statuses())
	}
	close(stop)
}

// rule 1: ten statuses a second at most, whatever the server asks and however
// often the position moves.
func TestStatusRate(t *testing.T) {
	t.Parallel()
	var s *streaming
	ready := make(chan struct{})
	s = run(t, func(c *wire.Conn) {
		<-ready
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for lsn := event.LSN(0x600); ; lsn++ {
			if c.KeepAlive(lsn, true) != nil {
				return
			}
			select {
			case <-tick.C:
			case <-c.Gone():
				return
			}
		}
	}, handling(func(r *recorder) { r.onKeepAlive = func(walEnd event.LSN) { s.Confirm(walEnd) } }))
	close(ready)
	conn := await(t, "connection", s.conn)
	first := await(t, "status", conn.Statuses())
	n := 0
	for got := range conn.Statuses() {
		if got.At.Sub(first.At) > 2*time.Second {
			break
		}
		n++
	}
	if n > 20 || n < 8 {
		t.Fatalf("%d statuses in two seconds", n)
	}
}

// At once when asked, if the last status was some time ago.
func TestReplyAtOnce(t *testing.T) {
	t.Parallel()
	go_ := make(chan struct{})
	s := run(t, func(c *wire.Conn) {
		<-go_
		_ = c.KeepAlive(0x600, true)
		<-c.Gone()
	})
	conn := await(t, "connection", s.conn)
	await(t, "status", conn.Statuses())
	close(go_)
	asked := time.Now()
	if got := await(t, "answer", conn.Statuses()); got.At.Sub(asked) > time.Second {
		t.Fatalf("answered after %s", got.At.Sub(asked))
	}
}
