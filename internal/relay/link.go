package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
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
	roots   *rootFinder

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
	l.intake = newIntake(l.ctx, g.midTransaction())
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
	var sys checkpoint.System
	if err := l.inTime(ctx, func(ctx context.Context) error { sys, err = l.takeSlot(ctx); return err }); err != nil {
		return nil, err
	}
	if err := l.findPosition(ctx, sys); err != nil {
		return nil, err
	}
	l.roots = newRootFinder(g.cfg.tables(), g.publications, linkCatalog{l}, g.leaves)
	if err := l.inTime(ctx, l.roots.learn); err != nil {
		return nil, err
	}
	l.watch, err = replication.ConnectSQL(ctx, g.cfg.Replication.ConnString, "postrider "+g.cfg.Publisher+" (shutdown watch)")
	return l, err
}

// inTime bounds a step of several statements, none of which takes long on a server
// that can be heard.
func (l *link) inTime(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 4*l.gen.cfg.Timers.Statement)
	defer cancel()
	return step(ctx)
}

// check runs the start checks and holds the publications against what was accepted.
func (l *link) check(ctx context.Context) error {
	g := l.gen
	problems := replication.Check(ctx, l.sql.conn, replication.CheckConfig{
		Slot: g.cfg.Replication.Slot, Publications: g.cfg.Replication.Publications, Tables: g.cfg.tables(),
	})
	switch {
	case len(problems) == 0:
	case l.sql.conn.IsClosed():
		// The first question that found the session broken; the others are its echo.
		return transientOf(problems)
	default:
		return joinProblems(l.withPosition(ctx, problems))
	}
	now, err := replication.ReadPublications(ctx, l.sql.conn, g.cfg.Replication.Publications)
	if err != nil {
		return err
	}
	if g.publications == nil {
		g.publications = now
		return nil
	}
	return l.samePublications(now)
}

// withPosition words the problem of a slot that is missing or lost by what is stored:
// since when events may be missing, and the SQL that goes on from there (case C32, trap 10).
func (l *link) withPosition(ctx context.Context, problems []*operr.Error) []*operr.Error {
	slot, err := replication.ReadSlot(ctx, l.sql.conn, l.gen.cfg.Replication.Slot)
	if err != nil || slot.Exists && !slot.Lost() {
		return problems
	}
	stored, err := l.store.Load(ctx)
	if err != nil {
		return problems
	}
	_, err = checkpoint.Decide(stored, slotState(slot), checkpoint.System{}, nil)
	var worded *operr.Error
	if !errors.As(err, &worded) {
		return problems
	}
	for i, p := range problems {
		if p.Class == operr.Slot {
			problems[i] = worded
		}
	}
	return problems
}

func (l *link) samePublications(now replication.Publications) error {
	changed := l.gen.publications.Changed(now, l.gen.cfg.tables())
	if changed == "" {
		return nil
	}
	return &operr.Error{
		Class: operr.Postgres, Op: "compare the publication with what was accepted at start",
		Err:  errors.New(changed),
		Hint: "restore the publication; rows that were written while it was different may be missing from the stream, so compare table and topic before restarting",
	}
}

// transientOf is the first problem that time heals, or else the first.
func transientOf(problems []*operr.Error) error {
	for _, p := range problems {
		if p.Transient {
			return p
		}
	}
	return problems[0]
}

// joinProblems keeps the class and the hint of the first problem that time does not
// heal, and names all.
func joinProblems(problems []*operr.Error) error {
	first := problems[0]
	all := make([]error, len(problems))
	for i, p := range problems {
		all[i] = p
		if first.Transient && !p.Transient {
			first = p
		}
	}
	if len(all) == 1 {
		return first
	}
	return &operr.Error{Class: first.Class, Op: "start checks", Hint: first.Hint, Transient: first.Transient, Err: errors.Join(all...)}
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
	return &operr.Error{
		Class: operr.Postgres, Transient: true, Op: "compare the two sessions",
		Err:  fmt.Errorf("the replication session is on system %s timeline %d, the SQL session on system %s timeline %d", sys.ID, sys.Timeline, other.ID, other.Timeline),
		Hint: "target_session_attrs=read-write, or one host, in the connection string",
	}
}

