package reissue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/publisher"
)

// The headers that mark a record which did not come from the stream. The value is the
// number of the task.
const (
	BackfilledHeader = "postrider-backfilled"
	RecoveredHeader  = "postrider-recovered"
	ReplayedHeader   = "postrider-replayed"
)

// Defaults of Config.
const (
	DefaultWindow       = 10_000
	DefaultSaveEvery    = time.Second
	DefaultDrainTimeout = 10 * time.Second
	DefaultMaxHeld      = 1000
)

// Yield takes the event with number n; numbers rise. msg and all that it refers to may
// be reused after the call.
//
// Where the router refused the row, refusal says why, and msg holds what could be found
// of its topic and key. Where both are nil the row is gone. An error ends the run: the
// source stops reading and returns it.
type Yield func(n int64, msg *event.Message, refusal *event.Refusal) error

// Source hands over the events with from < n, in the order of n. It returns nil when
// there are no more.
type Source func(ctx context.Context, from int64, yield Yield) error

// Config configures a run.
type Config struct {
	// Publisher is the configuration of Kafka. OnAck and OnRefused are the run's own.
	Publisher publisher.Config
	// Mark is appended to the headers of each record.
	Mark event.Header
	// PerSecond bounds the rate in events a second; 0 does not.
	PerSecond float64
	// Total is the number of events of the task: the highest n.
	Total int64
	// Window bounds the events that are not covered by the saved prefix. Default 10,000.
	Window int
	// SaveEvery is the longest pause between two Saves while something changes. Default 1 s.
	SaveEvery time.Duration
	// DrainTimeout is how long a run that has to stop waits for what is on its way. Default 10 s.
	DrainTimeout time.Duration

	// Refused is the number of refused events that earlier runs of the task have noted,
	// Withheld are the units that they hold back.
	Refused  int64
	Withheld []Unit
	// PassRefusedKeys withholds nothing: the order of a key of which an event was refused is broken.
	PassRefusedKeys bool
	// MaxHeld ends the run where more keys are held back: something is wrong with all of them. Default 1000.
	MaxHeld int

	// Save makes progress durable; Desk.Saver gives one. It is called by one goroutine at a
	// time, without the end of the run's context. An error ends the run.
	Save func(ctx context.Context, saved Saved) error
	// Progress is called after each Save, and at the end; may be nil.
	Progress func(Progress)
}

// Saved is what a Save stores.
type Saved struct {
	// Done: all events with n <= Done are acknowledged, or refused and noted.
	Done int64
	// Refused counts those of them that were not published, over all runs of the task.
	Refused int64
	// Notes say which were not published since the last Save, and why.
	Notes []Note
	// Withheld are the units that are held back, of which an event up to Done was refused since the last Save.
	Withheld []Unit
}

// Note says why an event was not published.
type Note struct {
	N       int64
	Outcome string
}

// Progress is for people.
type Progress struct {
	// Done and Total are numbers of events; Refused of Done were not published.
	Done, Total, Refused int64
	// Published counts what was acknowledged in this run, beyond Done too.
	Published int64
	// Elapsed is the time of this run.
	Elapsed time.Duration
	// AwaitedTopics do not exist: events for them wait, and soon all do.
	AwaitedTopics []string
}

// Result is what became of a run.
type Result struct {
	// Done, Refused are as they were saved last.
	Done, Refused int64
	// Published counts the acknowledged events of this run.
	Published int64
	// PossibleDuplicates were sent again after the broker had lost the producer's state.
	PossibleDuplicates int64
}

func (c Config) withDefaults() Config {
	if c.Window <= 0 {
		c.Window = DefaultWindow
	}
	if c.SaveEvery <= 0 {
		c.SaveEvery = DefaultSaveEvery
	}
	if c.DrainTimeout <= 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.MaxHeld <= 0 {
		c.MaxHeld = DefaultMaxHeld
	}
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	return c
}

// Run publishes what the source has after from, and returns when all of it is
// acknowledged or refused, and saved. Refused events are no error: Result counts them.
//
// Brokers that cannot be reached at the beginning are an error; later they are waited for.
// When ctx ends it stops reading, waits for what is on its way at most DrainTimeout, saves,
// and returns the context's cause. So it does where the broker will not have it
// (*operr.Error, class Kafka), where Save fails, or where too many keys are held back.
func Run(ctx context.Context, cfg Config, from int64, src Source) (Result, error) {
	r, err := newRun(cfg.withDefaults(), from)
	if err != nil {
		return Result{}, err
	}
	return r.run(ctx, from, src)
}

// run is one Run.
type run struct {
	cfg    Config
	pub    *publisher.Publisher
	window *window
	held   *held
	pace   pace
	began  time.Time
	stop   context.CancelCauseFunc

	headers []event.Header // scratch
	appends int
}

