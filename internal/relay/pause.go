package relay

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/control"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

const (
	// pauseLook is how often a pause that is not reached yet looks whether it is.
	pauseLook = 50 * time.Millisecond
	// pauseSay is how often its progress is written for who waits.
	pauseSay = time.Second
)

// attendant sees to what operators ask of the relay while it runs. A pause is reached
// like the end of a run: no further transaction is begun, what was handed over drains,
// is stored and confirmed. So nothing that was published comes again, however long the
// pause is and whatever ends it. The slot stays held and feedback goes on.
type attendant struct {
	link *link
	gen  *generation
	// wake is a hint that something was asked.
	wake chan struct{}
	// paused stops the retrier from claiming.
	paused atomic.Bool

	// The rest belongs to run, and to learn before it.
	wish    control.Pausing
	open    []control.Command
	taken   map[int64]bool
	reached bool
	// began is when this link began to pause, said when progress was last written.
	began, said time.Time
	// settled is how often in a row nothing was under way.
	settled  int
	failures int
}

func newAttendant(l *link) *attendant {
	return &attendant{link: l, gen: l.gen, wake: make(chan struct{}, 1), taken: map[int64]bool{}}
}

// learn reads the wish before the link's first event, and obeys it.
func (a *attendant) learn(ctx context.Context) error {
	if err := a.read(ctx); err != nil {
		return err
	}
	hint(a.wake) // what lies open is answered by run
	return nil
}

func (a *attendant) run(ctx context.Context) error {
	poll := time.NewTicker(a.gen.cfg.Timers.Watch) // notifications may be lost
	defer poll.Stop()
	pause := backoff{lo: a.gen.cfg.Timers.BackoffMin, hi: a.gen.cfg.Timers.BackoffMax}
	for {
		read := true
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-poll.C:
		case <-a.soon():
			read = false
		}
		err := a.round(ctx, read)
		if err == nil {
			a.failures = 0
			pause.reset()
			continue
		}
		if err := a.tolerate(ctx, err); err != nil {
			return err
		}
		if pause.wait(ctx) != nil {
			return nil
		}
		hint(a.wake)
	}
}

// soon ticks once where there is something to look for without being woken.
func (a *attendant) soon() <-chan time.Time {
	if a.wish.On() && !a.reached || len(a.open) > 0 {
		return time.After(pauseLook)
	}
	return nil
}

func (a *attendant) round(ctx context.Context, read bool) error {
	if read {
		if err := a.read(ctx); err != nil {
			return err
		}
	}
	a.look()
	return a.answer(ctx)
}

// read takes up the wish and the open commands.
func (a *attendant) read(ctx context.Context) error {
	var in control.Inbox
	err := a.post(func(p *control.Post) (err error) {
		in, err = p.Read(ctx)
		return err
	})
	if err != nil {
		return err
	}
	a.open = in.Open
	a.obey(in.Pausing)
	return nil
}

func (a *attendant) post(fn func(*control.Post) error) error {
	return a.link.sql.do(func(conn *pgx.Conn) error {
		return fn(control.NewPost(conn, a.gen.cfg.Publisher, a.gen.cfg.Timers.Statement))
	})
}

// obey makes the tap follow the wish.
func (a *attendant) obey(wish control.Pausing) {
	was := a.wish
	a.wish = wish
	switch {
	case wish.On() == was.On():
	case wish.On():
		a.paused.Store(true)
		a.reached, a.settled, a.began = false, 0, time.Now()
		// Inside a transaction that an earlier link has begun, at once: it was held there.
		a.link.intake.hold(how(a.gen.pausedInside && a.gen.entered))
		a.gen.log.Warn().Time("paused_at", wish.Since).Str("paused_by", wish.By).
			Msg("paused: nothing more is published until postrider resume; the slot stays held, so its WAL grows")
	default:
		a.gen.pausedInside = false
		a.paused.Store(false)
		a.reached = true
		a.link.intake.hold(flowing)
		hint(a.gen.park.retries.wake)
		a.gen.log.Info().Time("paused_at", was.Since).Str("paused_by", was.By).Dur("paused_for", time.Since(was.Since)).Msg("resumed: publishing again")
	}
	a.show()
}

func how(now bool) hold {
	if now {
		return holdNow
	}
	return holdBetween
}

