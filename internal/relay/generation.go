package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// generation is one ledger with its lanes. It outlives links: what was received
// and not yet acknowledged when a connection broke is neither lost nor sent twice.
type generation struct {
	relay     *Relay
	cfg       Config
	log       zerolog.Logger
	metrics   *metrics
	registry  *scopedRegisterer
	router    *router.Router
	publisher *publisher.Publisher

	// ledger is nil until the first link has found the position to begin at. It is
	// written once, before anything is appended; ledgerNow is for readers outside.
	ledger     *checkpoint.Ledger
	ledgerSeen atomic.Pointer[checkpoint.Ledger]
	// publications are what was accepted at the first link (rule 7).
	publications replication.Publications
	// doubt is set while a doubtful start is not yet proved (rule 4).
	doubt *doubt
	// leaves are the partitions of sources that were ever seen, by OID (roots.Finder).
	leaves map[uint32]replication.Table
	// misfit is set where a mapping does not fit its table as it is now.
	misfit *misfit
	// from is where the slot stood when the ledger began.
	from event.LSN
	// entered says that an event of the transaction at hand was handed over. It belongs to
	// the stream's goroutine, and to the making of a link while there is none.
	entered bool
	// pausedInside says that a pause holds the transaction at hand in its middle.
	pausedInside bool
	// claiming is the walsender for which the row was last claimed over a reconnect,
	// whether that was heard of or not.
	claiming uint32
	// target is where Until ends the run; 0 until it is known.
	target event.LSN

	halts   chan *event.Refusal
	reached chan struct{}
	// acked is a hint to the keeper: something was resolved.
	acked chan struct{}

	// heldMu covers held and eventsBefore: written by the one keeper, read by Status.
	heldMu       sync.Mutex
	held         checkpoint.Row
	eventsBefore uint64

	// park is what is known of parked events.
	park *parkState
	// closing ends with the generation: it releases those who wait to park an event.
	closing context.Context
	stop    context.CancelFunc

	// searching are the look-ups of a doubtful start.
	searching sync.WaitGroup

	// waiting is the commit time of the event that waits at the tap, in microseconds since
	// 1970, or 0.
	waiting atomic.Int64
	// handedOn is the highest position of the stream that was handed on.
	handedOn atomic.Uint64
	// passed is a position before which every event was handed over or parked: of a
	// key, what may come again stands behind it.
	passed atomic.Uint64
}

func newGeneration(r *Relay) (*generation, error) {
	rt, err := router.New(r.cfg.Router)
	if err != nil {
		return nil, configError(err)
	}
	g := &generation{
		relay: r, cfg: r.cfg, log: r.cfg.Log, metrics: r.metrics, router: rt,
		registry: &scopedRegisterer{under: r.cfg.Registerer},
		leaves:   make(map[uint32]replication.Table),
		halts:    make(chan *event.Refusal, 1),
		reached:  make(chan struct{}, 1),
		acked:    make(chan struct{}, 1),
		park:     newParkState(r.cfg.Parking, rt.DeadLetterTopics()),
	}
	g.closing, g.stop = context.WithCancel(context.Background())
	kafka := r.cfg.Kafka
	kafka.Log = r.cfg.Log
	kafka.Registerer = g.registry
	kafka.OnAck = g.acknowledged
	if r.receipts != nil {
		kafka.OnDelivered = r.receipts.Take
	}
	kafka.OnRefused = g.parkRefused
	if g.publisher, err = publisher.New(kafka); err != nil {
		return nil, configError(err)
	}
	// Nothing may be sent before the slot is ours.
	g.publisher.Freeze()
	g.publisher.Start(context.Background())
	r.state.publish(g)
	return g, nil
}

func (g *generation) close() {
	g.stop()
	g.searching.Wait()
	if err := g.publisher.Close(); err != nil {
		g.log.Warn().Err(err).Msg("closing the publisher")
	}
	g.registry.unregisterAll()
}

// run keeps a link up until the run is over.
func (g *generation) run(ctx context.Context) error {
	pause := backoff{lo: g.cfg.Timers.BackoffMin, hi: g.cfg.Timers.BackoffMax}
	var standby standbyLog
	for {
		l, err := g.open(ctx)
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			return g.leftBehind(nil) // stopped while the link was being made: nobody's fault
		}
		if err == nil {
			g.relay.linked = true
			pause.reset()
			standby = standbyLog{}
			err = l.serve(ctx)
			g.publisher.Freeze()
			l.close()
		}
		if done, result := g.verdict(ctx, err); done {
			return result
		}
		g.report(err, &standby)
		if pause.wait(ctx) != nil {
			return g.leftBehind(nil)
		}
	}
}

// verdict tells whether a link's end is the end of the run.
func (g *generation) verdict(ctx context.Context, err error) (done bool, result error) {
	var busy *replication.SlotBusyError
	switch {
	case err == nil:
		return true, nil
	case ended(err):
		// Whatever broke the link meanwhile is in its chain, and changes nothing.
		return true, err
	case errors.Is(err, errAnew), errors.Is(err, checkpoint.ErrDiverged):
		g.relay.dropped = g.leftBehind(err)
		if ctx.Err() != nil {
			return true, g.relay.dropped
		}
		return true, fmt.Errorf("%w: %w", errAnew, err)
	case errors.As(err, &busy), errors.Is(err, checkpoint.ErrFenced):
		g.relay.linked = true // a standby waits for as long as it takes
	case !errors.Is(err, replication.ErrServerShutdown) && !operr.IsTransient(err):
		return true, err
	case !g.relay.linked && time.Since(g.relay.began) > g.cfg.Timers.Start:
		return true, err
	}
	if ctx.Err() != nil {
		return true, g.leftBehind(err)
	}
	return false, nil
}

