package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Post is the relay's side, over a connection that the caller owns. Like the connection
// it is for one goroutine at a time.
type Post struct {
	conn      *pgx.Conn
	publisher string
	timeout   time.Duration
}

// NewPost makes a Post; it does no I/O. timeout bounds each statement on the server.
func NewPost(conn *pgx.Conn, publisher string, timeout time.Duration) *Post {
	return &Post{conn: conn, publisher: publisher, timeout: timeout}
}

// Inbox is what lies before a relay.
type Inbox struct {
	Pausing Pausing
	// Open are the commands that are not answered, oldest first.
	Open []Command
}

// Read gives the wish and the open commands as they were at one moment, so that no
// command is seen without the wish that came with it.
func (p *Post) Read(ctx context.Context) (Inbox, error) {
	var in Inbox
	err := inTxOf(ctx, p.conn, "begin isolation level repeatable read read only", p.timeout, "read what is asked of", p.publisher, func(ctx context.Context, tx pgx.Tx) (err error) {
		in.Pausing, err = readWish(ctx, tx, p.publisher, "")
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT id, verb, asked_by FROM postrider.command WHERE publisher = $1 AND answered_at IS NULL ORDER BY id LIMIT 1000`, p.publisher)
		if err != nil {
			return err
		}
		in.Open, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Command, err error) {
			err = row.Scan(&c.ID, &c.Verb, &c.AskedBy)
			return c, err
		})
		return err
	})
	return in, err
}

// Take says that commands are being seen to, and how far that is.
func (p *Post) Take(ctx context.Context, ids []int64, a Answer) error {
	return p.write(ctx, ids, a, "", `taken_at = coalesce(taken_at, clock_timestamp())`)
}

// Reply answers commands for good; problem is why they could not be done, or "".
func (p *Post) Reply(ctx context.Context, ids []int64, a Answer, problem string) error {
	return p.write(ctx, ids, a, problem, `taken_at = coalesce(taken_at, clock_timestamp()), answered_at = clock_timestamp()`)
}

func (p *Post) write(ctx context.Context, ids []int64, a Answer, problem, set string) error {
	if len(ids) == 0 {
		return nil
	}
	text, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	return inTx(ctx, p.conn, p.timeout, "answer what is asked of", p.publisher, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE postrider.command SET answer = $2::text::jsonb, error = nullif($3, ''), `+set+` WHERE id = ANY($1) AND answered_at IS NULL`,
			ids, string(text), problem)
		return err
	})
}
