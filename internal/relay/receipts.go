package relay

import (
	"context"
	"time"

	"github.com/postrider/postrider/internal/receipts"
)

// startReceipts gives nil where none are kept.
func startReceipts(cfg Config, m *metrics) *receipts.Writer {
	if cfg.KeepReceipts <= 0 {
		return nil
	}
	return receipts.Start(receipts.Config{
		ConnString: cfg.Replication.ConnString, AppName: "postrider " + cfg.Publisher + " (receipts)",
		Publisher: cfg.Publisher, Keep: cfg.KeepReceipts, Log: cfg.Log,
		Written: func(n int) { m.receipts.Add(float64(n)) },
		Dropped: func(reason string, n int) { m.receiptsDropped.WithLabelValues(reason).Add(float64(n)) },
	})
}

// closeReceipts is for a run that ends without a link, or because it cannot publish: finish
// has written the last receipts of all others.
func (r *Relay) closeReceipts() {
	ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
	defer stop()
	go func() {
		select {
		case <-r.cfg.Abandon: // nil: never
			stop()
		case <-ctx.Done():
		}
	}()
	r.receipts.Close(ctx)
}

// pruneReceipts has old ones removed, for as long as the link holds the slot: of several
// instances one does. Who has paused the relay looks at something: it stays as it is.
func (l *link) pruneReceipts(ctx context.Context) error {
	tick := time.NewTicker(l.gen.cfg.Timers.Prune)
	defer tick.Stop()
	for {
		if !l.attend.paused.Load() {
			l.gen.relay.receipts.Prune()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
