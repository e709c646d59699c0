package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

const (
	// sampledPages and sampledRows bound what is read of a table, whatever its size.
	sampledPages = 256
	sampledRows  = 500
	// sampledBytes bounds a row that is fetched to be routed; larger ones are measured on the server.
	sampledBytes = 256 << 10
	// measuredBytes of stored payloads are unpacked on the server to be measured.
	measuredBytes = 32 << 20
)

// sample is what some rows of the tables would become. It names topics that only rows
// know, and tells how large messages get. It is no proof: other rows may be otherwise.
type sample struct {
	rows    int
	topics  map[string]*sampledTopic
	refused map[event.Reason]*event.Refusal
	counts  map[event.Reason]int
	largest int64 // payload, in bytes as it is published
}

type sampledTopic struct {
	rows int
	// bytes of the largest message: key, value and headers.
	largest int
	// latest is the highest timestamp.
	latest time.Time
	// partition is the highest that a row names; event.NoPartition where none does.
	partition int32
}

// readSample reads rows in a transaction that sees one state of all tables.
func (e *exam) readSample(ctx context.Context) (*sample, error) {
	return e.sampled.get(func() (*sample, error) {
		conn, err := e.sql(ctx)
		if err != nil {
			return nil, err
		}
		pubs, err := e.readPublications(ctx)
		if err != nil {
			return nil, err
		}
		s := &sample{topics: map[string]*sampledTopic{}, refused: map[event.Reason]*event.Refusal{}, counts: map[event.Reason]int{}}
		opts := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
		err = pgx.BeginTxFunc(ctx, conn, opts, func(tx pgx.Tx) error {
			for i := range e.cfg.Router.Sources {
				if err := s.readTable(ctx, tx, e, pubs, &e.cfg.Router.Sources[i]); err != nil {
					return err
				}
			}
			return nil
		})
		return s, err
	})
}

// percentSQL is how much of a table, partitions and all, is sampledPages of it.
const percentSQL = `WITH root AS (
  SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2)
SELECT least(100, 100 * $3::float8 / greatest(1, sum(pg_catalog.pg_relation_size(oid)) / current_setting('block_size')::bigint))
  FROM (SELECT oid FROM root UNION SELECT t.relid FROM root, pg_catalog.pg_partition_tree(root.oid) t) all_parts`

func (s *sample) readTable(ctx context.Context, tx pgx.Tx, e *exam, pubs replication.Publications, src *router.Source) error {
	t := replication.Table{Schema: src.Schema, Name: src.Table}
	rel, err := replication.DescribeTable(ctx, tx.Conn(), t, pubs)
	if err != nil {
		return err
	}
	rt, err := router.New(e.cfg.Router)
	if err != nil {
		return err
	}
	if err := rt.Bind(rel); err != nil {
		return needs(fmt.Sprintf("the mapping does not fit %s (see mapping)", t))
	}
	var percent float64
	if err := tx.QueryRow(ctx, percentSQL, t.Schema, t.Name, float64(sampledPages)).Scan(&percent); err != nil {
		return err
	}
	from := fmt.Sprintf("%s TABLESAMPLE SYSTEM (%f)", ident(t.Schema, t.Name), percent)
	if err := s.route(ctx, tx, rt, rel, src.Mapping.Payload, from, e.cfg.Now()); err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return s.measure(ctx, tx, rel, src.Mapping.Payload, from) })
	if isState(err, queryCanceled) {
		return nil // such large payloads that measuring them takes longer than a question may
	}
	return err
}

// byteaOID is bytea's: its text form has twice the bytes that are published.
const byteaOID = 17

