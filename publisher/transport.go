package publisher

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

// transport opens connections to brokers and knows all that are open. Why it
// exists beside kafka-go's own: docs/decisions/0001-own-transport.md.
type transport struct {
	clientID    string
	tls         *tls.Config
	sasl        sasl.Mechanism
	dialTimeout time.Duration
	dialTCP     func(ctx context.Context, network, address string) (net.Conn, error)
	metrics     *metrics

	mu     sync.Mutex
	open   map[*conn]struct{}
	closed bool
}

// conn is one connection with one request at a time.
type conn struct {
	t    *transport
	addr string
	pc   *protocol.Conn
	made time.Time
	// expires is when the broker wants to see credentials again (KIP-368); zero for never.
	expires time.Time
}

var errTransportClosed = errors.New("publisher is closed")

// dial connects, negotiates TLS, versions and SASL, all within the dial timeout.
func (t *transport) dial(ctx context.Context, addr string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.dialTimeout)
	defer cancel()
	nc, err := t.dialTCP(ctx, "tcp", addr)
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

func (t *transport) handshake(ctx context.Context, nc net.Conn, addr string) (*conn, error) {
	if t.tls != nil {
		var err error
		if nc, err = t.startTLS(ctx, nc, addr); err != nil {
			return nil, t.dialError("negotiate TLS with", addr, "check tls.ca, the certificate's names, and that this port speaks TLS", err)
		}
	}
	c := &conn{t: t, addr: addr, made: time.Now(), pc: protocol.NewConn(nc, t.clientID)}
	if err := c.negotiate(); err != nil {
		return nil, t.dialError("negotiate versions with", addr, "check whether the broker's port wants TLS, and that it is Kafka 0.11 or later", err)
	}
	if t.sasl != nil {
		if err := c.authenticate(ctx); err != nil {
			return nil, t.dialError("authenticate at", addr, "check the SASL mechanism, user name and password", err)
		}
	}
	return c, nil
}

func (t *transport) dialError(op, addr, hint string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		err = fmt.Errorf("timed out after %s: %w", t.dialTimeout, err)
	}
	return &operr.Error{
		Class: operr.Kafka, Op: op, Subject: "broker " + addr, Hint: hint, Err: err,
		Transient: judgeError(err).verdict != unauthorized,
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func (t *transport) startTLS(ctx context.Context, nc net.Conn, addr string) (net.Conn, error) {
	cfg := t.tls
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

// negotiate asks for the broker's versions and picks the highest that both sides know.
func (c *conn) negotiate() error {
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
func (c *conn) authenticate(ctx context.Context) error {
	host, portText, err := net.SplitHostPort(c.addr)
	if err != nil {
		return err
	}
	port, _ := strconv.Atoi(portText) // Dial has connected to it
	ctx = sasl.WithMetadata(ctx, &sasl.Metadata{Host: host, Port: port})
	msg, err := c.pc.RoundTrip(&saslhandshake.Request{Mechanism: c.t.sasl.Name()})
	if err != nil {
		return err
	}
	if hs := msg.(*saslhandshake.Response); hs.ErrorCode != 0 {
		return fmt.Errorf("%w (broker offers %v)", kafka.Error(hs.ErrorCode), hs.Mechanisms)
	}
	state, out, err := c.t.sasl.Start(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.t.sasl.Name(), err)
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

func (c *conn) saslStep(out []byte) ([]byte, error) {
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

// roundTrip sends a request and waits for its answer until the deadline, which
// every request has: without one, a silent broker would hold it for ever.
func (c *conn) roundTrip(deadline time.Time, req protocol.Message) (protocol.Message, error) {
	if err := c.pc.SetDeadline(deadline); err != nil {
		return nil, err
	}
	return c.pc.RoundTrip(req)
}

// stale says that the connection should be replaced before its next use: its
// credentials expire, or it was made before a time from which on all are suspect.
func (c *conn) stale(now, suspect time.Time) bool {
	return !c.expires.IsZero() && now.After(c.expires) || c.made.Before(suspect)
}

func (c *conn) close() {
	_ = c.pc.Close()
	c.t.mu.Lock()
	_, open := c.t.open[c]
	delete(c.t.open, c)
	c.t.mu.Unlock()
	if open {
		c.t.metrics.connections.Dec()
	}
}

func (t *transport) register(c *conn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errTransportClosed
	}
	t.open[c] = struct{}{}
	t.metrics.connections.Inc()
	return nil
}

// closeAll cuts every connection, whatever is on its way, and lets no new one be made.
func (t *transport) closeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for c := range t.open {
		_ = c.pc.Close()
	}
}

// interrupt makes the request on its way fail.
func (c *conn) interrupt() { _ = c.pc.SetDeadline(time.Unix(1, 0)) }

// requestError says which request to which broker failed.
func (t *transport) requestError(addr string, req protocol.Message, timeout time.Duration, err error) error {
	e := &operr.Error{Class: operr.Kafka, Op: "ask", Subject: fmt.Sprintf("broker %s for %s", addr, req.ApiKey()), Err: err, Transient: true}
	switch {
	case isTimeout(err):
		e.Err = fmt.Errorf("no answer within %s: %w", timeout, err)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		e.Hint = "the broker hung up: check whether its port wants TLS or SASL"
	}
	return e
}
