package sizing

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/replication"
)

// perWriter is how many events a second one session writes at most: a commit may then
// take ten milliseconds.
const perWriter = 100

// maxWriters bounds the sessions of the latency run.
const maxWriters = 16

// schedule is the latency run: who writes which event when, and what was seen of it.
type schedule struct {
	size    int // of a payload
	rate    int
	writers int
	total   int

	mu sync.Mutex // covers what follows
	// committed and arrived are by writer and event: when the writer's COMMIT returned,
	// and when a consumer had the event. Zero: not yet.
	committed, arrived [][]time.Time
	first, last        time.Time // of the commits
}

func newSchedule(cfg Config) *schedule {
	s := &schedule{size: cfg.Payload, rate: cfg.Rate, total: cfg.latencyRows()}
	s.writers = max(1, min(maxWriters, cfg.Rate/perWriter, s.total))
	for w := range s.writers {
		n := s.share(w)
		s.committed = append(s.committed, make([]time.Time, n))
		s.arrived = append(s.arrived, make([]time.Time, n))
	}
	return s
}

// share is how many of all events writer w writes: w, w+writers, w+2*writers and so on.
func (s *schedule) share(w int) int { return (s.total - w + s.writers - 1) / s.writers }

// run writes all events, each at its time, or at once where the server is too slow.
func (s *schedule) run(ctx context.Context, dsn string, told func(rows int)) error {
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for w := range s.writers {
		group.Go(func() error { return s.write(ctx, dsn, w, began, told) })
	}
	return group.Wait()
}

func (s *schedule) write(ctx context.Context, dsn string, writer int, began time.Time, told func(int)) error {
	conn, err := replication.ConnectSQL(ctx, dsn, appName)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := range s.share(writer) {
		index := n*s.writers + writer
		timer.Reset(time.Until(began.Add(time.Duration(index) * time.Second / time.Duration(s.rate))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		key, version := writerKey(writer, n)
		if _, err := conn.Exec(ctx, insertSQL, key, version, payload(key, version, s.size)); err != nil {
			return sqlError("write", "an event of the latency run", err)
		}
		s.commit(writer, n, time.Now())
		told(index)
	}
	return nil
}

func (s *schedule) commit(writer, n int, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.committed[writer][n] = at
	if s.first.IsZero() || at.Before(s.first) {
		s.first = at
	}
	if at.After(s.last) {
		s.last = at
	}
}

// arrive notes an event that a consumer has; it counts once.
func (s *schedule) arrive(writer, n int, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if writer < len(s.arrived) && n < len(s.arrived[writer]) && s.arrived[writer][n].IsZero() {
		s.arrived[writer][n] = at
	}
}

// latency is the outcome of the run.
type latency struct {
	events int
	// rate is what was reached.
	rate               float64
	p50, p95, p99, max time.Duration
}

// result measures from the return of COMMIT, which is when the application goes on. An
// event that arrived even before that counts as 0.
func (s *schedule) result() (latency, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []time.Duration
	for w := range s.committed {
		for n, committed := range s.committed[w] {
			if at := s.arrived[w][n]; !committed.IsZero() && !at.IsZero() {
				all = append(all, max(0, at.Sub(committed)))
			}
		}
	}
	if len(all) == 0 {
		return latency{}, errors.New("no event of the latency run has arrived")
	}
	slices.Sort(all)
	l := latency{events: len(all), p50: percentile(all, 50), p95: percentile(all, 95), p99: percentile(all, 99), max: all[len(all)-1]}
	if took := s.last.Sub(s.first); took > 0 {
		l.rate = float64(len(all)-1) / took.Seconds()
	}
	return l, nil
}

// percentile is the nearest rank in a sorted list that is not empty.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)*p+99)/100-1]
}
