package replay

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/outbox"
)

// Preview is what a replay would publish, and what it leaves out. Its JSON fields are a
// documented contract.
type Preview struct {
	outbox.Counts
	// LeftOut counts the selected events that are not published again, by why.
	LeftOut []LeftOut `json:"left_out"`
	// Missing are the event ids asked for that no table has; at most MissingShown are listed.
	Missing      []string `json:"missing"`
	MissingTotal int64    `json:"missing_total"`
	// Order says what the order of the events rests on.
	Order string `json:"order"`
	// NeedsApproval says that a second person has to approve it.
	NeedsApproval bool `json:"needs_approval"`
}

// LeftOut is a number of events and why they are not published again.
type LeftOut struct {
	Why    Why    `json:"why"`
	Events int64  `json:"events"`
	Text   string `json:"text"`
}

// Why events are left out.
type Why string

// The reasons for which events are left out.
const (
	// Unconfirmed: not proved to be published.
	Unconfirmed Why = "unconfirmed"
	// BeforeSlot: from before the slot, so that no stream has published them.
	BeforeSlot Why = "before_slot"
	// Parked: outstanding in the parked store, or discarded there.
	Parked Why = "parked"
)

var whyText = map[Why]string{
	Unconfirmed: "the confirmed position does not cover them: the relay publishes them, and a copy must not come first",
	BeforeSlot:  "from before the slot, never published by this publisher; --before-slot takes them in",
	Parked:      "parked or discarded: `postrider parked` decides about them",
}

// MissingShown bounds the list of missing ids.
const MissingShown = 20

// Unknown is the error of ids that no table has; nil where there are none.
func (p *Preview) Unknown() error {
	if p.MissingTotal == 0 {
		return nil
	}
	first := p.Missing
	if len(first) > 3 {
		first = first[:3]
	}
	return &operr.Error{
		Class: operr.Config, Op: "replay",
		Err:  fmt.Errorf("%d of the event ids asked for are in no table, such as %q", p.MissingTotal, first),
		Hint: "postrider trace EVENT_ID: was it purged?",
	}
}

// Preview counts. It changes nothing.
func (r *Replayer) Preview(ctx context.Context, req Request) (Preview, error) {
	_, p, err := r.choose(ctx, req)
	return p, err
}

// choice is a selection of copies only.
type choice struct {
	sel outbox.Selection
	// covered is the pg_snapshot that was ticked off.
	covered string
}

const (
	parkedSet = "parked"
	askedSet  = "asked"
)

// choose narrows the request down step by step, and counts what each step leaves out.
func (r *Replayer) choose(ctx context.Context, req Request) (choice, Preview, error) {
	p := Preview{LeftOut: []LeftOut{}, Missing: []string{}, Order: r.reader.Order()}
	covered, row, err := r.covered(ctx)
	if err != nil {
		return choice{}, p, err
	}
	c := choice{sel: req.selection(), covered: row.Snapshot}
	left, err := r.reader.Number(ctx, c.sel)
	if err != nil {
		return c, p, err
	}
	// Only what is older than every transaction that ran: between, a row may carry the id of a
	// subtransaction, which the snapshot does not name (rule 4).
	c.sel.VisibleIn = fmt.Sprintf("%[1]d:%[1]d:", covered.Xmin)
	if err := r.narrow(ctx, &c, &p, &left, Unconfirmed); err != nil {
		return c, p, err
	}
	after, err := r.afterBirth(ctx, req, row)
	if err != nil {
		return c, p, err
	}
	if after != "" {
		c.sel.NotVisibleIn = after
		if err := r.narrow(ctx, &c, &p, &left, BeforeSlot); err != nil {
			return c, p, err
		}
	}
	parked, err := r.keepParked(ctx)
	if err != nil {
		return c, p, err
	}
	if parked > 0 {
		c.sel.Except = parkedSet
		if err := r.narrow(ctx, &c, &p, &left, Parked); err != nil {
			return c, p, err
		}
	}
	if p.Counts, err = r.reader.Count(ctx, c.sel); err != nil {
		return c, p, err
	}
	p.NeedsApproval = p.Events > r.cfg.ApprovalAbove
	return c, p, r.findMissing(ctx, req, &p)
}

// narrow counts again what is left of the request.
func (r *Replayer) narrow(ctx context.Context, c *choice, p *Preview, left *int64, why Why) error {
	now, err := r.reader.Number(ctx, c.sel)
	if err != nil {
		return err
	}
	if out := *left - now; out > 0 {
		p.LeftOut = append(p.LeftOut, LeftOut{Why: why, Events: out, Text: whyText[why]})
	}
	*left = now
	return nil
}

// afterBirth gives the snapshot whose rows are from before the slot; "" where there is none, or where
// a backfill has published them as well. A recover keeps the snapshot only where it did not look at them.
func (r *Replayer) afterBirth(ctx context.Context, req Request, row *checkpoint.Row) (string, error) {
	if req.BeforeSlot || row.BirthSnapshot == "" {
		return "", nil
	}
	var published bool
	err := r.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM postrider.task WHERE publisher = $1 AND kind = 'backfill' AND state = 'done')`,
		r.cfg.Publisher).Scan(&published)
	if err != nil || published {
		return "", sqlError("look for a backfill", err)
	}
	return row.BirthSnapshot, nil
}

// keepParked hands the ids of parked and discarded events to the reader.
func (r *Replayer) keepParked(ctx context.Context) (int64, error) {
	rows, err := r.conn.Query(ctx, `SELECT event_id FROM postrider.parked
		WHERE publisher = $1 AND state IN ('parked', 'retry', 'publishing', 'discarded') AND event_id IS NOT NULL`, r.cfg.Publisher)
	if err != nil {
		return 0, sqlError("read the parked events", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(ids) == 0 {
		return 0, sqlError("read the parked events", err)
	}
	return r.reader.Keep(ctx, parkedSet, slices.Values(ids))
}

func (r *Replayer) findMissing(ctx context.Context, req Request, p *Preview) error {
	if len(req.EventIDs) == 0 {
		return nil
	}
	if _, err := r.reader.Keep(ctx, askedSet, slices.Values(req.EventIDs)); err != nil {
		return err
	}
	return r.reader.Missing(ctx, askedSet, func(id string) error {
		if p.MissingTotal++; p.MissingTotal <= MissingShown {
			p.Missing = append(p.Missing, id)
		}
		return nil
	})
}

func sqlError(op string, err error) error {
	if err == nil {
		return nil
	}
	return &operr.Error{Class: operr.Postgres, Op: op, Err: err, Hint: "postrider setup: it brings schema and grants up to date"}
}
