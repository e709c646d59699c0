// Package polling is the outbox relay that most teams have or would write: SELECT … FOR UPDATE SKIP LOCKED, send,
// mark, commit. It is a peer of the benchmark and is written to be a good one of its kind.
package polling

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"
)

// Config is one relay. There is one worker: with two, SKIP LOCKED hands events of one key to both, and their order
// is lost.
type Config struct {
	DSN     string
	Table   string
	Brokers []string
	Topic   string
	// Batch is the number of rows of a poll and of a Kafka batch.
	Batch int
	// Interval is the pause after a poll that did not fill its batch.
	Interval time.Duration
	// Linger is the Writer's BatchTimeout, which each batch that is not full waits out: kafka-go cannot know that a call of
	// WriteMessages has handed over everything.
	Linger time.Duration
	// Delete removes dispatched rows instead of marking them.
	Delete bool
}

// Run relays until ctx ends, which is no error. A broker that does not take a batch is asked again with the next
// poll, since the transaction was rolled back; an error of the database ends the relay.
func Run(ctx context.Context, c Config) error {
	conn, err := pgx.Connect(ctx, c.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	w := c.writer()
	defer func() { _ = w.Close() }() // nothing waits in it: WriteMessages returns when all is acknowledged
	r := relay{Config: c, conn: conn, writer: w}
	for {
		n, err := r.pass(ctx)
		var lost sendError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &lost):
			log.Print(err)
		case err != nil:
			return err
		}
		if n == c.Batch {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Interval):
		}
	}
}

// writer waits for all replicas, as the product does, and partitions by key.
func (c Config) writer() *kafka.Writer {
	return &kafka.Writer{
		Addr:         kafka.TCP(c.Brokers...),
		Topic:        c.Topic,
		Balancer:     &kafka.Hash{},
		RequiredAcks: kafka.RequireAll,
		BatchSize:    c.Batch,
		BatchTimeout: c.Linger,
	}
}

type relay struct {
	Config
	conn   *pgx.Conn
	writer *kafka.Writer
}

type sendError struct{ error }

// pass is one transaction. It returns the number of rows that it has dispatched.
func (r *relay) pass(ctx context.Context) (int, error) {
	tx, err := r.conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // after Commit it does nothing
	ids, msgs, err := r.read(ctx, tx)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	if err := r.writer.WriteMessages(ctx, msgs...); err != nil {
		return 0, sendError{fmt.Errorf("send %d events: %w", len(msgs), err)}
	}
	mark := markDispatched
	if r.Delete {
		mark = deleteDispatched
	}
	if _, err := tx.Exec(ctx, expand(mark, r.Table, ""), ids); err != nil {
		return 0, err
	}
	return len(ids), tx.Commit(ctx)
}

func (r *relay) read(ctx context.Context, tx pgx.Tx) ([]int64, []kafka.Message, error) {
	rows, err := tx.Query(ctx, expand(selectBatch, r.Table, ""), r.Batch)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	ids := make([]int64, 0, r.Batch)
	msgs := make([]kafka.Message, 0, r.Batch)
	for rows.Next() {
		var id int64
		var eventID, key, kind, payload []byte
		if err := rows.Scan(&id, &eventID, &key, &kind, &payload); err != nil {
			return nil, nil, err
		}
		ids = append(ids, id)
		msgs = append(msgs, kafka.Message{
			Key: key, Value: payload,
			Headers: []kafka.Header{{Key: "id", Value: eventID}, {Key: "eventType", Value: kind}},
		})
	}
	return ids, msgs, rows.Err()
}
