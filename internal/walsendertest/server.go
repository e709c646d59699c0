package walsendertest

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Options script a server. Zero values give a server of version 15 that lets
// everybody in.
type Options struct {
	// BackendPID goes into the start-up packet; zero is 4711.
	BackendPID uint32
	// ReportedPID is pg_backend_pid(); zero is BackendPID. They differ behind a pooler.
	ReportedPID uint32
	// ServerVersion is server_version_num; zero is 150018.
	ServerVersion int
	// WALSenderTimeout as pg_settings reports it; zero is 60 s, negative is off.
	WALSenderTimeout time.Duration
	// Settings override what current_setting answers for start-up parameters.
	Settings map[string]string
	// Refuse, if set, answers the start-up packet.
	Refuse *pgproto3.ErrorResponse
	// StartErrors answer START_REPLICATION, one each, before it succeeds.
	StartErrors []*pgproto3.ErrorResponse
	// Script runs on each connection that streams. The connection is closed
	// when it returns.
	Script func(c *Conn)
}

// Server is a scripted walsender on a loopback port. It ends with the test.
type Server struct {
	opts Options
	ln   net.Listener
	wg   sync.WaitGroup

	mu       sync.Mutex // covers the fields below
	conns    []net.Conn
	startups []map[string]string
	queries  []string
	refusals int
}

// Start starts a server; it ends with the test.
func Start(t testing.TB, opts Options) *Server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("walsendertest: %v", err)
	}
	s := &Server{opts: opts.withDefaults(), ln: ln}
	s.wg.Go(s.accept)
	t.Cleanup(s.stop)
	return s
}

func (o Options) withDefaults() Options {
	if o.BackendPID == 0 {
		o.BackendPID = 4711
	}
	if o.ReportedPID == 0 {
		o.ReportedPID = o.BackendPID
	}
	if o.ServerVersion == 0 {
		o.ServerVersion = 150018
	}
	if o.WALSenderTimeout == 0 {
		o.WALSenderTimeout = time.Minute
	}
	return o
}

// ConnString connects to the server.
func (s *Server) ConnString() string {
	return fmt.Sprintf("postgres://postrider@%s/fake?sslmode=disable", s.ln.Addr())
}

// Startup gives the parameters of the n-th start-up packet, nil where there was none.
func (s *Server) Startup(n int) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n >= len(s.startups) {
		return nil
	}
	return s.startups[n]
}

// Queries gives all commands so far.
func (s *Server) Queries() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.queries...)
}

func (s *Server) stop() {
	_ = s.ln.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *Server) accept() {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		s.wg.Go(func() {
			defer func() { _ = c.Close() }()
			s.serve(c)
		})
	}
}

func (s *Server) serve(c net.Conn) {
	backend := pgproto3.NewBackend(c, c)
	msg, err := backend.ReceiveStartupMessage()
	startup, ok := msg.(*pgproto3.StartupMessage)
	if err != nil || !ok {
		return // a cancel request, or a client that went away
	}
	s.mu.Lock()
	s.startups = append(s.startups, startup.Parameters)
	s.mu.Unlock()
	if s.opts.Refuse != nil {
		backend.Send(s.opts.Refuse)
		_ = backend.Flush()
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "15.18"})
	backend.Send(&pgproto3.BackendKeyData{ProcessID: s.opts.BackendPID, SecretKey: []byte{1, 2, 3, 4}})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if backend.Flush() == nil {
		s.commands(c, backend, startup.Parameters)
	}
}

// commands answers simple queries until the client streams or goes.
func (s *Server) commands(c net.Conn, backend *pgproto3.Backend, params map[string]string) {
	for {
		msg, err := backend.Receive()
		query, ok := msg.(*pgproto3.Query)
		if err != nil || !ok {
			return
		}
		s.mu.Lock()
		s.queries = append(s.queries, query.String)
		s.mu.Unlock()
		if strings.HasPrefix(query.String, "START_REPLICATION") {
			if refusal := s.startError(); refusal != nil {
				backend.Send(refusal)
				backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
				if backend.Flush() != nil {
					return
				}
				continue
			}
			s.stream(c, backend)
			return
		}
		s.answer(backend, query.String, params)
		if backend.Flush() != nil {
			return
		}
	}
}

func (s *Server) startError() *pgproto3.ErrorResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusals == len(s.opts.StartErrors) {
		return nil
	}
	s.refusals++
	return s.opts.StartErrors[s.refusals-1]
}

func (s *Server) stream(c net.Conn, backend *pgproto3.Backend) {
	backend.Send(&pgproto3.CopyBothResponse{})
	if backend.Flush() != nil {
		return
	}
	conn := newConn(c, backend)
	s.wg.Go(conn.read)
	s.opts.Script(conn)
	_ = c.Close()
}

// asked finds the parts of a SELECT list that the server knows.
var asked = regexp.MustCompile(`pg_backend_pid\(\)|current_setting\('(\w+)'\)|name = '(wal_sender_timeout)'`)

func (s *Server) answer(backend *pgproto3.Backend, query string, params map[string]string) {
	var row []string
	switch {
	case query == "IDENTIFY_SYSTEM":
		row = []string{"7000000000000000001", "1", "0/16B3748", "fake"}
	case strings.HasPrefix(query, "SELECT"):
		for _, m := range asked.FindAllStringSubmatch(query, -1) {
			row = append(row, s.setting(m[1]+m[2], params))
		}
	}
	if row != nil {
		sendRow(backend, row)
	}
	backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
}

// setting answers one item of a SELECT list; "" stands for pg_backend_pid().
func (s *Server) setting(name string, params map[string]string) string {
	switch name {
	case "":
		return strconv.FormatUint(uint64(s.opts.ReportedPID), 10)
	case "server_version_num":
		return strconv.Itoa(s.opts.ServerVersion)
	case "wal_sender_timeout":
		return strconv.FormatInt(max(s.opts.WALSenderTimeout, 0).Milliseconds(), 10)
	}
	if v, ok := s.opts.Settings[name]; ok {
		return v
	}
	return params[name]
}

func sendRow(backend *pgproto3.Backend, row []string) {
	fields := make([]pgproto3.FieldDescription, len(row))
	values := make([][]byte, len(row))
	for i, v := range row {
		fields[i] = pgproto3.FieldDescription{Name: []byte("c"), DataTypeOID: 25, DataTypeSize: -1, TypeModifier: -1}
		values[i] = []byte(v)
	}
	backend.Send(&pgproto3.RowDescription{Fields: fields})
	backend.Send(&pgproto3.DataRow{Values: values})
}
