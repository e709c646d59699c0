package peek

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/roots"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// Config says whose events they are and what becomes of them; it is the relay's own.
type Config struct {
	Publisher   string
	Replication replication.Config
	Router      router.Config
	Limits      parking.Limits
}

// Tables are the sources.
func (c Config) Tables() []replication.Table {
	tables := make([]replication.Table, len(c.Router.Sources))
	for i, s := range c.Router.Sources {
		tables[i] = replication.Table{Schema: s.Schema, Name: s.Table}
	}
	return tables
}

// Options say what is looked at.
type Options struct {
	// Page is the number of messages that the server hands out at a time; 0: many.
	Page int
	// Skip: transactions that ended at or before it are published.
	Skip event.LSN
	// Until is where the look ends: transactions that ended at or before it.
	Until event.LSN
	// SystemID is the server's.
	SystemID string
	// First is how many events are kept with what they are.
	First int
	// Payload keeps keys, headers' values and payloads of those.
	Payload bool
	// Max ends the look after so many events; 0: never.
	Max int64
	// Each, if set, hears the source (schema.table) and the id of every event on the stream, also of
	// those that are published or parked already. The bytes are valid until it returns.
	Each func(table string, id []byte)
	// Progress, if set, hears how far the look is, at the end of each transaction.
	Progress func(at event.LSN)
}

// Peek is a copy of the slot that is ready to be read, once. For one goroutine.
type Peek struct {
	cfg  Config
	conn *pgx.Conn
	copy *replication.SlotCopy
}

// Open copies the slot. conn is for what is asked of the catalog; it must stay open and
// otherwise unused until Read has returned. page is Options.Page.
func Open(ctx context.Context, conn *pgx.Conn, cfg Config, page int) (*Peek, error) {
	c, err := replication.CopySlot(ctx, replication.CopyConfig{
		ConnString: cfg.Replication.ConnString, AppName: "postrider " + cfg.Publisher + " (peek)", Slot: cfg.Replication.Slot,
		Publications: cfg.Replication.Publications, MaxRowBytes: cfg.Replication.MaxRowBytes, Page: page,
	})
	if err != nil {
		return nil, err
	}
	return &Peek{cfg: cfg, conn: conn, copy: c}, nil
}

// From is where the slot stood when it was copied.
func (p *Peek) From() event.LSN { return p.copy.From }

// Close gives the copy back to the server.
func (p *Peek) Close(ctx context.Context) { p.copy.Close(ctx) }

// Read looks. The error is an *operr.Error.
func (p *Peek) Read(ctx context.Context, o Options) (Report, error) {
	r, err := p.reader(ctx, o)
	if err != nil {
		return Report{}, err
	}
	if o.Until > p.copy.From {
		if err := p.copy.Read(ctx, o.Until, r); err != nil {
			return Report{}, err
		}
	}
	return r.finish(), nil
}

func (p *Peek) reader(ctx context.Context, o Options) (*reader, error) {
	pubs, err := Publications(ctx, p.conn, p.cfg)
	if err != nil {
		return nil, err
	}
	rt, err := router.New(p.cfg.Router)
	if err != nil {
		return nil, &operr.Error{Class: operr.Config, Op: "compile the mapping", Err: err, Hint: "postrider config check"}
	}
	catalog := roots.Session{
		Do:     func(fn func(*pgx.Conn) error) error { return fn(p.conn) },
		Failed: failed, Publications: p.cfg.Replication.Publications,
	}
	finder := roots.New(p.cfg.Tables(), pubs, catalog, map[uint32]replication.Table{})
	if err := finder.Learn(ctx); err != nil {
		return nil, err
	}
	parked, err := parking.NewDesk(p.conn, p.cfg.Publisher, "").Standing(ctx, o.SystemID, min(o.Skip, p.copy.From))
	if err != nil {
		return nil, err
	}
	return newReader(ctx, p, o, rt, finder, parked), nil
}

// Publications reads them, and refuses where one is missing: since 18 the server passes
// over it in silence, and there would seem to be no events (rule 7).
func Publications(ctx context.Context, conn *pgx.Conn, cfg Config) (replication.Publications, error) {
	pubs, err := replication.ReadPublications(ctx, conn, cfg.Replication.Publications)
	if err != nil {
		return nil, err
	}
	for _, name := range cfg.Replication.Publications {
		if _, ok := pubs.Find(name); !ok {
			return nil, &operr.Error{
				Class: operr.Postgres, Op: "read", Subject: fmt.Sprintf("publication %q", name), Err: errors.New("it does not exist"),
				Hint: "postrider setup, which creates it; rows that were written without it are not on the stream",
			}
		}
	}
	return pubs, nil
}

func failed(op, subject string, err error) error {
	e := &operr.Error{Class: operr.Postgres, Op: op, Subject: subject, Err: err}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		e.Hint = "the grants that postrider setup --print shows for the running role"
	}
	return e
}
