package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
)

// Belongings is what a publisher has in the schema postrider.
type Belongings struct {
	// Row says that a position is stored.
	Row bool `json:"row"`
	// Parked are events that were refused and not published since; ParkedDone those that
	// are published or discarded.
	Parked     int64 `json:"parked"`
	ParkedDone int64 `json:"parked_done"`
	// Tasks are backfills, recoveries and replays; TasksOpen those of them that are not done.
	Tasks     int64 `json:"tasks"`
	TasksOpen int64 `json:"tasks_open"`
	// Commands were asked of the relay, answered or not.
	Commands int64 `json:"commands"`
	// Receipts says that there are some: there may be too many to count.
	Receipts bool `json:"receipts"`
}

// Belongings counts it.
func (d *Desk) Belongings(ctx context.Context) (Belongings, error) {
	var b Belongings
	err := d.tx(ctx, "count what belongs to the publisher", func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM postrider.checkpoint WHERE publisher = $1),
			       (SELECT count(*) FROM postrider.parked WHERE publisher = $1 AND state IN ('parked', 'retry', 'publishing')),
			       (SELECT count(*) FROM postrider.parked WHERE publisher = $1 AND state IN ('published', 'discarded')),
			       (SELECT count(*) FROM postrider.task WHERE publisher = $1),
			       (SELECT count(*) FROM postrider.task WHERE publisher = $1 AND state NOT IN ('done', 'cancelled')),
			       (SELECT count(*) FROM postrider.command WHERE publisher = $1),
			       EXISTS (SELECT FROM postrider.receipt WHERE publisher = $1)`, d.cfg.Publisher).Scan(
			&b.Row, &b.Parked, &b.ParkedDone, &b.Tasks, &b.TasksOpen, &b.Commands, &b.Receipts)
	})
	return b, err
}

// DropPlan is what is dropped besides the rows.
type DropPlan struct {
	// Slot says that the slot is there to be dropped.
	Slot bool
	// Publication is dropped too; "" leaves all.
	Publication string
}

// Drop removes the slot, then the receipts, in batches, then, in one transaction, the publication and all rows but the
// audit's. done hears of each step, in the past tense. detail goes to the audit, once
// before anything is done and once at the end.
//
// The slot goes first. If this ends after that, the row is still there, and a run refuses
// to start for a slot that does not exist; dropped again, the rest goes. The other way
// round the next run would begin as a first one, and what was parked would be forgotten.
// The server refuses to drop a slot that somebody holds; see HeldError.
func (d *Desk) Drop(ctx context.Context, plan DropPlan, detail map[string]any, done func(step string) error) error {
	err := d.tx(ctx, "write the audit", func(ctx context.Context, tx pgx.Tx) error {
		return d.audit(ctx, tx, "drop.begin", with(detail, map[string]any{"slot": d.cfg.Slot, "publication": plan.Publication}))
	})
	if err != nil {
		return err
	}
	if plan.Slot {
		if err := d.dropSlot(ctx); err != nil {
			return err
		}
		if err := done("slot " + d.cfg.Slot); err != nil {
			return err
		}
	}
	if err := d.dropReceipts(ctx, done); err != nil {
		return ownersWork(err)
	}
	return d.dropRows(ctx, plan, detail, done)
}

// receiptsAtOnce is what one transaction deletes.
const receiptsAtOnce = 20_000

// dropReceipts deletes what may be more rows than one statement has time for.
func (d *Desk) dropReceipts(ctx context.Context, done func(step string) error) error {
	total := int64(0)
	for {
		var n int64
		err := d.tx(ctx, "drop the receipts", func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `DELETE FROM postrider.receipt WHERE ctid = ANY(ARRAY(
				SELECT ctid FROM postrider.receipt WHERE publisher = $1 LIMIT $2))`, d.cfg.Publisher, receiptsAtOnce)
			n = tag.RowsAffected()
			return err
		})
		if err != nil {
			return err
		}
		if total += n; n < receiptsAtOnce {
			break
		}
	}
	if total == 0 {
		return nil
	}
	return done(fmt.Sprintf("receipts: %d rows", total))
}

func (d *Desk) dropSlot(ctx context.Context) error {
	_, err := d.conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, d.cfg.Slot)
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "55006" { // object_in_use
		if holder, lookErr := readHolder(ctx, d.conn, d.cfg.Slot); lookErr == nil && holder != nil {
			return HeldError("drop", d.cfg.Slot, *holder)
		}
	}
	return storeError("drop", "slot "+pgx.Identifier{d.cfg.Slot}.Sanitize(), err)
}

// theirs are the tables of the schema, each with what its rows are called. The items of
// a task go with it; the audit stays.
var theirs = []struct{ table, called string }{
	{"parked", "parked events"}, {"task", "tasks"}, {"command", "commands"}, {"checkpoint", "position"},
}

func (d *Desk) dropRows(ctx context.Context, plan DropPlan, detail map[string]any, done func(step string) error) error {
	var steps []string
	err := d.tx(ctx, "drop what belongs to the publisher", func(ctx context.Context, tx pgx.Tx) error {
		if slot, err := readSlot(ctx, tx, d.cfg.Slot); err != nil || slot.Exists {
			if err == nil {
				err = fmt.Errorf("slot %s was made anew meanwhile", d.cfg.Slot)
			}
			return err
		}
		steps = nil
		if plan.Publication != "" {
			if _, err := tx.Exec(ctx, "DROP PUBLICATION IF EXISTS "+pgx.Identifier{plan.Publication}.Sanitize()); err != nil {
				return err
			}
			steps = append(steps, "publication "+plan.Publication)
		}
		for _, t := range theirs {
			tag, err := tx.Exec(ctx, "DELETE FROM "+pgx.Identifier{"postrider", t.table}.Sanitize()+" WHERE publisher = $1", d.cfg.Publisher)
			if err != nil {
				return err
			}
			if n := tag.RowsAffected(); n > 0 {
				steps = append(steps, fmt.Sprintf("%s: %d rows", t.called, n))
			}
		}
		return d.audit(ctx, tx, "drop", with(detail, map[string]any{"slot": d.cfg.Slot, "publication": plan.Publication, "dropped": steps}))
	})
	if err != nil {
		return ownersWork(err)
	}
	for _, step := range steps {
		if err := done(step); err != nil {
			return err
		}
	}
	return nil
}

// ownersWork gives the right hint to a role that may run the relay and not remove it.
func ownersWork(err error) error {
	var pg *pgconn.PgError
	var known *operr.Error
	if !errors.As(err, &pg) || pg.Code != "42501" || !errors.As(err, &known) {
		return err
	}
	hinted := *known
	hinted.Hint = "the same with a role that owns the schema postrider and the publication, such as the one that ran postrider setup; what is done already is not done again"
	return &hinted
}
