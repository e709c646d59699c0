package reissue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
)

// Kind is what a task is for.
type Kind string

// The kinds of tasks.
const (
	Backfill Kind = "backfill"
	Recover  Kind = "recover"
	Replay   Kind = "replay"
)

// State is how far a task is.
type State string

// The states of a task. A task whose process ended stays running until it is resumed.
const (
	Planned   State = "planned"
	Approved  State = "approved"
	Running   State = "running"
	Done      State = "done"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Ended says that nothing of the task will happen any more.
func (s State) Ended() bool { return s == Done || s == Cancelled }

// Task is a row of postrider.task. The JSON fields are a documented contract.
type Task struct {
	ID        int64           `json:"id"`
	Publisher string          `json:"publisher"`
	Kind      Kind            `json:"kind"`
	State     State           `json:"state"`
	Params    json.RawMessage `json:"params"`
	Reason    string          `json:"reason"`
	// Snapshot is the pg_snapshot that chose the rows; "" where none did.
	Snapshot string `json:"snapshot,omitempty"`
	// Total is the number of items. Items up to Done are published but for Refused of them.
	Total      int64      `json:"total"`
	Done       int64      `json:"done"`
	Refused    int64      `json:"refused"`
	CreatedAt  time.Time  `json:"created_at"`
	CreatedBy  string     `json:"created_by"`
	ApprovedAt *time.Time `json:"approved_at"`
	ApprovedBy *string    `json:"approved_by"`
	StartedAt  *time.Time `json:"started_at"`
	FinishedAt *time.Time `json:"finished_at"`
	Detail     Detail     `json:"detail"`
	// Active says that a process works on it now.
	Active bool `json:"active"`
}

// Detail is what a task has beyond its columns.
type Detail struct {
	// Listed says that all items are listed: a task whose planning was cut off can only be cancelled.
	Listed bool `json:"listed,omitempty"`
	// Order says by what the items are ordered.
	Order string `json:"order,omitempty"`
	// DBUser and ApprovedDBUser are the sessions' users beside created_by and approved_by.
	DBUser         string `json:"db_user,omitempty"`
	ApprovedDBUser string `json:"approved_db_user,omitempty"`
	// NeedsApproval says that a second person has to approve.
	NeedsApproval bool `json:"needs_approval,omitempty"`
	// Withheld are the units of which an event was refused.
	Withheld []Unit `json:"withheld,omitempty"`
}

const taskColumns = `t.id, t.publisher, t.kind, t.state, t.params, t.reason, coalesce(t.snapshot::text, ''), t.total, t.done, t.refused, t.created_at, t.created_by,
	t.approved_at, t.approved_by, t.started_at, t.finished_at, t.detail, EXISTS (SELECT FROM pg_locks l, (SELECT ` + lockKey + ` AS k) AS key
		WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND l.classid = (k >> 32 & 4294967295)::oid AND l.objid = (k & 4294967295)::oid)`

// lockKey is the advisory lock of whoever works on a task.
const lockKey = `hashtextextended('postrider task ' || t.id, 0)`

func (t *Task) targets() []any {
	return []any{
		&t.ID, &t.Publisher, &t.Kind, &t.State, &t.Params, &t.Reason, &t.Snapshot, &t.Total, &t.Done, &t.Refused, &t.CreatedAt, &t.CreatedBy,
		&t.ApprovedAt, &t.ApprovedBy, &t.StartedAt, &t.FinishedAt, &t.Detail, &t.Active,
	}
}

// Desk keeps the tasks of a publisher, over a connection that the caller owns and uses
// for nothing else while a task runs. Whatever changes a task leaves a row in the audit.
// Errors are *operr.Error.
type Desk struct {
	conn      *pgx.Conn
	publisher string
	actor     string
}

// NewDesk makes a Desk; it does no I/O. actor is who acts: "user@host".
func NewDesk(conn *pgx.Conn, publisher, actor string) *Desk {
	return &Desk{conn: conn, publisher: publisher, actor: actor}
}

// ErrNoTask is in the error of a task that is not there.
var ErrNoTask = errors.New("there is no such task")

// Get reads a task of one of the kinds; none: of any.
func (d *Desk) Get(ctx context.Context, id int64, kinds ...Kind) (Task, error) {
	var t Task
	err := d.tx(ctx, "read the task", func(tx pgx.Tx) (err error) {
		t, err = d.load(ctx, tx, id, "")
		if err == nil && len(kinds) > 0 && !slices.Contains(kinds, t.Kind) {
			err = d.refuse(id, fmt.Errorf("it is a %s, not a %s", t.Kind, kinds[0]))
		}
		return err
	})
	return t, err
}

func (d *Desk) load(ctx context.Context, tx pgx.Tx, id int64, lock string) (t Task, err error) {
	err = tx.QueryRow(ctx, `SELECT `+taskColumns+` FROM postrider.task t WHERE t.publisher = $1 AND t.id = $2 `+lock, d.publisher, id).Scan(t.targets()...)
	if errors.Is(err, pgx.ErrNoRows) {
		err = d.refuse(id, ErrNoTask)
	}
	return t, err
}

// List gives the tasks of the kinds, newest first; open leaves out those that have
// ended, most 0 gives all.
func (d *Desk) List(ctx context.Context, open bool, most int, kinds ...Kind) ([]Task, error) {
	list := []Task{}
	err := d.tx(ctx, "list the tasks", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+taskColumns+` FROM postrider.task t WHERE t.publisher = $1 AND t.kind = ANY($2::text[])
			AND NOT ($3 AND t.state IN ('done', 'cancelled')) ORDER BY t.id DESC LIMIT nullif($4, 0)`, d.publisher, kinds, open, most)
		if err != nil {
			return err
		}
		var t Task
		_, err = pgx.ForEachRow(rows, t.targets(), func() error {
			list = append(list, t)
			t = Task{}
			return nil
		})
		return err
	})
	return list, err
}

