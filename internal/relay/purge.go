package relay

import (
	"context"
	"errors"
	"time"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/outbox"
)

// Purge deletes confirmed rows from the outbox while the relay runs.
type Purge struct {
	// Rules are by source, in the order of Router.Sources; nil: nothing is deleted.
	Rules []PurgeRule
	// Batch and Pause are as in outbox.PurgeConfig.
	Batch int
	Pause time.Duration
}

// PurgeRule is a source's; Every 0 leaves it alone.
type PurgeRule struct {
	outbox.PurgeRule
	Every time.Duration
}

// purgeFirst is the longest time before the first purge of a run: relays that are
// restarted more often than every purge still do some.
const purgeFirst = time.Minute

// purger deletes on a schedule, for as long as the link holds the slot. Its sessions are
// its own, and are open while it deletes alone. No error of it ends anything.
type purger struct {
	link *link
	gen  *generation
	// due is by source.
	due []time.Time
}

// newPurger gives nil where nothing is to be purged.
func newPurger(l *link) *purger {
	p := &purger{link: l, gen: l.gen}
	scheduled := false
	for _, r := range l.gen.cfg.Purge.Rules {
		scheduled = scheduled || r.Every > 0
	}
	if !scheduled {
		return nil
	}
	p.due = l.gen.relay.purges
	return p
}

// run purges until the link or the run ends. run is the run's context: behind its end no
// batch is begun.
func (p *purger) run(run context.Context) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			timer := time.NewTimer(time.Until(p.next()))
			select {
			case <-ctx.Done():
			case <-run.Done():
			case <-timer.C:
			}
			timer.Stop()
			if over := ctx.Err() != nil || run.Err() != nil; over {
				return nil
			}
			p.round(ctx, run)
		}
	}
}

func (p *purger) next() (at time.Time) {
	for i, r := range p.gen.cfg.Purge.Rules {
		if r.Every > 0 && (at.IsZero() || p.due[i].Before(at)) {
			at = p.due[i]
		}
	}
	return at
}

// round purges the sources that are due. Who has paused the relay looks at something: it
// stays as it is.
func (p *purger) round(ctx, run context.Context) {
	now := time.Now()
	cfg := outbox.PurgeConfig{
		Config: outbox.Config{
			ConnString: p.gen.cfg.Replication.ConnString, AppName: "postrider " + p.gen.cfg.Publisher + " (purge)",
			Publications: p.gen.cfg.Replication.Publications,
		},
		Publisher: p.gen.cfg.Publisher, Actor: p.gen.cfg.Holder, Graceful: run,
		Batch: p.gen.cfg.Purge.Batch, Pause: p.gen.cfg.Purge.Pause,
	}
	for i, r := range p.gen.cfg.Purge.Rules {
		if r.Every > 0 && !p.due[i].After(now) {
			cfg.Router.Sources = append(cfg.Router.Sources, p.gen.cfg.Router.Sources[i])
			cfg.Rules = append(cfg.Rules, r.PurgeRule)
			p.due[i] = now.Add(r.Every)
		}
	}
	if p.link.attend.paused.Load() {
		return
	}
	result, err := p.purge(ctx, cfg)
	for _, t := range result.Tables {
		p.gen.metrics.purged.WithLabelValues(t.Table).Add(float64(t.Deleted))
		if t.Deleted+t.Skipped > 0 {
			p.gen.log.Info().Str("table", t.Table).Int64("rows", t.Deleted).Int64("locked_by_others", t.Skipped).Dur("took", time.Since(now)).
				Msg("purged: confirmed rows older than the retention were deleted")
		}
	}
	switch {
	case err == nil, ctx.Err() != nil, run.Err() != nil:
	case errors.Is(err, outbox.ErrPurging):
		p.gen.log.Info().Msg("somebody else purges at the moment; next time")
	default:
		p.gen.log.Error().Err(err).Str("try", operr.HintOf(err)).Msg("the purge failed; the table grows")
	}
}

func (p *purger) purge(ctx context.Context, cfg outbox.PurgeConfig) (outbox.PurgeResult, error) {
	purge, err := outbox.OpenPurge(ctx, cfg)
	if err != nil {
		return outbox.PurgeResult{}, err
	}
	defer purge.Close(context.WithoutCancel(ctx))
	return purge.Run(ctx)
}

// firstPurges says when each source is purged first.
func firstPurges(rules []PurgeRule) []time.Time {
	due := make([]time.Time, len(rules))
	for i, r := range rules {
		due[i] = time.Now().Add(min(r.Every, purgeFirst))
	}
	return due
}
