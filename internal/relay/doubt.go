package relay

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/router"
)

const (
	// maxSuspects bounds what a doubtful start keeps in memory, at some 50 bytes each. All
	// events that were inserted while no relay ran are suspects, so that it must be more
	// than an outage brings.
	maxSuspects = 2_000_000
	// maxNamed of them are kept by name, for the error that lists what is missing.
	maxNamed = 10_000
)

// errSuspects says that there are more rows to prove than are kept in memory.
var errSuspects = fmt.Errorf("more than %d rows are not proved to be published", maxSuspects)

// doubt is the tick-off of a doubtful start (rule 4): rows of the table that the
// stored snapshot does not prove to be published, and that must therefore come on
// the stream before it passes the WAL end of the start. Nothing is stored or
// confirmed until then.
type doubt struct {
	// end is the WAL end at the start.
	end event.LSN

	// mu covers suspects and passed.
	mu sync.Mutex
	// suspects are by the hash of their event ids, which is theirs alone for all that
	// matters; the text says which it is, or is empty.
	suspects map[uint64]string
	seed     maphash.Seed
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
	d := &doubt{suspects: make(map[uint64]string), seed: maphash.MakeSeed()}
	for _, s := range l.gen.cfg.Router.Sources {
		err := d.collect(ctx, l.sql.conn, s, snapshot)
		switch {
		case errors.Is(err, errSuspects):
			return nil, doubtError(stored, l.slot.ConfirmedFlush, err)
		case err != nil:
			// Nothing about the position: a connection that broke, or a missing grant.
			return nil, sqlError("read the rows of", "table "+s.Schema+"."+s.Table, err)
		}
	}
	// What is parked is settled, whatever became of it since.
	if err := l.parking.do(ctx, func(store *parking.Store) error { return store.EventIDs(ctx, d.seen) }); err != nil {
		return nil, err
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
	// The values as they are sent, as on the stream: a cast to text would cut the blanks
	// of a char(n), for one.
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT xmin, %s FROM %s", pgx.Identifier{s.Mapping.EventID}.Sanitize(), table),
		pgx.QueryResultFormats{pgx.TextFormatCode, pgx.TextFormatCode})
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		raw := rows.RawValues()
		xmin, err := strconv.ParseUint(string(raw[0]), 10, 32)
		if err != nil {
			return err
		}
		if raw[1] == nil || checkpoint.Covered(snapshot, uint32(xmin)) {
			continue
		}
		if len(d.suspects) == maxSuspects {
			return errSuspects
		}
		d.suspect(raw[1], table)
	}
	return rows.Err()
}

func (d *doubt) suspect(id []byte, table string) {
	name := ""
	if len(d.suspects) < maxNamed {
		name = string(id) + " of " + table
	}
	d.suspects[maphash.Bytes(d.seed, id)] = name
}

// seen clears a suspect that came on the stream.
func (d *doubt) seen(id []byte) {
	d.mu.Lock()
	delete(d.suspects, maphash.Bytes(d.seed, id))
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

// sample names some that are left; where none has a name, the table is large and the
// stream far behind it.
func (d *doubt) sample(n int) string {
	var ids []string
	for _, name := range d.suspects {
		switch {
		case name == "":
			continue
		case len(ids) == n:
			return strings.Join(append(ids, "…"), ", ")
		}
		ids = append(ids, name)
	}
	if len(ids) == 0 {
		return "(too many to name)"
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
