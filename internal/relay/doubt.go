package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/router"
)

// maxSuspects bounds what a doubtful start keeps in memory and lists.
const maxSuspects = 10_000

// doubt is the tick-off of a doubtful start (rule 4): rows of the table that the
// stored snapshot does not prove to be published, and that must therefore come on
// the stream before it passes the WAL end of the start. Nothing is stored or
// confirmed until then.
type doubt struct {
	// end is the WAL end at the start.
	end event.LSN
	why string

	// mu covers suspects and passed.
	mu       sync.Mutex
	suspects map[string]string // event id → table
	passed   bool
}

// newDoubt reads the suspects. Rows that were deleted meanwhile cannot be checked.
func (l *link) newDoubt(ctx context.Context, stored *checkpoint.Row) (*doubt, error) {
	if stored.Snapshot == "" {
		return nil, doubtError(stored, l.slot.ConfirmedFlush, errors.New("no snapshot is stored that could prove it"))
	}
	snapshot, err := checkpoint.ParseSnapshot(stored.Snapshot)
	if err != nil {
		return nil, doubtError(stored, l.slot.ConfirmedFlush, err)
	}
	// The end after which no suspect may still be on its way is read after the rows.
	d := &doubt{suspects: make(map[string]string)}
	for _, s := range l.gen.cfg.Router.Sources {
		if err := d.collect(ctx, l.sql.conn, s, snapshot); err != nil {
			return nil, doubtError(stored, l.slot.ConfirmedFlush, err)
		}
	}
	tick, err := l.store.TakeTick(ctx)
	if err != nil {
		return nil, err
	}
	d.end = tick.LSN
	l.gen.log.Info().Int("suspects", len(d.suspects)).Stringer("until", d.end).Msg("proving that nothing lies between the stored position and the slot's")
	return d, nil
}

// collect reads the ids of the rows that the snapshot does not cover.
func (d *doubt) collect(ctx context.Context, conn *pgx.Conn, s router.Source, snapshot checkpoint.Snapshot) error {
	table := pgx.Identifier{s.Schema, s.Table}.Sanitize()
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT xmin::text::bigint, %s::text FROM %s",
		pgx.Identifier{s.Mapping.EventID}.Sanitize(), table))
	if err != nil {
		return fmt.Errorf("read the rows of %s: %w", table, err)
	}
	defer rows.Close()
	for rows.Next() {
		var xmin int64
		var id *string
		if err := rows.Scan(&xmin, &id); err != nil {
			return fmt.Errorf("read the rows of %s: %w", table, err)
		}
		if checkpoint.Covered(snapshot, uint32(xmin)) || id == nil {
			continue
		}
		if len(d.suspects) == maxSuspects {
			return fmt.Errorf("more than %d rows are not proved to be published", maxSuspects)
		}
		d.suspects[*id] = table
	}
	return rows.Err()
}

// seen clears a suspect that came on the stream.
func (d *doubt) seen(id []byte) {
	d.mu.Lock()
	delete(d.suspects, string(id))
	d.mu.Unlock()
}

// settleDoubt says whether storing may go on. The error lists what neither the
// snapshot nor the stream accounts for.
func (g *generation) settleDoubt() (bool, error) {
	d := g.doubt
	if d == nil {
		return true, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.passed:
		return true, nil
	case event.LSN(g.handedOn.Load()) < d.end:
		return false, nil
	case len(d.suspects) > 0:
		return false, &operr.Error{
			Class: operr.Slot, Op: "prove that the slot skipped nothing",
			Err:  fmt.Errorf("%d rows are neither covered by the stored snapshot nor came on the stream: %s", len(d.suspects), d.sample(5)),
			Hint: "look for these event ids in the topic; publish by hand those that are missing, then accept: UPDATE postrider.checkpoint SET idle = false, confirmed_lsn = (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = checkpoint.slot)",
		}
	}
	d.passed = true
	d.suspects = nil
	return true, nil
}

func (d *doubt) sample(n int) string {
	var ids []string
	for id, table := range d.suspects {
		if len(ids) == n {
			ids = append(ids, "…")
			break
		}
		ids = append(ids, id+" of "+table)
	}
	return strings.Join(ids, ", ")
}

func doubtError(stored *checkpoint.Row, slot event.LSN, cause error) error {
	return &operr.Error{
		Class: operr.Slot, Op: "prove that the slot skipped nothing",
		Err:  fmt.Errorf("the slot stands at %s, past the stored position %s: %w", slot, stored.Confirmed, cause),
		Hint: "compare table and topic; then accept: UPDATE postrider.checkpoint SET idle = false, confirmed_lsn = (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = checkpoint.slot)",
	}
}
