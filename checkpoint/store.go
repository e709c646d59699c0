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

// ErrFenced says that the row was not written because the slot is not, or no
// longer, streamed to the walsender that the caller named, or because the row has
// moved on. The caller stops its lanes at once: another instance may own the slot
// (trap 20, rule 5).
var ErrFenced = errors.New("another instance owns the position, or the replication connection is gone")

// DefaultStatementTimeout bounds each statement of a Store.
const DefaultStatementTimeout = 5 * time.Second

// StoreConfig names whose row it is.
type StoreConfig struct {
	Publisher string
	Slot      string
	// Holder names this process in the row and the audit: "host/pid".
	Holder string
	// StatementTimeout is given to the server; 0: DefaultStatementTimeout. The
	// client waits somewhat longer before it gives the connection up.
	StatementTimeout time.Duration
}

// Store reads and writes the row over a connection that the caller owns. Like the
// connection it is for one goroutine at a time. Errors are *operr.Error; those of
// the server are found in them as *pgconn.PgError.
type Store struct {
	conn *pgx.Conn
	cfg  StoreConfig
}

// NewStore makes a Store; it does no I/O.
func NewStore(conn *pgx.Conn, cfg StoreConfig) *Store {
	if cfg.StatementTimeout <= 0 {
		cfg.StatementTimeout = DefaultStatementTimeout
	}
	return &Store{conn: conn, cfg: cfg}
}

// Load reads the row; nil where there is none yet.
func (s *Store) Load(ctx context.Context) (*Row, error) {
	var row *Row
	err := s.inTx(ctx, "load the position", func(ctx context.Context, tx pgx.Tx) (err error) {
		row, err = loadRow(ctx, tx, s.cfg.Publisher)
		return err
	})
	return row, err
}

