package parking

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// ErrFenced says that the slot is not, or no longer, streamed to the walsender that the
// caller named: another instance may own it, and nothing was written (rule 5).
var ErrFenced = errors.New("another instance owns the slot, or the replication connection is gone")

// Channel is what commands notify a relay on. The payload is the publisher's name.
const Channel = "postrider_parked"

// defaultStatementTimeout bounds each statement of a Store.
const defaultStatementTimeout = 5 * time.Second

// Config names whose events they are.
type Config struct {
	Publisher string
	Slot      string
	SystemID  string
	Timeline  int32
	// Holder names this process in the audit.
	Holder string
	// WalsenderPID is the server process behind the stream: the fence.
	WalsenderPID uint32
	// Timeout of a statement, on the server. Default 5 s.
	Timeout time.Duration
}

// Store is the relay's side of postrider.parked, over a connection that the caller
// owns. Every write waits for the synchronous standbys (rule 5) and is fenced. Errors
// are *operr.Error.
type Store struct {
	conn *pgx.Conn
	cfg  Config
}

// NewStore makes a Store; it does no I/O.
func NewStore(conn *pgx.Conn, cfg Config) *Store {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultStatementTimeout
	}
	return &Store{conn: conn, cfg: cfg}
}

const insertSQL = `INSERT INTO postrider.parked
	(publisher, slot, system_id, timeline, commit_lsn, event_index, commit_time, unit, reason, error, attempts, tried_at,
	 event_id, aggregate_type, aggregate_id, aggregate_version, event_type, source_table,
	 topic, partition, record_millis, key, value, header_names, header_values, row_shape, row_values, dead_letter_topic)
	VALUES ($1, $2, $3, $4, $5::text::pg_lsn, $6, $7, $8, $9, $10, $11, CASE WHEN $11 > 0 THEN clock_timestamp() END,
	 $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25::text::jsonb, $26, $27)
	ON CONFLICT (publisher, system_id, commit_lsn, event_index) DO NOTHING`

// Park makes events durable. An event whose position has a row already is left as it is
// there: it is the same one. Where the two ids say that it is not, the old row makes way.
func (s *Store) Park(ctx context.Context, events []*Event) error {
	return s.write(ctx, "park events", func(ctx context.Context, tx pgx.Tx) error {
		there, err := s.insert(ctx, tx, events)
		if err != nil {
			return err
		}
		if len(there) > 0 {
			if err := s.makeWay(ctx, tx, there); err != nil {
				return err
			}
		}
		return s.audit(ctx, tx, "parked.park", parkDetail(events))
	})
}

// insert gives the events of which the position has a row already.
func (s *Store) insert(ctx context.Context, tx pgx.Tx, events []*Event) (there []*Event, err error) {
	batch := &pgx.Batch{}
	for _, e := range events {
		args, err := s.insertArgs(e)
		if err != nil {
			return nil, err
		}
		batch.Queue(insertSQL, args...).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() == 0 {
				there = append(there, e)
			}
			return nil
		})
	}
	err = tx.SendBatch(ctx, batch).Close()
	return there, err
}

func (s *Store) insertArgs(e *Event) ([]any, error) {
	m := &e.Message
	shape, values, err := e.Row.encode()
	if err != nil {
		return nil, err
	}
	var partition *int32
	if m.Partition >= 0 {
		partition = &m.Partition
	}
	names, headers := make([][]byte, len(m.Headers)), make([][]byte, len(m.Headers))
	for i, h := range m.Headers {
		names[i], headers[i] = []byte(h.Name), h.Value
	}
	return []any{
		s.cfg.Publisher, s.cfg.Slot, s.cfg.SystemID, s.cfg.Timeline, m.Position.Commit.String(), int64(m.Position.Index), nullTime(e.CommitTime),
		unitBytes(e.Unit), string(e.Reason), clean(e.Error), e.Attempts,
		text(m.EventID), text(m.AggregateType), readable(m.Key), text(m.AggregateVersion), text(m.EventType), text([]byte(e.SourceTable)),
		text([]byte(m.Topic)), partition, m.TimestampMillis, m.Key, m.Value, names, headers, shape, values,
		text([]byte(m.DeadLetter)),
	}, nil
}

