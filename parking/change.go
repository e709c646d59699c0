package parking

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

// Selection is what a change touches, or would touch.
type Selection struct {
	// IDs are the rows, in order of position.
	IDs []int64 `json:"-"`
	// Events is their number, Keys the number of held keys among them, Added how many
	// were not chosen and stand with chosen ones in a key.
	Events int `json:"events"`
	Keys   int `json:"held_keys"`
	Added  int `json:"added"`
	// Missing are ids that were asked for by number and are not there to be changed.
	Missing []int64 `json:"missing"`
}

// Retry asks the relay to publish events. What has an order is asked for with all of
// its key: an event cannot pass those before it, and those behind follow. An empty
// dry run changes nothing.
func (d *Desk) Retry(ctx context.Context, f Filter, dry bool) (Selection, error) {
	f.States = []State{Parked}
	var sel Selection
	err := d.change(ctx, "ask for a retry of parked events", "parked.retry", func(ctx context.Context, tx pgx.Tx) ([]int64, map[string]any, error) {
		var err error
		if sel, err = d.selectUnits(ctx, tx, f); err != nil || dry {
			return nil, nil, err
		}
		// held ones need no asking: they follow.
		_, err = tx.Exec(ctx, `UPDATE postrider.parked SET state = 'retry' WHERE id = ANY($1) AND state = 'parked' AND reason <> 'held'`, sel.IDs)
		return sel.IDs, map[string]any{"events": sel.Events}, err
	})
	return sel, err
}

func (d *Desk) selectUnits(ctx context.Context, tx pgx.Tx, f Filter) (Selection, error) {
	where, args := f.where(d.publisher)
	rows, err := tx.Query(ctx, `
		WITH picked AS (SELECT id, unit FROM postrider.parked WHERE `+where+` AND erased_at IS NULL),
		units AS (SELECT DISTINCT unit FROM picked WHERE unit IS NOT NULL)
		SELECT p.id, p.unit, p.id IN (SELECT id FROM picked) FROM postrider.parked p
		WHERE p.publisher = $1 AND p.state = 'parked' AND p.erased_at IS NULL
		  AND (p.id IN (SELECT id FROM picked) OR p.unit IN (SELECT unit FROM units))
		ORDER BY p.commit_lsn, p.event_index FOR UPDATE OF p`, args...)
	if err != nil {
		return Selection{}, err
	}
	return collectSelection(rows, f.IDs)
}

func collectSelection(rows pgx.Rows, asked []int64) (Selection, error) {
	sel := Selection{IDs: []int64{}, Missing: []int64{}}
	var (
		id    int64
		unit  []byte
		ours  bool
		units = map[Unit]bool{}
		found = map[int64]bool{}
	)
	_, err := pgx.ForEachRow(rows, []any{&id, &unit, &ours}, func() error {
		sel.IDs = append(sel.IDs, id)
		found[id] = true
		if !ours {
			sel.Added++
		}
		if unit != nil {
			units[Unit(unit)] = true
		}
		return nil
	})
	sel.Events, sel.Keys = len(sel.IDs), len(units)
	for _, id := range asked {
		if !found[id] {
			sel.Missing = append(sel.Missing, id)
		}
	}
	return sel, err
}

// selectOnly chooses exactly what the filter does.
func (d *Desk) selectOnly(ctx context.Context, tx pgx.Tx, f Filter) (Selection, error) {
	where, args := f.where(d.publisher)
	rows, err := tx.Query(ctx, `SELECT id, unit, true FROM postrider.parked WHERE `+where+` ORDER BY commit_lsn, event_index FOR UPDATE`, args...)
	if err != nil {
		return Selection{}, err
	}
	return collectSelection(rows, f.IDs)
}

// Outcome is what became of a retry so far.
type Outcome struct {
	// Published were acknowledged; Refused were refused again; Behind stand behind a
	// refused one of their key; Waiting are not decided yet.
	Published int `json:"published"`
	Refused   int `json:"refused"`
	Behind    int `json:"behind"`
	Waiting   int `json:"waiting"`
}

