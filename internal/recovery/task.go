package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

// step is how far a task is. Each is durable before the next begins.
type step string

const (
	stepBegun     step = "begun"     // the task is there
	stepListed    step = "listed"    // slot and list are made, and stored together
	stepCompared  step = "compared"  // what is settled has left the list
	stepPublished step = "published" // all of the list is acknowledged, or noted
	stepParked    step = "parked"    // what was noted is parked
)

// task is a row of postrider.task, kind recover.
type task struct {
	ID        int64
	State     string
	Snapshot  string // of the vantage
	Total     int64
	Done      int64
	Refused   int64
	CreatedAt time.Time
	CreatedBy string
	Detail    detail
}

// detail is what a recover task keeps beyond its columns.
type detail struct {
	Step step `json:"step"`
	Case Case `json:"case"`
	// Method and Scope as they were chosen when the task began.
	Method Method `json:"method"`
	Scope  Scope  `json:"scope"`
	// Vantage is set from stepListed on.
	Vantage *vantage `json:"vantage,omitempty"`
	// Order says what the order of the list rests on.
	Order string `json:"order,omitempty"`
	// Settled is set from stepCompared on.
	Settled *Comparison `json:"settled,omitempty"`
	// Ends are the ends of the topics when they were compared: what this task has published
	// lies behind them.
	Ends map[string][]int64 `json:"ends,omitempty"`
	// Published were taken off the list since: their topics have them. Parked and Gone are
	// set from stepParked on.
	Published int64 `json:"published,omitempty"`
	Parked    int64 `json:"parked,omitempty"`
	Gone      int64 `json:"gone,omitempty"`
	// Withheld is written by reissue: keys that are held back by a refused event.
	Withheld json.RawMessage `json:"withheld,omitempty"`
}

// vantage is where stream and table meet.
type vantage struct {
	Slot     string `json:"slot"`
	SystemID string `json:"system_id"`
	Timeline int32  `json:"timeline"`
	// Point is where the slot stands: what ended before it is the table's job.
	Point string `json:"point"`
	// WALEnd is, for a slot that is kept, up to where its stream was read.
	WALEnd string `json:"wal_end,omitempty"`
	// Failover says that standbys keep a copy of the slot.
	Failover bool `json:"failover,omitempty"`
}

const taskColumns = `id, state, coalesce(snapshot::text, ''), total, done, refused, created_at, created_by, detail`

// openTasks gives the tasks for whose end `run` waits, oldest first.
func openTasks(ctx context.Context, conn *pgx.Conn, publisher string) (recovers []task, others []string, err error) {
	rows, err := conn.Query(ctx, `SELECT kind, `+taskColumns+` FROM postrider.task
		WHERE publisher = $1 AND kind IN ('recover', 'backfill') AND state NOT IN ('done', 'cancelled') ORDER BY id`, publisher)
	if err != nil {
		return nil, nil, sqlError("list", "the open tasks", err)
	}
	var t task
	var kind string
	_, err = pgx.ForEachRow(rows, []any{&kind, &t.ID, &t.State, &t.Snapshot, &t.Total, &t.Done, &t.Refused, &t.CreatedAt, &t.CreatedBy, &t.Detail}, func() error {
		if kind == "recover" {
			recovers = append(recovers, t)
		} else {
			others = append(others, fmt.Sprintf("%s %d", kind, t.ID))
		}
		t = task{}
		return nil
	})
	return recovers, others, sqlError("list", "the open tasks", err)
}

// beginTask makes the task durable, with what was found. From here on `run` refuses.
func (r *Recovery) beginTask(ctx context.Context, f *Facts, d Diagnosis, o Options) (*task, error) {
	t := &task{State: "running", CreatedBy: r.cfg.Actor, Detail: detail{Step: stepBegun, Case: d.Case, Method: d.Method, Scope: d.Scope}}
	err := r.inTx(ctx, "begin", func(tx pgx.Tx) error {
		params := map[string]any{"options": o, "evidence": evidenceOf(f), "diagnosis": d}
		err := tx.QueryRow(ctx, `INSERT INTO postrider.task (publisher, kind, state, params, reason, created_by, started_at, detail)
			VALUES ($1, 'recover', 'running', $2, $3, $4, clock_timestamp(), $5) RETURNING id, created_at`,
			r.cfg.Publisher, params, o.Reason, r.cfg.Actor, t.Detail).Scan(&t.ID, &t.CreatedAt)
		if err != nil {
			return err
		}
		return r.audit(ctx, tx, "recover.begin", map[string]any{"task": t.ID, "case": d.Case, "says": d.Says, "method": d.Method, "scope": d.Scope, "reason": o.Reason, "evidence": evidenceOf(f)})
	})
	return t, err
}

// save writes step, vantage and counts in the caller's transaction.
func (t *task) save(ctx context.Context, tx pgx.Tx) error {
	tag, err := tx.Exec(ctx, `UPDATE postrider.task SET state = $2, snapshot = nullif($3, '')::pg_snapshot, total = $4, done = $5, refused = $6, detail = $7
		WHERE id = $1 AND state NOT IN ('done', 'cancelled')`, t.ID, t.State, t.Snapshot, t.Total, t.Done, t.Refused, t.Detail)
	if err == nil && tag.RowsAffected() != 1 {
		err = errAbandoned(t.ID)
	}
	return err
}

func errAbandoned(id int64) error {
	return &operr.Error{Class: operr.Slot, Op: "go on with", Subject: fmt.Sprintf("task %d", id), Err: errors.New("it was abandoned meanwhile"), Hint: "postrider recover"}
}

