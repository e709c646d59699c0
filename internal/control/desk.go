package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

// Desk is the commands' side, over a connection that the caller owns.
type Desk struct {
	conn      *pgx.Conn
	publisher string
	actor     string
}

// NewDesk makes a Desk. actor is who asks, for the audit.
func NewDesk(conn *pgx.Conn, publisher, actor string) *Desk {
	return &Desk{conn: conn, publisher: publisher, actor: actor}
}

// Asked is what came of a question at once.
type Asked struct {
	// Command is the row that the relay will answer; 0 where no relay holds the slot.
	Command int64
	// Changed says that this call changed the wish; else it was so already.
	Changed bool
	// Pausing is the wish as it stands now.
	Pausing Pausing
	// Relay names the relay that holds the slot, or is "".
	Relay string
}

// Ask makes the wish durable, with a line in the audit where that changes something,
// and asks the relay that holds the slot to see to it. Where none does, the wish waits
// for the next.
func (d *Desk) Ask(ctx context.Context, verb Verb, reason string) (Asked, error) {
	var asked Asked
	err := inTx(ctx, d.conn, deskTimeout, "ask for "+string(verb), d.publisher, func(ctx context.Context, tx pgx.Tx) error {
		before, err := d.lockWish(ctx, tx)
		if err != nil {
			return err
		}
		asked = Asked{Pausing: before, Changed: !before.Wants(verb)}
		if asked.Changed {
			if asked.Pausing, err = d.change(ctx, tx, verb, before, reason); err != nil {
				return err
			}
		}
		// After the wish is in place: whoever claims the row from now on sees it.
		if asked.Relay, err = relayOf(ctx, tx, d.publisher); err != nil || asked.Relay == "" {
			return err
		}
		if asked.Command, err = d.insert(ctx, tx, verb, reason); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `SELECT pg_notify($1, $2)`, Channel, d.publisher)
		return err
	})
	return asked, err
}

// lockWish also makes two operators at once go one after the other.
func (d *Desk) lockWish(ctx context.Context, tx pgx.Tx) (Pausing, error) {
	p, err := readWish(ctx, tx, d.publisher, "FOR UPDATE")
	if errors.Is(err, pgx.ErrNoRows) {
		return p, &operr.Error{
			Class: operr.Slot, Op: "find", Subject: fmt.Sprintf("publisher %q", d.publisher),
			Err: errors.New("it has no checkpoint: nothing was set up or published under this name"), Hint: "postrider checkpoint list",
		}
	}
	return p, err
}

func (d *Desk) change(ctx context.Context, tx pgx.Tx, verb Verb, before Pausing, reason string) (Pausing, error) {
	var now Pausing
	var since *time.Time
	var by *string
	err := tx.QueryRow(ctx, `UPDATE postrider.checkpoint
		SET paused_at = CASE WHEN $2 THEN clock_timestamp() END, paused_by = CASE WHEN $2 THEN $3::text END
		WHERE publisher = $1 RETURNING paused_at, paused_by`, d.publisher, verb == Pause, d.actor).Scan(&since, &by)
	if err != nil {
		return now, err
	}
	if since != nil && by != nil {
		now = Pausing{Since: *since, By: *by}
	}
	detail := map[string]any{"from": stateOf(before), "to": stateOf(now), "reason": reason}
	if before.On() {
		detail["paused_at"], detail["paused_by"] = before.Since, before.By
	}
	text, err := json.Marshal(detail)
	if err != nil {
		return now, fmt.Errorf("encode audit detail: %w", err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO postrider.audit (publisher, actor, action, detail) VALUES ($1, $2, $3, $4::text::jsonb)`,
		d.publisher, d.actor, string(verb), string(text))
	return now, err
}

func stateOf(p Pausing) State {
	if p.On() {
		return Paused
	}
	return Running
}

func (d *Desk) insert(ctx context.Context, tx pgx.Tx, verb Verb, reason string) (id int64, err error) {
	params, err := json.Marshal(map[string]any{"reason": reason})
	if err != nil {
		return 0, fmt.Errorf("encode parameters: %w", err)
	}
	err = tx.QueryRow(ctx, `INSERT INTO postrider.command (publisher, verb, params, asked_by) VALUES ($1, $2, $3::text::jsonb, $4) RETURNING id`,
		d.publisher, string(verb), string(params), d.actor).Scan(&id)
	return id, err
}

// Reply is how far a relay has come with a command.
type Reply struct {
	// Taken says that the relay knows of it, Done that it has answered for good.
	Taken, Done bool
	Answer      Answer
	// Problem is why it could not be done, or "".
	Problem string
	// Relay names the relay that holds the slot now, or is "".
	Relay string
}

// Look reads the answer so far.
func (d *Desk) Look(ctx context.Context, command int64) (Reply, error) {
	var r Reply
	err := inTx(ctx, d.conn, deskTimeout, "read the relay's answer to", d.publisher, func(ctx context.Context, tx pgx.Tx) error {
		var answer, problem *string
		err := tx.QueryRow(ctx, `SELECT taken_at IS NOT NULL, answered_at IS NOT NULL, answer::text, error FROM postrider.command WHERE id = $1`, command).
			Scan(&r.Taken, &r.Done, &answer, &problem)
		if err != nil {
			return err
		}
		if problem != nil {
			r.Problem = *problem
		}
		if answer != nil {
			if err := json.Unmarshal([]byte(*answer), &r.Answer); err != nil {
				return fmt.Errorf("decode the answer: %w", err)
			}
		}
		r.Relay, err = relayOf(ctx, tx, d.publisher)
		return err
	})
	return r, err
}

// lookEvery is the pause between two looks of Await.
const lookEvery = 100 * time.Millisecond

// Await looks until the relay has answered for good or ctx ends; then the reply is what
// was seen last, and the error is the context's. The wish stands either way.
func (d *Desk) Await(ctx context.Context, command int64) (Reply, error) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		// A look that is interrupted would break the session, which is needed still.
		r, err := d.Look(context.WithoutCancel(ctx), command)
		if err != nil || r.Done {
			return r, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return r, context.Cause(ctx)
		}
	}
}