// findPosition reads slot and row, decides where to go on, and claims the row.
func (l *link) findPosition(ctx context.Context, sys checkpoint.System) error {
	g := l.gen
	var slot replication.SlotInfo
	err := l.inTime(ctx, func(ctx context.Context) (err error) {
		slot, err = replication.ReadSlot(ctx, l.sql.conn, g.cfg.Replication.Slot)
		return err
	})
	if err != nil {
		return err
	}
	if slot.ActivePID == 0 {
		// The walsender ended right after the start; its last words say why.
		if err := l.stream.EarlyError(ctx); err != nil {
			return err
		}
	}
	if slot.ActivePID != l.session.BackendPID() {
		return &replication.SlotBusyError{Slot: slot.Name, PID: slot.ActivePID}
	}
	l.slot = slot
	// What comes before the stream is read may take long: a doubtful start reads tables.
	if err := l.stream.Hold(slot.ConfirmedFlush); err != nil {
		return err
	}
	stored, err := l.store.Load(ctx)
	if err != nil {
		return err
	}
	state := slotState(slot)
	if g.ledger != nil {
		return l.resume(ctx, stored, state, sys)
	}
	return l.begin(ctx, stored, state, sys)
}

func slotState(s replication.SlotInfo) checkpoint.SlotState {
	return checkpoint.SlotState{
		Name: s.Name, Exists: s.Exists, Confirmed: s.ConfirmedFlush, Restart: s.RestartLSN,
		WALStatus: s.WALStatus, Reason: s.InvalidationReason, Failover: s.Failover,
	}
}

// begin starts a generation's ledger from the stored position.
func (l *link) begin(ctx context.Context, stored *checkpoint.Row, slot checkpoint.SlotState, sys checkpoint.System) error {
	g := l.gen
	history, err := l.history(ctx, stored, sys)
	if err != nil {
		return err
	}
	start, err := checkpoint.Decide(stored, slot, sys, history)
	if err != nil {
		return err
	}
	if err := l.checkMapping(ctx, stored); err != nil {
		return err
	}
	if start.Doubtful {
		if g.doubt, err = l.newDoubt(ctx, stored); err != nil {
			return err
		}
	}
	row, err := l.store.Claim(ctx, stored, start, sys, l.session.BackendPID())
	if err != nil {
		return err
	}
	tick, err := l.store.TakeTick(ctx)
	if err != nil {
		return err
	}
	switch {
	case g.cfg.Until.LSN != 0:
		g.target = g.cfg.Until.LSN
	case g.cfg.Until.Now && g.target == 0:
		g.target = tick.LSN
	}
	g.setRow(row)
	g.eventsBefore = row.Events
	g.from = slot.Confirmed
	g.ledger = checkpoint.NewLedger(start.Skip)
	g.ledgerSeen.Store(g.ledger)
	g.log.Info().Str(keySlot, slot.Name).Stringer("from", start.Skip).Int32("timeline", start.Timeline).Str("why", start.Why).Msg("holding the slot")
	return nil
}

// resume goes on with the ledger and the lanes of this generation, if nothing that
// they rest on has changed.
func (l *link) resume(ctx context.Context, stored *checkpoint.Row, slot checkpoint.SlotState, sys checkpoint.System) error {
	g := l.gen
	if !g.left(stored) {
		return fmt.Errorf("%w: the checkpoint row is not as this process left it", errAnew)
	}
	held := *stored
	pos := g.ledger.Position()
	// A doubtful start begins past what the ledger knows; what lies behind that never comes.
	pos.EventFree = max(pos.EventFree, g.from)
	if err := checkpoint.Continue(held, pos, slot, sys); err != nil {
		return fmt.Errorf("%w: %w", errAnew, err)
	}
	start := checkpoint.Start{Skip: held.Confirmed, Timeline: held.Timeline, Why: "reconnected; ledger and lanes are kept"}
	g.claiming = l.session.BackendPID()
	row, err := l.store.Claim(ctx, stored, start, sys, l.session.BackendPID())
	if err != nil {
		return err
	}
	g.setRow(row)
	g.log.Info().Str(keySlot, slot.Name).Int("unacknowledged", g.ledger.Unresolved()).Msg("reconnected; holding the slot again")
	return nil
}

// left says that the row is as this process left it. The answer to its last write may
// have been lost with the connection: the row then stands further than is known here,
// or is claimed for a link that did not come up.
func (g *generation) left(stored *checkpoint.Row) bool {
	held := g.row()
	return stored != nil && stored.Holder == g.cfg.Holder && (stored.WalsenderPID == held.WalsenderPID || stored.WalsenderPID == g.claiming) &&
		stored.Confirmed >= held.Confirmed && stored.Confirmed <= max(held.Confirmed, g.ledger.Position().EventFree)
}

