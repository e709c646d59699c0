// Package tickoff finds the rows of the outbox that a ticked-off snapshot does not prove
// to be published (rule 4): the suspects. Those that come on the stream, or are parked,
// are settled; what is left is the gap.
package tickoff

import (
	"context"
	"fmt"
	"hash/maphash"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

const (
	// most bounds what is kept in memory, at some 50 bytes each. All events that were
	// inserted while no relay ran are suspects, so that it must be more than an outage brings.
	most = 2_000_000
	// mostNamed of them are kept by name, for the error that lists what is missing.
	mostNamed = 10_000
)

// ErrTooMany says that there are more suspects than are kept in memory.
var ErrTooMany = fmt.Errorf("more than %d rows are not proved to be published", most)

// Suspects is a set of rows, by event id. For one goroutine at a time.
type Suspects struct {
	// left is by the hash of the ids, which is theirs alone for all that matters; the text
	// says which it is, or is empty.
	left map[uint64]string
	seed maphash.Seed
}

// New makes an empty set.
func New() *Suspects {
	return &Suspects{left: make(map[uint64]string), seed: maphash.MakeSeed()}
}

// Collect adds the rows of a source that the snapshot does not cover, of those that the publications let through: what a
// row filter leaves out never comes on the stream, and is somebody else's to publish. It scans the table in one statement; the
// session's settings must be the pinned ones (rule 10). It fails with ErrTooMany, or with the query's own error. Rows that were
// deleted cannot be found.
func (s *Suspects) Collect(ctx context.Context, conn *pgx.Conn, src router.Source, pubs replication.Publications, snapshot checkpoint.Snapshot) error {
	table := pgx.Identifier{src.Schema, src.Table}.Sanitize()
	var root uint32
	if err := conn.QueryRow(ctx, "SELECT $1::text::regclass::oid", table).Scan(&root); err != nil {
		return err
	}
	published, err := replication.PublishedSQL(ctx, conn, root, pubs)
	if err != nil {
		return err
	}
	if published == "" {
		published = "true"
	}
	// The values as they are sent, as on the stream: a cast to text would cut the blanks
	// of a char(n), for one.
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT t.xmin, t.%s FROM %s t WHERE %s AND (%s)",
		pgx.Identifier{src.Mapping.EventID}.Sanitize(), table, snapshot.UncoveredSQL("t.xmin"), published),
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
		if len(s.left) == most {
			return ErrTooMany
		}
		s.add(raw[1], table)
	}
	return rows.Err()
}

func (s *Suspects) add(id []byte, table string) {
	name := ""
	if len(s.left) < mostNamed {
		name = string(id) + " of " + table
	}
	s.left[maphash.Bytes(s.seed, id)] = name
}

// Settle takes a row out: its event came on the stream, or is parked.
func (s *Suspects) Settle(id []byte) { delete(s.left, maphash.Bytes(s.seed, id)) }

// Has says that an id is among those that are left.
func (s *Suspects) Has(id []byte) bool {
	_, ok := s.left[maphash.Bytes(s.seed, id)]
	return ok
}

// Part is an empty set, to be filled with ids of this one by Add.
func (s *Suspects) Part() *Suspects { return &Suspects{left: make(map[uint64]string), seed: s.seed} }

// Add puts an id into a Part.
func (s *Suspects) Add(id []byte) { s.left[maphash.Bytes(s.seed, id)] = "" }

// Keep takes all out that are not in the part.
func (s *Suspects) Keep(part *Suspects) {
	for id := range s.left {
		if _, ok := part.left[id]; !ok {
			delete(s.left, id)
		}
	}
}

// Len is the number of those that are left.
func (s *Suspects) Len() int { return len(s.left) }

// Names gives the event ids, with their tables, of at most n that are left, in no order.
// They may be fewer: of very many only some are kept by name.
func (s *Suspects) Names(n int) []string {
	names := []string{}
	for _, name := range s.left {
		if len(names) == n {
			break
		}
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}
