package receipts

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
)

const (
	// copyEvents is about how many receipts one COPY takes.
	copyEvents = 10_000
	// pruneRows is what one statement deletes; prunePause stands between two.
	pruneRows  = 5_000
	prunePause = 100 * time.Millisecond
	// complainEvery is how often the log says that receipts are not kept.
	complainEvery = time.Minute
)

// sessionSQL: a receipt may be lost in a crash, so nobody waits for its WAL to be flushed,
// or for a standby to have it. The time-outs end what somebody's lock holds up.
const sessionSQL = `SET synchronous_commit = off; SET statement_timeout = '20s'; SET lock_timeout = '10s'; SET default_transaction_read_only = off`

const pruneSQL = `DELETE FROM postrider.receipt WHERE ctid = ANY(ARRAY(
	SELECT ctid FROM postrider.receipt WHERE publisher = $1 AND acked_at < $2 ORDER BY acked_at LIMIT $3))`

// writeAll writes until nothing waits. What the server refuses is dropped; an error means
// that it could not be asked, and that all is still there.
func (w *Writer) writeAll(ctx context.Context) error {
	for {
		list := w.queue.first(copyEvents)
		if len(list) == 0 {
			return nil
		}
		events := 0
		for _, d := range list {
			events += d.Count
		}
		refused, err := w.write(ctx, list)
		switch {
		case err == nil:
			w.written.Add(int64(events))
			w.cfg.Written(events)
		case refused:
			w.complain(err)
			w.drop(Refused, events)
		default:
			w.hangUp()
			w.complain(err)
			return err
		}
		w.queue.drop(len(list))
	}
}

// write copies the list, all or nothing. refused says that it would fail again.
func (w *Writer) write(ctx context.Context, list []*publisher.Delivery) (refused bool, err error) {
	if err := w.connect(ctx); err != nil {
		return false, err
	}
	r := newRows(w.cfg.Publisher, list, w.buf)
	_, err = w.conn.PgConn().CopyFrom(ctx, r, copySQL)
	var fault error
	if w.buf, fault = r.close(); fault != nil {
		return true, fault
	}
	return !passes(err), err
}

// pruneSome deletes the oldest receipts; more says that there are others.
func (w *Writer) pruneSome(ctx context.Context) (more bool) {
	err := w.connect(ctx)
	if err == nil {
		var tag pgconn.CommandTag
		// By the clock that wrote acked_at.
		if tag, err = w.conn.Exec(ctx, pruneSQL, w.cfg.Publisher, time.Now().Add(-w.cfg.Keep), pruneRows); err == nil {
			return tag.RowsAffected() == pruneRows
		}
	}
	if passes(err) {
		w.hangUp()
	}
	w.complain(err)
	return false
}

func (w *Writer) connect(ctx context.Context) error {
	if w.conn != nil && !w.conn.IsClosed() {
		return nil
	}
	conn, err := replication.ConnectSQL(ctx, w.cfg.ConnString, w.cfg.AppName)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, sessionSQL); err != nil {
		_ = conn.Close(ctx)
		return err
	}
	w.conn = conn
	return nil
}

// hangUp ends the session. It has the word of the server, or none to wait for.
func (w *Writer) hangUp() {
	if w.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.conn.Close(ctx)
	w.conn = nil
}

// passes says that the same will work once the server is back, has room, or lets go of a
// lock. All else is the server's verdict over what it was given.
func passes(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return true
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "08", "25", "28", "40", "53", "55", "57", "58":
		return true
	}
	return false
}

// complaints paces what is said of receipts that are not kept.
type complaints struct{ last time.Time }

func (c *complaints) due() bool {
	if time.Since(c.last) < complainEvery {
		return false
	}
	c.last = time.Now()
	return true
}

func (w *Writer) complain(err error) {
	if w.ctx.Err() != nil || !w.pace.due() {
		return
	}
	_, dropped := w.Counts()
	line := w.cfg.Log.Warn().Err(err).Int64("dropped", dropped)
	if hint := hintFor(err); hint != "" {
		line = line.Str("try", hint)
	}
	line.Msg("receipts cannot be kept; events are published all the same")
}

func hintFor(err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return operr.HintOf(err)
	}
	switch pg.Code {
	case "42P01", "3F000", "42703":
		return "postrider setup: it brings the schema postrider up to date"
	case "42501":
		return "postrider setup --print lists the grants that the role needs"
	}
	return ""
}
