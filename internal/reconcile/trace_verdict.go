package reconcile

import (
	"errors"
	"fmt"
	"slices"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/parking"
)

// asItShould says that a record is as the row would give it.
func (t *trace) asItShould() bool {
	return slices.ContainsFunc(t.trail.Records, func(r TracedRecord) bool { return len(r.Differs) == 0 })
}

// conclude finds the verdict.
func (t *trace) conclude() {
	tr := t.trail
	var waiting, given *parking.Info
	for i := range tr.Parked {
		switch p := &tr.Parked[i]; {
		case p.State.Outstanding():
			waiting = p
		case p.State == parking.Discarded:
			given = p
		}
	}
	say := func(state Where, format string, args ...any) {
		tr.State, tr.Words = state, fmt.Sprintf(format, args...)
	}
	switch {
	case len(tr.Records) > 0 && t.found == nil:
		say(OnlyInTopic, "published; no table has its row: it was purged or deleted, or is from elsewhere")
	case len(tr.Records) > 0 && t.asItShould():
		say(Published, "published%s", times(len(tr.Records)))
	case len(tr.Records) > 0:
		say(Different, "published%s, and no record is as the row would give it now", times(len(tr.Records)))
	case tr.receipted():
		say(Published, "published%s; its topic does not keep the record any more", times(len(tr.Receipts)))
	case waiting != nil:
		say(IsParked, "parked as number %d, %s: %s", waiting.ID, waiting.State, waiting.Reason)
	case given != nil:
		say(IsDiscarded, "discarded as parked event %d", given.ID)
	case t.found == nil && len(tr.Receipts) > 0:
		r := &tr.Receipts[0]
		say(Missing, "missing: it was acknowledged at %s, %s, and nothing that was searched has it", r.Place(), r.Words())
	case t.found == nil:
		say(Nowhere, "not found anywhere: no table has it, it is not parked, and no topic that was searched has it")
	case t.older:
		say(BeforeSlot, "in the table, from before the slot: no stream has brought it, and no backfill has published it")
	case tr.Covered == nil:
		say(Waiting, "in the table, in no topic, and nothing says whether it was to be published: %s", tr.NotProved)
	case !*tr.Covered:
		say(Waiting, "in the table; the relay has not confirmed its transaction yet")
	default:
		say(Missing, "missing: the checkpoint covers its row, and neither its topic nor the parked store has it")
	}
}

func times(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(", %d times", n)
}

// Error is the finding of a trail that is not as it should be, else nil.
func (tr *Trail) Error() error {
	if tr.State.AsItShould() {
		return nil
	}
	e := &operr.Error{Class: operr.Findings, Op: "trace", Subject: "event " + tr.EventID, Err: errors.New(tr.Words)}
	switch {
	case tr.State == Missing && tr.Row == nil:
		e.Hint = "its row is gone too: a backup of the database, or who wrote it; then kafka's own word on what became of the topic"
	case tr.State == Missing || tr.State == Different:
		e.Hint = "postrider reconcile, for whether it is the only one; postrider replay --event-id " + tr.EventID + " publishes it"
	case tr.State == Nowhere:
		e.Hint = "check the id; name further topics with --topic; a row that was purged and a record that retention removed leave no trace"
	}
	return e
}