func unitBytes(u *Unit) []byte {
	if u == nil {
		return nil
	}
	return u[:]
}

func nullTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// parkDetail says what was parked; an event is known by its position, rows have no number yet.
func parkDetail(events []*Event) map[string]any {
	reasons := map[event.Reason]int{}
	for _, e := range events {
		reasons[e.Reason]++
	}
	first, last := events[0].Message.Position, events[len(events)-1].Message.Position
	return map[string]any{
		"events": len(events), "reasons": reasons,
		"first": fmt.Sprintf("%s/%d", first.Commit, first.Index), "last": fmt.Sprintf("%s/%d", last.Commit, last.Index),
	}
}

// WALEnd is the server's insert position: what a commit before wrote lies before it.
func (s *Store) WALEnd(ctx context.Context) (event.LSN, error) {
	var lsn event.LSN
	err := s.tx(ctx, "read the WAL position", func(ctx context.Context, tx pgx.Tx) error {
		var at string
		if err := tx.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&at); err != nil {
			return err
		}
		var err error
		lsn, err = event.ParseLSN(at)
		return err
	})
	return lsn, err
}

// write is tx between two looks at the fence.
func (s *Store) write(ctx context.Context, op string, fn func(context.Context, pgx.Tx) error) error {
	return s.tx(ctx, op, func(ctx context.Context, tx pgx.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		if err := fn(ctx, tx); err != nil {
			return err
		}
		return s.fence(ctx, tx)
	})
}

func (s *Store) fence(ctx context.Context, tx pgx.Tx) error {
	var ours bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active_pid = $2)`,
		s.cfg.Slot, int32(s.cfg.WalsenderPID)).Scan(&ours)
	if err == nil && !ours {
		err = ErrFenced
	}
	return err
}

func (s *Store) tx(ctx context.Context, op string, fn func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 4*s.cfg.Timeout, fmt.Errorf("%s: no answer within %s", op, 4*s.cfg.Timeout))
	defer cancel()
	opts := pgx.TxOptions{BeginQuery: fmt.Sprintf(
		"begin; set local synchronous_commit = on; set local statement_timeout = %d", s.cfg.Timeout.Milliseconds())}
	err := pgx.BeginTxFunc(ctx, s.conn, opts, func(tx pgx.Tx) error { return fn(ctx, tx) })
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	return storeError(op, s.cfg.Publisher, err)
}

// storeError puts an error into an operator's words.
func storeError(op, publisher string, err error) *operr.Error {
	e := &operr.Error{Class: operr.Postgres, Transient: true, Op: op, Subject: fmt.Sprintf("of publisher %q", publisher), Err: err}
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, ErrFenced):
		e.Class = operr.Slot
	case errors.As(err, &pg):
		switch pg.Code {
		case "42P01", "3F000", "42703": // undefined_table, invalid_schema_name, undefined_column
			e.Transient, e.Hint = false, "postrider setup, which brings the schema up to date"
		case "42501": // insufficient_privilege
			e.Transient, e.Hint = false, "the grants that postrider setup --print shows for the running role"
		}
	}
	return e
}

func (s *Store) audit(ctx context.Context, tx pgx.Tx, action string, detail map[string]any) error {
	return audit(ctx, tx, s.cfg.Publisher, s.cfg.Holder, action, detail)
}

func audit(ctx context.Context, tx pgx.Tx, publisher, actor, action string, detail map[string]any) error {
	doc, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("encode audit detail: %w", err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO postrider.audit (publisher, actor, action, detail) VALUES ($1, $2, $3, $4::text::jsonb)`,
		publisher, actor, action, string(doc))
	return err
}
