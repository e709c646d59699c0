package reconcile

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/facts"
)

// vouch is what the checkpoint says about the table of this server.
type vouch struct {
	system checkpoint.System
	stored *checkpoint.Row // nil where no relay has run
	// covered is nil where nothing is proved to be published; notProved says why.
	covered   *checkpoint.Snapshot
	notProved string
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
	return v, nil
}

// due says that the event of a row is published or parked, if the checkpoint speaks the
// truth; xid is the row's transaction.
func (v *vouch) due(xid uint64) bool { return v.covered != nil && xid < v.covered.Xmin }