// ended says that the run was over already, whatever else broke on the way out.
func ended(err error) bool {
	class := operr.ClassOf(err)
	return class == operr.Halted || class == operr.DrainIncomplete
}

// leftBehind is the error of a stop without a link: what was received and is not
// acknowledged cannot be drained, since sending needs the slot, and what was
// acknowledged since the row was written cannot be stored.
func (g *generation) leftBehind(cause error) error {
	if g.ledger == nil {
		return g.relay.dropped
	}
	stored := g.row().Confirmed
	select {
	case refusal := <-g.halts:
		return haltError(refusal, stored, cause)
	default:
	}
	left := g.comesAgain()
	if left == 0 && g.ledger.Position().Confirmed <= stored {
		return nil
	}
	return drainError(left, stored, cause)
}

func drainError(left int, confirmed event.LSN, cause error) error {
	err := fmt.Errorf("%d events stayed unconfirmed; the slot is confirmed up to %s and they will be sent at the next start", left, confirmed)
	if left == 0 {
		err = fmt.Errorf("everything is published, but the slot is confirmed up to %s only; what came after it will be published again at the next start", confirmed)
	}
	if cause != nil {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	return &operr.Error{
		Class: operr.DrainIncomplete, Op: "drain before stopping", Err: err,
		Hint: "a longer publisher.shutdown_timeout, or look at why Kafka does not acknowledge",
	}
}

// report writes one line for a link that did not come up or broke, and counts it.
func (g *generation) report(err error, standby *standbyLog) {
	var busy *replication.SlotBusyError
	if errors.As(err, &busy) {
		g.relay.state.set(phaseStandby)
		g.relay.state.waitFor(busy.Error())
		if standby.due(g.cfg.Timers.StandbyLog) {
			g.log.Info().Str(keySlot, busy.Slot).Uint32("held_by_pid", busy.PID).Msg("standby: another connection holds the slot; waiting to take over")
		}
		return
	}
	g.relay.state.set(phaseReconnecting)
	g.relay.state.waitFor(err.Error())
	g.metrics.reconnects.Inc()
	line := g.log.Warn().Err(err)
	if hint := operr.HintOf(err); hint != "" {
		line = line.Str("try", hint)
	}
	if g.ledger == nil {
		line.Msg("no link to PostgreSQL yet; trying again")
		return
	}
	line.Int("unacknowledged", g.unresolved()).Msg("no link to PostgreSQL; sending is frozen, trying again")
}

// comesAgain counts the events that a start after this moment would publish, again or
// for the first time: those that are unresolved, or all of a transaction that is still
// arriving, acknowledged as they may be.
func (g *generation) comesAgain() int {
	left := g.unresolved()
	if left > 0 || g.ledger == nil {
		return left
	}
	if _, held := g.ledger.Oldest(); held {
		_, received, _ := g.ledger.OpenTxn()
		left = int(received)
	}
	return left
}

func (g *generation) unresolved() int {
	if g.ledger == nil {
		return 0
	}
	return g.ledger.Unresolved()
}

// acknowledged takes a batch's acknowledgement from the publisher.
func (g *generation) acknowledged(runs []publisher.Run) {
	n := 0
	for _, r := range runs {
		n += r.Count
		if r.Txn >= publisher.Injected {
			g.park.retries.acknowledged(r.Txn)
			continue
		}
		g.ledger.Resolve(r.Txn, r.Count)
	}
	g.metrics.published.Add(float64(n))
	g.relay.state.acknowledged(n)
	select {
	case g.acked <- struct{}{}:
	default:
	}
}

// halt asks the link to stop at a refused event. The first refusal counts.
func (g *generation) halt(refusal *event.Refusal) {
	g.metrics.refused(refusal.Reason)
	select {
	case g.halts <- refusal:
	default:
	}
}

// progressed notes how far the stream was handed on, and ends a run with a target.
func (g *generation) progressed(lsn event.LSN) {
	g.handedOn.Store(uint64(lsn))
	g.passedParked(lsn)
	g.reachTarget()
}

// reachTarget ends a run with a target where it was handed on and nothing is in doubt.
func (g *generation) reachTarget() {
	if g.target == 0 || event.LSN(g.handedOn.Load()) < g.target || g.inDoubt() {
		return
	}
	select {
	case g.reached <- struct{}{}:
	default:
	}
}

// oldest is the commit time of the oldest event that is not published: received and not
// resolved, or the one at which a pause holds the stream.
func (g *generation) oldest() (time.Time, bool) {
	if ledger := g.ledgerNow(); ledger != nil {
		if at, ok := ledger.Oldest(); ok {
			return at, true
		}
	}
	if micros := g.waiting.Load(); micros != 0 {
		return time.UnixMicro(micros), true
	}
	return time.Time{}, false
}

// ledgerNow is the ledger for status and metrics; nil before the first link.
func (g *generation) ledgerNow() *checkpoint.Ledger { return g.ledgerSeen.Load() }

func (g *generation) row() checkpoint.Row {
	g.heldMu.Lock()
	defer g.heldMu.Unlock()
	return g.held
}

func (g *generation) setRow(row checkpoint.Row) {
	g.heldMu.Lock()
	g.held = row
	g.heldMu.Unlock()
}

// standbyLog lets a waiting standby speak once per interval.
type standbyLog struct{ last time.Time }

func (s *standbyLog) due(every time.Duration) bool {
	if !s.last.IsZero() && time.Since(s.last) < every {
		return false
	}
	s.last = time.Now()
	return true
}
