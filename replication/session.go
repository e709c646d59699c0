package replication

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/postrider/postrider/event"
)

// Session is a replication connection that does not stream yet. It is not safe
// for concurrent use.
type Session struct {
	cfg    Config
	conn   *pgconn.PgConn
	reader *wireReader
	facts  serverFacts
}

// System is what IDENTIFY_SYSTEM answers.
type System struct {
	// SystemID tells clusters apart. It is text: it does not fit a signed 64-bit integer.
	SystemID string
	Timeline int32
	// XLogPos is the current WAL flush position: not a place to resume from (case C31).
	XLogPos event.LSN
	DBName  string
}

// Connect opens a replication connection with pinned session parameters and
// verifies them. The error is an *operr.Error.
func Connect(ctx context.Context, cfg Config) (*Session, error) {
	return connect(ctx, cfg, nil)
}

// connect lets extra pins beat the usual ones.
func connect(ctx context.Context, cfg Config, extra []pin) (*Session, error) {
	pc, err := pgconn.ParseConfig(cfg.ConnString)
	if err != nil {
		return nil, classify("parse connection string", "", err)
	}
	cfg.ConnectTimeout = connectTimeout(pc, cfg.ConnectTimeout)
	s := &Session{cfg: cfg.withDefaults()}
	s.prepare(pc)
	applyPins(pc.RuntimeParams, extra)
	if err := s.open(ctx, pc); err != nil {
		return nil, err
	}
	return s, nil
}

// open connects and verifies.
func (s *Session) open(ctx context.Context, pc *pgconn.Config) (err error) {
	ctx, cancel := connectLimits(ctx, pc, s.cfg.ConnectTimeout)
	defer cancel()
	if s.conn, err = pgconn.ConnectConfig(ctx, pc); err != nil {
		return classify("connect", target(pc), namedTimeout(s.cfg.ConnectTimeout, err))
	}
	if s.facts, err = verifySession(ctx, s.conn); err != nil {
		s.Close(context.WithoutCancel(ctx))
	}
	return err
}

// prepare sets what a replication connection needs beyond the operator's string.
func (s *Session) prepare(pc *pgconn.Config) {
	pc.DialFunc = dialer(s.cfg.TCPUserTimeout)
	pc.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		s.reader = newWireReader(r, s.cfg.ReadBuffer, s.cfg.MaxRowBytes)
		return pgproto3.NewFrontend(s.reader, w)
	}
	pc.RuntimeParams["replication"] = "database"
	if pc.RuntimeParams["application_name"] == "" {
		pc.RuntimeParams["application_name"] = "postrider " + s.cfg.Slot
	}
	applyPins(pc.RuntimeParams, outputPins, sessionPins, streamPins)
	if s.cfg.WALSenderTimeout > 0 {
		applyPins(pc.RuntimeParams, []pin{{"wal_sender_timeout", fmt.Sprintf("%dms", s.cfg.WALSenderTimeout.Milliseconds())}})
	}
}

// target names where a connection goes, without user or secrets.
func target(pc *pgconn.Config) string {
	if strings.HasPrefix(pc.Host, "/") {
		return fmt.Sprintf("%s database %q", pc.Host, pc.Database)
	}
	return fmt.Sprintf("%s database %q", net.JoinHostPort(pc.Host, fmt.Sprint(pc.Port)), pc.Database)
}

// BackendPID is the walsender's process id, as pg_replication_slots.active_pid shows it.
func (s *Session) BackendPID() uint32 { return s.facts.backendPID }

// ServerVersion is server_version_num, such as 150018.
func (s *Session) ServerVersion() int { return s.facts.version }

// WALSenderTimeout is the timeout in force on this connection; zero is none.
func (s *Session) WALSenderTimeout() time.Duration { return s.facts.walSenderTimeout }

// Identify asks which cluster and timeline this is.
func (s *Session) Identify(ctx context.Context) (System, error) {
	r, err := pglogrepl.IdentifySystem(ctx, s.conn)
	if err != nil {
		return System{}, classify("identify system", "", err)
	}
	return System{SystemID: r.SystemID, Timeline: r.Timeline, XLogPos: event.LSN(r.XLogPos), DBName: r.DBName}, nil
}

// Start takes the slot and begins to stream at the slot's own position: 0/0 is
// asked for, since the server goes there anyhow and honours a too high start in
// silence (rule 2). Another holder gives a *SlotBusyError in the chain; then the
// session may be used again. On success it must only be closed through the Stream.
func (s *Session) Start(ctx context.Context) (*Stream, error) {
	subject := fmt.Sprintf("slot %q", s.cfg.Slot)
	err := pglogrepl.StartReplication(ctx, s.conn, quoteIdent(s.cfg.Slot), 0, pglogrepl.StartReplicationOptions{
		Mode:       pglogrepl.LogicalReplication,
		PluginArgs: pluginArgs(s.cfg.Publications),
	})
	if err != nil {
		s.settle(ctx)
		return nil, classify("start replication", subject, asSlotBusy(s.cfg.Slot, err))
	}
	hijacked, err := s.conn.Hijack()
	if err != nil {
		s.Close(ctx)
		return nil, classify("start replication", subject, err)
	}
	return newStream(s.cfg, s.facts, hijacked.Conn, s.reader), nil
}

// settle reads what follows an ErrorResponse, so that the session can be used again.
func (s *Session) settle(ctx context.Context) {
	for !s.conn.IsClosed() {
		msg, err := s.conn.ReceiveMessage(ctx)
		if err != nil {
			return
		}
		if _, ok := msg.(*pgproto3.ReadyForQuery); ok {
			return
		}
	}
}

// pluginArgs are pgoutput's options. Protocol 1 and text format: committed
// transactions only, in commit order. Streaming and messages are off.
func pluginArgs(publications []string) []string {
	return []string{"proto_version '1'", "publication_names " + quoteLiteral(publicationNames(publications))}
}

// quoteIdent quotes a name as SQL and the replication grammar want it.
func quoteIdent(name string) string { return pgx.Identifier{name}.Sanitize() }

// quoteLiteral quotes a string; standard_conforming_strings is on since 9.1,
// and the replication grammar knows no other.
func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// Close ends the connection. After Start has succeeded it does nothing: the stream owns it.
func (s *Session) Close(ctx context.Context) {
	if s.conn == nil || s.conn.IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = s.conn.Close(ctx) // nothing was promised on it
}
