package checkpoint

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// Decide says where a run begins, from the stored row (nil: none), the slot and the
// server that was reached (rules 2 and 3, trap 10). history is the server's
// timeline history; it is needed only where the row is of another timeline. The
// error is an *operr.Error of class Slot whose hint names the command that heals.
//
// The stream itself always starts at 0/0, that is at the slot's position.
func Decide(stored *Row, slot SlotState, sys System, history []TimelineSwitch) (Start, error) {
	if err := usable(stored, slot); err != nil {
		return Start{}, err
	}
	if stored == nil {
		return Start{
			Skip: slot.Confirmed, Timeline: sys.Timeline,
			Why: fmt.Sprintf("first start: no position is stored, so it begins where the slot stands, at %s", slot.Confirmed),
		}, nil
	}
	if err := bound(stored, slot, sys); err != nil {
		return Start{}, err
	}
	skip, err := skipOn(stored, slot, sys, history)
	if err != nil {
		return Start{}, err
	}
	// Past the fork the row's snapshot is of other transactions, too: it proves nothing,
	// now or later.
	start := Start{Skip: skip, Timeline: sys.Timeline, Parted: skip < stored.Confirmed}
	switch {
	case slot.Confirmed <= skip:
		start.Why = fmt.Sprintf("the slot stands at %s; transactions up to %s are published already and skipped", slot.Confirmed, skip)
	case start.Parted:
		return Start{}, ahead(stored, slot, skip)
	case stored.Idle:
		start.Doubtful = true
		start.Why = fmt.Sprintf("the slot stands at %s, past the stored position %s, as a quiet outbox allows; that no event lies between has to be proved", slot.Confirmed, skip)
	case sys.Timeline != stored.Timeline && slot.Failover:
		start.Doubtful = true
		start.Why = fmt.Sprintf("after a promotion the failover slot stands at %s, past the stored position %s; that no event lies between has to be proved", slot.Confirmed, skip)
	default:
		return Start{}, ahead(stored, slot, skip)
	}
	return start, nil
}

// Continue says whether a ledger may stay over a reconnect: same server, same slot,
// and the slot not past what this very process has resolved. held is the durable
// row, pos the ledger's position. Where it fails, begin anew with Decide.
func Continue(held Row, pos Position, slot SlotState, sys System) error {
	if err := usable(&held, slot); err != nil {
		return err
	}
	if err := bound(&held, slot, sys); err != nil {
		return err
	}
	if sys.Timeline != held.Timeline {
		return fmt.Errorf("the server is on timeline %d now, it was on %d", sys.Timeline, held.Timeline)
	}
	// The server never sends again what lies before the slot: up to EventFree the
	// ledger has it, or knows that it is published.
	if slot.Confirmed > pos.EventFree {
		return fmt.Errorf("the slot stands at %s, past %s, the furthest that was received and resolved: something else moved it", slot.Confirmed, pos.EventFree)
	}
	return nil
}

// What heals where going on might skip events. Each is what follows "Try: ".
const (
	// HintGap is for a slot that exists and does not stand where it must.
	HintGap = "postrider recover, which publishes from the table what is missing; or postrider checkpoint accept, which shows what may be missing and goes on from where the slot stands"
	// hintAnew is for a slot from which nothing comes any more.
	hintAnew = "postrider recover, which makes the slot anew and publishes from the table what is missing"
)

// usable: the slot is there and PostgreSQL still keeps its WAL (case C32).
func usable(stored *Row, slot SlotState) error {
	switch {
	case !slot.Exists && stored == nil:
		return slotError(slot.Name, errors.New("it does not exist"), "postrider setup, which creates it")
	case !slot.Exists:
		return slotError(slot.Name,
			fmt.Errorf("it does not exist; events committed after %s (stored %s) may be missing from Kafka", stored.Confirmed, at(stored)), hintAnew)
	case slot.WALStatus == "lost":
		reason := ""
		if slot.Reason != "" {
			reason = " (" + slot.Reason + ")"
		}
		last := slot.Confirmed
		if stored != nil {
			last = max(last, stored.Confirmed)
		}
		return slotError(slot.Name,
			fmt.Errorf("wal_status=lost%s: PostgreSQL has removed WAL that it needs; last confirmed %s, events committed after it may be missing from Kafka", reason, last), hintAnew)
	}
	return nil
}

