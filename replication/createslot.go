package replication

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

const (
	defaultCreateLimit = 10 * time.Second
	// blockerPoll is how often the waiting creation's blockers are read.
	blockerPoll = 100 * time.Millisecond
	// cleanupWait bounds waiting for a half-made slot to go.
	cleanupWait = 5 * time.Second
)

// SlotSpec is a slot to be made. The publication must exist before (trap 22).
type SlotSpec struct {
	ConnString string
	Slot       string
	// Failover asks for a slot that is synchronised to standbys; 17 and newer.
	Failover bool
	// Limit bounds the creation, which waits for all transactions that are open
	// anywhere in the cluster. Zero is 10 s.
	Limit time.Duration
}

// CreatedSlot is a new slot.
type CreatedSlot struct {
	Slot string
	// ConsistentPoint is where the stream begins.
	ConsistentPoint event.LSN
	// Snapshot is pg_current_snapshot() at that point: rows visible in it are
	// from before the slot, all others come on the stream.
	Snapshot string
}

// CreateSlot makes a logical slot within the limit, or names the backends that
// were in the way and leaves no slot behind (case C34). conn watches, and reads
// the snapshot; it must be idle and outside of a transaction.
func CreateSlot(ctx context.Context, conn *pgx.Conn, spec SlotSpec) (CreatedSlot, error) {
	return CreateSlotFor(ctx, conn, spec, func(context.Context, CreatedSlot, string) error { return nil })
}

// CreateSlotFor is CreateSlot for a caller that reads the table as of the slot's
// consistent point: while use runs, snapshotName may be given to SET TRANSACTION
// SNAPSHOT. Only that sees the rows as they were: one that is updated later has another
// transaction's id, and could not be told from a row of the stream. Where use fails no
// slot is left behind.
func CreateSlotFor(ctx context.Context, conn *pgx.Conn, spec SlotSpec, use func(ctx context.Context, made CreatedSlot, snapshotName string) error) (CreatedSlot, error) {
	if spec.Limit <= 0 {
		spec.Limit = defaultCreateLimit
	}
	subject := fmt.Sprintf("slot %q", spec.Slot)
	before, err := ReadSlot(ctx, conn, spec.Slot)
	if err != nil {
		return CreatedSlot{}, err
	}
	if before.Exists {
		return CreatedSlot{}, &operr.Error{Class: operr.Slot, Op: "create", Subject: subject, Err: errors.New("it exists already")}
	}
	// lock_timeout bounds each single wait for a transaction, statement_timeout
	// nothing at all here; the watcher bounds the whole.
	s, err := connect(ctx, Config{ConnString: spec.ConnString, Slot: spec.Slot},
		[]pin{{"lock_timeout", fmt.Sprintf("%dms", spec.Limit.Milliseconds())}})
	if err != nil {
		return CreatedSlot{}, err
	}
	defer s.Close(context.WithoutCancel(ctx))
	return s.createSlot(ctx, conn, spec, subject, use)
}

func (s *Session) createSlot(ctx context.Context, conn *pgx.Conn, spec SlotSpec, subject string, use func(context.Context, CreatedSlot, string) error) (CreatedSlot, error) {
	if spec.Failover && s.facts.version < 170000 {
		return CreatedSlot{}, &operr.Error{
			Class: operr.Postgres, Op: "create", Subject: subject, Err: errors.New("failover slots need PostgreSQL 17 or newer"),
			Hint: "set failover to false, or upgrade",
		}
	}
	w := watchBlockers(ctx, conn, s.conn, spec.Limit)
	made, err := pglogrepl.ParseCreateReplicationSlot(s.conn.Exec(context.WithoutCancel(ctx), createSlotCommand(spec, s.facts.version)))
	blockers, expired := w.stop()
	if err != nil {
		s.Close(context.WithoutCancel(ctx)) // the server drops the half-made slot with its error, at the latest with its session
		return CreatedSlot{}, errors.Join(createFailed(subject, spec.Limit, blockers, expired, err), cleanUp(ctx, conn, spec.Slot, err))
	}
	slot := CreatedSlot{Slot: spec.Slot}
	slot.ConsistentPoint, err = event.ParseLSN(made.ConsistentPoint)
	if err == nil {
		slot.Snapshot, err = importSnapshot(ctx, conn, made.SnapshotName)
	}
	if err == nil {
		err = use(ctx, slot, made.SnapshotName)
	}
	if err != nil {
		s.Close(context.WithoutCancel(ctx))
		return CreatedSlot{}, errors.Join(classify("read snapshot of", subject, err), cleanUp(ctx, conn, spec.Slot, nil)) // it is ours
	}
	return slot, nil
}