// Outcome reads it.
func (d *Desk) Outcome(ctx context.Context, ids []int64) (Outcome, error) {
	var o Outcome
	err := d.tx(ctx, "look at retried events", func(ctx context.Context, tx pgx.Tx) error {
		o = Outcome{}
		rows, err := tx.Query(ctx, `
			WITH mine AS (SELECT * FROM postrider.parked WHERE id = ANY($1)),
			guilty AS (SELECT DISTINCT ON (unit) unit, commit_lsn, event_index FROM postrider.parked
			  WHERE publisher = $2 AND state = 'parked' AND reason <> 'held' AND unit IN (SELECT unit FROM mine)
			  ORDER BY unit, commit_lsn, event_index)
			SELECT CASE WHEN m.state IN ('published', 'discarded') THEN 'published'
			            WHEN m.state = 'parked' AND (g.commit_lsn, g.event_index) < (m.commit_lsn, m.event_index) THEN 'behind'
			            WHEN m.state = 'parked' AND m.reason <> 'held' THEN 'refused'
			            ELSE 'waiting' END AS what, count(*)
			FROM mine m LEFT JOIN guilty g USING (unit) GROUP BY what`, ids, d.publisher)
		if err != nil {
			return err
		}
		var what string
		var n int
		_, err = pgx.ForEachRow(rows, []any{&what, &n}, func() error {
			*map[string]*int{"published": &o.Published, "refused": &o.Refused, "behind": &o.Behind, "waiting": &o.Waiting}[what] = n
			return nil
		})
		return err
	})
	return o, err
}

// Cancel takes a request back, as far as the relay has not begun. It gives the ids for which it did.
func (d *Desk) Cancel(ctx context.Context, ids []int64) (back []int64, err error) {
	err = d.change(ctx, "take a retry back", "parked.cancel", func(ctx context.Context, tx pgx.Tx) ([]int64, map[string]any, error) {
		rows, err := tx.Query(ctx, `UPDATE postrider.parked SET state = 'parked' WHERE id = ANY($1) AND state = 'retry' RETURNING id`, ids)
		if err != nil {
			return nil, nil, err
		}
		back, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return back, map[string]any{}, err
	})
	return back, err
}

// Discard gives events up, for a written reason. What is on its way, or asked for, is
// not touched.
func (d *Desk) Discard(ctx context.Context, f Filter, reason string, dry bool) (Selection, error) {
	f.States = []State{Parked}
	var sel Selection
	err := d.change(ctx, "discard parked events", "parked.discard", func(ctx context.Context, tx pgx.Tx) ([]int64, map[string]any, error) {
		var err error
		if sel, err = d.selectOnly(ctx, tx, f); err != nil || dry {
			return nil, nil, err
		}
		_, err = tx.Exec(ctx, `UPDATE postrider.parked SET state = 'discarded', noted = false, finished_at = clock_timestamp() WHERE id = ANY($1)`, sel.IDs)
		return sel.IDs, map[string]any{"reason": reason}, err
	})
	return sel, err
}

// Assign names who looks after events; "" takes the name away.
func (d *Desk) Assign(ctx context.Context, f Filter, owner string, dry bool) (Selection, error) {
	var sel Selection
	err := d.change(ctx, "assign parked events", "parked.assign", func(ctx context.Context, tx pgx.Tx) ([]int64, map[string]any, error) {
		var err error
		if sel, err = d.selectOnly(ctx, tx, f); err != nil || dry {
			return nil, nil, err
		}
		_, err = tx.Exec(ctx, `UPDATE postrider.parked SET owner = nullif($2, '') WHERE id = ANY($1)`, sel.IDs, owner)
		return sel.IDs, map[string]any{"owner": owner}, err
	})
	return sel, err
}

