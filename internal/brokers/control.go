package brokers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/protocol"
)

// Control sends requests that are asked now and then, over one connection a broker,
// one request at a time. It is safe for use from several goroutines.
type Control struct {
	t         *Transport
	bootstrap []string
	timeout   time.Duration

	mu         sync.Mutex // covers what follows; not held over I/O
	links      map[string]*link
	brokers    map[int32]string
	controller int32
	preferred  string // answered last
}

// link is the control connection to one address.
type link struct {
	mu   sync.Mutex // held during a request
	conn *Conn
}

// NewControl does no I/O.
func NewControl(t *Transport) *Control {
	return &Control{
		t: t, bootstrap: t.cfg.Bootstrap, timeout: t.cfg.RequestTimeout,
		links: map[string]*link{}, brokers: map[int32]string{}, controller: -1,
	}
}

// Update notes the brokers that metadata named.
func (c *Control) Update(brokers map[int32]string, controller int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.brokers, c.controller = brokers, controller
}

// Brokers are the addresses that the last metadata named, by broker id. Read only.
func (c *Control) Brokers() map[int32]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.brokers
}

// candidates are all addresses worth asking, the one that answered last first.
func (c *Control) candidates() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	seen := map[string]bool{}
	add := func(addr string) {
		if addr != "" && !seen[addr] {
			seen[addr] = true
			list = append(list, addr)
		}
	}
	add(c.preferred)
	for _, addr := range c.brokers {
		add(addr)
	}
	for _, addr := range c.bootstrap {
		add(addr)
	}
	return list
}

// Ask sends req to any broker that answers. The error joins what each address said.
func (c *Control) Ask(ctx context.Context, req protocol.Message) (protocol.Message, error) {
	var errs []error
	for _, addr := range c.candidates() {
		msg, err := c.askAddr(ctx, addr, req)
		if err == nil {
			c.mu.Lock()
			c.preferred = addr
			c.mu.Unlock()
			return msg, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	if len(errs) == 1 {
		return nil, errs[0]
	}
	return nil, errors.Join(errs...)
}

// AskBroker sends req to one broker.
func (c *Control) AskBroker(ctx context.Context, id int32, req protocol.Message) (protocol.Message, error) {
	c.mu.Lock()
	addr := c.brokers[id]
	c.mu.Unlock()
	if addr == "" {
		return nil, fmt.Errorf("broker %d: %w", id, protocol.ErrNoLeader)
	}
	return c.askAddr(ctx, addr, req)
}

// AskController sends req to the controller, or to any broker where none is known.
func (c *Control) AskController(ctx context.Context, req protocol.Message) (protocol.Message, error) {
	c.mu.Lock()
	id := c.controller
	c.mu.Unlock()
	if id < 0 {
		return c.Ask(ctx, req)
	}
	return c.AskBroker(ctx, id, req)
}

// askAddr sends req to an address. Where the connection had been idle and turns
// out to be closed, it tries once more on a new one: none of these requests does
// harm twice.
func (c *Control) askAddr(ctx context.Context, addr string, req protocol.Message) (protocol.Message, error) {
	c.mu.Lock()
	l := c.links[addr]
	if l == nil {
		l = &link{}
		c.links[addr] = l
	}
	c.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		reused := l.conn != nil
		msg, err := c.exchange(ctx, l, addr, req)
		if err == nil || !reused {
			return msg, err
		}
	}
}

// exchange uses the link's connection, or opens it. l.mu is held.
func (c *Control) exchange(ctx context.Context, l *link, addr string, req protocol.Message) (protocol.Message, error) {
	if l.conn != nil && l.conn.Stale(time.Now(), time.Time{}) {
		l.conn.Close()
		l.conn = nil
	}
	if l.conn == nil {
		conn, err := c.t.Dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		l.conn = conn
	}
	stop := context.AfterFunc(ctx, l.conn.Interrupt)
	defer stop()
	msg, err := l.conn.RoundTrip(time.Now().Add(c.timeout), req)
	if err != nil {
		l.conn.Close()
		l.conn = nil
		return nil, c.t.RequestError(addr, req, c.timeout, err)
	}
	return msg, nil
}
