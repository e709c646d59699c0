package recovery

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/parking"
)

// mark is the header of what recover publishes.
func mark(task int64) event.Header {
	return event.Header{Name: reissue.RecoveredHeader, Value: []byte(strconv.FormatInt(task, 10))}
}

// parkLeft is step 5: what was refused goes where the relay would have put it, and what
// waits behind it, or behind an event that was parked before, follows.
//
// The events have no position in the WAL any more. They get one just before the slot's,
// where no commit record can begin, so that they come behind all that is parked and
// before all that the stream brings.
func (r *Recovery) parkLeft(ctx context.Context, reader *outbox.Reader, t *task) error {
	noted, err := reissue.NewDesk(r.conn, r.cfg.Publisher, r.cfg.Actor).Items(ctx, t.ID, 0)
	if err != nil {
		return err
	}
	events, halt, err := r.parkables(ctx, reader, t, noted)
	if err != nil {
		return err
	}
	if halt != nil {
		return errors.Join(halt, r.fail(ctx, t, halt.Error()))
	}
	v := t.Detail.Vantage
	t.Detail.Step = stepParked
	t.Detail.Published += t.Total - int64(len(noted))
	t.Detail.Parked, t.Detail.Gone = int64(len(events)), int64(len(noted)-len(events))
	return r.inTx(ctx, "park what was refused", func(tx pgx.Tx) error {
		if len(events) > 0 {
			err := parking.ParkFromTable(ctx, tx, parking.Config{
				Publisher: r.cfg.Publisher, Slot: v.Slot, SystemID: v.SystemID, Timeline: v.Timeline, Holder: r.cfg.Actor,
			}, events)
			if err != nil {
				return err
			}
		}
		return t.save(ctx, tx)
	})
}

// parkables makes parked events of what was noted. halt says that a route's policy is to
// halt at one of them. Rows that are gone are in neither.
func (r *Recovery) parkables(ctx context.Context, reader *outbox.Reader, t *task, noted []reissue.Item) (events []*parking.Event, halt, err error) {
	if len(noted) == 0 {
		return nil, nil, nil
	}
	point, err := t.Detail.Vantage.point()
	if err != nil {
		return nil, nil, err
	}
	outcomes := map[int64]string{}
	for _, item := range noted {
		outcomes[item.N] = item.Outcome
	}
	err = reader.EachNoted(ctx, t.ID, func(row outbox.Candidate) error {
		outcome, ok := outcomes[row.N]
		if !ok {
			return nil // another row of the same id
		}
		delete(outcomes, row.N)
		e, refused := parkable(t, point, row, outcome)
		if refused != nil {
			halt = refused
			return nil //nolint:nilerr // the caller halts, when all rows were looked at
		}
		if row.Refusal != nil {
			e.Row = keepRow(reader, row.Row)
		}
		events = append(events, e)
		return nil
	})
	return events, halt, err
}

// keepRow copies a row with all that is needed to route it again.
func keepRow(reader *outbox.Reader, row *event.Row) *parking.Row {
	kept := parking.CopyRow(row)
	kept.AsSchema, kept.AsTable = row.Relation.Namespace, row.Relation.Name
	for _, c := range kept.Columns {
		if t, ok := reader.TypeName(c.Type); ok {
			kept.Types[c.Type] = parking.Type{Schema: t.Schema, Name: t.Name}
		}
	}
	return kept
}

// takeUp prepares the list of a task that was cut off while it published, or that waits for
// a cause to be healed: what its topics have by now leaves it, saved or not, and what was
// refused or withheld is tried again in its order.
func (r *Recovery) takeUp(ctx context.Context, reader *outbox.Reader, t *task, o Options) error {
	c := &comparison{r: r, o: o, c: newCandidates(), headers: idHeaders(r.cfg.Router.Sources)}
	if err := c.load(ctx, reader, t.ID, outbox.Selection{}); err != nil {
		return err
	}
	if !o.WithoutTopics {
		if err := c.readBehind(ctx, t.Detail.Ends); err != nil {
			return err
		}
	}
	return r.inTx(ctx, "take up the list", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0`); err != nil {
			return err
		}
		before := t.Total
		if o.WithoutTopics {
			if _, err := tx.Exec(ctx, `DELETE FROM postrider.task_item WHERE task = $1 AND n <= $2 AND outcome IS NULL`, t.ID, t.Done); err != nil {
				return err
			}
		} else if err := t.keepMissing(ctx, tx, c.c); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE postrider.task_item SET outcome = NULL WHERE task = $1 AND outcome IS NOT NULL`, t.ID); err != nil {
			return err
		}
		if err := t.renumber(ctx, tx); err != nil {
			return err
		}
		t.Detail.Published += before - t.Total
		t.Detail.Withheld, t.Detail.Step = nil, stepCompared
		return t.save(ctx, tx)
	})
}

