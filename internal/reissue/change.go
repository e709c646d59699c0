package reissue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

// NewTask is what a task is made of.
type NewTask struct {
	Kind Kind
	// Params is stored as JSON: what was asked for.
	Params any
	Reason string
	// Snapshot is the pg_snapshot that chooses the rows, in text form; may be "".
	Snapshot string
}

// Create makes a planned task without items.
func (d *Desk) Create(ctx context.Context, n NewTask) (id int64, err error) {
	err = d.tx(ctx, "plan a "+string(n.Kind), func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `INSERT INTO postrider.task (publisher, kind, params, reason, snapshot, created_by, detail)
			VALUES ($1, $2, $3, $4, nullif($5, '')::pg_snapshot, $6, jsonb_build_object('db_user', session_user)) RETURNING id`,
			d.publisher, n.Kind, n.Params, n.Reason, n.Snapshot, d.actor).Scan(&id); err != nil {
			return err
		}
		return d.audit(ctx, tx, string(n.Kind)+".plan", map[string]any{"task": id, "reason": n.Reason, "params": n.Params})
	})
	return id, err
}

// Listed says that all items of a planned task are listed, and by what they are
// ordered. needsApproval demands a second person before it may begin.
func (d *Desk) Listed(ctx context.Context, id, total int64, order string, needsApproval bool) error {
	return d.change(ctx, id, "listed", []State{Planned}, func(tx pgx.Tx, t *Task) (map[string]any, error) {
		t.Detail.Listed, t.Detail.Order, t.Detail.NeedsApproval = true, order, needsApproval
		_, err := tx.Exec(ctx, `UPDATE postrider.task SET total = $2, detail = $3 WHERE id = $1`, id, total, t.Detail)
		return map[string]any{"total": total, "order": order, "needs_approval": needsApproval}, err
	})
}

// ErrSamePerson is in the error of an approval by whoever planned the task.
var ErrSamePerson = errors.New("approval needs a second person")

// Approve lets a task begin. Whoever planned it may not: the user of the database or that of the
// operating system has to be another one. Both are recorded.
func (d *Desk) Approve(ctx context.Context, id int64) error {
	return d.change(ctx, id, "approve", []State{Planned}, func(tx pgx.Tx, t *Task) (map[string]any, error) {
		if !t.Detail.Listed {
			return nil, d.refuse(id, errUnlisted)
		}
		var dbUser string
		if err := tx.QueryRow(ctx, `SELECT session_user`).Scan(&dbUser); err != nil {
			return nil, err
		}
		if dbUser == t.Detail.DBUser && person(d.actor) == person(t.CreatedBy) {
			return nil, &operr.Error{
				Class: operr.Config, Op: "approve", Subject: fmt.Sprintf("%s %d", t.Kind, id),
				Err:  fmt.Errorf("%w: %s planned it as database user %s, and so are you", ErrSamePerson, t.CreatedBy, dbUser),
				Hint: "somebody else approves, under a user of their own",
			}
		}
		t.Detail.ApprovedDBUser = dbUser
		_, err := tx.Exec(ctx, `UPDATE postrider.task SET state = 'approved', approved_at = clock_timestamp(), approved_by = $2, detail = $3 WHERE id = $1`,
			id, d.actor, t.Detail)
		return map[string]any{"planned_by": t.CreatedBy, "planned_db_user": t.Detail.DBUser, "total": t.Total, "reason": t.Reason}, err
	})
}

// person is the user of an actor without the host: one person works on several.
func person(actor string) string {
	user, _, _ := strings.Cut(actor, "@")
	return user
}

var errUnlisted = errors.New("its planning was cut off; cancel it and plan again")

