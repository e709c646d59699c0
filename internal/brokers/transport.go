package brokers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/postrider/postrider/internal/operr"
)

// Config configures a Transport. Every field but TLS, SASL and OnConnections is required.
type Config struct {
	// Bootstrap are the addresses that are known before any broker has answered, "host:port".
	Bootstrap []string
	// ClientID names us in the brokers' logs and quotas.
	ClientID string
	// TLS is nil for plain text. An empty ServerName becomes the broker's host.
	TLS *tls.Config
	// SASL is nil where brokers ask for no credentials.
	SASL sasl.Mechanism
	// DialTimeout covers TCP, TLS, version negotiation and SASL together.
	DialTimeout time.Duration
	// RequestTimeout covers every request of Control.
	RequestTimeout time.Duration
	// Dial opens a TCP connection.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Transient says whether time may heal what connecting failed with.
	Transient func(error) bool
	// OnConnections is told of connections made (1) and closed (-1), from several goroutines. May be nil.
	OnConnections func(change int)
}

// Transport opens connections to brokers and knows all that are open.
type Transport struct {
	cfg Config

	mu     sync.Mutex
	open   map[*Conn]struct{}
	closed bool
}

// NewTransport does no I/O.
func NewTransport(cfg Config) *Transport {
	if cfg.OnConnections == nil {
		cfg.OnConnections = func(int) {}
	}
	return &Transport{cfg: cfg, open: map[*Conn]struct{}{}}
}

// Conn is one connection with one request at a time.
type Conn struct {
	t    *Transport
	addr string
	pc   *protocol.Conn
	made time.Time
	// tls is nil on a plain connection.
	tls *tls.ConnectionState
	// expires is when the broker wants to see credentials again (KIP-368); zero for never.
	expires time.Time
}

// ErrClosed is what a transport says after CloseAll.
var ErrClosed = errors.New("connections to brokers are closed")

// Dial connects, negotiates TLS, versions and SASL, all within the dial timeout.
func (t *Transport) Dial(ctx context.Context, addr string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.DialTimeout)
	defer cancel()
	nc, err := t.cfg.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, t.dialError("connect to", addr, "check that the address is right and that the broker listens there", err)
	}
	// What follows has the context's deadline and ends at once with it.
	deadline, _ := ctx.Deadline()
	_ = nc.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c, err := t.handshake(ctx, nc, addr)
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	if err := t.register(c); err != nil {
		_ = nc.Close()
		return nil, err
	}
	return c, nil
}

func (t *Transport) handshake(ctx context.Context, nc net.Conn, addr string) (*Conn, error) {
	if t.cfg.TLS != nil {
		var err error
		if nc, err = t.startTLS(ctx, nc, addr); err != nil {
			return nil, t.dialError("negotiate TLS with", addr, "check tls.ca, the certificate's names, and that this port speaks TLS", err)
		}
	}
	c := &Conn{t: t, addr: addr, made: time.Now(), pc: protocol.NewConn(nc, t.cfg.ClientID)}
	if tc, ok := nc.(*tls.Conn); ok {
		state := tc.ConnectionState()
		c.tls = &state
	}
	if err := c.negotiate(); err != nil {
		return nil, t.dialError("negotiate versions with", addr, "check whether the broker's port wants TLS, and that it is Kafka 0.11 or later", err)
	}
	if t.cfg.SASL != nil {
		if err := c.authenticate(ctx); err != nil {
			return nil, t.dialError("authenticate at", addr, "check the SASL mechanism, user name and password", err)
		}
	}
	return c, nil
}

func (t *Transport) dialError(op, addr, hint string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || IsTimeout(err) {
		err = fmt.Errorf("timed out after %s: %w", t.cfg.DialTimeout, err)
	}
	return &operr.Error{
		Class: operr.Kafka, Op: op, Subject: "broker " + addr, Hint: hint, Err: err,
		Transient: t.cfg.Transient(err),
	}
}

// IsTimeout says that err is a deadline that has passed.
func IsTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func (t *Transport) startTLS(ctx context.Context, nc net.Conn, addr string) (net.Conn, error) {
	cfg := t.cfg.TLS
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	tc := tls.Client(nc, cfg)
	return tc, tc.HandshakeContext(ctx)
}

// TLS is what was negotiated, nil on a plain connection.
func (c *Conn) TLS() *tls.ConnectionState { return c.tls }