// parkable makes a parked event of a row that was not published, or says why the policy
// is to halt at it.
func parkable(t *task, point event.LSN, row outbox.Candidate, outcome string) (*parking.Event, error) {
	e := &parking.Event{Message: parking.CopyMessage(row.Message), SourceTable: row.Table, Attempts: 1}
	e.Message.Position = event.Position{Commit: point - 1, Index: uint64(t.ID)<<32 | uint64(row.N)}
	e.Message.Headers = append(e.Message.Headers, mark(t.ID))
	policy, order := row.Message.OnRefusal, event.OrderKnown
	if row.Message.Key == nil {
		order = event.OrderNone
	}
	switch refusal := row.Refusal; {
	case refusal != nil:
		policy, order = refusal.Policy, refusal.Order
		e.Reason, e.Error = refusal.Reason, refusal.Detail
	case strings.HasPrefix(outcome, "refused: "):
		reason, detail, _ := strings.Cut(strings.TrimPrefix(outcome, "refused: "), ": ")
		reason, _, _ = strings.Cut(reason, ",")
		e.Reason, e.Error = event.Reason(reason), detail
	default:
		e.Reason, e.Error, e.Attempts, policy = event.ReasonHeld, "it stands behind a parked event of its key", 0, event.ParkAggregate
	}
	switch parking.FateOf(&event.Refusal{Policy: policy, Order: order}, e.Message.Key) {
	case parking.FateHalt:
		return nil, &operr.Error{
			Class: operr.Halted, Op: "recover", Subject: fmt.Sprintf("task %d", t.ID),
			Err:  fmt.Errorf("event %s is %s, and its route says on_refusal: %s", row.Message.EventID, outcome, policy),
			Hint: "heal the cause (docs/halted.md), then postrider recover --resume; or on_refusal: park_event",
		}
	case parking.FateUnit:
		u := parking.UnitOf(e.Message.Topic, e.Message.Key)
		e.Unit = &u
	}
	return e, nil
}

// close is step 6: the position and the end of the task, or neither.
func (r *Recovery) close(ctx context.Context, report *Report, t *task, f *Facts) error {
	row, err := t.row(f, r.cfg)
	if err != nil {
		return err
	}
	point, err := t.Detail.Vantage.point()
	if err != nil {
		return err
	}
	err = r.inTx(ctx, "store the position", func(tx pgx.Tx) error {
		written, err := checkpoint.Rewrite(ctx, tx, row, point)
		if err != nil {
			return err
		}
		if !written {
			return &operr.Error{
				Class: operr.Slot, Op: "store the position of", Subject: "slot " + pgx.Identifier{row.Slot}.Sanitize(),
				Err:  fmt.Errorf("it does not stand at %s any more, or somebody holds it", point),
				Hint: "postrider recover --resume, which begins anew with a slot of its own",
			}
		}
		tag, err := tx.Exec(ctx, `UPDATE postrider.task SET state = 'done', finished_at = clock_timestamp() WHERE id = $1 AND state NOT IN ('done', 'cancelled')`, t.ID)
		if err == nil && tag.RowsAffected() != 1 {
			err = errAbandoned(t.ID)
		}
		if err == nil { // what was parked is the parked store's; only what is gone stays on record
			_, err = tx.Exec(ctx, `DELETE FROM postrider.task_item WHERE task = $1 AND outcome NOT LIKE 'gone:%'`, t.ID)
		}
		if err != nil {
			return err
		}
		return r.audit(ctx, tx, "recover.done", map[string]any{
			"task": t.ID, "from": evidenceOf(f).Stored, "to": evidenceOf(&Facts{Stored: &row}).Stored,
			"published": t.Detail.Published, "parked": t.Detail.Parked, "gone": t.Detail.Gone, "settled": t.Detail.Settled,
		})
	})
	if err != nil {
		return err
	}
	report.Position = row.Confirmed.String()
	return reissue.NewDesk(r.conn, r.cfg.Publisher, r.cfg.Actor).Tidy(ctx, t.ID, t.Total)
}

// row is the position that the recovery ends with.
func (t *task) row(f *Facts, cfg Config) (checkpoint.Row, error) {
	v := t.Detail.Vantage
	point, err := v.point()
	if err != nil {
		return checkpoint.Row{}, err
	}
	row := checkpoint.Row{
		Publisher: cfg.Publisher, Slot: v.Slot, SystemID: v.SystemID, Timeline: v.Timeline,
		Confirmed: point, Holder: cfg.Actor, Events: uint64(t.Detail.Published),
	}
	if s := f.Stored; s != nil {
		row.Events += s.Events
		row.CommitTime = s.CommitTime
		if t.Detail.Scope == Uncovered {
			// What is from before the first slot is still that, in the same history.
			row.BirthSnapshot = s.BirthSnapshot
			row.Snapshot = s.Snapshot
		}
	}
	if t.Detail.Method == NewSlot {
		// All that the slot's snapshot sees is published, parked or decided about.
		row.SlotBirth, row.Snapshot = point, t.Snapshot
		return row, nil
	}
	if f.Stored != nil && f.sharesHistory() {
		// Up to here all is published, wherever the slot stands.
		row.Confirmed = max(row.Confirmed, f.Stored.Confirmed)
	}
	return row, nil
}