// Register stores the position of a slot that was just created: everything before
// its birth is not this publisher's to publish, unless a backfill is asked for: snapshot is pg_current_snapshot() at
// birth in text form, and "" where it is not known. It does nothing where a row exists.
func (s *Store) Register(ctx context.Context, sys System, birth event.LSN, snapshot string) error {
	return s.inTx(ctx, "register the slot", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			INSERT INTO postrider.checkpoint (publisher, slot, system_id, timeline, slot_birth_lsn, confirmed_lsn, birth_snapshot)
			VALUES ($1, $2, $3, $4, $5::text::pg_lsn, $5::text::pg_lsn, nullif($6, '')::pg_snapshot)
			ON CONFLICT (publisher) DO NOTHING`,
			s.cfg.Publisher, s.cfg.Slot, sys.ID, sys.Timeline, birth.String(), snapshot)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return s.audit(ctx, tx, "register", map[string]any{"slot": s.cfg.Slot, "birth_lsn": birth.String()})
	})
}

// Claim makes the row this process's: position and timeline as Decide gave them,
// holder and walsender as they are now, with a line in the audit. START_REPLICATION
// must have succeeded before, and walsenderPID is the server process behind it.
// stored is the row that Decide saw; ErrFenced where it has changed since, or where
// the slot is not streamed to that walsender (decide again, from owning the slot).
//
// Claim may lower the position: on another timeline LSNs past the fork mean nothing.
// A doubtful start keeps or sets the idle latch, so that it is in doubt again if it
// ends before it is settled.
func (s *Store) Claim(ctx context.Context, stored *Row, start Start, sys System, walsenderPID uint32) (Row, error) {
	var row *Row
	err := s.inTx(ctx, "claim the position", func(ctx context.Context, tx pgx.Tx) error {
		claimed, err := s.claim(ctx, tx, stored, start, sys, walsenderPID)
		if err != nil {
			return err
		}
		if !claimed {
			return s.fenced(ctx, tx, walsenderPID)
		}
		if err := s.audit(ctx, tx, "claim", map[string]any{
			"slot": s.cfg.Slot, "confirmed_lsn": start.Skip.String(), "timeline": start.Timeline,
			"walsender_pid": walsenderPID, "doubtful": start.Doubtful, "why": start.Why,
		}); err != nil {
			return err
		}
		row, err = loadRow(ctx, tx, s.cfg.Publisher)
		return err
	})
	if err != nil {
		return Row{}, err
	}
	return *row, nil
}

func (s *Store) claim(ctx context.Context, tx pgx.Tx, stored *Row, start Start, sys System, walsenderPID uint32) (bool, error) {
	if stored == nil {
		tag, err := tx.Exec(ctx, `
			INSERT INTO postrider.checkpoint
				(publisher, slot, system_id, timeline, confirmed_lsn, holder, walsender_pid, claimed_at, updated_at)
			SELECT $1, $2::text, $3, $4, $5::text::pg_lsn, $6, $7, clock_timestamp(), clock_timestamp()
			WHERE EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $2::text AND active_pid = $7)
			ON CONFLICT (publisher) DO NOTHING`,
			s.cfg.Publisher, s.cfg.Slot, sys.ID, start.Timeline, start.Skip.String(), s.cfg.Holder, int32(walsenderPID))
		return tag.RowsAffected() == 1, err
	}
	tag, err := tx.Exec(ctx, `
		UPDATE postrider.checkpoint
		SET timeline = $4, confirmed_lsn = $5::text::pg_lsn, holder = $6, walsender_pid = $7, idle = idle OR $9,
		    snapshot = CASE WHEN $10 THEN NULL ELSE snapshot END,
		    claimed_at = clock_timestamp(), updated_at = clock_timestamp()
		WHERE publisher = $1 AND slot = $2::text AND system_id = $3 AND xmin::text = $8
		  AND EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $2::text AND active_pid = $7)`,
		s.cfg.Publisher, s.cfg.Slot, sys.ID, start.Timeline, start.Skip.String(), s.cfg.Holder, int32(walsenderPID), stored.version, start.Doubtful, start.Parted)
	return tag.RowsAffected() == 1, err
}

// Save writes the position under the fence of rule 5: not backwards, and only while
// the slot is streamed to walsenderPID and the row is claimed by it. ErrFenced where
// no row changed. The claim is asked for too, because a write that waits for another's
// claim to commit looks at the row again, but not at the slot.
//
// The commit waits for the local disk only: what a synchronous standby lacks is
// published again after its promotion, never lost.
func (s *Store) Save(ctx context.Context, row Row, walsenderPID uint32) error {
	return s.inTx(ctx, "save the position", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE postrider.checkpoint
			SET confirmed_lsn = $5::text::pg_lsn, commit_time = $6, events_published = $7, idle = $8,
			    snapshot = $9::text::pg_snapshot, oldest_unconfirmed = $10, updated_at = clock_timestamp()
			WHERE publisher = $1 AND slot = $2::text AND system_id = $3 AND timeline = $4
			  AND confirmed_lsn <= $5::text::pg_lsn AND walsender_pid = $11
			  AND EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $2::text AND active_pid = $11)`,
			s.cfg.Publisher, s.cfg.Slot, row.SystemID, row.Timeline, row.Confirmed.String(),
			nullTime(row.CommitTime), int64(row.Events), row.Idle, nullText(row.Snapshot),
			nullTime(row.OldestUnconfirmed), int32(walsenderPID))
		if err == nil && tag.RowsAffected() != 1 {
			err = s.fenced(ctx, tx, walsenderPID)
		}
		return err
	})
}

// Audit adds a line to postrider.audit. detail is stored as JSON and holds no
// payloads and no secrets.
func (s *Store) Audit(ctx context.Context, action string, detail map[string]any) error {
	return s.inTx(ctx, "write the audit", func(ctx context.Context, tx pgx.Tx) error {
		return s.audit(ctx, tx, action, detail)
	})
}

func (s *Store) audit(ctx context.Context, tx pgx.Tx, action string, detail map[string]any) error {
	text, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("encode audit detail: %w", err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO postrider.audit (publisher, actor, action, detail) VALUES ($1, $2, $3, $4::text::jsonb)`,
		s.cfg.Publisher, s.cfg.Holder, action, string(text))
	return err
}

// System is the server behind the SQL connection. A replication connection with the
// same multi-host string may have reached another one: compare (rule 5).
func (s *Store) System(ctx context.Context) (System, error) {
	var sys System
	err := s.inTx(ctx, "read the system identifier", func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT `+systemSQL).Scan(&sys.ID, &sys.Timeline)
	})
	return sys, err
}

// systemSQL gives the system identifier and the timeline that is being written: the
// first eight digits of a WAL file's name. pg_control_checkpoint would show that of the
// last checkpoint.
const systemSQL = `(SELECT system_identifier::text FROM pg_control_system()),
	('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int`

