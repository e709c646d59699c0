package replication

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// tcpPair is a connection as the dialer makes it to a far server, with a mark of so many bytes and so much time to
// reach it, and its peer.
func tcpPair(t *testing.T, mark int, limit time.Duration) (*socket, *rcvlowat, net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = conn.Close(), peer.Close() })
	s := newSocket(conn)
	g := farGatherer(t, conn, mark, limit)
	s.wait = g
	if err := s.SetReadDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	s.stream(func() {}, new(int), false)
	return s, g, peer
}

func farGatherer(t *testing.T, conn net.Conn, mark int, limit time.Duration) *rcvlowat {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return &rcvlowat{raw: raw, mark: mark, limit: limit}
}

func mustWrite(t *testing.T, c net.Conn, n int) {
	t.Helper()
	if _, err := c.Write(bytes.Repeat([]byte{'x'}, n)); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, s *socket, want int) {
	t.Helper()
	if n, err := s.Read(make([]byte, 1<<20)); n != want || err != nil {
		t.Fatalf("read %d bytes, want %d (%v)", n, want, err)
	}
}

// rule 22: the reader sleeps until the mark is reached, however many pieces that takes; what is left raised then does
// not keep the first byte of a quiet stream.
func TestMarkIsLoweredWhenGatheringEnds(t *testing.T) {
	t.Parallel()
	s, g, peer := tcpPair(t, 6000, patience)
	s.pace.on = true
	s.drained = func() {
		go func() {
			for range 60 {
				_, _ = peer.Write(make([]byte, 100))
			}
		}()
	}
	mustRead(t, s, 6000)
	if !g.raised {
		t.Fatal("the mark was not set, or lowered with bytes waiting")
	}
	s.drained = func() {}
	s.pace = pace{}
	mustWrite(t, peer, 1)
	mustRead(t, s, 1)
	if g.raised {
		t.Fatal("the mark is still raised")
	}
}

// rule 22: where the mark is not reached in time, less is read, and the next byte too.
func TestMarkIsLoweredWhenTheTimeIsUp(t *testing.T) {
	t.Parallel()
	s, g, peer := tcpPair(t, 1000, gatherFor)
	s.pace.on = true
	mustWrite(t, peer, 10)
	mustRead(t, s, 10)
	go func() { _, _ = peer.Write([]byte{'x'}) }()
	mustRead(t, s, 1)
	if g.raised {
		t.Fatal("the mark is still raised")
	}
}

// rule 22: an end wakes a reader that waits for the mark; what came before it is read first.
func TestEndWakesTheGatherer(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"nothing before it": 0, "bytes before it": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, g, peer := tcpPair(t, 1000, patience)
			began := time.Now()
			s.pace.on = true
			mustWrite(t, peer, before)
			s.drained = func() { go func() { _ = peer.Close() }() }
			if before > 0 {
				mustRead(t, s, before)
				s.pace = pace{}
			}
			if n, err := s.Read(make([]byte, 10)); n != 0 || !errors.Is(err, io.EOF) {
				t.Fatalf("read %d bytes, %v", n, err)
			}
			if time.Since(began) >= patience {
				t.Fatal("only the time limit woke it")
			}
			if g.raised {
				t.Fatal("the mark is still raised")
			}
		})
	}
}

// rule 9, rule 22: an interrupt is a read deadline in the past; the gatherer's own deadline never covers it up,
// wherever it comes.
func TestInterruptIsNotCoveredUp(t *testing.T) {
	t.Parallel()
	s, _, _ := tcpPair(t, 1000, patience)
	for range 300 {
		if err := s.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		start, interrupted := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(interrupted)
			<-start
			_ = s.SetReadDeadline(time.Unix(1, 0))
		}()
		close(start)
		for range 20 {
			s.limit(time.Millisecond, func() bool { return true })
		}
		<-interrupted
		s.limit(time.Millisecond, func() bool { t.Error("waits in spite of the interrupt"); return true })
		if _, err := s.Conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("the interrupt got lost: %v", err)
		}
	}
}

// rule 22: within one machine each read of a busy stretch waits 2 ms, one in 64 of them 10 ms; a burst does not meet
// the long one, however many bursts there were, and large messages gather by the mark.
func TestHolder(t *testing.T) {
	t.Parallel()
	var naps []time.Duration
	var large countingGatherer
	h := &holder{nap: func(d time.Duration) { naps = append(naps, d) }, large: &large}
	messages := 0
	s := &socket{wait: h, drained: func() {}, sizes: sizes{messages: &messages}}
	gather := func(times int) (long int) {
		naps = nil
		for range times {
			s.gather()
		}
		for _, d := range naps {
			if d == nearShut {
				long++
			}
		}
		return long
	}
	s.pace.on = true
	if long := gather(2 * nearShutEvery); len(naps) != 2*nearShutEvery || long != 2 || naps[0] != nearHold {
		t.Fatalf("%d naps, %d of them long, the first of %s", len(naps), long, naps[0])
	}
	for range nearShutEvery {
		s.pace.on = false
		gather(1)
		s.pace.on = true
		if long := gather(nearShutEvery - 1); long != 0 {
			t.Fatal("a burst met the long hold")
		}
	}
	messages, s.sizes.bytes = sizesOver, sizesOver*nearSmall
	if large.gathered != 0 {
		t.Fatalf("%d reads of small messages waited for the mark", large.gathered)
	}
	if gather(nearShutEvery); len(naps) != 0 || large.gathered != nearShutEvery {
		t.Fatalf("%d naps with large messages, %d waits for the mark", len(naps), large.gathered)
	}
}

type countingGatherer struct{ gathered int }

func (g *countingGatherer) gather(*socket) { g.gathered++ }
func (g *countingGatherer) rest()          {}