// bound: the row was written for this slot of this system.
func bound(stored *Row, slot SlotState, sys System) error {
	for _, check := range []func(*Row, SlotState, System) error{boundToSlot, boundToSystem, boundToBirth} {
		if err := check(stored, slot, sys); err != nil {
			return err
		}
	}
	return nil
}

func boundToSlot(stored *Row, slot SlotState, _ System) error {
	if stored.Slot == slot.Name {
		return nil
	}
	return slotError(slot.Name,
		fmt.Errorf("the stored position %s of publisher %q belongs to slot %q", stored.Confirmed, stored.Publisher, stored.Slot),
		"name that slot in the configuration, or use another publisher name; to go on with this slot: "+HintGap)
}

func boundToSystem(stored *Row, slot SlotState, sys System) error {
	if stored.SystemID == sys.ID {
		return nil
	}
	return slotError(slot.Name,
		fmt.Errorf("the stored position %s belongs to system identifier %s, this server is %s; a position of one says nothing about the other, events before %s may be missing from Kafka", stored.Confirmed, stored.SystemID, sys.ID, slot.Confirmed),
		"check postgres.host (or postgres.dsn); if the database was moved here: "+HintGap)
}

func boundToBirth(stored *Row, slot SlotState, sys System) error {
	if stored.Timeline != sys.Timeline || slot.Confirmed >= stored.SlotBirth {
		return nil
	}
	return slotError(slot.Name,
		fmt.Errorf("it stands at %s, before %s where it was created: this is not the slot for which the position was stored", slot.Confirmed, stored.SlotBirth), HintGap)
}

// skipOn gives what may be skipped on the server's timeline. LSNs past a fork are
// used again for other events, so no more than the fork point of the stored timeline.
func skipOn(stored *Row, slot SlotState, sys System, history []TimelineSwitch) (event.LSN, error) {
	end, known := stored.commonUpTo(sys, slot.WALEnd, history)
	switch {
	case known && stored.Timeline == sys.Timeline && stored.Confirmed > end:
		return 0, slotError(slot.Name,
			fmt.Errorf("the stored position %s lies past the end of this server's WAL at %s: the database is an older copy than the position, events may be missing from Kafka or be published that this server does not know", stored.Confirmed, end),
			"check that postgres.host (or postgres.dsn) leads to the current primary; if it does: "+HintGap)
	case known:
		return min(stored.Confirmed, end), nil
	}
	return 0, slotError(slot.Name,
		fmt.Errorf("the stored position %s is of timeline %d, which is no ancestor of the server's timeline %d: the server's history parted from it earlier, events may be missing from Kafka or be published that this server does not know", stored.Confirmed, stored.Timeline, sys.Timeline),
		"check that postgres.host (or postgres.dsn) leads to the current primary; if it does: "+HintGap)
}

// ahead: somebody moved the slot, or made it anew.
func ahead(stored *Row, slot SlotState, skip event.LSN) error {
	return slotError(slot.Name,
		fmt.Errorf("it stands at %s, past the stored position %s (%s): it was moved or created anew by something else, transactions that ended after %s and up to %s may be missing from Kafka", slot.Confirmed, skip, at(stored), skip, slot.Confirmed), HintGap)
}

func at(stored *Row) string {
	if stored.CommitTime.IsZero() {
		return "no event yet"
	}
	return "last event committed " + stored.CommitTime.UTC().Format("2006-01-02 15:04:05.999999Z07:00")
}

func slotError(slot string, cause error, hint string) error {
	return &operr.Error{
		Class: operr.Slot, Op: "start from", Subject: "slot " + pgx.Identifier{slot}.Sanitize(),
		Err: cause, Hint: hint,
	}
}
