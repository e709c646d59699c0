package replication

import (
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	wire "github.com/postrider/postrider/internal/walsendertest"
)

// links are the kinds of connection, by what gathers on them.
var links = map[string]struct {
	far, unix, tls bool
}{
	"far":            {far: true},
	"far under TLS":  {far: true, tls: true},
	"near":           {},
	"near under TLS": {tls: true},
	"Unix socket":    {unix: true},
}

func onEachLink(t *testing.T, test func(t *testing.T, link string)) {
	for name := range links {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, name) })
	}
}

// gathering is a stream that counts as busy from its first byte.
type gathering struct {
	*Stream
	h      *recorder
	spy    *spy
	front  *front // nil without TLS
	cancel context.CancelFunc
	result chan error
	conn   chan *wire.Conn
}

// spy tells when bytes are let gather.
type spy struct {
	gatherer
	times atomic.Int64
	began chan struct{}
}

func (s *spy) gather(k *socket) {
	s.times.Add(1)
	select {
	case s.began <- struct{}{}:
	default:
	}
	s.gatherer.gather(k)
}

// counting counts reads of the kernel.
type counting struct {
	net.Conn
	reads atomic.Int64
}

func (c *counting) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return c.Conn.Read(p)
}

// gather starts a stream over a link whose server does what script says. Its buffer is small: many reads find data.
func gather(t *testing.T, link string, script func(*wire.Conn), hooks ...func(*gathering)) *gathering {
	t.Helper()
	kind := links[link]
	g := &gathering{h: newRecorder(), result: make(chan error, 1), conn: make(chan *wire.Conn, 1)}
	srv := wire.Start(t, wire.Options{Script: func(c *wire.Conn) { g.conn <- c; script(c) }})
	dsn := srv.ConnString()
	switch {
	case kind.unix:
		dsn = unixDSN(t, address(t, srv))
	case kind.tls:
		dsn, g.front = tlsDSN(t, address(t, srv))
	}
	session, err := Connect(within(t), Config{ConnString: dsn, Slot: "outbox_slot", Publications: []string{"outbox_pub"}, ReadBuffer: 16 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if g.Stream, err = session.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	k := g.source.socket
	switch wait := k.wait.(type) {
	case *holder:
		if kind.unix {
			t.Fatal("a Unix socket is held like TCP")
		}
		if kind.far { // a far server cannot be had here
			k.wait = farGatherer(t, k.Conn, gatherMark, gatherFor)
		}
	case pauser:
		if !kind.unix {
			t.Fatal("TCP is read after pauses")
		}
	default:
		t.Fatalf("%s: %T", link, wait)
	}
	g.spy = &spy{gatherer: k.wait, began: make(chan struct{}, 1)}
	k.wait, k.pace.on = g.spy, true
	for _, hook := range hooks {
		hook(g)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	go func() { g.result <- g.Run(ctx, slotLSN, g.h) }()
	t.Cleanup(func() { cancel(); _ = g.Close(within(t)) })
	return g
}

func address(t *testing.T, srv *wire.Server) string {
	t.Helper()
	u, err := url.Parse(srv.ConnString())
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// waitLong makes the far gatherer wait until it is woken, for longer than a test does and less than a silence.
func waitLong(g *gathering) { g.spy.gatherer.(*rcvlowat).limit = 2 * patience }

// transactions are n of one row each, the first at LSN from, as CopyData messages.
func transactions(from event.LSN, n int) (frames [][]byte) {
	for i := range n {
		lsn := from + event.LSN(i*0x10)
		for _, m := range [][]byte{wire.Begin(lsn, 1), outbox("id"), row("some two hundred bytes, nearly"), wire.Commit(lsn, lsn+0x10)} {
			frames = append(frames, frame('d', wire.XLogData(lsn, m)))
		}
	}
	return frames
}

// rule 22: gathering never keeps a change or a keepalive that comes alone: after a busy stretch, a request is
// answered and a single change handed on.
func TestQuietAfterABurst(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, link string) {
		burst, asked := 1000, make(chan event.LSN, 2)
		defer close(asked)
		g := gather(t, link, func(c *wire.Conn) {
			_ = c.Raw(slices.Concat(transactions(0x1000, burst)...))
			_ = c.KeepAlive(<-asked, true)
			_ = c.Raw(slices.Concat(transactions(<-asked, 1)...))
			<-c.Gone()
		}, func(g *gathering) {
			g.h.onCommit = func(event.LSN) { g.source.socket.pace = pace{on: true} } // also where the burst's last reads were thin
		})
		g.h.commits(t, burst)
		conn := await(t, "connection", g.conn)
		await(t, "first status", conn.Statuses())
		asked <- 0x100000
		answered(t, conn)
		asked <- 0x200000
		g.h.commits(t, burst+1)
		if g.spy.times.Load() == 0 {
			t.Fatal("nothing was gathered")
		}
	})
}

// answered waits for a status, for half as long as the timer takes to send one.
func answered(t *testing.T, conn *wire.Conn) {
	t.Helper()
	select {
	case <-conn.Statuses():
	case <-time.After(maxStatusInterval / 2):
		t.Fatal("the request was not answered")
	}
}

// rule 22: a keepalive in the middle of a busy stream is answered.
func TestKeepAliveOnABusyStream(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, link string) {
		ask, stop := make(chan struct{}, 1), make(chan struct{})
		g := gather(t, link, func(c *wire.Conn) {
			defer func() { <-c.Gone() }()
			for lsn := event.LSN(0x1000); c.Raw(slices.Concat(transactions(lsn, 20)...)) == nil; lsn += 0x1000 {
				select {
				case <-ask:
					_ = c.KeepAlive(lsn, true)
				case <-stop:
					return
				default:
				}
			}
		})
		defer close(stop)
		conn := await(t, "connection", g.conn)
		await(t, "first status", conn.Statuses())
		g.h.commits(t, 1000)
		ask <- struct{}{}
		answered(t, conn)
		if g.spy.times.Load() == 0 {
			t.Fatal("nothing was gathered")
		}
	})
}

