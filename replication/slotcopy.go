package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// ErrEnough is what a Handler returns to end SlotCopy.Read early, without an error.
var ErrEnough = errors.New("enough was read")

const (
	// defaultCopyPage keeps a page's rows within some temporary space of the server; each
	// page is decoded from the slot's restart point again, so it must not be small.
	defaultCopyPage = 50_000
	// oversizedHead is how much is read of a row above the limit: enough to tell its table.
	oversizedHead = 16
	// dropCopyTimeout bounds the end of a copy. Its session's end drops it anyhow.
	dropCopyTimeout = 2 * time.Second
)

// CopyConfig says which slot is copied, and how the copy is read.
type CopyConfig struct {
	ConnString string
	// AppName is the application_name of the copy's session.
	AppName      string
	Slot         string
	Publications []string
	// MaxRowBytes is as in Config: of a row above it only the size is read.
	MaxRowBytes int
	// Page is the number of messages after which the end of a transaction ends a
	// question to the server. 0: 50,000.
	Page int
}

// SlotCopy is a temporary slot, in a session of its own: a copy of another, or one that
// begins now. Reading a copy takes nothing from the slot itself, which a relay may hold
// meanwhile. It takes a free replication slot, and goes with its session at the latest.
// For one goroutine.
type SlotCopy struct {
	conn *pgx.Conn
	cfg  CopyConfig
	name string
	// From is where the copy stands: the slot's confirmed position when it was made.
	// Transactions whose commit record starts before it are not read.
	From event.LSN
}

// CopySlot makes one. The error is an *operr.Error; a slot that is missing, lost or not
// fit for a relay is told as the start checks tell it.
func CopySlot(ctx context.Context, cfg CopyConfig) (*SlotCopy, error) {
	return openCopy(ctx, cfg, (*SlotCopy).make)
}

// TemporarySlot makes one that begins now, whatever cfg.Slot: no slot needs to be there.
// The server waits for all transactions that are open to end; ctx ends that.
func TemporarySlot(ctx context.Context, cfg CopyConfig) (*SlotCopy, error) {
	return openCopy(ctx, cfg, (*SlotCopy).begin)
}

func openCopy(ctx context.Context, cfg CopyConfig, create func(*SlotCopy, context.Context) error) (*SlotCopy, error) {
	if cfg.Page <= 0 {
		cfg.Page = defaultCopyPage
	}
	if cfg.MaxRowBytes <= 0 {
		cfg.MaxRowBytes = defaultMaxRowBytes
	}
	conn, err := ConnectSQL(ctx, cfg.ConnString, cfg.AppName)
	if err != nil {
		return nil, err
	}
	c := &SlotCopy{conn: conn, cfg: cfg, name: fmt.Sprintf("postrider_copy_%d", conn.PgConn().PID())}
	if err := create(c, ctx); err != nil {
		CloseSQL(ctx, conn) // a creation that was cut off must not go on waiting for transactions
		return nil, err
	}
	return c, nil
}

func (c *SlotCopy) make(ctx context.Context) error {
	subject := fmt.Sprintf("slot %q", c.cfg.Slot)
	slot, err := ReadSlot(ctx, c.conn, c.cfg.Slot)
	if err != nil {
		return err
	}
	if problem := slot.Problem(c.conn.Config().Database); problem != nil {
		return problem
	}
	return classify("copy", subject, c.create(ctx, "pg_catalog.pg_copy_logical_replication_slot($1, $2, true)", c.cfg.Slot, c.name))
}

func (c *SlotCopy) begin(ctx context.Context) error {
	return classify("create", "a temporary slot", c.create(ctx, "pg_catalog.pg_create_logical_replication_slot($1, $2, true)", c.name, Plugin))
}

func (c *SlotCopy) create(ctx context.Context, call string, args ...any) error {
	// Decoding a long backlog takes as long as it takes; the caller's context ends it.
	if _, err := c.conn.Exec(ctx, "SET statement_timeout = 0"); err != nil {
		return err
	}
	var from string
	if err := c.conn.QueryRow(ctx, "SELECT lsn::text FROM "+call, args...).Scan(&from); err != nil {
		return err
	}
	at, err := event.ParseLSN(from)
	c.From = at
	return err
}

// copySQL takes from the copy: each page goes on where the last one ended.
const copySQL = `SELECT lsn::text, octet_length(data), CASE WHEN octet_length(data) <= $5 THEN data ELSE substr(data, 1, $6) END
  FROM pg_catalog.pg_logical_slot_get_binary_changes($1, $2::text::pg_lsn, $3, 'proto_version', '1', 'publication_names', $4)`

// Read hands committed transactions to h, in commit order and whole, on from where the
// last Read ended: all whose commit record starts before until. It ends there or at the
// end of what the server has on disk, at ErrEnough from h, or with an error. KeepAlive
// and InputDrained are not called. After ErrEnough and after an error the copy is of no
// use any more.
func (c *SlotCopy) Read(ctx context.Context, until event.LSN, h Handler) error {
	d := newDecoder(h)
	for {
		n, err := c.page(ctx, until, d)
		switch {
		case errors.Is(err, ErrEnough):
			return nil
		case err != nil:
			return classify("decode", fmt.Sprintf("slot %q", c.cfg.Slot), err)
		case n < c.cfg.Page:
			return nil
		}
	}
}

func (c *SlotCopy) page(ctx context.Context, until event.LSN, d *decoder) (n int, err error) {
	formats := pgx.QueryResultFormats{pgx.TextFormatCode, pgx.BinaryFormatCode, pgx.BinaryFormatCode}
	rows, err := c.conn.Query(ctx, copySQL, formats, c.name, until.String(), c.cfg.Page, publicationNames(c.cfg.Publications),
		c.cfg.MaxRowBytes, oversizedHead)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		if err := c.hand(rows.RawValues(), d); err != nil {
			c.abandon()
			return n, err
		}
		n++
	}
	return n, rows.Err()
}

// hand decodes one row of output: position as text, size and message in binary.
func (c *SlotCopy) hand(raw [][]byte, d *decoder) error {
	at, err := event.ParseLSN(string(raw[0]))
	if err != nil {
		return err
	}
	size := cursor{b: raw[1]}
	if n := int(size.uint32()); n > len(raw[2]) {
		return d.oversized(at, n, raw[2])
	}
	return d.message(at, raw[2])
}

// abandon ends the session without reading what the server has still to send.
func (c *SlotCopy) abandon() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.conn.PgConn().Close(ctx) // the server drops the copy with the session
}

// Close drops the copy and ends its session.
func (c *SlotCopy) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropCopyTimeout)
	defer cancel()
	if !c.conn.IsClosed() {
		_, _ = c.conn.Exec(ctx, "SELECT pg_catalog.pg_drop_replication_slot($1)", c.name) // or it goes with the session
	}
	CloseSQL(ctx, c.conn)
}

// publicationNames is pgoutput's option: a list of quoted names.
func publicationNames(publications []string) string {
	quoted := make([]string, len(publications))
	for i, p := range publications {
		quoted[i] = quoteIdent(p)
	}
	return strings.Join(quoted, ",")
}
