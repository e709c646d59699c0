package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
)

// bound is how far the checkpoints allow to delete.
type bound struct {
	// upTo: rows of transactions below it are published or parked; 0: none is known to be.
	upTo uint64
	// by is the publisher whose checkpoint stands there.
	by string
	// birth: rows of transactions below it may be from before the slot; 0: not known.
	birth uint64
}

// readBound takes the checkpoint that is furthest behind: other publishers read the same
// tables, perhaps, and would need these rows to recover. Which tables theirs are is in
// their configurations alone.
func (p *Purge) readBound(ctx context.Context) (bound, error) {
	var b bound
	store := func(publisher string) *checkpoint.Store {
		return checkpoint.NewStore(p.conn, checkpoint.StoreConfig{Publisher: publisher, Holder: p.cfg.Actor})
	}
	own := store(p.cfg.Publisher)
	sys, err := own.System(ctx)
	if err != nil {
		return b, err
	}
	publishers, err := p.publishers(ctx)
	if err != nil {
		return b, err
	}
	found := false
	for i, name := range publishers {
		row, err := store(name).Load(ctx)
		if err != nil {
			return b, err
		}
		if row == nil {
			continue // dropped this moment
		}
		upTo, err := p.tickedOff(ctx, own, row, sys)
		if err != nil {
			return b, err
		}
		if i == 0 || upTo < b.upTo {
			b.upTo, b.by = upTo, name
		}
		if name != p.cfg.Publisher {
			continue
		}
		found = true
		if b.birth, err = birthOf(row); err != nil {
			return b, err
		}
	}
	if !found {
		return b, &operr.Error{
			Class: operr.Slot, Op: "find", Subject: fmt.Sprintf("the checkpoint of publisher %q", p.cfg.Publisher),
			Err: errors.New("there is none, so nothing is known to be published"), Hint: "postrider checkpoint list",
		}
	}
	return b, nil
}

func (p *Purge) publishers(ctx context.Context) ([]string, error) {
	rows, err := p.conn.Query(ctx, `SELECT publisher FROM postrider.checkpoint ORDER BY publisher`)
	if err == nil {
		var names []string
		if names, err = pgx.CollectRows(rows, pgx.RowTo[string]); err == nil {
			return names, nil
		}
	}
	return nil, sqlError("list", "the checkpoints", err)
}

// tickedOff is the xmin of a row's snapshot; 0 where none is stored yet. A snapshot that
// means nothing on this server is an error: deleting has to wait until somebody has looked.
func (p *Purge) tickedOff(ctx context.Context, store *checkpoint.Store, row *checkpoint.Row, sys checkpoint.System) (uint64, error) {
	if row.Snapshot == "" {
		return 0, nil
	}
	end, err := store.WALEnd(ctx)
	if err != nil {
		return 0, err
	}
	s, err := row.TickedOff(sys, end, nil)
	if err != nil {
		return 0, &operr.Error{
			Class: operr.Slot, Op: "trust the checkpoint of", Subject: fmt.Sprintf("publisher %q", row.Publisher), Err: err,
			Hint: "postrider checkpoint verify; one that nobody needs any more is removed with postrider checkpoint drop",
		}
	}
	return s.Xmin, nil
}

// birthOf: between xmin and xmax of the slot's birth a row may be of a subtransaction,
// which the snapshot does not name. All that is below xmax counts as older.
func birthOf(row *checkpoint.Row) (uint64, error) {
	if row.BirthSnapshot == "" {
		return 0, nil
	}
	s, err := parseSnapshot(row.BirthSnapshot)
	return s.Xmax, err
}

// readKeepers finds the tasks of which events must stay: those that have still to
// publish some, of whatever publisher, and those that were refused some which the stream
// never brings.
func (p *Purge) readKeepers(ctx context.Context) ([]int64, error) {
	rows, err := p.conn.Query(ctx, `SELECT id FROM postrider.task WHERE state NOT IN ('done', 'cancelled') OR kind <> 'replay' AND refused > 0 ORDER BY id`)
	if err == nil {
		var ids []int64
		if ids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err == nil {
			return ids, nil
		}
	}
	return nil, sqlError("list", "the tasks", err)
}
