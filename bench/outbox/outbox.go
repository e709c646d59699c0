// Package outbox makes the tables and the backlogs that contenders read.
package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/bench/rig"
	"github.com/postrider/postrider/migrations"
)

// Keys is the number of aggregates that events belong to: event n is of aggregate n modulo Keys.
const Keys = 10_000

// Key is the aggregate of event n.
func Key(n int64) string { return fmt.Sprintf("order-%d", n%Keys) }

// idPrefix begins every event id; the event's number in hexadecimal ends it.
const idPrefix = "00000000-0000-4000-8000-"

// ID is the id of event n.
func ID(n int64) string { return fmt.Sprintf("%s%012x", idPrefix, n) }

// Number is the way back; false for an id that is not ours.
func Number(id []byte) (int64, bool) {
	if len(id) != len(idPrefix)+12 || string(id[:len(idPrefix)]) != idPrefix {
		return 0, false
	}
	var n int64
	for _, c := range id[len(idPrefix):] {
		digit := strings.IndexByte("0123456789abcdef", c)
		if digit < 0 {
			return 0, false
		}
		n = n<<4 | int64(digit)
	}
	return n, true
}

// Spec is a table and its backlog: events 1 to the largest of Tails, each with its number as aggregate_version.
type Spec struct {
	Table      string
	Payload    int // bytes of payload::text, about
	RowsPerTxn int
	// Tails are numbers of rows: for each n there is a slot from which the last n rows are read.
	Tails []int
	// OneTxn makes the whole backlog a single transaction.
	OneTxn bool
}

// Backlog is a table that is loaded.
type Backlog struct {
	Spec
	Rows int
	// End is where the commit of the last event ends in the WAL. It is exact: what follows is not the backlog's, and a reader that
	// is told to stop later would go through all of it, since the server says nothing about changes that are not published.
	End string
	// PayloadBytes is the average of payload::text.
	PayloadBytes float64
}

// Publication has the table alone.
func (s Spec) Publication() string { return s.Table + "_pub" }

// Slot is where the last tail rows begin.
func (s Spec) Slot(tail int) string { return fmt.Sprintf("%s_%d", s.Table, tail) }

func (s Spec) rows() int {
	n := 0
	for _, tail := range s.Tails {
		n = max(n, tail)
	}
	return n
}

// Create makes the default outbox table and its publication.
func Create(ctx context.Context, conn *pgx.Conn, table string) error {
	ddl, err := migrations.OutboxTableSQL(migrations.Table{Schema: "public", Name: table}, migrations.JSONB)
	if err != nil {
		return err
	}
	for _, sql := range []string{
		ddl,
		// Nothing is vacuumed in the middle of a measurement.
		fmt.Sprintf("ALTER TABLE %s SET (autovacuum_enabled = off)", table),
		fmt.Sprintf("CREATE PUBLICATION %s_pub FOR TABLE %s WITH (publish = 'insert')", table, table),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// Drop removes a table and what Create made with it; it tolerates what is not there.
func Drop(ctx context.Context, conn *pgx.Conn, table string) error {
	for _, sql := range []string{"DROP PUBLICATION IF EXISTS " + table + "_pub", "DROP TABLE IF EXISTS " + table} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// Load makes the table, its slots and its rows. Every slot is made before the rows that are read from it.
func Load(ctx context.Context, r *rig.Rig, spec Spec) (*Backlog, error) {
	if err := Create(ctx, r.SQL(), spec.Table); err != nil {
		return nil, err
	}
	b := &Backlog{Spec: spec, Rows: spec.rows()}
	for _, part := range spec.parts() {
		if part.slot != "" {
			if err := r.CreateSlot(ctx, part.slot); err != nil {
				return nil, err
			}
		}
		if err := spec.insert(ctx, r, part); err != nil {
			return nil, err
		}
	}
	var err error
	if b.End, err = spec.end(ctx, r); err != nil {
		return nil, err
	}
	err = r.SQL().QueryRow(ctx, fmt.Sprintf(`SELECT coalesce(avg(octet_length(payload::text)), 0)::float8 FROM %s WHERE aggregate_version <= 10000`, spec.Table)).
		Scan(&b.PayloadBytes)
	if err != nil {
		return nil, err
	}
	if _, err := r.SQL().Exec(ctx, "VACUUM (ANALYZE) "+spec.Table); err != nil {
		return nil, err
	}
	return b, r.Quiet(ctx)
}

// end decodes the shortest tail to find the end of the last commit. One huge transaction would take long, and nothing follows
// it in a run: there the end of what is durable will do.
func (s Spec) end(ctx context.Context, r *rig.Rig) (string, error) {
	flushed, err := r.Flushed(ctx)
	if err != nil || s.OneTxn {
		return flushed, err
	}
	var lsn string
	err = r.SQL().QueryRow(ctx, `SELECT max(lsn)::text FROM pg_logical_slot_peek_binary_changes($1, $2::text::pg_lsn, NULL,
		'proto_version', '1', 'publication_names', $3)`, s.Slot(slices.Min(s.Tails)), flushed, s.Publication()).Scan(&lsn)
	return lsn, err
}

// Remove drops the table and its slots.
func (b *Backlog) Remove(ctx context.Context, r *rig.Rig) error {
	for _, tail := range b.Tails {
		if err := r.DropSlot(ctx, b.Slot(tail)); err != nil {
			return err
		}
	}
	return Drop(ctx, r.SQL(), b.Table)
}

// part is a run of events, first to last, behind a slot.
type part struct {
	slot        string
	first, last int
}

// parts cuts the rows where slots begin.
func (s Spec) parts() []part {
	rows := s.rows()
	starts := map[int]string{} // event → slot
	for _, tail := range s.Tails {
		starts[rows-tail+1] = s.Slot(tail)
	}
	var parts []part
	for n := 1; n <= rows; n++ {
		slot, begins := starts[n]
		if begins || len(parts) == 0 {
			parts = append(parts, part{slot: slot, first: n})
		}
		parts[len(parts)-1].last = n
	}
	return parts
}

// insert writes a part in two sessions. They have different keys (the number of keys is even), so that the order within a key is the order of
// numbers.
func (s Spec) insert(ctx context.Context, r *rig.Rig, p part) error {
	if s.OneTxn {
		return s.session(ctx, r, s.block(fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM generate_series(%d, %d) AS n",
			s.Table, columns, s.values(), p.first, p.last)))
	}
	const sessions = 2
	group, ctx := errgroup.WithContext(ctx)
	for i := range sessions {
		group.Go(func() error {
			return s.session(ctx, r, s.loop(p.first+i, p.last, sessions))
		})
	}
	return group.Wait()
}

func (s Spec) session(ctx context.Context, r *rig.Rig, sql string) error {
	conn, err := r.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// Durable at the end is enough here: Flushed sees to it.
	if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return err
}
