package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// Counts is what a dry run shows. Its fields are part of --json.
type Counts struct {
	Events int64   `json:"events"`
	Groups []Group `json:"groups"`
	// WithoutID are rows whose event id is NULL or empty; they are not in Events.
	WithoutID int64 `json:"without_id"`
	// Oldest and Newest go by TimeBy; null where nothing is known.
	Oldest *time.Time `json:"oldest"`
	Newest *time.Time `json:"newest"`
	TimeBy string     `json:"time_by,omitempty"`
}

// Group counts events that share a table, a topic and types.
type Group struct {
	Table         string `json:"table"`
	Topic         string `json:"topic"`
	AggregateType string `json:"aggregate_type,omitempty"`
	EventType     string `json:"event_type,omitempty"`
	Events        int64  `json:"events"`
	// Refused says why these cannot be published, where the routes say so already.
	Refused string `json:"refused,omitempty"`
}

// Count counts the selected rows by topic and types. It reads no payloads: what else is
// wrong with a row shows when it is published.
func (r *Reader) Count(ctx context.Context, sel Selection) (Counts, error) {
	counts := Counts{Groups: []Group{}, TimeBy: r.TimeBy()}
	groups := map[Group]int64{}
	for _, t := range r.tables {
		err := r.inTx(ctx, readOnly, func(tx pgx.Tx) error { return r.countTable(ctx, tx, t, sel, &counts, groups) })
		if err != nil {
			return Counts{}, sqlError("count the rows of", "table "+t.name, err)
		}
	}
	for g, n := range groups {
		g.Events = n
		counts.Events += n
		counts.Groups = append(counts.Groups, g)
	}
	slices.SortFunc(counts.Groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Topic, b.Topic),
			cmp.Compare(a.AggregateType, b.AggregateType), cmp.Compare(a.EventType, b.EventType), cmp.Compare(a.Refused, b.Refused))
	})
	return counts, nil
}

// Any says whether the selection holds a row, with or without an id.
func (r *Reader) Any(ctx context.Context, sel Selection) (yes bool, err error) {
	for _, t := range r.tables {
		if err := r.ask(ctx, t, sel, "SELECT EXISTS (SELECT FROM %s t WHERE %s)", &yes); err != nil || yes {
			return yes, err
		}
	}
	return false, nil
}

// Number counts the rows of the selection that have an id.
func (r *Reader) Number(ctx context.Context, sel Selection) (n int64, err error) {
	for _, t := range r.tables {
		var of int64
		sql := "SELECT count(nullif(" + strings.ReplaceAll(t.text(t.src.Mapping.EventID), "%", "%%") + ", '')) FROM %s t WHERE %s"
		if err := r.ask(ctx, t, sel, sql, &of); err != nil {
			return 0, err
		}
		n += of
	}
	return n, nil
}

// ask asks a question about a table's selected rows.
func (r *Reader) ask(ctx context.Context, t *table, sel Selection, sql string, into any) error {
	err := r.inTx(ctx, readOnly, func(tx pgx.Tx) error {
		next, err := nextXID(ctx, tx)
		if err != nil {
			return err
		}
		q := &query{}
		where, err := r.where(ctx, tx, q, t, sel, next)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, fmt.Sprintf(sql, t.from, where), q.args...).Scan(into)
	})
	return sqlError("look through", "table "+t.name, err)
}

func (r *Reader) countTable(ctx context.Context, tx pgx.Tx, t *table, sel Selection, counts *Counts, groups map[Group]int64) error {
	next, err := nextXID(ctx, tx)
	if err != nil {
		return err
	}
	q := &query{}
	where, err := r.where(ctx, tx, q, t, sel, next)
	if err != nil {
		return err
	}
	topicColumns := r.router.TopicColumns(t.rel)
	m := &t.src.Mapping
	columns := []string{t.text(m.EventID) + " IS NULL OR " + t.text(m.EventID) + " = ''", t.textOr(m.AggregateType, "NULL::text"), t.textOr(m.EventType, "NULL::text")}
	for _, name := range topicColumns {
		columns = append(columns, t.text(name))
	}
	by := make([]string, len(columns))
	for i := range columns {
		by[i] = fmt.Sprint(i + 1)
	}
	at := r.timeSQL(t)
	rows, err := tx.Query(ctx, fmt.Sprintf("SELECT %s, count(*), min(%s) FILTER (WHERE isfinite(%s)), max(%s) FILTER (WHERE isfinite(%s)) FROM %s t WHERE %s GROUP BY %s",
		strings.Join(columns, ", "), at, at, at, at, t.from, where, strings.Join(by, ", ")), q.args...)
	if err != nil {
		return err
	}
	return r.collectGroups(rows, t, len(topicColumns), counts, groups)
}

// collectGroups finds each group's topic.
func (r *Reader) collectGroups(rows pgx.Rows, t *table, topicColumns int, counts *Counts, groups map[Group]int64) error {
	var without bool
	var aggregateType, eventType *string
	var n int64
	var oldest, newest *time.Time
	values := make([]*string, topicColumns)
	into := []any{&without, &aggregateType, &eventType}
	for i := range values {
		into = append(into, &values[i])
	}
	_, err := pgx.ForEachRow(rows, append(into, &n, &oldest, &newest), func() error {
		if without {
			counts.WithoutID += n
			return nil
		}
		counts.span(oldest, newest)
		g := Group{Table: t.name, AggregateType: orEmpty(aggregateType), EventType: orEmpty(eventType)}
		topic, refusal := r.router.Topic(t.rel, asValues(values))
		g.Topic = topic
		if refusal != nil {
			g.Refused = string(refusal.Reason)
		}
		groups[g] += n
		return nil
	})
	return err
}

func (c *Counts) span(oldest, newest *time.Time) {
	if oldest != nil && (c.Oldest == nil || oldest.Before(*c.Oldest)) {
		at := *oldest
		c.Oldest = &at
	}
	if newest != nil && (c.Newest == nil || newest.After(*c.Newest)) {
		at := *newest
		c.Newest = &at
	}
}

func asValues(texts []*string) []event.Value {
	values := make([]event.Value, len(texts))
	for i, text := range texts {
		values[i] = event.Value{Kind: event.Null}
		if text != nil {
			values[i] = event.Value{Kind: event.Text, Data: []byte(*text)}
		}
	}
	return values
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