// negotiate asks for the broker's versions and picks the highest that both sides know.
func (c *Conn) negotiate() error {
	msg, err := c.pc.RoundTrip(new(apiversions.Request))
	if err != nil {
		return err
	}
	res := msg.(*apiversions.Response)
	if res.ErrorCode != 0 {
		return kafka.Error(res.ErrorCode)
	}
	versions := make(map[protocol.ApiKey]int16, len(res.ApiKeys))
	for _, k := range res.ApiKeys {
		key := protocol.ApiKey(k.ApiKey)
		if key == protocol.Produce && (k.MaxVersion < 3 || k.MinVersion > key.MaxVersion()) {
			return fmt.Errorf("broker speaks Produce v%d to v%d, Postrider v3 to v%d", k.MinVersion, k.MaxVersion, key.MaxVersion())
		}
		versions[key] = key.SelectVersion(k.MinVersion, k.MaxVersion)
	}
	c.pc.SetVersions(versions)
	return nil
}

// authenticate runs the SASL exchange.
func (c *Conn) authenticate(ctx context.Context) error {
	host, portText, err := net.SplitHostPort(c.addr)
	if err != nil {
		return err
	}
	port, _ := strconv.Atoi(portText) // Dial has connected to it
	ctx = sasl.WithMetadata(ctx, &sasl.Metadata{Host: host, Port: port})
	msg, err := c.pc.RoundTrip(&saslhandshake.Request{Mechanism: c.t.cfg.SASL.Name()})
	if err != nil {
		return err
	}
	if hs := msg.(*saslhandshake.Response); hs.ErrorCode != 0 {
		return fmt.Errorf("%w (broker offers %v)", kafka.Error(hs.ErrorCode), hs.Mechanisms)
	}
	state, out, err := c.t.cfg.SASL.Start(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.t.cfg.SASL.Name(), err)
	}
	for done := false; !done; {
		challenge, err := c.saslStep(out)
		if err != nil {
			return err
		}
		if done, out, err = state.Next(ctx, challenge); err != nil {
			return fmt.Errorf("%w: %w", kafka.SASLAuthenticationFailed, err)
		}
	}
	return nil
}

func (c *Conn) saslStep(out []byte) ([]byte, error) {
	msg, err := c.pc.RoundTrip(&saslauthenticate.Request{AuthBytes: out})
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		// Old brokers say "no" by hanging up.
		return nil, fmt.Errorf("%w: %w", kafka.SASLAuthenticationFailed, err)
	}
	if err != nil {
		return nil, err
	}
	res := msg.(*saslauthenticate.Response)
	if res.ErrorCode != 0 {
		return nil, fmt.Errorf("%w: %s", kafka.Error(res.ErrorCode), res.ErrorMessage)
	}
	if ms := res.SessionLifetimeMs; ms > 0 {
		// Re-authenticate well before the broker hangs up: a new connection is as good.
		c.expires = time.Now().Add(time.Duration(ms) * time.Millisecond * 8 / 10)
	}
	return res.AuthBytes, nil
}

// RoundTrip sends a request and waits for its answer until the deadline, which
// every request has: without one, a silent broker would hold it for ever.
func (c *Conn) RoundTrip(deadline time.Time, req protocol.Message) (protocol.Message, error) {
	if err := c.pc.SetDeadline(deadline); err != nil {
		return nil, err
	}
	return c.pc.RoundTrip(req)
}

// Stale says that the connection should be replaced before its next use: its
// credentials expire, or it was made before a time from which on all are suspect.
func (c *Conn) Stale(now, suspect time.Time) bool {
	return !c.expires.IsZero() && now.After(c.expires) || c.made.Before(suspect)
}

// Close closes the connection. It may be called twice.
func (c *Conn) Close() {
	_ = c.pc.Close()
	c.t.mu.Lock()
	_, open := c.t.open[c]
	delete(c.t.open, c)
	c.t.mu.Unlock()
	if open {
		c.t.cfg.OnConnections(-1)
	}
}

func (t *Transport) register(c *Conn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	t.open[c] = struct{}{}
	t.cfg.OnConnections(1)
	return nil
}

// CloseAll cuts every connection, whatever is on its way, and lets no new one be made.
func (t *Transport) CloseAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for c := range t.open {
		_ = c.pc.Close()
	}
}

// Interrupt makes the request on its way fail.
func (c *Conn) Interrupt() { _ = c.pc.SetDeadline(time.Unix(1, 0)) }

// RequestError says which request to which broker failed.
func (t *Transport) RequestError(addr string, req protocol.Message, timeout time.Duration, err error) error {
	e := &operr.Error{Class: operr.Kafka, Op: "ask", Subject: fmt.Sprintf("broker %s for %s", addr, req.ApiKey()), Err: err, Transient: true}
	switch {
	case IsTimeout(err):
		e.Err = fmt.Errorf("no answer within %s: %w", timeout, err)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		e.Hint = "the broker hung up: check whether its port wants TLS or SASL"
	}
	return e
}