// DropSlot drops a slot that nobody holds. One that is gone already is no error.
func DropSlot(ctx context.Context, conn *pgx.Conn, name string) error {
	_, err := conn.Exec(ctx, "SELECT pg_catalog.pg_drop_replication_slot($1)", name)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42704" { // undefined_object
		return nil
	}
	return classify("drop", fmt.Sprintf("slot %q", name), asSlotBusy(name, err))
}

// createSlotCommand exports the snapshot; pglogrepl's own command knows neither
// FAILOVER nor a quoted name (rule 6).
func createSlotCommand(spec SlotSpec, version int) string {
	head := "CREATE_REPLICATION_SLOT " + quoteIdent(spec.Slot) + " LOGICAL " + Plugin
	if version < 150000 {
		return head + " EXPORT_SNAPSHOT"
	}
	if spec.Failover {
		return head + " (SNAPSHOT 'export', FAILOVER)"
	}
	return head + " (SNAPSHOT 'export')"
}

// importSnapshot reads pg_current_snapshot() as of the slot's creation; the
// exported snapshot lives until the replication session's next command.
func importSnapshot(ctx context.Context, conn *pgx.Conn, name string) (snapshot string, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET TRANSACTION SNAPSHOT "+quoteLiteral(name)); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT pg_catalog.pg_current_snapshot()::text").Scan(&snapshot)
	})
	return inOrder(snapshot), err
}

// inOrder mends a snapshot whose upper end lies below its lower one. A slot exports such where the last transactions before its
// birth did not commit, and PostgreSQL does not read it back: pg_snapshot wants its ends in order. What is below the lower
// end is over for all, so that is the upper one too [seen on 15: 1681:1679:].
func inOrder(snapshot string) string {
	parts := strings.SplitN(snapshot, ":", 3)
	if len(parts) != 3 {
		return snapshot
	}
	lower, err := strconv.ParseUint(parts[0], 10, 64)
	upper, failed := strconv.ParseUint(parts[1], 10, 64)
	if err != nil || failed != nil || lower <= upper {
		return snapshot
	}
	return parts[0] + ":" + parts[0] + ":"
}

// createFailed names what was in the way.
func createFailed(subject string, limit time.Duration, blockers string, expired bool, err error) error {
	var pg *pgconn.PgError
	waited := expired || errors.As(err, &pg) && pg.Code == "55P03"
	if !waited {
		return classify("create", subject, err)
	}
	if blockers == "" {
		blockers = "a transaction that has ended meanwhile, or one that cannot be named"
	}
	return &operr.Error{
		Class: operr.Slot, Op: "create", Subject: subject, Transient: true,
		Err:  fmt.Errorf("not done within %s: waiting for %s; no slot was left behind (%w)", limit, blockers, err),
		Hint: "end those transactions (pg_terminate_backend ends one) or run it when they have ended; a slot can only begin where no older transaction is open",
	}
}

