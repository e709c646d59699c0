package reconcile

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/facts"
	"github.com/postrider/postrider/internal/operr"
)

// vouch is what the checkpoint says about the table of this server.
type vouch struct {
	system checkpoint.System
	stored *checkpoint.Row // nil where no relay has run
	// covered is nil where nothing is proved to be published; notProved says why.
	covered   *checkpoint.Snapshot
	notProved string
	// birth sees the rows from before the slot, where nothing has published those; else nil.
	birth *checkpoint.Snapshot
}

func readVouch(ctx context.Context, cfg Config, conn *pgx.Conn) (v vouch, err error) {
	store := checkpoint.NewStore(conn, checkpoint.StoreConfig{Publisher: cfg.Publisher, Slot: cfg.Slot, Holder: cfg.Actor})
	if v.stored, err = store.Load(ctx); err != nil {
		return v, err
	}
	if v.system, err = store.System(ctx); err != nil {
		return v, err
	}
	end, err := store.WALEnd(ctx)
	if err != nil {
		return v, err
	}
	if v.stored == nil {
		v.notProved = fmt.Sprintf("publisher %q has no checkpoint: no relay has run yet", cfg.Publisher)
		return v, nil
	}
	history, err := facts.History(ctx, cfg.Replication, v.stored, v.system)
	if err != nil {
		return v, err
	}
	if s, why := v.stored.TickedOff(v.system, end, history); why == nil {
		v.covered = &s
	} else {
		v.notProved = why.Error()
	}
	return v, v.readBirth(ctx, cfg, conn)
}

// filledSQL: a backfill has published the rows from before the slot; before a recover made
// this slot, the one before had.
const filledSQL = `SELECT EXISTS (SELECT FROM postrider.task WHERE publisher = $1 AND kind IN ('backfill', 'recover') AND state = 'done')`

func (v *vouch) readBirth(ctx context.Context, cfg Config, conn *pgx.Conn) error {
	if v.stored.BirthSnapshot == "" || v.covered == nil {
		return nil
	}
	var filled bool
	if err := conn.QueryRow(ctx, filledSQL, cfg.Publisher).Scan(&filled); err != nil || filled {
		return sqlError("look for", "a backfill", err)
	}
	s, err := checkpoint.ParseSnapshot(v.stored.BirthSnapshot)
	if err != nil {
		return &operr.Error{Class: operr.Internal, Op: "read", Subject: "the snapshot of the slot's birth", Err: err}
	}
	v.birth = &s
	return nil
}

// beforeSlot says that no stream of the slot has brought the row.
func (v *vouch) beforeSlot(xid uint64) bool {
	b := v.birth
	return b != nil && (xid < b.Xmin || xid < b.Xmax && !slices.Contains(b.Running, xid))
}

// due says that the event of a row is published or parked, if the checkpoint speaks the
// truth; xid is the row's transaction.
func (v *vouch) due(xid uint64) bool { return v.covered != nil && xid < v.covered.Xmin }
