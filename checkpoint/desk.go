package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// ErrChanged says that row or slot are not any more as they were when the command looked
// at them: somebody else changed them, and nothing was done.
var ErrChanged = errors.New("the position has changed since it was looked at")

// DeskConfig names whose position a Desk changes, and who asks.
type DeskConfig struct {
	Publisher string
	// Slot is the configured one; the row may be of another.
	Slot string
	// Actor is who asks, for the audit: "alice@host".
	Actor string
}

// Desk is the commands' side of the position, over a connection that the caller owns.
// It changes a position only while nobody holds the slot, and only as it was looked at.
// Everything that changes one leaves a line in the audit. For one goroutine at a time.
type Desk struct {
	conn *pgx.Conn
	cfg  DeskConfig
}

// deskTimeout bounds a statement.
const deskTimeout = time.Minute

// NewDesk makes a Desk; it does no I/O.
func NewDesk(conn *pgx.Conn, cfg DeskConfig) *Desk { return &Desk{conn: conn, cfg: cfg} }

// State is what a command decides by.
type State struct {
	// Row is nil where none is stored.
	Row    *Row
	Slot   SlotState
	System System
	// Holder streams the slot; nil where nobody does.
	Holder *Holder
	// WALEnd is the end of the last record of the WAL.
	WALEnd event.LSN
}

// Look reads it. The slot is read before the row: while a relay runs, the row is written
// before the slot follows, so that the slot can seem to stand behind and never ahead.
func (d *Desk) Look(ctx context.Context) (State, error) {
	var st State
	err := d.tx(ctx, "look at the position", func(ctx context.Context, tx pgx.Tx) (err error) {
		if st.Slot, err = readSlot(ctx, tx, d.cfg.Slot); err != nil {
			return err
		}
		if st.Holder, err = readHolder(ctx, tx, d.cfg.Slot); err != nil {
			return err
		}
		if st.Row, err = loadRow(ctx, tx, d.cfg.Publisher); err != nil {
			return err
		}
		var w walPosition
		err = tx.QueryRow(ctx, `SELECT `+walPositionSQL+`, `+systemSQL).Scan(&w.insert, &w.block, &w.segment, &st.System.ID, &st.System.Timeline)
		if err == nil {
			st.WALEnd, err = w.end()
		}
		if err == nil {
			st.Slot.WALEnd, err = event.ParseLSN(w.insert)
		}
		return err
	})
	return st, err
}

// slotStateSQL reads by way of JSON what not every version has.
const slotStateSQL = `SELECT coalesce(confirmed_flush_lsn, '0/0')::text, coalesce(restart_lsn, '0/0')::text, coalesce(wal_status, ''),
	coalesce((to_jsonb(s) ->> 'failover')::bool, false), coalesce(to_jsonb(s) ->> 'invalidation_reason', '')
	FROM pg_replication_slots s WHERE slot_name = $1`

func readSlot(ctx context.Context, q querier, name string) (SlotState, error) {
	s := SlotState{Name: name}
	var confirmed, restart string
	err := q.QueryRow(ctx, slotStateSQL, name).Scan(&confirmed, &restart, &s.WALStatus, &s.Failover, &s.Reason)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.Exists = true
	return s, parseLSNs(lsnText{confirmed, &s.Confirmed}, lsnText{restart, &s.Restart})
}

// flushPoll is how often AwaitFlush looks.
const flushPoll = 20 * time.Millisecond

// AwaitFlush waits until the WAL is on disk up to lsn: what is not is not decoded, and an
// asynchronous commit is visible before it is. The WAL writer sees to commits only, within
// some of its delays; the last records of a transaction that is open stay where they are
// for as long as the server is quiet. So an empty transaction is committed behind them.
func (d *Desk) AwaitFlush(ctx context.Context, lsn event.LSN) error {
	tick := time.NewTicker(flushPoll)
	defer tick.Stop()
	for looks := 0; ; looks++ {
		var there bool
		err := d.conn.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn() >= $1::text::pg_lsn`, lsn.String()).Scan(&there)
		if err == nil && !there && looks == 1 {
			_, err = d.conn.Exec(ctx, `SELECT pg_current_xact_id()`)
		}
		if err != nil || there {
			return storeErrorOrNil("wait for the WAL to be on disk", "up to "+lsn.String(), err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return storeError("wait for the WAL to be on disk", "up to "+lsn.String(), context.Cause(ctx))
		}
	}
}

func storeErrorOrNil(op, subject string, err error) error {
	if err == nil {
		return nil
	}
	return storeError(op, subject, err)
}

// tx runs fn in a transaction whose commit waits for the disk, and for the synchronous
// standbys: what an operator decided must not be undone by a promotion.
func (d *Desk) tx(ctx context.Context, op string, fn func(context.Context, pgx.Tx) error) error {
	opts := pgx.TxOptions{BeginQuery: fmt.Sprintf(
		"begin; set local synchronous_commit = on; set local statement_timeout = %d", deskTimeout.Milliseconds())}
	err := pgx.BeginTxFunc(ctx, d.conn, opts, func(tx pgx.Tx) error { return fn(ctx, tx) })
	return storeErrorOrNil(op, fmt.Sprintf("of publisher %q", d.cfg.Publisher), err)
}

func (d *Desk) audit(ctx context.Context, tx pgx.Tx, action string, detail map[string]any) error {
	text, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("encode audit detail: %w", err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO postrider.audit (publisher, actor, action, detail) VALUES ($1, $2, $3, $4::text::jsonb)`,
		d.cfg.Publisher, d.cfg.Actor, action, string(text))
	return err
}

// changed is the error of a change that found row or slot otherwise than looked at.
func (d *Desk) changed(ctx context.Context, tx pgx.Tx, op string) error {
	holder, err := readHolder(ctx, tx, d.cfg.Slot)
	if err != nil {
		return err
	}
	if holder != nil {
		return HeldError(op, d.cfg.Slot, *holder)
	}
	return &operr.Error{
		Class: operr.Slot, Op: op, Subject: "slot " + pgx.Identifier{d.cfg.Slot}.Sanitize(), Transient: true,
		Err: ErrChanged, Hint: "the same again, after a look at postrider checkpoint show",
	}
}