// Erase removes the bytes of events and keeps the fact. What was still outstanding is
// discarded with it, since it could never be published.
func (d *Desk) Erase(ctx context.Context, f Filter, reason string, dry bool) (Selection, error) {
	if len(f.States) == 0 {
		f.States = []State{Parked, Published, Discarded}
	}
	var sel Selection
	err := d.change(ctx, "erase parked events", "parked.erase", func(ctx context.Context, tx pgx.Tx) ([]int64, map[string]any, error) {
		var err error
		if sel, err = d.selectOnly(ctx, tx, f); err != nil || dry {
			return nil, nil, err
		}
		_, err = tx.Exec(ctx, `UPDATE postrider.parked SET erased_at = clock_timestamp(), value = NULL, header_names = NULL, header_values = NULL,
			row_shape = NULL, row_values = NULL, error = '',
			dead_letter_at = CASE WHEN dead_letter_topic IS NOT NULL THEN coalesce(dead_letter_at, clock_timestamp()) END,
			dead_letter_error = CASE WHEN dead_letter_topic IS NOT NULL AND dead_letter_at IS NULL THEN 'erased' ELSE dead_letter_error END,
			noted = CASE WHEN state = 'parked' THEN false ELSE noted END,
			finished_at = coalesce(finished_at, clock_timestamp()),
			state = CASE WHEN state = 'parked' THEN 'discarded' ELSE state END WHERE id = ANY($1)`, sel.IDs)
		return sel.IDs, map[string]any{"reason": reason}, err
	})
	return sel, err
}

// RepairedHeader marks a record whose value is not the original one.
const RepairedHeader = "postrider-repaired"

// Repair replaces the value of one event, for a written reason. The record will carry
// RepairedHeader; a retry is a step of its own.
func (d *Desk) Repair(ctx context.Context, id int64, value []byte, reason string) error {
	return d.change(ctx, "repair a parked event", "parked.repair", func(ctx context.Context, tx pgx.Tx) ([]int64, map[string]any, error) {
		var (
			state, why string
			raw        bool
			erased     bool
		)
		err := tx.QueryRow(ctx, `SELECT state, reason, row_shape IS NOT NULL, erased_at IS NOT NULL FROM postrider.parked
			WHERE publisher = $1 AND id = $2 FOR UPDATE`, d.publisher, id).Scan(&state, &why, &raw, &erased)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil, nil, unknownEvents([]int64{id})
		case err != nil:
			return nil, nil, err
		case State(state) != Parked:
			return nil, nil, d.refuse(fmt.Sprintf("event %d is %s, not parked", id, state))
		case erased:
			return nil, nil, d.refuse(fmt.Sprintf("event %d was erased", id))
		case raw && why != "null_payload":
			return nil, nil, d.refuse(fmt.Sprintf("event %d was refused with %s, which another payload does not heal; its row is routed again by a mapping that takes it", id, why))
		}
		_, err = tx.Exec(ctx, `UPDATE postrider.parked SET value = $2, repaired = true, row_shape = NULL, row_values = NULL,
			header_names = CASE WHEN repaired THEN header_names ELSE coalesce(header_names, '{}') || $3::bytea END,
			header_values = CASE WHEN repaired THEN header_values ELSE coalesce(header_values, '{}') || convert_to('true', 'UTF8') END
			WHERE id = $1`, id, value, []byte(RepairedHeader))
		return []int64{id}, map[string]any{"reason": reason, "value_bytes": len(value)}, err
	})
}

func (d *Desk) refuse(problem string) error {
	return &operr.Error{Class: operr.Config, Op: "change parked events", Err: errors.New(problem), Hint: "postrider parked list --state all"}
}

// NoEvents is the error of a look at ids that are not there.
func NoEvents(ids []int64) error {
	return &operr.Error{
		Class: operr.Config, Op: "find parked events", Err: fmt.Errorf("there is no parked event %v", ids),
		Hint: "postrider parked list --state all",
	}
}

// unknownEvents is the error of ids that are not there.
func unknownEvents(ids []int64) error {
	return &operr.Error{
		Class: operr.Config, Op: "find parked events", Err: fmt.Errorf("there is no parked event %s to be changed", strings.Trim(fmt.Sprint(ids), "[]")),
		Hint: "postrider parked list --state all",
	}
}

// Unknown is the error where ids were asked for that are not there; nil where all are.
func (s Selection) Unknown() error {
	if len(s.Missing) == 0 {
		return nil
	}
	return unknownEvents(s.Missing)
}
