package parking

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

// Desk is the commands' side of postrider.parked, over a connection that the caller
// owns. It never publishes: it changes the state of rows, and tells the relay.
type Desk struct {
	conn      *pgx.Conn
	publisher string
	actor     string
}

// deskTimeout bounds a statement: a million rows may be chosen at once.
const deskTimeout = 2 * time.Minute

// NewDesk makes a Desk. actor is who changes something, for the audit.
func NewDesk(conn *pgx.Conn, publisher, actor string) *Desk {
	return &Desk{conn: conn, publisher: publisher, actor: actor}
}

// Info is a parked event as people see it. It holds no value of the event.
type Info struct {
	ID               int64      `json:"id"`
	State            State      `json:"state"`
	Reason           string     `json:"reason"`
	Error            string     `json:"error"`
	Attempts         int        `json:"attempts"`
	Holds            bool       `json:"holds"`
	EventID          *string    `json:"event_id"`
	EventType        *string    `json:"event_type"`
	AggregateType    *string    `json:"aggregate_type"`
	AggregateID      *string    `json:"aggregate_id"`
	AggregateVersion *string    `json:"aggregate_version"`
	Topic            *string    `json:"topic"`
	Partition        *int32     `json:"partition"`
	Table            *string    `json:"table"`
	ValueBytes       *int64     `json:"value_bytes"`
	CommitLSN        string     `json:"commit_lsn"`
	EventIndex       int64      `json:"event_index"`
	CommitTime       *time.Time `json:"commit_time"`
	ParkedAt         time.Time  `json:"parked_at"`
	TriedAt          *time.Time `json:"tried_at"`
	FinishedAt       *time.Time `json:"finished_at"`
	Owner            *string    `json:"owner"`
	Repaired         bool       `json:"repaired"`
	ErasedAt         *time.Time `json:"erased_at"`
	DeadLetterTopic  *string    `json:"dead_letter_topic"`
	DeadLetterAt     *time.Time `json:"dead_letter_at"`
	DeadLetterError  *string    `json:"dead_letter_error"`
}

const infoColumns = `id, state, reason, error, attempts, unit IS NOT NULL, event_id, event_type, aggregate_type, aggregate_id, aggregate_version,
	topic, partition, source_table, octet_length(value)::bigint, commit_lsn::text, event_index, commit_time, parked_at, tried_at, finished_at,
	owner, repaired, erased_at, dead_letter_topic, dead_letter_at, dead_letter_error`

func (i *Info) targets() []any {
	return []any{
		&i.ID, &i.State, &i.Reason, &i.Error, &i.Attempts, &i.Holds, &i.EventID, &i.EventType, &i.AggregateType, &i.AggregateID, &i.AggregateVersion,
		&i.Topic, &i.Partition, &i.Table, &i.ValueBytes, &i.CommitLSN, &i.EventIndex, &i.CommitTime, &i.ParkedAt, &i.TriedAt, &i.FinishedAt,
		&i.Owner, &i.Repaired, &i.ErasedAt, &i.DeadLetterTopic, &i.DeadLetterAt, &i.DeadLetterError,
	}
}

// Listing is a list of parked events and how many there are in all.
type Listing struct {
	Events []Info `json:"events"`
	// Total is the number of events that the filter chooses, of which the oldest are listed.
	Total int64 `json:"total"`
	// Keys is the number of held units among them.
	Keys int64 `json:"held_keys"`
	// Reasons counts them by reason.
	Reasons map[string]int64 `json:"reasons"`
}

// List gives the oldest events that a filter chooses; most 0 gives all.
func (d *Desk) List(ctx context.Context, f Filter, most int) (Listing, error) {
	list := Listing{Events: []Info{}, Reasons: map[string]int64{}}
	err := d.tx(ctx, "list parked events", func(ctx context.Context, tx pgx.Tx) error {
		where, args := f.where(d.publisher)
		rows, err := tx.Query(ctx, `SELECT reason, count(*) FROM postrider.parked WHERE `+where+` GROUP BY reason`, args...)
		if err != nil {
			return err
		}
		var reason string
		var n int64
		if _, err := pgx.ForEachRow(rows, []any{&reason, &n}, func() error {
			list.Reasons[reason] = n
			list.Total += n
			return nil
		}); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT count(DISTINCT unit) FILTER (WHERE state IN ('parked', 'retry', 'publishing')) FROM postrider.parked WHERE `+where, args...).Scan(&list.Keys); err != nil {
			return err
		}
		limit := ""
		if most > 0 {
			limit = fmt.Sprintf(" LIMIT %d", most)
		}
		rows, err = tx.Query(ctx, `SELECT `+infoColumns+` FROM postrider.parked WHERE `+where+` ORDER BY commit_lsn, event_index`+limit, args...)
		if err != nil {
			return err
		}
		var i Info
		_, err = pgx.ForEachRow(rows, i.targets(), func() error {
			list.Events = append(list.Events, i)
			return nil
		})
		return err
	})
	return list, err
}

// Detail is an event with its bytes.
type Detail struct {
	Info
	Key     []byte   `json:"key,omitempty"`
	Value   []byte   `json:"value,omitempty"`
	Headers []Header `json:"headers,omitempty"`
}

// Header is a record header; JSON shows the value in base64.
type Header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

// Each hands the events that a filter chooses over one by one, oldest first, with their
// bytes.
func (d *Desk) Each(ctx context.Context, f Filter, each func(*Detail) error) error {
	return d.tx(ctx, "read parked events", func(ctx context.Context, tx pgx.Tx) error {
		where, args := f.where(d.publisher)
		rows, err := tx.Query(ctx, `SELECT `+infoColumns+`, key, value, header_names, header_values FROM postrider.parked
			WHERE `+where+` ORDER BY commit_lsn, event_index`, args...)
		if err != nil {
			return err
		}
		var (
			e             Detail
			names, values [][]byte
		)
		_, err = pgx.ForEachRow(rows, append(e.targets(), &e.Key, &e.Value, &names, &values), func() error {
			e.Headers = nil
			for i := range names {
				e.Headers = append(e.Headers, Header{Name: string(names[i]), Value: values[i]})
			}
			return each(&e)
		})
		return err
	})
}

// tx runs fn in a transaction that waits for synchronous standbys, as the relay's do.
func (d *Desk) tx(ctx context.Context, op string, fn func(context.Context, pgx.Tx) error) error {
	opts := pgx.TxOptions{BeginQuery: fmt.Sprintf(
		"begin; set local synchronous_commit = on; set local statement_timeout = %d", deskTimeout.Milliseconds())}
	err := pgx.BeginTxFunc(ctx, d.conn, opts, func(tx pgx.Tx) error { return fn(ctx, tx) })
	if err == nil || operr.ClassOf(err) != operr.Internal {
		return err
	}
	e := storeError(op, d.publisher, err)
	if e.Hint == "" {
		e.Hint = "the same command again, of which nothing was done; if that does not help, postrider doctor"
	}
	return e
}

// change is tx with a line in the audit and word to the relay, where rows were changed.
func (d *Desk) change(ctx context.Context, op, action string, fn func(context.Context, pgx.Tx) ([]int64, map[string]any, error)) error {
	return d.tx(ctx, op, func(ctx context.Context, tx pgx.Tx) error {
		ids, detail, err := fn(ctx, tx)
		if err != nil || len(ids) == 0 {
			return err
		}
		detail["ids"] = ids
		if err := audit(ctx, tx, d.publisher, d.actor, action, detail); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `SELECT pg_notify($1, $2)`, Channel, d.publisher)
		return err
	})
}
