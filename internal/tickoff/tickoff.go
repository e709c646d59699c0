// Package tickoff finds the rows of the outbox that a ticked-off snapshot does not prove
// to be published (rule 4): the suspects. Those that come on the stream, or are parked,
// are settled; what is left is the gap.
package tickoff

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"slices"
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

// Suspects is a set of rows, by table and event id: two tables may have the same ids. For one
// goroutine at a time. Tables are written schema.table.
type Suspects struct {
	// left is by the hash of table and id, which is theirs alone for all that matters; the text
	// says which it is, or is empty.
	left   map[uint64]string
	tables []string
	seed   maphash.Seed
}

// New makes an empty set.
func New() *Suspects {
	return &Suspects{left: make(map[uint64]string), seed: maphash.MakeSeed()}
}

func (s *Suspects) key(table string, id []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	_, _ = h.WriteString(table) // these never fail
	_ = h.WriteByte(0)
	_, _ = h.Write(id)
	return h.Sum64()
}

// Collect adds the rows of a source that the snapshot does not cover, of those that the publications let through: what a
// row filter leaves out never comes on the stream, and is somebody else's to publish. It scans the table in one statement; the
// session's settings must be the pinned ones (rule 10). It fails with ErrTooMany, or with the query's own error. Rows that were
// deleted cannot be found.
func (s *Suspects) Collect(ctx context.Context, conn *pgx.Conn, src router.Source, pubs replication.Publications, snapshot checkpoint.Snapshot) error {
	quoted, table := pgx.Identifier{src.Schema, src.Table}.Sanitize(), src.Schema+"."+src.Table
	s.tables = append(s.tables, table)
	published, err := publishedIf(ctx, conn, quoted, pubs)
	if err != nil {
		return err
	}
	// The values as they are sent, as on the stream: a cast to text would cut the blanks
	// of a char(n), for one.
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT t.xmin, t.%s FROM %s t WHERE %s AND (%s)",
		pgx.Identifier{src.Mapping.EventID}.Sanitize(), quoted, snapshot.UncoveredSQL("t.xmin"), published),
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
		s.add(table, raw[1])
	}
	return rows.Err()
}

func publishedIf(ctx context.Context, conn *pgx.Conn, quoted string, pubs replication.Publications) (string, error) {
	var root uint32
	if err := conn.QueryRow(ctx, "SELECT $1::text::regclass::oid", quoted).Scan(&root); err != nil {
		return "", err
	}
	condition, err := replication.PublishedSQL(ctx, conn, root, pubs)
	return cmp.Or(condition, "true"), err
}

func (s *Suspects) add(table string, id []byte) {
	name := ""
	if len(s.left) < mostNamed {
		name = string(id) + " of " + table
	}
	s.left[s.key(table, id)] = name
}

// Settle takes a row out: its event came on the stream, or is parked. Where the table is none of
// those that were collected, it is not known, and the row may be any table's.
func (s *Suspects) Settle(table string, id []byte) {
	if slices.Contains(s.tables, table) {
		delete(s.left, s.key(table, id))
		return
	}
	for _, each := range s.tables {
		delete(s.left, s.key(each, id))
	}
}

// Has says that a row is among those that are left.
func (s *Suspects) Has(table string, id []byte) bool {
	_, ok := s.left[s.key(table, id)]
	return ok
}

// Part is an empty set, to be filled with rows of this one by Add.
func (s *Suspects) Part() *Suspects {
	return &Suspects{left: make(map[uint64]string), tables: s.tables, seed: s.seed}
}

// Add puts a row into a Part, with the topic that its event goes to.
func (s *Suspects) Add(table string, id []byte, topic string) { s.left[s.key(table, id)] = topic }

// Found takes the rows out that a record of a topic, with this event id, settles: of several
// tables those whose events go to that topic. part says where they go.
func (s *Suspects) Found(part *Suspects, topic string, id []byte) {
	for _, table := range s.tables {
		key := s.key(table, id)
		if goes, there := part.left[key]; there && (goes == topic || len(s.tables) == 1) {
			delete(s.left, key)
		}
	}
}

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
