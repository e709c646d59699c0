package receipts

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/postrider/postrider/publisher"
)

// Why receipts are not kept.
const (
	// Full: the queue had no room.
	Full = "buffer_full"
	// NoOffset: the broker did not say where the batch stands.
	NoOffset = "no_offset"
	// Refused: the server would not take them.
	Refused = "refused"
	// Stopped: the process ended before they were written.
	Stopped = "stopped"
)

// Reasons are all of them.
var Reasons = []string{Full, NoOffset, Refused, Stopped}

// Config configures a Writer.
type Config struct {
	ConnString string
	AppName    string
	Publisher  string
	// Keep is how long receipts are kept; see Prune.
	Keep time.Duration
	// Every is the longest time that a receipt waits for company. Default 1 s.
	Every time.Duration
	// Buffer is the memory for what waits, in bytes. Default: the constant.
	Buffer int
	// Written and Dropped count; either may be nil. They are called from several goroutines.
	Written func(events int)
	Dropped func(reason string, events int)
	Log     zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.Every <= 0 {
		c.Every = time.Second
	}
	if c.Buffer <= 0 {
		c.Buffer = Buffer
	}
	if c.Written == nil {
		c.Written = func(int) {}
	}
	if c.Dropped == nil {
		c.Dropped = func(string, int) {}
	}
	return c
}

// Writer writes receipts in the background, over a session of its own, which it opens when
// the first one comes and again after it broke. A nil Writer takes nothing.
type Writer struct {
	cfg   Config
	queue *queue
	conn  *pgx.Conn
	buf   []byte
	pace  complaints

	prune  chan struct{}
	finish chan struct{} // closed: write what is left, once, and end
	once   sync.Once
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	written, dropped atomic.Int64
}

// Start makes a Writer that runs until Close. It does no I/O of its own.
func Start(cfg Config) *Writer {
	cfg = cfg.withDefaults()
	w := &Writer{
		cfg: cfg, queue: newQueue(cfg.Buffer), prune: make(chan struct{}, 1),
		finish: make(chan struct{}), done: make(chan struct{}),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	go w.run()
	return w
}

// Take is the publisher's OnDelivered. It never waits.
func (w *Writer) Take(d *publisher.Delivery) {
	reason := Full
	if d.Base >= 0 {
		if w.queue.put(d) {
			return
		}
		select {
		case <-w.finish:
			reason = Stopped
		default:
		}
	} else {
		reason = NoOffset
	}
	w.drop(reason, d.Count)
	d.Release()
}

// Prune asks for the removal of receipts that are older than Keep, in the background.
func (w *Writer) Prune() { hint(w.prune) }

// Close writes what waits, for no longer than ctx lasts, and ends the Writer. It may be
// called again: the first call counts.
func (w *Writer) Close(ctx context.Context) {
	if w == nil {
		return
	}
	w.once.Do(func() { close(w.finish) })
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	w.cancel()
	<-w.done
}

// Counts are how many receipts were written, and how many not.
func (w *Writer) Counts() (written, dropped int64) {
	if w == nil {
		return 0, 0
	}
	return w.written.Load(), w.dropped.Load()
}

func (w *Writer) drop(reason string, events int) {
	if events > 0 {
		w.dropped.Add(int64(events))
		w.cfg.Dropped(reason, events)
	}
}

// run is the Writer's goroutine.
func (w *Writer) run() {
	defer close(w.done)
	defer w.hangUp()
	s := newSchedule()
	for w.ctx.Err() == nil {
		select {
		case <-w.ctx.Done():
		case <-w.finish:
			if err := w.writeAll(w.ctx); err != nil && w.ctx.Err() == nil {
				w.cfg.Log.Warn().Err(err).Msg("the last receipts could not be written")
			}
			w.cancel()
		case <-w.queue.some:
			s.within(w.cfg.Every)
		case <-w.queue.half:
			s.within(0)
		case <-s.write.C:
			s.wrote(w.writeAll(w.ctx))
		case <-w.prune:
			s.pruned(w.pruneSome(w.ctx))
		case <-s.prune.C:
			s.pruned(w.pruneSome(w.ctx))
		}
	}
	w.drop(Stopped, w.queue.close())
}

// schedule says when the Writer acts next.
type schedule struct {
	write, prune *time.Timer
	// at is when write fires; zero where it does not.
	at time.Time
	// waits is above 0 while the server cannot be asked: nothing makes it sooner.
	waits backoff
}

func newSchedule() *schedule {
	s := &schedule{write: time.NewTimer(time.Hour), prune: time.NewTimer(time.Hour)}
	s.write.Stop()
	s.prune.Stop()
	return s
}

// within sees to it that what waits is written after d at the latest.
func (s *schedule) within(d time.Duration) {
	at := time.Now().Add(d)
	if s.waits > 0 || !s.at.IsZero() && s.at.Before(at) {
		return
	}
	s.at = at
	s.write.Reset(d)
}

// wrote notes a try.
func (s *schedule) wrote(err error) {
	s.at = time.Time{}
	if err == nil {
		s.waits = 0
		return
	}
	s.write.Reset(s.waits.next())
}

// pruned notes that there are more.
func (s *schedule) pruned(more bool) {
	if more {
		s.prune.Reset(prunePause)
	}
}

// backoff is the pause before the next try; 0 while all is well.
type backoff time.Duration

func (b *backoff) next() time.Duration {
	const lo, hi = 200 * time.Millisecond, 5 * time.Second
	*b = backoff(min(hi, max(lo, 2*time.Duration(*b))))
	return time.Duration(*b)
}