// look says whether the pause is reached. A transaction that takes too long to its end
// is held inside, as at the end of a run.
func (a *attendant) look() {
	if !a.wish.On() || a.reached {
		return
	}
	if !a.link.intake.still() && time.Since(a.began) > a.gen.cfg.ShutdownTimeout/2 {
		a.gen.log.Warn().Msg("a large transaction is held in its middle by the pause; if the relay ends now, it is published again from its first event")
		a.gen.pausedInside = true
		a.link.intake.hold(holdNow)
	}
	if !a.drained() {
		a.settled = 0
		return
	}
	// Twice: a row may have been on its way from the tap to the ledger.
	if a.settled++; a.settled < 2 {
		return
	}
	a.reached = true
	a.show()
	a.gen.log.Info().Stringer("confirmed", a.gen.row().Confirmed).Msg("paused: what was published is confirmed")
}

// drained says that nothing is handed over any more, and all that was is resolved and stored.
func (a *attendant) drained() bool {
	g := a.gen
	if !a.link.intake.still() || a.link.retrier.busy() || g.park.retries.flying() > 0 || !g.park.queue.empty() || g.ledger.Unresolved() > 0 {
		return false
	}
	// While a start is still being proved nothing is stored; the pause does not wait for it.
	settled, _ := g.settleDoubt()
	return !settled || g.row().Confirmed >= g.ledger.Position().Confirmed
}

// answer writes what may be said about each open command.
func (a *attendant) answer(ctx context.Context) error {
	var done, under, undone []int64
	var problem string
	for _, c := range a.open {
		switch {
		case c.Verb != control.Pause && c.Verb != control.Resume:
			undone, problem = append(undone, c.ID), "this relay does not know the command"
		case !a.wish.Wants(c.Verb):
			undone, problem = append(undone, c.ID), a.overtaken()
		case a.reached || !a.wish.On():
			done = append(done, c.ID)
		default:
			under = append(under, c.ID)
		}
	}
	err := a.post(func(p *control.Post) error {
		if err := p.Reply(ctx, undone, a.words(), problem); err != nil {
			return err
		}
		if err := p.Reply(ctx, done, a.words(), ""); err != nil {
			return err
		}
		return a.progress(ctx, p, under)
	})
	if err != nil {
		return err
	}
	a.open = a.open[:0]
	for _, id := range under {
		a.open = append(a.open, control.Command{ID: id, Verb: control.Pause})
	}
	return nil
}

// progress is written at once for a new command, and now and then.
func (a *attendant) progress(ctx context.Context, p *control.Post, under []int64) error {
	fresh := false
	for _, id := range under {
		fresh = fresh || !a.taken[id]
	}
	if len(under) == 0 || !fresh && time.Since(a.said) < pauseSay {
		return nil
	}
	if err := p.Take(ctx, under, a.words()); err != nil {
		return err
	}
	a.said = time.Now()
	for _, id := range under {
		a.taken[id] = true
	}
	return nil
}

func (a *attendant) overtaken() string {
	if a.wish.On() {
		return fmt.Sprintf("overtaken: it was paused at %s by %s", a.wish.Since.UTC().Format(time.RFC3339), a.wish.By)
	}
	return "overtaken: somebody has resumed it since"
}

func (a *attendant) words() control.Answer {
	return control.Answer{
		State: a.state(), Holder: a.gen.cfg.Holder, Unacknowledged: a.gen.unresolved() + a.gen.park.retries.flying(),
		Confirmed: a.gen.row().Confirmed.String(),
	}
}

func (a *attendant) state() control.State {
	switch {
	case !a.wish.On():
		return control.Running
	case a.reached:
		return control.Paused
	default:
		return control.Draining
	}
}

func (a *attendant) show() { a.gen.relay.state.pausing(a.wish, a.state()) }

// tolerate lets a failed statement pass while the session lives; the next round reads again.
func (a *attendant) tolerate(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil //nolint:nilerr // the link was given up; the error is its echo
	case isShutdown(err):
		return errors.Join(replication.ErrServerShutdown, err)
	}
	closed := a.link.sql.do(func(conn *pgx.Conn) error {
		if conn.IsClosed() {
			return &operr.Error{Class: operr.Postgres, Transient: true, Op: "see to what is asked of the relay", Err: err}
		}
		return nil
	})
	if closed != nil {
		return closed
	}
	if a.failures++; a.failures == 1 || a.failures%30 == 0 {
		a.gen.log.Warn().Err(err).Int("consecutive_errors", a.failures).Msg("what is asked of the relay cannot be read or answered now")
	}
	return nil
}

// pausedWords is what a probe says.
func pausedWords(p control.Pausing) string {
	return fmt.Sprintf("since %s by %s: postrider resume", p.Since.UTC().Format(time.RFC3339), p.By)
}