// reload reads what reissue has written to the row.
func (r *Recovery) reload(ctx context.Context, t *task) error {
	err := r.conn.QueryRow(ctx, `SELECT `+taskColumns+` FROM postrider.task WHERE id = $1`, t.ID).Scan(
		&t.ID, &t.State, &t.Snapshot, &t.Total, &t.Done, &t.Refused, &t.CreatedAt, &t.CreatedBy, &t.Detail)
	return sqlError("read", fmt.Sprintf("task %d", t.ID), err)
}

// fail notes that a task waits for a person. It can be resumed.
func (r *Recovery) fail(ctx context.Context, t *task, why string) error {
	t.State = "failed"
	return r.inTx(ctx, "note what stopped", func(tx pgx.Tx) error {
		if err := t.save(ctx, tx); err != nil {
			return err
		}
		return r.audit(ctx, tx, "recover.stop", map[string]any{"task": t.ID, "step": t.Detail.Step, "why": why})
	})
}

// Abandon gives an open task up. What it has published stays published; the position is
// as it was, so that `run` refuses as before and recover may begin anew. Where nothing is
// stored, the slot that the task made goes: `run` would begin at it.
func (r *Recovery) Abandon(ctx context.Context, reason string) (int64, error) {
	open, _, err := openTasks(ctx, r.conn, r.cfg.Publisher)
	if err != nil {
		return 0, err
	}
	if len(open) == 0 {
		return 0, &operr.Error{Class: operr.Config, Op: "abandon", Subject: "the recovery", Err: errors.New("none is open"), Hint: "postrider recover"}
	}
	t := &open[0]
	if err := r.dropMade(ctx, t); err != nil {
		return 0, err
	}
	return t.ID, r.giveUp(ctx, t, reason)
}

// giveUp cancels a task.
func (r *Recovery) giveUp(ctx context.Context, t *task, reason string) error {
	return r.inTx(context.WithoutCancel(ctx), "abandon", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE postrider.task SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = $1`, t.ID); err != nil {
			return err
		}
		return r.audit(ctx, tx, "recover.abandon", map[string]any{"task": t.ID, "step": t.Detail.Step, "done": t.Done, "total": t.Total, "reason": reason})
	})
}

// dropMade drops the slot that a task made where there was none, and no position is stored.
func (r *Recovery) dropMade(ctx context.Context, t *task) error {
	if t.Detail.Case != CaseNoRow || t.Detail.Method != NewSlot {
		return nil
	}
	stored, err := r.store.Load(ctx)
	if err != nil || stored != nil {
		return err
	}
	slot, err := replication.ReadSlot(ctx, r.conn, r.cfg.Replication.Slot)
	switch {
	case err != nil || !slot.Exists:
		return err
	case slot.Active:
		return r.errHeld(ctx, slot)
	}
	return r.dropSlot(ctx, t, slot)
}

// lockSQL is the key of checkpoint.LockPublisher.
const lockSQL = `hashtextextended('postrider ' || $1, 0)`

// lock takes it for the session, or names who has it.
func (r *Recovery) lock(ctx context.Context) error {
	err := checkpoint.LockPublisher(ctx, r.conn, r.cfg.Publisher)
	if operr.ClassOf(err) == operr.Slot {
		return r.errLocked(ctx)
	}
	return err
}

func (r *Recovery) errLocked(ctx context.Context) error {
	var pid int32
	who := "another process"
	err := r.conn.QueryRow(ctx, `SELECT l.pid FROM pg_locks l, (SELECT `+lockSQL+` AS k) key
		WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		  AND l.classid = (k >> 32 & 4294967295)::oid AND l.objid = (k & 4294967295)::oid LIMIT 1`, r.cfg.Publisher).Scan(&pid)
	if err == nil {
		who = r.holder(ctx, uint32(pid))
	}
	return &operr.Error{
		Class: operr.Slot, Op: "recover", Subject: fmt.Sprintf("publisher %q", r.cfg.Publisher), Transient: true,
		Err:  fmt.Errorf("a backfill or a recovery of it is being worked on by %s", who),
		Hint: "wait for it, or stop it and then: postrider recover --resume",
	}
}

const statementTimeout = "20s"

// inTx runs fn in a transaction of small statements. What it commits has to outlive a
// promotion: synchronous_commit is on.
func (r *Recovery) inTx(ctx context.Context, op string, fn func(pgx.Tx) error) error {
	opts := pgx.TxOptions{BeginQuery: "begin; set local synchronous_commit = on; set local statement_timeout = '" + statementTimeout + "'"}
	return sqlError(op, "the recovery", pgx.BeginTxFunc(ctx, r.conn, opts, fn))
}

func (r *Recovery) audit(ctx context.Context, tx pgx.Tx, action string, what map[string]any) error {
	doc, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("encode audit detail: %w", err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO postrider.audit (publisher, actor, action, detail) VALUES ($1, $2, $3, $4::text::jsonb)`,
		r.cfg.Publisher, r.cfg.Actor, action, strings.ReplaceAll(string(doc), `\u0000`, ""))
	return err
}

// sqlError puts an error of the session into an operator's words. An operr.Error passes.
func sqlError(op, subject string, err error) error {
	var known *operr.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := &operr.Error{Class: operr.Postgres, Op: op, Subject: subject, Err: err}
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg):
	case pg.Code == "42P01" || pg.Code == "3F000" || pg.Code == "42703":
		e.Hint = "postrider setup, which creates or updates the schema postrider"
	case pg.Code == "42501":
		e.Hint = "the grants that postrider setup --print shows for the running role"
	}
	return e
}
