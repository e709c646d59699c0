package backfill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// Config is what a backfill needs.
type Config struct {
	Publisher   string
	Replication replication.Config
	Router      router.Config
	Kafka       publisher.Config
	// Actor is who asks for it, for the audit: user@host.
	Actor string
	// PerSecond bounds the rate; 0 does not.
	PerSecond float64
	// Skip publishes later events of a key of which one was refused, and counts a refusal as
	// settled. Else they are withheld, and the backfill stays open.
	Skip bool
	// Say hears of each step that may take long; nil: nobody does.
	Say func(format string, args ...any)
	// Progress is told now and then how far the publishing is; may be nil.
	Progress func(reissue.Progress)
}

// Backfill works over sessions of its own. Errors are *operr.Error, or the context's.
type Backfill struct {
	cfg    Config
	conn   *pgx.Conn
	desk   *reissue.Desk
	store  *checkpoint.Store
	reader *outbox.Reader
}

// Open connects, and takes the publisher's lock against other commands that publish from
// the table. It looks at no position yet.
func Open(ctx context.Context, cfg Config) (*Backfill, error) {
	if cfg.Say == nil {
		cfg.Say = func(string, ...any) {}
	}
	conn, err := replication.ConnectSQL(ctx, cfg.Replication.ConnString, "postrider backfill of "+cfg.Publisher)
	if err != nil {
		return nil, err
	}
	b := &Backfill{
		cfg: cfg, conn: conn, desk: reissue.NewDesk(conn, cfg.Publisher, cfg.Actor),
		store: checkpoint.NewStore(conn, checkpoint.StoreConfig{Publisher: cfg.Publisher, Slot: cfg.Replication.Slot, Holder: cfg.Actor}),
	}
	return b, nil
}

// Close ends the sessions.
func (b *Backfill) Close(ctx context.Context) {
	if b.reader != nil {
		b.reader.Close(ctx)
	}
	// The server lets go of a session's lock a moment after it has ended; who begins at once should not meet it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
	defer cancel()
	_, _ = b.conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`)
	replication.CloseSQL(ctx, b.conn)
}

// closePatience bounds the end of a session.
const closePatience = 2 * time.Second

// lock keeps a second backfill or recover of the publisher out, for as long as the session lasts.
func (b *Backfill) lock(ctx context.Context) error {
	err := checkpoint.LockPublisher(ctx, b.conn, b.cfg.Publisher)
	if operr.ClassOf(err) == operr.Slot {
		return b.refuse(errors.New("another backfill or recover of this publisher is at work"), "wait for its end; `postrider backfill --cancel` stops a backfill within a second")
	}
	return err
}

// open makes the table's reader.
func (b *Backfill) open(ctx context.Context) (err error) {
	b.reader, err = outbox.Open(ctx, outbox.Config{
		ConnString: b.cfg.Replication.ConnString, AppName: "postrider backfill of " + b.cfg.Publisher + " (reader)",
		Publications: b.cfg.Replication.Publications, Router: b.cfg.Router,
	})
	return err
}

func (b *Backfill) subject() string { return fmt.Sprintf("publisher %q", b.cfg.Publisher) }

// refuse is the error of a backfill that is not right here; going on might skip or
// reorder events.
func (b *Backfill) refuse(why error, hint string) error {
	return &operr.Error{Class: operr.Slot, Op: "backfill", Subject: b.subject(), Err: why, Hint: hint}
}
