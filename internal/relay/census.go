package relay

import (
	"context"
	"time"

	"github.com/postrider/postrider/parking"
)

// census shows what is parked, in the gauges and in the log, and removes what is done
// with. It belongs to the retrier's goroutine.
type census struct {
	link   *link
	pruned time.Time
	// said is what the log said last, and when.
	said   int
	saidAt time.Time
}

func (c *census) round(ctx context.Context) error {
	var now parking.Census
	err := c.link.parking.do(ctx, func(store *parking.Store) (err error) {
		if _, events := c.link.gen.park.held.Size(); events > 0 {
			if now, err = store.Census(ctx); err != nil {
				return err
			}
		}
		return c.prune(ctx, store)
	})
	if err != nil {
		return err
	}
	c.link.gen.metrics.census(now)
	c.say(now)
	return nil
}

func (c *census) prune(ctx context.Context, store *parking.Store) error {
	cfg := c.link.gen.cfg
	if time.Since(c.pruned) < cfg.Timers.Prune {
		return nil
	}
	n, err := store.Prune(ctx, cfg.KeepParked)
	if err != nil {
		return err
	}
	c.pruned = time.Now()
	if n > 0 {
		c.link.gen.log.Info().Int64("events", n).Dur("kept_for", cfg.KeepParked).Msg("parked events that are done with were removed")
	}
	return nil
}

// say writes one line about all that is parked: at most once in StandbyLog where the
// number has changed, once in ParkedLog where not.
func (c *census) say(now parking.Census) {
	timers := c.link.gen.cfg.Timers
	pause := timers.ParkedLog
	if now.Events != c.said {
		pause = timers.StandbyLog
	}
	if now.Events+c.said == 0 || time.Since(c.saidAt) < pause {
		return
	}
	c.said, c.saidAt = now.Events, time.Now()
	if now.Events == 0 {
		c.link.gen.log.Info().Msg("no event is parked any more")
		return
	}
	units, _ := c.link.gen.park.held.Size()
	c.link.gen.log.Warn().Int("parked_events", now.Events).Interface("reasons", now.Reasons).Int("held_keys", units).
		Int("ownerless", now.Ownerless).Time("oldest_parked_at", now.Oldest).Msg("events are parked; postrider parked list shows them")
}

// census sets the gauges.
func (m *metrics) census(now parking.Census) {
	m.parkedNow.Reset()
	for reason, n := range now.Reasons {
		m.parkedNow.WithLabelValues(string(reason)).Set(float64(n))
	}
	m.ownerless.Set(float64(now.Ownerless))
	m.mu.Lock()
	m.firstParked = now.Oldest
	m.mu.Unlock()
}

func (m *metrics) parkedAge() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.firstParked.IsZero() {
		return 0
	}
	return max(0, time.Since(m.firstParked).Seconds())
}

func (m *metrics) heldNow() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gen == nil {
		return 0
	}
	units, _ := m.gen.park.held.Size()
	return float64(units)
}