// Begin takes a task for this process, until its connection ends, and makes it running. A
// task that failed, or whose process ended, goes on where it was.
func (d *Desk) Begin(ctx context.Context, id int64) (Task, error) {
	var begun Task
	err := d.change(ctx, id, "begin", []State{Planned, Approved, Running, Failed}, func(tx pgx.Tx, t *Task) (map[string]any, error) {
		switch {
		case !t.Detail.Listed:
			return nil, d.refuse(id, errUnlisted)
		case t.Detail.NeedsApproval && t.ApprovedAt == nil:
			return nil, &operr.Error{
				Class: operr.DrainIncomplete, Op: "begin", Subject: fmt.Sprintf("%s %d", t.Kind, id),
				Err:  fmt.Errorf("its %d events need the approval of a second person", t.Total),
				Hint: fmt.Sprintf("somebody else runs: postrider %s approve %d", t.Kind, id),
			}
		}
		var mine bool
		if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_lock(`+lockKey+`) FROM (SELECT $1::bigint AS id) t`, id).Scan(&mine); err != nil {
			return nil, err
		}
		if !mine {
			return nil, d.refuse(id, errors.New("another process works on it"))
		}
		begun = *t
		begun.State = Running
		_, err := tx.Exec(ctx, `UPDATE postrider.task SET state = 'running', started_at = coalesce(started_at, clock_timestamp()), finished_at = NULL WHERE id = $1`, id)
		return map[string]any{"from": t.Done, "total": t.Total}, err
	})
	return begun, err
}

// Saver gives the Save of a run of the task. It fails where the task is not running any
// more, because somebody cancelled it.
func (d *Desk) Saver(id int64) func(context.Context, Saved) error {
	return func(ctx context.Context, s Saved) error {
		return d.tx(ctx, "save the task's progress", func(tx pgx.Tx) error {
			withheld := s.Withheld
			if withheld == nil {
				withheld = []Unit{}
			}
			tag, err := tx.Exec(ctx, `UPDATE postrider.task SET done = $2, refused = $3,
				detail = CASE WHEN $4::jsonb = '[]' THEN detail ELSE jsonb_set(detail, '{withheld}', coalesce(detail -> 'withheld', '[]') || $4::jsonb) END
				WHERE id = $1 AND state = 'running'`, id, s.Done, s.Refused, withheld)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				return &operr.Error{Class: operr.DrainIncomplete, Op: "go on with", Subject: fmt.Sprintf("task %d", id), Err: errors.New("somebody cancelled it")}
			}
			return note(ctx, tx, id, s.Notes)
		})
	}
}

func note(ctx context.Context, tx pgx.Tx, id int64, notes []Note) error {
	if len(notes) == 0 {
		return nil
	}
	numbers, outcomes := make([]int64, len(notes)), make([]string, len(notes))
	for i, n := range notes {
		numbers[i], outcomes[i] = n.N, strings.ReplaceAll(n.Outcome, "\x00", "")
	}
	_, err := tx.Exec(ctx, `UPDATE postrider.task_item i SET outcome = v.outcome FROM unnest($2::bigint[], $3::text[]) v(n, outcome)
		WHERE i.task = $1 AND i.n = v.n`, id, numbers, outcomes)
	return err
}

// Finish ends a running task: Done, or Failed, which can be resumed.
func (d *Desk) Finish(ctx context.Context, id int64, end State, r Result) error {
	return d.change(ctx, id, string(end), []State{Running}, func(tx pgx.Tx, t *Task) (map[string]any, error) {
		_, err := tx.Exec(ctx, `UPDATE postrider.task SET state = $2, finished_at = clock_timestamp() WHERE id = $1`, id, end)
		return map[string]any{"done": t.Done, "total": t.Total, "refused": t.Refused, "published_now": r.Published, "possible_duplicates": r.PossibleDuplicates}, err
	})
}

// Cancel gives a task up that has not ended. A process that works on it stops within
// a second; what it has published stays published.
func (d *Desk) Cancel(ctx context.Context, id int64, reason string) error {
	return d.change(ctx, id, "cancel", []State{Planned, Approved, Running, Failed}, func(tx pgx.Tx, t *Task) (map[string]any, error) {
		_, err := tx.Exec(ctx, `UPDATE postrider.task SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = $1`, id)
		return map[string]any{"from": t.State, "done": t.Done, "total": t.Total, "reason": reason}, err
	})
}

// change changes a task that is in one of the states, with a row in the audit.
func (d *Desk) change(ctx context.Context, id int64, verb string, from []State, fn func(pgx.Tx, *Task) (map[string]any, error)) error {
	return d.tx(ctx, verb+" the task", func(tx pgx.Tx) error {
		t, err := d.load(ctx, tx, id, "FOR UPDATE OF t")
		if err != nil {
			return err
		}
		if !slices.Contains(from, t.State) {
			return d.refuse(id, fmt.Errorf("it is %s", t.State))
		}
		detail, err := fn(tx, &t)
		if err != nil {
			return err
		}
		detail["task"] = id
		return d.audit(ctx, tx, string(t.Kind)+"."+verb, detail)
	})
}