func newRun(cfg Config, from int64) (*run, error) {
	r := &run{
		cfg: cfg, window: newWindow(cfg.Window, from, cfg.Refused), held: newHeld(cfg.Withheld),
		pace: newPace(cfg.PerSecond), began: time.Now(),
	}
	pc := cfg.Publisher
	pc.OnAck, pc.OnRefused = r.acknowledged, r.refused
	var err error
	r.pub, err = publisher.New(pc)
	return r, err
}

func (r *run) run(ctx context.Context, from int64, src Source) (Result, error) {
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r.stop = stop
	defer func() { _ = r.pub.Close() }() // what could not be published is known by then
	if err := r.pub.Probe(ctx, nil); err != nil {
		return r.result(), err
	}
	r.pub.Start(context.WithoutCancel(ctx))
	keeper := startKeeper(r)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case err := <-r.pub.Fatal():
			stop(err)
		case <-work.Done():
		}
	}()
	err := r.feed(work, from, src)
	stop(nil)
	<-watched
	if saveErr := keeper.finish(err == nil); err == nil {
		err = saveErr
	}
	return r.result(), err
}

// feed publishes all that the source has.
func (r *run) feed(work context.Context, from int64, src Source) error {
	err := src(work, from, func(n int64, msg *event.Message, refusal *event.Refusal) error {
		return r.take(work, n, msg, refusal)
	})
	if err == nil {
		err = r.pub.Drain(work)
	}
	if cause := context.Cause(work); cause != nil {
		err = cause // whatever the source or the drain made of it
	}
	if err != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(work), r.cfg.DrainTimeout)
		defer cancel()
		_ = r.pub.Drain(last) // what is left is published again by the next run
	}
	return err
}

// flushEvery is how many events go into open batches before idle partitions are told.
const flushEvery = 256

// take is the source's Yield.
func (r *run) take(ctx context.Context, n int64, msg *event.Message, refusal *event.Refusal) error {
	if err := r.enter(ctx, n); err != nil {
		return err
	}
	switch {
	case refusal != nil:
		r.refuse(n, unitOf(msg, refusal), refusedText(refusal))
		return nil
	case msg == nil:
		r.refuse(n, nil, goneText)
		return nil
	case r.held.holds(msg):
		r.window.resolve(n, withheldText)
		return nil
	}
	if err := r.pace.wait(ctx, r.pub.Flush); err != nil {
		return err
	}
	marked := *msg
	r.headers = append(append(r.headers[:0], msg.Headers...), r.cfg.Mark)
	marked.Headers = r.headers
	if err := r.pub.Append(ctx, &marked, uint64(n)); err != nil {
		return err
	}
	if r.appends++; r.appends%flushEvery == 0 {
		r.pub.Flush()
	}
	return nil
}

// enter waits for room in the window.
func (r *run) enter(ctx context.Context, n int64) error {
	for {
		ok, err := r.window.enter(n)
		if ok || err != nil {
			return err
		}
		r.pub.Flush()
		select {
		case <-r.window.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// acknowledged is the publisher's OnAck.
func (r *run) acknowledged(runs []publisher.Run) { r.window.acknowledge(runs) }

// refused is the publisher's OnRefused.
func (r *run) refused(f *publisher.Refused) publisher.Disposal {
	n := int64(f.Txn)
	if f.Refusal.Reason == event.ReasonHeld {
		r.window.resolve(n, withheldText)
		return publisher.TakenWithKey
	}
	if r.refuse(n, unitOf(&f.Message, f.Refusal), refusedText(f.Refusal)) {
		return publisher.TakenWithKey
	}
	return publisher.Taken
}

// refuse notes a refused event and says whether its key is held from now on.
func (r *run) refuse(n int64, unit *Unit, outcome string) (holds bool) {
	if unit != nil && !r.cfg.PassRefusedKeys {
		holds = true
		if r.held.add(n, *unit) > r.cfg.MaxHeld {
			r.stop(&operr.Error{
				Class: operr.Halted, Op: "publish", Subject: fmt.Sprintf("event %d of the task", n),
				Err:  fmt.Errorf("events of more than %d keys were refused, the last one %s", r.cfg.MaxHeld, outcome),
				Hint: "heal the cause, cancel the task and plan it again",
			})
		}
	}
	r.window.resolve(n, outcome) // after add: who finds it resolved finds its key held
	return holds
}

func (r *run) result() Result {
	done, refused, published := r.window.counts()
	return Result{Done: done, Refused: refused, Published: published, PossibleDuplicates: r.pub.Stats().PossibleDuplicates}
}

func (r *run) progress() Progress {
	done, refused, published := r.window.counts()
	return Progress{
		Done: done, Total: r.cfg.Total, Refused: refused, Published: published,
		Elapsed: time.Since(r.began), AwaitedTopics: r.pub.Stats().AwaitedTopics,
	}
}

// errOrder is a source that breaks its promise.
var errOrder = errors.New("the source's numbers do not rise")
