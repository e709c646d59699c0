package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/control"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/roots"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/replication"
)

// closeTimeout bounds what a link may still say to a server while it is given up.
const closeTimeout = 5 * time.Second

// link is one hold on the slot: the stream, a session for the checkpoint row, and a
// session that is only held open, to hear of a shutdown (rule 1).
type link struct {
	gen     *generation
	sql     *sqlSession
	store   *checkpoint.Store
	watch   *pgx.Conn
	session *replication.Session
	stream  *replication.Stream
	slot    replication.SlotInfo
	intake  *intake
	keeper  *keeper
	retrier *retrier
	attend  *attendant
	copiers []*copier
	parking *parkSession
	roots   *roots.Finder

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	// broken receives the first error of any of the link's goroutines.
	broken chan error
}

// sqlSession lets the keeper, the stream's liveness question and the look-up of
// partitions share one connection. mu covers every use of conn.
type sqlSession struct {
	mu   sync.Mutex
	conn *pgx.Conn
}

func (s *sqlSession) do(fn func(*pgx.Conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fn(s.conn)
}

// open makes a link: it checks the server, takes the slot, and finds where to go on.
// The slot is owned before its position is read: until then another instance may move it.
func (g *generation) open(ctx context.Context) (_ *link, err error) {
	g.relay.state.set(phaseConnecting)
	l := &link{gen: g, broken: make(chan error, 8)}
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	l.intake = newIntake(l.ctx, g.entered)
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	conn, err := replication.ConnectSQL(ctx, g.cfg.Replication.ConnString, "postrider "+g.cfg.Publisher)
	if err != nil {
		return nil, err
	}
	l.sql = &sqlSession{conn: conn}
	l.store = checkpoint.NewStore(conn, checkpoint.StoreConfig{
		Publisher: g.cfg.Publisher, Slot: g.cfg.Replication.Slot, Holder: g.cfg.Holder, StatementTimeout: g.cfg.Timers.Statement,
	})
	if err := l.inTime(ctx, l.check); err != nil {
		return nil, err
	}
	if err := l.inTime(ctx, l.noOpenTask); err != nil {
		return nil, err
	}
	var sys checkpoint.System
	if err := l.inTime(ctx, func(ctx context.Context) error { sys, err = l.takeSlot(ctx); return err }); err != nil {
		return nil, err
	}
	if err := l.inTime(ctx, l.noOpenTask); err != nil {
		return nil, err
	}
	l.parking = &parkSession{link: l, sys: sys}
	if err := l.findPosition(ctx, sys); err != nil {
		return nil, err
	}
	catalog := roots.Session{Do: l.sql.do, Failed: sqlError, Publications: g.cfg.Replication.Publications}
	l.roots = roots.New(g.cfg.tables(), g.publications, catalog, g.leaves)
	if err := l.inTime(ctx, l.roots.Learn); err != nil {
		return nil, err
	}
	if l.watch, err = replication.ConnectSQL(ctx, g.cfg.Replication.ConnString, "postrider "+g.cfg.Publisher+" (shutdown watch)"); err != nil {
		return nil, err
	}
	if _, err := l.watch.Exec(ctx, "LISTEN "+parking.Channel+"; LISTEN "+control.Channel); err != nil {
		return nil, sqlError("listen for", "commands", err)
	}
	l.copiers = newCopiers(l)
	if l.retrier, err = newRetrier(l); err != nil {
		return nil, err
	}
	// After LISTEN, and before the first event: a relay that is to be paused starts so.
	l.attend = newAttendant(l)
	if err := l.inTime(ctx, l.attend.learn); err != nil {
		return nil, err
	}
	return l, nil
}

// inTime bounds a step of several statements, none of which takes long on a server
// that can be heard.
func (l *link) inTime(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 4*l.gen.cfg.Timers.Statement)
	defer cancel()
	return step(ctx)
}

// takeSlot connects for replication and starts the stream; from then on the slot is ours.
func (l *link) takeSlot(ctx context.Context) (checkpoint.System, error) {
	cfg := l.gen.cfg.Replication
	cfg.StillOurs = l.stillOurs
	if cfg.Log == nil {
		cfg.Log = &l.gen.log
	}
	var err error
	if l.session, err = replication.Connect(ctx, cfg); err != nil {
		return checkpoint.System{}, err
	}
	found, err := l.session.Identify(ctx)
	if err != nil {
		return checkpoint.System{}, err
	}
	sys := checkpoint.System{ID: found.SystemID, Timeline: found.Timeline}
	if err := l.sameServer(ctx, sys); err != nil {
		return sys, err
	}
	l.stream, err = l.session.Start(ctx)
	return sys, err
}

// sameServer: with several hosts in the connection string, or in a split brain, the
// two sessions may have reached different servers (rule 5).
func (l *link) sameServer(ctx context.Context, sys checkpoint.System) error {
	other, err := l.store.System(ctx)
	if err != nil {
		return err
	}
	if other == sys {
		return nil
	}
	return otherServer(sys, other)
}

func otherServer(sys, other checkpoint.System) error {
	return &operr.Error{
		Class: operr.Postgres, Transient: true, Op: "compare the two sessions",
		Err:  fmt.Errorf("the replication session is on system %s timeline %d, the SQL session on system %s timeline %d", sys.ID, sys.Timeline, other.ID, other.Timeline),
		Hint: "target_session_attrs=read-write, or one host, in the connection string",
	}
}

// close gives the link up: the last status carries no more than the row holds.
func (l *link) close() {
	l.intake.close()
	ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
	defer stop()
	l.cancel(errLinkGivenUp)
	l.wg.Wait()
	if l.stream != nil {
		if err := l.stream.Close(ctx); err != nil {
			l.gen.log.Debug().Err(err).Msg("closing the stream")
		}
	} else if l.session != nil {
		l.session.Close(ctx)
	}
	l.parking.close(ctx)
	for _, conn := range []*pgx.Conn{l.watch, l.sqlConn()} {
		if conn != nil {
			_ = conn.Close(ctx)
		}
	}
}

func (l *link) sqlConn() *pgx.Conn {
	if l.sql == nil {
		return nil
	}
	return l.sql.conn
}

var errLinkGivenUp = errors.New("the connection to PostgreSQL is given up")
