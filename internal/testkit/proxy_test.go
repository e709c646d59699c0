package testkit_test

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postrider/postrider/internal/testkit"
)

// echo is a server that sends back what it gets and counts it.
func echo(t *testing.T) (addr string, received chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	received = make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 100)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					received <- string(buf[:n])
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String(), received
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func say(t *testing.T, c net.Conn, s string) {
	t.Helper()
	_, err := c.Write([]byte(s))
	require.NoError(t, err)
}

func hear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	buf := make([]byte, len(want))
	_, err := io.ReadFull(c, buf)
	require.NoError(t, err)
	require.Equal(t, want, string(buf))
}

func silent(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "the connection stays open and silent")
}

func ended(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection ends, it does not hang")
}

func TestProxyPausesEachDirection(t *testing.T) {
	t.Parallel()
	for _, d := range []testkit.Direction{testkit.Requests, testkit.Answers} {
		addr, received := echo(t)
		p := testkit.Proxy(t, addr)
		c := dial(t, p.Addr())
		say(t, c, "one")
		hear(t, c, "one")
		require.Equal(t, "one", <-received)
		p.Pause(d)
		say(t, c, "two")
		silent(t, c)
		require.Len(t, received, int(d), "only a paused answer lets the request through")
		p.Resume(d)
		hear(t, c, "two")
	}
}

func TestProxyDelays(t *testing.T) {
	t.Parallel()
	addr, _ := echo(t)
	p := testkit.Proxy(t, addr)
	c := dial(t, p.Addr())
	p.Delay(testkit.Answers, 80*time.Millisecond)
	began := time.Now()
	say(t, c, "late")
	hear(t, c, "late")
	require.GreaterOrEqual(t, time.Since(began), 80*time.Millisecond)
}

func TestProxyCutsAndServesAgain(t *testing.T) {
	t.Parallel()
	addr, _ := echo(t)
	p := testkit.Proxy(t, addr)
	c := dial(t, p.Addr())
	say(t, c, "one")
	hear(t, c, "one")
	p.Cut()
	ended(t, c)
	p.Refuse(true)
	ended(t, dial(t, p.Addr()))
	p.Refuse(false)
	again := dial(t, p.Addr())
	say(t, again, "two")
	hear(t, again, "two")
	require.Equal(t, 3, p.Accepted())
}

func TestProxyLosesOneAnswerAfterTheWorkIsDone(t *testing.T) {
	t.Parallel()
	addr, received := echo(t)
	p := testkit.Proxy(t, addr)
	c := dial(t, p.Addr())
	p.CutNext(testkit.Answers)
	say(t, c, "done")
	ended(t, c)
	require.Equal(t, "done", <-received)
	again := dial(t, p.Addr())
	say(t, again, "two")
	hear(t, again, "two")
}
