// Package check says whether what arrived in a topic is what was committed.
package check

import (
	"context"
	"fmt"
	"hash/maphash"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/bench/outbox"
	"github.com/postrider/postrider/bench/result"
)

// Expected are the events of a table, by number. It takes eight bytes an event.
type Expected struct {
	first int64
	seed  maphash.Seed
	// sums has a hash of key and payload for each event from first on; 0 stands for none.
	sums  []uint64
	count int
}

// NewExpected has room for the events first to last.
func NewExpected(first, last int64) *Expected {
	return &Expected{first: first, seed: maphash.MakeSeed(), sums: make([]uint64, last-first+1)}
}

// Add names an event. payload is payload::text.
func (e *Expected) Add(n int64, key, payload []byte) error {
	i := n - e.first
	if i < 0 || i >= int64(len(e.sums)) || e.sums[i] != 0 {
		return fmt.Errorf("event %d is outside of the table's range, or there twice", n)
	}
	e.sums[i] = e.sum(key, payload)
	e.count++
	return nil
}

func (e *Expected) sum(key, payload []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(e.seed)
	h.Write(key)
	h.WriteByte(0)
	h.Write(payload)
	return h.Sum64() | 1 // never 0
}

// Read reads the events first to last of a table.
func Read(ctx context.Context, conn *pgx.Conn, table string, first, last int64) (*Expected, error) {
	e := NewExpected(first, last)
	rows, err := conn.Query(ctx, fmt.Sprintf(`SELECT event_id::text, aggregate_id, payload::text FROM %s`, table))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		raw := rows.RawValues()
		n, ok := outbox.Number(raw[0])
		if !ok {
			return nil, fmt.Errorf("table %s has an event that is not ours: %s", table, raw[0])
		}
		if n < first || n > last {
			continue
		}
		if err := e.Add(n, raw[1], raw[2]); err != nil {
			return nil, err
		}
	}
	return e, rows.Err()
}

// From are the same events without those before first.
func (e *Expected) From(first int64) *Expected {
	sub := *e
	sub.first = first
	sub.sums = e.sums[first-e.first:]
	sub.count = 0
	for _, s := range sub.sums {
		if s != 0 {
			sub.count++
		}
	}
	return &sub
}

// Count is the number of events.
func (e *Expected) Count() int { return e.count }

// Judge compares records with what is expected. Records of a partition have to come in their order.
type Judge struct {
	expected *Expected
	seen     []bool
	// last is, for each key, the highest number that has come, and where.
	last  map[string]place
	check result.Check
	found int
	// Foreign are records whose id no event has.
	Foreign int
}

type place struct {
	number    int64
	partition int32
}

// NewJudge has seen nothing yet.
func NewJudge(e *Expected) *Judge {
	return &Judge{expected: e, seen: make([]bool, len(e.sums)), last: map[string]place{}}
}

// Record is the next record of a partition; id is the header "id".
func (j *Judge) Record(partition int32, id, key, value []byte) {
	n, ok := outbox.Number(id)
	i := n - j.expected.first
	if !ok || i < 0 || i >= int64(len(j.seen)) || j.expected.sums[i] == 0 {
		j.Foreign++
		j.check.WrongBytes++
		return
	}
	if j.expected.sum(key, value) != j.expected.sums[i] {
		j.check.WrongBytes++
	}
	if j.seen[i] {
		j.check.Duplicates++
		return
	}
	j.seen[i] = true
	j.found++
	before, known := j.last[string(key)]
	if known && (n < before.number || partition != before.partition) {
		j.check.OutOfOrder++
	}
	j.last[string(key)] = place{number: max(n, before.number), partition: partition}
}

// Verdict is what can be said after the last record.
func (j *Judge) Verdict() result.Check {
	c := j.check
	c.Checked = true
	c.Missing = j.expected.count - j.found
	return c
}
