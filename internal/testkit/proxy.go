package testkit

import (
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// Direction is one way through a proxy.
type Direction int

// The directions, seen from the client.
const (
	Requests Direction = iota // client to server
	Answers                   // server to client
)

// TCPProxy stands between a client and a server and spoils the connection in
// the ways that networks do. Its methods may be called from any goroutine.
//
// A Kafka client goes to the address that a broker advertises: to have it come
// through the proxy, set KafkaOptions.Advertise.
type TCPProxy struct {
	listener net.Listener
	closed   chan struct{}
	wg       sync.WaitGroup

	mu      sync.Mutex // guards everything below; changed wakes who waits for a change of it
	changed *sync.Cond
	target  string
	refuse  bool
	ways    [2]way
	pairs   []*pair
	done    bool
	// accepted counts connections since the start.
	accepted int
}

// way is what happens to the bytes of one direction.
type way struct {
	paused bool
	delay  time.Duration
	// cutNext ends the connection at the next bytes, which are not passed on.
	cutNext bool
	passed  int64
}

// pair is one client's connection and the one to the server.
type pair struct{ client, server net.Conn }

func (p *pair) close() {
	p.client.Close()
	p.server.Close()
}

// Proxy starts one before target ("host:port"); it ends at cleanup.
func Proxy(t testing.TB, target string) *TCPProxy {
	t.Helper()
	return proxyOn(t, "127.0.0.1", target)
}

// ProxyOutside is Proxy at an address that is not the loopback's, as of another machine.
// It skips the test where there is none.
func ProxyOutside(t testing.TB, target string) *TCPProxy {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return proxyOn(t, n.IP.String(), target)
		}
	}
	t.Skip("this machine has no address but the loopback's")
	return nil
}

func proxyOn(t testing.TB, host, target string) *TCPProxy {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	p := &TCPProxy{listener: l, target: target, closed: make(chan struct{})}
	p.changed = sync.NewCond(&p.mu)
	p.wg.Add(1)
	go p.accept()
	t.Cleanup(p.Close)
	return p
}

// Addr is where clients connect.
func (p *TCPProxy) Addr() string { return p.listener.Addr().String() }

// Pause keeps what comes in this direction; connections stay open.
func (p *TCPProxy) Pause(d Direction) { p.change(func() { p.ways[d].paused = true }) }

// Resume passes on what was kept, and goes on.
func (p *TCPProxy) Resume(d Direction) { p.change(func() { p.ways[d].paused = false }) }

// Delay keeps every piece for so long before it goes on; zero ends that.
func (p *TCPProxy) Delay(d Direction, by time.Duration) { p.change(func() { p.ways[d].delay = by }) }

// CutNext ends the connection on which the next bytes of this direction come,
// without passing them on: with Answers, the server has done the work and the
// client does not learn of it. It holds for one connection.
func (p *TCPProxy) CutNext(d Direction) { p.change(func() { p.ways[d].cutNext = true }) }

// Cut ends every open connection. New ones are served.
func (p *TCPProxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pair := range p.pairs {
		pair.close()
	}
}

// Refuse closes new connections as soon as they come, or serves them again.
func (p *TCPProxy) Refuse(yes bool) { p.change(func() { p.refuse = yes }) }

// SetTarget leads new connections elsewhere.
func (p *TCPProxy) SetTarget(target string) { p.change(func() { p.target = target }) }

// Passed counts the bytes that went through in a direction.
func (p *TCPProxy) Passed(d Direction) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ways[d].passed
}

// Accepted counts the connections that clients have made.
func (p *TCPProxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Close ends the proxy and every connection; it may be called twice.
func (p *TCPProxy) Close() {
	p.mu.Lock()
	if !p.done {
		p.done = true
		close(p.closed)
		p.listener.Close()
		for _, pair := range p.pairs {
			pair.close()
		}
		p.changed.Broadcast()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *TCPProxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.changed.Broadcast()
}

func (p *TCPProxy) accept() {
	defer p.wg.Done()
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.wg.Add(1)
		go p.serve(client)
	}
}

// serve connects a client to the server and runs both directions.
func (p *TCPProxy) serve(client net.Conn) {
	defer p.wg.Done()
	p.mu.Lock()
	p.accepted++
	refuse, target := p.refuse, p.target
	p.mu.Unlock()
	if refuse {
		client.Close()
		return
	}
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		client.Close()
		return
	}
	pair := &pair{client: client, server: server}
	if !p.add(pair) {
		return
	}
	defer p.remove(pair)
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		p.pump(pair, server, client, Answers)
	}()
	p.pump(pair, client, server, Requests)
}

func (p *TCPProxy) add(pair *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		pair.close()
		return false
	}
	p.pairs = append(p.pairs, pair)
	return true
}

func (p *TCPProxy) remove(gone *pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pairs = slices.DeleteFunc(p.pairs, func(x *pair) bool { return x == gone })
}

// pump moves bytes one way until either side ends, which ends both.
func (p *TCPProxy) pump(pair *pair, from, to net.Conn, d Direction) {
	defer pair.close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !p.pass(d, n) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until n bytes may go on in a direction; false ends the connection.
func (p *TCPProxy) pass(d Direction, n int) bool {
	p.mu.Lock()
	delay := p.ways[d].delay
	p.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-p.closed:
			return false
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.ways[d].paused && !p.done {
		p.changed.Wait()
	}
	if p.done {
		return false
	}
	if p.ways[d].cutNext {
		p.ways[d].cutNext = false
		return false
	}
	p.ways[d].passed += int64(n)
	return true
}
