package walsendertest

import (
	"encoding/binary"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/postrider/postrider/event"
)

// Status is a standby status update as it stood on the wire.
type Status struct {
	// Raw is the whole message, 34 bytes with its 'r'.
	Raw                 []byte
	Write, Flush, Apply event.LSN
	ReplyRequested      bool
	// At is when it arrived.
	At time.Time
}

// Conn is one streaming connection, from the server's side. Its methods that
// send are for the script's goroutine.
type Conn struct {
	net      net.Conn
	backend  *pgproto3.Backend
	statuses chan Status
	gone     chan struct{}

	// Farewell lists what came after the last status, 'c' for CopyDone and 'X'
	// for Terminate. Read it after Gone.
	Farewell []byte
}

func newConn(c net.Conn, backend *pgproto3.Backend) *Conn {
	return &Conn{net: c, backend: backend, statuses: make(chan Status, 10_000), gone: make(chan struct{})}
}

// Gone is closed when the client has said good-bye or hung up.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// Statuses gives the client's statuses in order. It is closed before Gone.
func (c *Conn) Statuses() <-chan Status { return c.statuses }

func (c *Conn) read() {
	defer close(c.gone)
	defer close(c.statuses)
	for {
		msg, err := c.backend.Receive()
		if err != nil {
			return
		}
		switch msg := msg.(type) {
		case *pgproto3.CopyData:
			if s, ok := parseStatus(msg.Data); ok {
				c.statuses <- s
			}
		case *pgproto3.CopyDone:
			c.Farewell = append(c.Farewell, 'c')
		case *pgproto3.Terminate:
			c.Farewell = append(c.Farewell, 'X')
			return
		}
	}
}

func parseStatus(b []byte) (Status, bool) {
	if len(b) != 34 || b[0] != 'r' {
		return Status{Raw: append([]byte(nil), b...)}, true // a test will say what is wrong with it
	}
	lsn := func(i int) event.LSN { return event.LSN(binary.BigEndian.Uint64(b[i:])) }
	return Status{
		Raw: append([]byte(nil), b...), Write: lsn(1), Flush: lsn(9), Apply: lsn(17),
		ReplyRequested: b[33] == 1, At: time.Now(),
	}, true
}

// Send sends a message of any kind.
func (c *Conn) Send(msg pgproto3.BackendMessage) error {
	c.backend.Send(msg)
	return c.backend.Flush()
}

// Raw sends bytes as they are.
func (c *Conn) Raw(b []byte) error {
	if err := c.backend.Flush(); err != nil {
		return err
	}
	_, err := c.net.Write(b)
	return err
}

// XLogData sends one pgoutput message.
func (c *Conn) XLogData(start event.LSN, msg []byte) error {
	return c.Send(&pgproto3.CopyData{Data: XLogData(start, msg)})
}

// KeepAlive sends a keepalive with the present time.
func (c *Conn) KeepAlive(walEnd event.LSN, reply bool) error {
	return c.KeepAliveAt(walEnd, reply, time.Now())
}

// KeepAliveAt sends a keepalive that says it was sent at the given time.
func (c *Conn) KeepAliveAt(walEnd event.LSN, reply bool, at time.Time) error {
	return c.Send(&pgproto3.CopyData{Data: KeepAlive(walEnd, reply, at)})
}