// rule 22: reads that find data each time turn gathering on by themselves.
func TestABusyStreamGathers(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	g := gather(t, "near", func(c *wire.Conn) {
		defer func() { <-c.Gone() }()
		for lsn := event.LSN(0x1000); c.Raw(slices.Concat(transactions(lsn, 1000)...)) == nil; lsn += 0x10000 {
			select {
			case <-stop:
				return
			default:
			}
		}
	}, func(g *gathering) { g.source.socket.pace = pace{} })
	await(t, "gathering", g.spy.began)
	close(stop)
}

// rule 22: who waits for the mark is woken by the end of Run's context and by Close.
func TestShutdownWhileGathering(t *testing.T) {
	t.Parallel()
	for name, link := range map[string]string{"plain": "far", "TLS": "far under TLS"} {
		t.Run("context, "+name, func(t *testing.T) {
			t.Parallel()
			g := gather(t, link, untilGone, waitLong)
			await(t, "gathering", g.spy.began)
			g.cancel()
			wantErr(t, await(t, "end of Run", g.result), context.Canceled)
		})
		t.Run("Close, "+name, func(t *testing.T) {
			t.Parallel()
			g := gather(t, link, untilGone, waitLong)
			conn := await(t, "connection", g.conn)
			await(t, "gathering", g.spy.began)
			if err := g.Close(within(t)); err != nil {
				t.Fatal(err)
			}
			wantErr(t, await(t, "end of Run", g.result), net.ErrClosed)
			<-conn.Gone()
			if string(conn.Farewell) != "cX" {
				t.Fatalf("farewell %q", conn.Farewell)
			}
		})
	}
}

// Close ends a read that is just about to begin, not only one that is blocked.
func TestCloseBeforeTheRead(t *testing.T) {
	t.Parallel()
	g := gather(t, "near", send(wire.Begin(0x600, 1), wire.Commit(0x600, 0x700)), func(g *gathering) {
		g.h.onCommit = func(event.LSN) {
			g.source.close()
			g.source.armed = time.Time{} // due for a new deadline
		}
	})
	wantErr(t, await(t, "end of Run", g.result), net.ErrClosed)
}

// rule 22: the server hangs up while bytes are gathering; what it has sent before is handed on.
func TestHangUpWhileGathering(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, link string) {
		start := make(chan struct{})
		letGo := sync.OnceFunc(func() { close(start) })
		defer letGo()
		g := gather(t, link, func(c *wire.Conn) {
			<-start
			<-c.Statuses() // closing with unread input would reset the connection, and drop what was sent
			_ = c.Raw(slices.Concat(transactions(0x1000, 3)...))
		})
		await(t, "gathering", g.spy.began)
		letGo()
		if err := await(t, "end of Run", g.result); !operr.IsTransient(err) {
			t.Fatal(err)
		}
		if got := len(g.h.commits(t, 3)); got != 3 {
			t.Fatalf("%d commits", got)
		}
	})
}

// InputDrained comes before each read of the kernel and at no other time: under TLS not for each record.
func TestInputDrainedUnderTLS(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, link string) {
		if !links[link].tls {
			t.Skip("has no records")
		}
		frames := transactions(0x2000, 100)
		kernel, release := &counting{}, make(chan struct{})
		held, letGo := sync.OnceFunc(func() { <-release }), sync.OnceFunc(func() { close(release) })
		defer letGo()
		g := gather(t, link, func(c *wire.Conn) { _ = c.Raw(slices.Concat(transactions(0x1000, 1)...)); <-c.Gone() }, func(g *gathering) {
			kernel.Conn, g.source.socket.Conn = g.source.socket.Conn, kernel
			g.h.onCommit = func(event.LSN) { held() }
		})
		client := await(t, "client", g.front.conns)
		g.h.commits(t, 1)
		g.h.mu.Lock()
		before := g.h.drained
		g.h.mu.Unlock()
		if err := records(client, frames); err != nil {
			t.Fatal(err)
		}
		letGo()
		g.h.until(t, "all commits and a drained input", func() bool { return g.h.drainedAt == 101 })
		g.h.mu.Lock()
		drained := g.h.drained - before
		g.h.mu.Unlock()
		if drained > 8 {
			t.Fatalf("drained %d times in a burst of %d records", drained, len(frames))
		}
		g.cancel()
		if err := await(t, "end of Run", g.result); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if got := kernel.reads.Load(); got != int64(g.h.drained) {
			t.Fatalf("drained %d times, %d reads", g.h.drained, got)
		}
	})
}
