package replication

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
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

// rule 22: within one machine a read of a busy stretch waits 1.5 ms. One that found the window open waits 10 ms, where the
// sender could fill it, and no more than once in 16: not in a burst, not behind a closed window, not on a stream of little.
// Large messages gather by the mark.
func TestHolder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ each, long int }{
		"the window was open":    {nearFull - 1, 3},
		"as little as counts":    {nearLow, 3},
		"the window was closed":  {nearFull, 0},
		"a stream of too little": {nearLow - 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			naps, large := napsOf(3*(nearShutEvery+1), tc.each)
			long := 0
			for i, d := range naps {
				if d == nearShut {
					long++
				}
				if d != nearShut && d != nearHold || long > 0 && i < nearShutEvery {
					t.Fatalf("nap %d: %s", i, d)
				}
			}
			if len(naps) != 3*(nearShutEvery+1) || long != tc.long || large != 0 {
				t.Fatalf("%d naps, %d of them long, want %d; %d waits for the mark", len(naps), long, tc.long, large)
			}
		})
	}
}

// rule 22: where messages are large, nothing joins behind a window: no read is held.
func TestLargeMessagesAreNotHeld(t *testing.T) {
	t.Parallel()
	var naps []time.Duration
	s, large := heldSocket(&naps)
	*s.sizes.messages, s.sizes.bytes = sizesOver, sizesOver*nearSmall
	for range nearShutEvery {
		s.gather()
	}
	if len(naps) != 0 || large.gathered != nearShutEvery {
		t.Fatalf("%d naps with large messages, %d waits for the mark", len(naps), large.gathered)
	}
}

// A burst after a rest counts anew: however many there were, none meets the long hold.
func TestBurstsMeetNoLongHold(t *testing.T) {
	t.Parallel()
	var naps []time.Duration
	s, _ := heldSocket(&naps)
	for range nearShutEvery {
		s.pace.on = false
		s.gather()
		s.pace.on = true
		for range nearShutEvery {
			s.sizes.bytes += nearLow
			s.gather()
		}
	}
	if slices.Contains(naps, nearShut) {
		t.Fatal("a burst met the long hold")
	}
}

// napsOf gathers so many times, with so many bytes read before each.
func napsOf(times, each int) (naps []time.Duration, large int) {
	s, l := heldSocket(&naps)
	for range times {
		s.sizes.bytes += each
		s.gather()
	}
	return naps, l.gathered
}

// heldSocket is a near one on a busy stream; its naps are noted, not taken.
func heldSocket(naps *[]time.Duration) (*socket, *countingGatherer) {
	large := &countingGatherer{}
	h := &holder{nap: func(d time.Duration) { *naps = append(*naps, d) }, large: large}
	s := &socket{wait: h, drained: func() {}, sizes: sizes{messages: new(int)}}
	s.pace.on = true
	return s, large
}

type countingGatherer struct{ gathered int }

func (g *countingGatherer) gather(*socket) { g.gathered++ }
func (g *countingGatherer) rest()          {}
