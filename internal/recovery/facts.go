package recovery

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/facts"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

// Facts is what the diagnosis rests on.
type Facts struct {
	Publisher string
	// Stored is nil where nothing is stored.
	Stored *checkpoint.Row
	Slot   replication.SlotInfo
	System checkpoint.System
	// Database is the one that is connected to.
	Database string
	// History is read where the row is of another timeline than the server.
	History []checkpoint.TimelineSwitch
	// WALEnd was read after the row.
	WALEnd event.LSN
	// Parked counts events that are parked and neither published nor discarded.
	Parked int64
}

// look reads them.
func (r *Recovery) look(ctx context.Context) (Facts, error) {
	f := Facts{Publisher: r.cfg.Publisher, Database: r.conn.Config().Database}
	var err error
	if f.Slot, err = replication.ReadSlot(ctx, r.conn, r.cfg.Replication.Slot); err != nil {
		return f, err
	}
	if f.Stored, err = r.store.Load(ctx); err != nil {
		return f, err
	}
	if f.WALEnd, err = r.store.WALEnd(ctx); err != nil {
		return f, err
	}
	if f.System, err = r.store.System(ctx); err != nil {
		return f, err
	}
	if f.History, err = facts.History(ctx, r.cfg.Replication, f.Stored, f.System); err != nil {
		return f, err
	}
	err = r.conn.QueryRow(ctx, `SELECT count(*) FROM postrider.parked WHERE publisher = $1 AND state IN ('parked', 'retry', 'publishing')`, f.Publisher).Scan(&f.Parked)
	return f, sqlError("count", "parked events", err)
}

// slotState is the slot in the words of Decide.
func (f *Facts) slotState() checkpoint.SlotState {
	state := facts.Slot(f.Slot)
	state.WALEnd = f.WALEnd
	return state
}

// holder names who holds the slot now.
func (r *Recovery) holder(ctx context.Context, pid uint32) string {
	var app, user, from string
	err := r.conn.QueryRow(ctx, `SELECT coalesce(application_name, ''), coalesce(usename, ''), coalesce(host(client_addr), 'the same host')
		FROM pg_catalog.pg_stat_activity WHERE pid = $1`, int32(pid)).Scan(&app, &user, &from)
	if err != nil {
		return fmt.Sprintf("pid %d", pid) // gone meanwhile, or not to be seen
	}
	return fmt.Sprintf("pid %d (application %s, user %s, from %s)", pid, app, user, from)
}

// errHeld refuses while somebody holds the slot.
func (r *Recovery) errHeld(ctx context.Context, slot replication.SlotInfo) error {
	return &operr.Error{
		Class: operr.Slot, Op: "recover", Subject: "slot " + pgx.Identifier{slot.Name}.Sanitize(),
		Err:  fmt.Errorf("it is held by %s", r.holder(ctx, slot.ActivePID)),
		Hint: "stop that relay; recover works on a slot that nobody reads",
	}
}