// Items gives the items that were not published, with their reasons; most 0 gives all.
func (d *Desk) Items(ctx context.Context, id int64, most int) ([]Item, error) {
	list := []Item{}
	err := d.tx(ctx, "list the task's items", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT n, source_table, event_id, outcome FROM postrider.task_item
			WHERE task = $1 AND outcome IS NOT NULL ORDER BY n LIMIT nullif($2, 0)`, id, most)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Item])
		return err
	})
	return list, err
}

// Waiting counts the items that were refused or withheld: their rows are there, and may be
// published yet.
func (d *Desk) Waiting(ctx context.Context, id int64) (n int64, err error) {
	err = d.tx(ctx, "count the task's items", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT count(*) FROM postrider.task_item WHERE task = $1 AND outcome IS NOT NULL AND outcome NOT LIKE 'gone:%'`, id).Scan(&n)
	})
	return n, err
}

// Item is an event of a task that was not published.
type Item struct {
	N       int64  `json:"n"`
	Table   string `json:"table"`
	EventID string `json:"event_id"`
	Outcome string `json:"outcome"`
}

// statementTimeout bounds what the Desk asks; none of it touches the outbox.
const statementTimeout = 20 * time.Second

func (d *Desk) tx(ctx context.Context, op string, fn func(pgx.Tx) error) error {
	opts := pgx.TxOptions{BeginQuery: fmt.Sprintf("begin; set local statement_timeout = %d", statementTimeout.Milliseconds())}
	err := pgx.BeginTxFunc(ctx, d.conn, opts, fn)
	var known *operr.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	failed := &operr.Error{Class: operr.Postgres, Op: op, Subject: fmt.Sprintf("of publisher %q", d.publisher), Err: err}
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg):
	case pg.Code == "42P01" || pg.Code == "3F000" || pg.Code == "42703":
		failed.Hint = "postrider setup: it brings the schema postrider up to date"
	case pg.Code == "42501":
		failed.Hint = "postrider setup --print lists the grants that the role needs"
	}
	return failed
}

// refuse is the error of a change that a task does not admit.
func (d *Desk) refuse(id int64, why error) error {
	return &operr.Error{Class: operr.Config, Op: "use", Subject: fmt.Sprintf("task %d", id), Err: why, Hint: "postrider replay list --all, or postrider backfill --dry-run: they name what there is"}
}

func (d *Desk) audit(ctx context.Context, tx pgx.Tx, action string, detail map[string]any) error {
	_, err := tx.Exec(ctx, `INSERT INTO postrider.audit (publisher, actor, action, detail) VALUES ($1, $2, $3, $4)`, d.publisher, d.actor, action, detail)
	return err
}
