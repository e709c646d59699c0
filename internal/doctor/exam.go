package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/replication"
)

// fact is read once, by whoever needs it first.
type fact[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (f *fact[T]) get(read func() (T, error)) (T, error) {
	f.once.Do(func() { f.value, f.err = read() })
	return f.value, f.err
}

// server is what the first session said; it stays known when that session is gone.
type server struct {
	database, user, version string
	major                   int
	peer                    net.Addr
}

// exam is one run: the sessions, and what several checks need to know. Checks run one
// after the other; only the brokers are dialled beside them.
type exam struct {
	cfg Config

	conn         *pgx.Conn
	connErr      error // of the last attempt, which failed; nobody waits for another one
	connected    bool
	server       server
	streaming    fact[*replication.Session]
	system       fact[checkpoint.System]
	settings     fact[settings]
	publications fact[replication.Publications]
	slot         fact[replication.SlotInfo]
	stored       fact[*checkpoint.Row]
	sampled      fact[*sample]
	kafka        *cluster
}

func newExam(cfg Config) *exam { return &exam{cfg: cfg, kafka: newCluster(cfg)} }

// make puts one check's questions, in bounded time.
func (e *exam) make(ctx context.Context, c check) []answer {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*e.cfg.Timeout, fmt.Errorf("no answer within %s", 2*e.cfg.Timeout))
	defer cancel()
	return c.ask(ctx, e)
}

func (e *exam) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if e.conn != nil {
		replication.CloseSQL(ctx, e.conn)
	}
	if s, err := e.streaming.get(func() (*replication.Session, error) { return nil, errors.New("never opened") }); err == nil {
		s.Close(ctx)
	}
	e.kafka.close()
}

// sql gives the session. Where a question was cut off its session is gone with it, and
// the next question gets another. The error says no more than that: why is said once.
func (e *exam) sql(ctx context.Context) (*pgx.Conn, error) {
	switch err := e.connect(ctx); {
	case err == nil:
		return e.conn, nil
	case e.connected:
		return nil, needs("the connection to PostgreSQL broke: " + oneLine(err.Error()))
	default:
		return nil, needs("PostgreSQL cannot be used (see postgres)")
	}
}

func (e *exam) connect(ctx context.Context) error {
	if e.connErr != nil || e.conn != nil && !e.conn.IsClosed() {
		return e.connErr
	}
	e.conn, e.connErr = replication.ConnectSQL(ctx, e.cfg.Replication.ConnString, "postrider doctor")
	if e.connErr != nil {
		e.conn = nil
		return e.connErr
	}
	// Nothing here writes; the server sees to it.
	_, e.connErr = e.conn.Exec(ctx, fmt.Sprintf("SET default_transaction_read_only = on; SET statement_timeout = %[1]d; SET lock_timeout = %[1]d",
		e.cfg.Timeout.Milliseconds()))
	if e.connErr == nil && !e.connected {
		e.connected = true
		e.server = describeServer(e.conn)
	}
	return e.connErr
}

// describeServer: the version is "15.18" of "15.18 (Debian 15.18-0+deb12u1)".
func describeServer(conn *pgx.Conn) server {
	version, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	num, _ := strconv.Atoi(version[:max(0, strings.IndexFunc(version+".", func(r rune) bool { return r < '0' || r > '9' }))])
	return server{
		database: conn.Config().Database, user: conn.Config().User, version: version, major: num, peer: conn.PgConn().Conn().RemoteAddr(),
	}
}

// row asks for one row.
func (e *exam) row(ctx context.Context, sql string, args []any, into ...any) error {
	conn, err := e.sql(ctx)
	if err != nil {
		return err
	}
	return conn.QueryRow(ctx, sql, args...).Scan(into...)
}

// tables are the sources' tables.
func (e *exam) tables() []replication.Table {
	var tables []replication.Table
	for _, s := range e.cfg.Router.Sources {
		tables = append(tables, replication.Table{Schema: s.Schema, Name: s.Table})
	}
	return tables
}

func (e *exam) readPublications(ctx context.Context) (replication.Publications, error) {
	return e.publications.get(func() (replication.Publications, error) {
		conn, err := e.sql(ctx)
		if err != nil {
			return nil, err
		}
		return replication.ReadPublications(ctx, conn, e.cfg.Replication.Publications)
	})
}

func (e *exam) readSlot(ctx context.Context) (replication.SlotInfo, error) {
	return e.slot.get(func() (replication.SlotInfo, error) {
		conn, err := e.sql(ctx)
		if err != nil {
			return replication.SlotInfo{}, err
		}
		return replication.ReadSlot(ctx, conn, e.cfg.Replication.Slot)
	})
}

// store is the checkpoint row's; it only loads here.
func (e *exam) store(conn *pgx.Conn) *checkpoint.Store {
	return checkpoint.NewStore(conn, checkpoint.StoreConfig{
		Publisher: e.cfg.Publisher, Slot: e.cfg.Replication.Slot, Holder: "postrider doctor", StatementTimeout: e.cfg.Timeout,
	})
}

// readStored gives the checkpoint row, nil where there is none.
func (e *exam) readStored(ctx context.Context) (*checkpoint.Row, error) {
	return e.stored.get(func() (*checkpoint.Row, error) {
		conn, err := e.sql(ctx)
		if err != nil {
			return nil, err
		}
		return e.store(conn).Load(ctx)
	})
}

// openStream opens a replication session, as run does, without streaming.
func (e *exam) openStream(ctx context.Context) (*replication.Session, error) {
	return e.streaming.get(func() (*replication.Session, error) {
		if _, err := e.sql(ctx); err != nil {
			return nil, err
		}
		return replication.Connect(ctx, e.cfg.Replication)
	})
}

// identify asks the replication session which server it is on.
func (e *exam) identify(ctx context.Context) (checkpoint.System, error) {
	return e.system.get(func() (checkpoint.System, error) {
		s, err := e.openStream(ctx)
		if err != nil {
			return checkpoint.System{}, err
		}
		found, err := s.Identify(ctx)
		return checkpoint.System{ID: found.SystemID, Timeline: found.Timeline}, err
	})
}