// measure finds the largest payload on the server, which has to unpack what it measures:
// it stops after the row with which they come to measuredBytes as they are stored.
func (s *sample) measure(ctx context.Context, tx pgx.Tx, rel *event.Relation, payload, from string) error {
	column := ident(payload)
	size := column + "::text"
	if i := rel.ColumnIndex(payload); i >= 0 && rel.Columns[i].TypeOID == byteaOID {
		size = column
	}
	var largest int64
	err := tx.QueryRow(ctx, fmt.Sprintf(`SELECT coalesce(max(pg_catalog.octet_length(%s)), 0) FROM (
		SELECT *, sum(pg_catalog.pg_column_size(%[2]s)) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
		  FROM (SELECT %[2]s FROM %[3]s LIMIT %[4]d) s) s WHERE coalesce(before, 0) < %[5]d`,
		size, column, from, 4*sampledRows, measuredBytes)).Scan(&largest)
	s.largest = max(s.largest, largest)
	return err
}

// route fetches rows as they would come on the stream and routes them.
func (s *sample) route(ctx context.Context, tx pgx.Tx, rt *router.Router, rel *event.Relation, payload, from string, now time.Time) error {
	names := make([]string, len(rel.Columns))
	for i, c := range rel.Columns {
		names[i] = ident(c.Name)
	}
	rows, err := tx.Query(ctx, fmt.Sprintf("SELECT %s FROM %s WHERE coalesce(pg_catalog.pg_column_size(%s), 0) <= %d LIMIT %d",
		strings.Join(names, ", "), from, ident(payload), sampledBytes, sampledRows), pgx.QueryResultFormats{pgx.TextFormatCode})
	if err != nil {
		return err
	}
	defer rows.Close()
	row := event.Row{Relation: rel, Values: make([]event.Value, len(rel.Columns)), CommitTime: now}
	var msg event.Message
	for rows.Next() {
		for i, raw := range rows.RawValues() {
			row.Values[i] = event.Value{Kind: event.Text, Data: raw}
			if raw == nil {
				row.Values[i].Kind = event.Null
			}
		}
		s.add(rt, &row, &msg)
	}
	return rows.Err()
}

func (s *sample) add(rt *router.Router, row *event.Row, msg *event.Message) {
	s.rows++
	routed, refusal := rt.Route(row, msg)
	switch {
	case refusal != nil:
		s.counts[refusal.Reason]++
		if s.refused[refusal.Reason] == nil {
			s.refused[refusal.Reason] = refusal
		}
		return
	case !routed:
		return
	}
	t := s.topics[msg.Topic]
	if t == nil {
		t = &sampledTopic{partition: event.NoPartition}
		s.topics[msg.Topic] = t
	}
	size := len(msg.Key) + len(msg.Value)
	for _, h := range msg.Headers {
		size += len(h.Name) + len(h.Value)
	}
	t.rows++
	t.largest = max(t.largest, size)
	t.partition = max(t.partition, msg.Partition)
	if at := time.UnixMilli(msg.TimestampMillis); at.After(t.latest) {
		t.latest = at
	}
}

// refusals tells of rows that could not be published.
func (s *sample) refusals() (found []answer) {
	for _, reason := range slices.SortedFunc(maps.Keys(s.counts), func(a, b event.Reason) int { return cmp.Compare(a, b) }) {
		r := s.refused[reason]
		found = append(found, warn("docs/refusals.md says what becomes of such an event by on_refusal, and how it is avoided",
			"%d of %d rows that were looked at would be refused (%s): %s", s.counts[reason], s.rows, reason, refusalText(r))...)
	}
	return found
}

// refusalText leaves out what is not known; the position means nothing here.
func refusalText(r *event.Refusal) string {
	text := r.Table
	if r.Column != "" {
		text += " column " + r.Column
	}
	if r.EventID != "" {
		text += ", event id " + r.EventID
	}
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	return text
}

func (s *sample) words() string {
	if s.rows == 0 {
		return "the tables hold no rows to try"
	}
	return plural(s.rows, "row that was looked at would be published", "rows that were looked at would be published")
}

// names of the topics, sorted.
func (s *sample) names() []string { return slices.Sorted(maps.Keys(s.topics)) }
