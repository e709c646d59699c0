package backfill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/replication"
)

// standing checks that rows from before the slot may be published now, and gives the row
// that says which those are.
func (b *Backfill) standing(ctx context.Context) (*checkpoint.Row, error) {
	row, err := b.store.Load(ctx)
	if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, b.refuse(errors.New("no position is stored for it, so it is not known which rows are from before the slot"),
			"postrider setup, which makes the slot and keeps what was in the table before it; where the slot is there already, postrider checkpoint drop first")
	}
	if err := b.sameSlot(ctx, row); err != nil {
		return nil, err
	}
	if row.BirthSnapshot == "" {
		return nil, b.refuse(fmt.Errorf("slot %q was made without postrider setup, or by an older one: which rows were committed before it was not kept, and cannot be found out later", row.Slot),
			"if nothing was published yet, drop the slot and its position (postrider checkpoint drop) and run postrider setup again; else choose the rows yourself with postrider replay")
	}
	if row.Events > 0 {
		return nil, b.refuse(fmt.Errorf("it has published %d events already: rows from before the slot would come behind newer events of their keys", row.Events),
			"postrider replay, which publishes copies of chosen events beside the running relay and marks them")
	}
	return row, b.idleSlot(ctx, row.Slot)
}

// sameSlot: the birth's transaction ids mean something for the very slot and server only.
func (b *Backfill) sameSlot(ctx context.Context, row *checkpoint.Row) error {
	slot, err := replication.ReadSlot(ctx, b.conn, b.cfg.Replication.Slot)
	if err != nil {
		return err
	}
	sys, err := b.store.System(ctx)
	if err != nil {
		return err
	}
	if sys.ID == row.SystemID && sys.Timeline != row.Timeline {
		return b.refuse(fmt.Errorf("the server was promoted since (timeline %d, the position is of timeline %d): transaction ids of the slot's birth may mean others now", sys.Timeline, row.Timeline),
			"postrider recover, which compares the table with the topics")
	}
	end, err := b.store.WALEnd(ctx)
	if err != nil {
		return err
	}
	_, err = checkpoint.Decide(row, checkpoint.SlotState{
		Name: slot.Name, Exists: slot.Exists, Confirmed: slot.ConfirmedFlush, Restart: slot.RestartLSN,
		WALStatus: slot.WALStatus, Reason: slot.InvalidationReason, Failover: slot.Failover, WALEnd: end,
	}, sys, nil)
	return err
}

// holderPatience is how long a slot may be held by a session that is just ending, such as our own.
const holderPatience = 3 * time.Second

const holderLook = 50 * time.Millisecond

// idleSlot: while somebody streams from the slot, newer events may be published.
func (b *Backfill) idleSlot(ctx context.Context, name string) error {
	tick := time.NewTicker(holderLook)
	defer tick.Stop()
	for began := time.Now(); ; {
		slot, err := replication.ReadSlot(ctx, b.conn, name)
		if err != nil || !slot.Active {
			return err
		}
		if time.Since(began) > holderPatience {
			return b.refuse(fmt.Errorf("slot %q is held by %s", name, b.holder(ctx, slot.ActivePID)),
				"stop postrider run and its standbys, run the backfill, then start them again: older rows have to go out before the stream's")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// holder names the process behind a slot, as far as the role may see.
func (b *Backfill) holder(ctx context.Context, pid uint32) string {
	var who string
	err := b.conn.QueryRow(ctx, `SELECT concat_ws(', ', 'pid ' || pid, nullif(application_name, ''), coalesce('from ' || host(client_addr), 'over a local socket'))
		FROM pg_catalog.pg_stat_activity WHERE pid = $1`, int32(pid)).Scan(&who)
	if err != nil {
		return fmt.Sprintf("pid %d", pid)
	}
	return who
}

// params say which slot a task is for.
type params struct {
	Slot     string `json:"slot"`
	BirthLSN string `json:"birth_lsn"`
	Skip     bool   `json:"skip_refused,omitempty"`
}

// earlier looks at the tasks of this slot that were begun before. cancelled have
// published some; open is the one that has not ended.
func (b *Backfill) earlier(ctx context.Context, row *checkpoint.Row) (open *reissue.Task, cancelled []int64, err error) {
	tasks, err := b.desk.List(ctx, false, 0, reissue.Backfill, reissue.Recover)
	if err != nil {
		return nil, nil, err
	}
	for i := range tasks {
		t := &tasks[i]
		switch {
		case !t.State.Ended():
			return t, nil, nil
		case t.Kind != reissue.Backfill || !ofSlot(t, row):
		case t.State == reissue.Done:
			return nil, nil, b.finished(t)
		case t.Done > 0:
			cancelled = append(cancelled, t.ID)
		}
	}
	return nil, cancelled, nil
}

func (b *Backfill) finished(t *reissue.Task) error {
	when := ""
	if t.FinishedAt != nil {
		when = " at " + t.FinishedAt.UTC().Format(time.RFC3339)
	}
	return &operr.Error{
		Class: operr.Config, Op: "backfill", Subject: b.subject(),
		Err:  fmt.Errorf("backfill %d did it%s: %d events of %d were published", t.ID, when, t.Total-t.Refused, t.Total),
		Hint: "nothing, or postrider replay for chosen events",
	}
}