// WALEnd is the server's WAL insert position, for SlotState: asked after Load, since a
// relay that is just ending may still write the row.
func (s *Store) WALEnd(ctx context.Context) (event.LSN, error) {
	var end event.LSN
	err := s.inTx(ctx, "read the WAL position", func(ctx context.Context, tx pgx.Tx) error {
		var text string
		err := tx.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&text)
		if err == nil {
			end, err = event.ParseLSN(text)
		}
		return err
	})
	return end, err
}

// inTx runs fn in a transaction with the row's settings: a commit that no standby
// can hold up, and a bound on each statement, on the server and here.
func (s *Store) inTx(ctx context.Context, op string, fn func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*s.cfg.StatementTimeout,
		fmt.Errorf("%s: no answer within %s", op, 2*s.cfg.StatementTimeout))
	defer cancel()
	opts := pgx.TxOptions{BeginQuery: fmt.Sprintf(
		"begin; set local synchronous_commit = local; set local statement_timeout = %d", s.cfg.StatementTimeout.Milliseconds())}
	err := pgx.BeginTxFunc(ctx, s.conn, opts, func(tx pgx.Tx) error { return fn(ctx, tx) })
	if err == nil {
		return nil
	}
	return s.wrap(ctx, op, err)
}

func (s *Store) wrap(ctx context.Context, op string, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	return storeError(op, fmt.Sprintf("of publisher %q", s.cfg.Publisher), err)
}

// fenced says why no row changed, as far as the server shows it.
func (s *Store) fenced(ctx context.Context, tx pgx.Tx, walsenderPID uint32) error {
	var active *int32
	var confirmed, holder *string
	err := tx.QueryRow(ctx, `
		SELECT (SELECT active_pid FROM pg_replication_slots WHERE slot_name = $2::text), c.confirmed_lsn::text, c.holder
		FROM (SELECT) one LEFT JOIN postrider.checkpoint c ON c.publisher = $1`,
		s.cfg.Publisher, s.cfg.Slot).Scan(&active, &confirmed, &holder)
	if err != nil {
		return errors.Join(ErrFenced, err)
	}
	return &operr.Error{
		Class: operr.Slot, Transient: true, Op: "hold", Subject: "slot " + pgx.Identifier{s.cfg.Slot}.Sanitize(),
		Err: fmt.Errorf("%w: our walsender is %d, the slot's is %s; the row stands at %s, held by %s",
			ErrFenced, walsenderPID, show(active), show(confirmed), show(holder)),
		Hint: "nothing, where another instance took over: this one goes on as a standby",
	}
}

func show[T any](p *T) string {
	if p == nil {
		return "none"
	}
	return fmt.Sprint(*p)
}

const rowColumns = `publisher, slot, system_id, timeline, coalesce(slot_birth_lsn, '0/0')::text, coalesce(birth_snapshot::text, ''), confirmed_lsn::text,
	commit_time, events_published, idle, coalesce(snapshot::text, ''), oldest_unconfirmed,
	coalesce(holder, ''), coalesce(walsender_pid, 0), updated_at, xmin::text`

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func loadRow(ctx context.Context, q querier, publisher string) (*Row, error) {
	var r Row
	var birth, confirmed string
	var commit, oldest *time.Time
	var events int64
	var pid int32
	err := q.QueryRow(ctx, `SELECT `+rowColumns+` FROM postrider.checkpoint WHERE publisher = $1`, publisher).Scan(
		&r.Publisher, &r.Slot, &r.SystemID, &r.Timeline, &birth, &r.BirthSnapshot, &confirmed,
		&commit, &events, &r.Idle, &r.Snapshot, &oldest,
		&r.Holder, &pid, &r.UpdatedAt, &r.version)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r.Events, r.WalsenderPID = uint64(events), uint32(pid)
	r.CommitTime, r.OldestUnconfirmed = orZero(commit), orZero(oldest)
	return &r, parseLSNs(lsnText{birth, &r.SlotBirth}, lsnText{confirmed, &r.Confirmed})
}

type lsnText struct {
	text string
	into *event.LSN
}

func parseLSNs(all ...lsnText) error {
	for _, l := range all {
		lsn, err := event.ParseLSN(l.text)
		if err != nil {
			return err
		}
		*l.into = lsn
	}
	return nil
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func nullTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func nullText(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