// history reads the timeline history where the row is of another timeline (rule 2).
func (l *link) history(ctx context.Context, stored *checkpoint.Row, sys checkpoint.System) ([]checkpoint.TimelineSwitch, error) {
	if stored == nil || stored.Timeline == sys.Timeline || sys.Timeline == 1 {
		return nil, nil
	}
	// The replication session streams already; history needs a session of its own.
	s, err := replication.Connect(ctx, l.gen.cfg.Replication)
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	switches, err := s.TimelineHistory(ctx, sys.Timeline)
	if err != nil {
		return nil, err
	}
	history := make([]checkpoint.TimelineSwitch, len(switches))
	for i, sw := range switches {
		history[i] = checkpoint.TimelineSwitch{Timeline: sw.Timeline, End: sw.Switch}
	}
	return history, nil
}

// serve runs the link until it breaks or the run is over. Nil means: over, all well.
func (l *link) serve(ctx context.Context) error {
	g := l.gen
	l.keeper = newKeeper(l)
	// Before anything that may freeze it again.
	g.publisher.Thaw()
	l.launch(l.runStream)
	l.launch(l.keeper.run)
	l.launch(l.watchShutdown)
	l.launch(l.watchWire)
	g.relay.state.streaming(l.stream.LastActivity)
	select {
	case <-ctx.Done():
		return l.finish(nil)
	case <-g.reached:
		return l.finish(nil)
	case refusal := <-g.halts:
		return l.finish(refusal)
	case err := <-g.publisher.Fatal():
		return l.giveUp(err)
	case err := <-l.broken:
		return err
	}
}

// giveUp ends a run that cannot publish any more: what was acknowledged before is
// stored and confirmed, as after any other end.
func (l *link) giveUp(cause error) error {
	l.intake.close()
	ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
	defer stop()
	if err := l.stopKeeper(ctx); err != nil {
		l.gen.log.Warn().Err(err).Msg("the last position could not be stored")
	}
	return cause
}

// launch runs fn in a goroutine of the link; its error breaks the link.
func (l *link) launch(fn func(context.Context) error) {
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		if err := fn(l.ctx); err != nil && l.ctx.Err() == nil {
			// Sending stops before anybody else hears of it (trap 20).
			l.gen.publisher.Freeze()
			l.broken <- err
		}
	}()
}

func (l *link) runStream(ctx context.Context) error {
	h := &handler{
		gen: l.gen, gate: checkpoint.NewGate(l.gen.ledger), intake: l.intake, entered: l.gen.midTransaction(), ctx: ctx, roots: l.roots,
	}
	if at := l.gen.row().Confirmed; at > l.slot.ConfirmedFlush {
		// The row is durable proof; the slot was saved earlier (trap 9).
		l.stream.Confirm(at)
	}
	err := l.stream.Run(ctx, l.slot.ConfirmedFlush, h)
	if err == nil {
		err = &operr.Error{Class: operr.Postgres, Transient: true, Op: "read the stream", Err: errors.New("it ended")}
	}
	return err
}

// watchShutdown holds a session open and does nothing with it. In a fast shutdown SQL
// sessions are ended first: its 57P01 is heard while reading stands still (rule 1).
func (l *link) watchShutdown(ctx context.Context) error {
	for {
		_, err := l.watch.WaitForNotification(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the link was given up; the error is its echo
		case isShutdown(err):
			return fmt.Errorf("%w (the watch session was ended)", replication.ErrServerShutdown)
		default:
			return &operr.Error{Class: operr.Postgres, Transient: true, Op: "hold the watch session open", Err: err}
		}
	}
}

// watchWire hears of a connection that feedback could not be written to, also while
// a full window keeps anybody from reading it (trap 20).
func (l *link) watchWire(ctx context.Context) error {
	select {
	case <-l.stream.Lost():
		return &operr.Error{Class: operr.Postgres, Transient: true, Op: "report to the slot", Err: errors.New("the connection is gone")}
	case <-ctx.Done():
		return nil
	}
}

// isShutdown knows admin_shutdown, crash_shutdown and cannot_connect_now.
func isShutdown(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "57P01" || pg.Code == "57P02" || pg.Code == "57P03")
}

// stillOurs asks whether the slot is still streamed to our walsender (rule 8).
func (l *link) stillOurs(ctx context.Context) (ours bool, err error) {
	err = l.sql.do(func(conn *pgx.Conn) error {
		slot, err := replication.ReadSlot(ctx, conn, l.gen.cfg.Replication.Slot)
		ours = slot.ActivePID == l.session.BackendPID()
		return err
	})
	return ours, err
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