// cleanUp waits until the half-made slot is gone, and drops it where it is left
// and nobody holds it.
func cleanUp(ctx context.Context, conn *pgx.Conn, slot string, cause error) error {
	if pg := (*pgconn.PgError)(nil); errors.As(cause, &pg) && pg.Code == "42710" {
		return nil // somebody else made one of this name in the meantime: not ours to drop
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupWait)
	defer cancel()
	tick := time.NewTicker(blockerPoll)
	defer tick.Stop()
	for {
		s, err := ReadSlot(ctx, conn, slot)
		if err == nil && !s.Exists {
			return nil
		}
		if err == nil && !s.Active {
			_, err = conn.Exec(ctx, "SELECT pg_catalog.pg_drop_replication_slot($1)", slot)
		}
		if err != nil {
			return classify("drop half-made", fmt.Sprintf("slot %q", slot), err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return classify("drop half-made", fmt.Sprintf("slot %q", slot), errors.New("it is still there"))
		}
	}
}

// blockerWatch reads who blocks a creation, and cancels it at the limit or when
// ctx ends.
type blockerWatch struct {
	quit, done chan struct{}
	blockers   string // the last that were seen
	expired    bool
}

func watchBlockers(ctx context.Context, conn *pgx.Conn, target *pgconn.PgConn, limit time.Duration) *blockerWatch {
	w := &blockerWatch{quit: make(chan struct{}), done: make(chan struct{})}
	go w.run(ctx, conn, target, limit)
	return w
}

func (w *blockerWatch) run(ctx context.Context, conn *pgx.Conn, target *pgconn.PgConn, limit time.Duration) {
	defer close(w.done)
	tick := time.NewTicker(blockerPoll)
	defer tick.Stop()
	deadline := time.NewTimer(limit + blockerPoll) // after lock_timeout, which is the cleaner end
	defer deadline.Stop()
	for {
		select {
		case <-w.quit:
			return
		case <-tick.C:
			if b := readBlockers(ctx, conn, target.PID()); b != "" {
				w.blockers = b
			}
			continue
		case <-deadline.C:
			w.expired = true
		case <-ctx.Done():
		}
		// The cancel may come too early or be lost: repeat until the creation has ended.
		deadline.Reset(blockerPoll)
		cancelCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		_ = target.CancelRequest(cancelCtx)
		cancel()
		if ctx.Err() != nil {
			ctx = context.WithoutCancel(ctx)
		}
	}
}

func (w *blockerWatch) stop() (blockers string, expired bool) {
	close(w.quit)
	<-w.done
	return w.blockers, w.expired
}

const blockersSQL = `SELECT b.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
       coalesce(extract(epoch FROM now() - a.xact_start)::bigint, -1)
  FROM unnest(pg_catalog.pg_blocking_pids($1)) AS b(pid) LEFT JOIN pg_catalog.pg_stat_activity a USING (pid) ORDER BY b.pid`

// readBlockers describes who blocks a backend, "" where nobody does or it cannot be read.
func readBlockers(ctx context.Context, conn *pgx.Conn, pid uint32) string {
	// Not under ctx: pgx closes a connection whose query is cut off, and this one
	// has still to see to it that no slot is left.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupWait)
	defer cancel()
	rows, err := conn.Query(ctx, blockersSQL, int32(pid))
	if err != nil {
		return ""
	}
	blockers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var pid int32
		var user, app, state string
		var age int64
		err := row.Scan(&pid, &user, &app, &state, &age)
		return describeBlocker(pid, user, app, state, age), err
	})
	if err != nil {
		return ""
	}
	return strings.Join(blockers, ", ")
}

// describeBlocker leaves out what the role may not see.
func describeBlocker(pid int32, user, app, state string, age int64) string {
	s := fmt.Sprintf("pid %d", pid)
	var known []string
	if user != "" {
		known = append(known, "user "+user)
	}
	if app != "" {
		known = append(known, "application "+app)
	}
	if state != "" {
		known = append(known, state)
	}
	if age >= 0 {
		known = append(known, fmt.Sprintf("in a transaction for %d s", age))
	}
	if len(known) == 0 {
		return s
	}
	return s + " (" + strings.Join(known, ", ") + ")"
}
