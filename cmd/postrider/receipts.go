package main

import (
	"context"
	"io"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/receipts"
	"github.com/postrider/postrider/publisher"
)

// receiptsGrace is how long the last receipts of a command may take.
const receiptsGrace = 5 * time.Second

// keepReceipts makes a command that publishes note where its events were acknowledged, as
// a relay does, if receipts are kept. stop writes the last ones; old ones are the relay's
// to remove.
func keepReceipts(cfg *config.Config, kafka *publisher.Config, errs io.Writer) (stop func()) {
	if cfg.Receipts.Keep <= 0 {
		return func() {}
	}
	log := newLogger(errs, cfg.Log)
	w := receipts.Start(receipts.Config{
		ConnString: cfg.Postgres.ConnString(), AppName: "postrider " + cfg.Publisher.Name + " (receipts)",
		Publisher: cfg.Publisher.Name, Keep: time.Duration(cfg.Receipts.Keep), Log: log,
	})
	kafka.OnDelivered = w.Take
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), receiptsGrace)
		defer cancel()
		w.Close(ctx)
		if _, dropped := w.Counts(); dropped > 0 {
			log.Warn().Int64("events", dropped).Msg("published, but without a receipt")
		}
	}
}
