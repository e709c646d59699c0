package checkpoint

import (
	"errors"
	"fmt"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// What a Check found.
const (
	VerdictOK = "ok"
	// VerdictWrong is a finding: the command's exit code says so.
	VerdictWrong = "wrong"
	// VerdictUnknown could not be looked at, because of another finding or a missing right.
	VerdictUnknown = "unknown"
)

// Check is one thing that "checkpoint verify" looked at. The JSON fields are a
// documented contract.
type Check struct {
	Name    string `json:"name" doc:"what was looked at"`
	Verdict string `json:"verdict" doc:"ok, wrong, or unknown: it could not be looked at"`
	Detail  string `json:"detail" doc:"what was seen"`
	Fix     string `json:"fix,omitempty" doc:"what to do, where it is wrong"`
}

// WrongCheck is a check that found what err says; its hint is the fix.
func WrongCheck(name string, err error) Check {
	var e *operr.Error
	if errors.As(err, &e) && e.Err != nil {
		return Check{Name: name, Verdict: VerdictWrong, Detail: e.Err.Error(), Fix: operr.HintOf(err)}
	}
	return Check{Name: name, Verdict: VerdictWrong, Detail: err.Error(), Fix: operr.HintOf(err)}
}

// Examine holds slot, row and server against each other as Decide does, and tells every
// check rather than the first that fails (rules 2 and 3, trap 10). A run refuses to start
// for each that is wrong, but for a slot whose WAL is only in danger.
func Examine(st State, history []TimelineSwitch) []Check {
	checks := []Check{examineSlot(st), examineRow(st)}
	if st.Row == nil || !st.Slot.Exists {
		return checks
	}
	bindings := []struct {
		name  string
		check func(*Row, SlotState, System) error
		fine  string
	}{
		{"slot name", boundToSlot, "the position was stored for this slot"},
		{"system identifier", boundToSystem, st.System.ID},
		{"slot birth", boundToBirth, birthText(st)},
	}
	for _, b := range bindings {
		checks = append(checks, judged(b.name, b.check(st.Row, st.Slot, st.System), b.fine))
	}
	return append(checks, examineTimeline(st, history), examinePosition(st, history))
}

func judged(name string, err error, fine string) Check {
	if err != nil {
		return WrongCheck(name, err)
	}
	return Check{Name: name, Verdict: VerdictOK, Detail: fine}
}

func examineSlot(st State) Check {
	if err := usable(st.Row, st.Slot); err != nil {
		return WrongCheck("slot", err)
	}
	c := Check{Name: "slot", Verdict: VerdictOK, Detail: fmt.Sprintf("it stands at %s, its WAL is there (%s)", st.Slot.Confirmed, st.Slot.WALStatus)}
	if st.Slot.WALStatus == "unreserved" {
		c.Verdict = VerdictWrong
		c.Detail = "wal_status=unreserved: the next checkpoint of PostgreSQL may remove WAL that it needs"
		c.Fix = "let the relay catch up now, or raise max_slot_wal_keep_size"
	}
	return c
}

func examineRow(st State) Check {
	if st.Row == nil {
		return Check{Name: "stored position", Verdict: VerdictOK, Detail: "none yet: the first run begins where the slot stands"}
	}
	detail := fmt.Sprintf("%s, %s", st.Row.Confirmed, at(st.Row))
	if st.Row.Idle {
		detail += ", idle"
	}
	return Check{Name: "stored position", Verdict: VerdictOK, Detail: detail}
}

func birthText(st State) string {
	if st.Row.SlotBirth == 0 {
		return "not known: setup found the slot, or it was accepted"
	}
	return "at " + st.Row.SlotBirth.String()
}

func examineTimeline(st State, history []TimelineSwitch) Check {
	if st.Row.SystemID != st.System.ID {
		return Check{Name: "timeline", Verdict: VerdictUnknown, Detail: "those of two systems cannot be compared"}
	}
	skip, err := skipOn(st.Row, st.Slot, st.System, history)
	detail := fmt.Sprint(st.System.Timeline)
	if err == nil && st.Row.Timeline != st.System.Timeline {
		detail = fmt.Sprintf("%d, promoted from %d; what counts of the stored position is %s", st.System.Timeline, st.Row.Timeline, skip)
	}
	return judged("timeline", err, detail)
}

// examinePosition compares what is comparable only.
func examinePosition(st State, history []TimelineSwitch) Check {
	const name = "slot against stored position"
	if _, err := skipOn(st.Row, st.Slot, st.System, history); err != nil || bound(st.Row, st.Slot, st.System) != nil {
		return Check{Name: name, Verdict: VerdictUnknown, Detail: fmt.Sprintf("the slot stands at %s; the stored position does not belong to it", st.Slot.Confirmed)}
	}
	start, err := Decide(st.Row, st.Slot, st.System, history)
	if err != nil {
		return WrongCheck(name, err)
	}
	return Check{Name: name, Verdict: VerdictOK, Detail: start.Why}
}

// Unpublished is where what is not published begins: up to it everything is, as far as
// row and slot can be trusted. Where they cannot, certain is false and it is the slot's
// position, before which nothing can be read anyhow.
func Unpublished(st State, history []TimelineSwitch) (from event.LSN, certain bool) {
	start, err := Decide(st.Row, st.Slot, st.System, history)
	if err != nil {
		return st.Slot.Confirmed, false
	}
	return start.Skip, true
}
