package recovery

import (
	"fmt"

	"github.com/postrider/postrider/checkpoint"
)

// Case names what has happened. The names are a contract: they appear in --json and in
// the audit.
type Case string

// The cases, the first that fits.
const (
	// CaseNoRow: nothing is stored for the publisher.
	CaseNoRow Case = "no_row"
	// CaseOtherSystem: the row was written on another cluster.
	CaseOtherSystem Case = "other_system"
	// CaseOtherHistory: the row is of a history that this server does not share, or it is
	// newer than this copy of the database.
	CaseOtherHistory Case = "other_history"
	// CaseNoSlot: the slot does not exist.
	CaseNoSlot Case = "slot_missing"
	// CaseLost: PostgreSQL has removed WAL that the slot needs.
	CaseLost Case = "slot_lost"
	// CaseForeign: a slot of that name exists that a relay cannot use.
	CaseForeign Case = "slot_foreign"
	// CaseOtherSlot: the row belongs to a slot of another name.
	CaseOtherSlot Case = "other_slot"
	// CaseMoved: the slot stands where this publisher never confirmed: somebody advanced it or made it anew.
	CaseMoved Case = "slot_moved"
	// CaseDoubtful: the slot stands past the row for a plausible reason; `run` proves it by itself.
	CaseDoubtful Case = "doubtful"
	// CaseHealthy: `run` starts.
	CaseHealthy Case = "healthy"
)

// Method is how stream and table are made to meet.
type Method string

const (
	// NewSlot makes a slot, and reads the table at its snapshot.
	NewSlot Method = "new_slot"
	// KeepSlot goes on with the slot that is there.
	KeepSlot Method = "keep_slot"
)

// Scope is which rows may be missing.
type Scope string

const (
	// Uncovered are the rows that the ticked-off snapshot does not cover.
	Uncovered Scope = "not_ticked_off"
	// AllRows are all rows of the table.
	AllRows Scope = "all_rows"
)

// Diagnosis is what the facts mean.
type Diagnosis struct {
	Case Case `json:"case"`
	// Says is a sentence for people.
	Says string `json:"says"`
	// Needed says that `run` does not start.
	Needed bool   `json:"needed"`
	Method Method `json:"method"`
	// MethodWhy and ScopeWhy give the reasons.
	MethodWhy string `json:"method_why"`
	Scope     Scope  `json:"scope"`
	ScopeWhy  string `json:"scope_why"`
}

// Diagnose says what the facts mean. Whether `run` starts is asked of the very function
// that a start asks, so that the two agree.
func Diagnose(f *Facts) Diagnosis {
	d := Diagnosis{Case: CaseHealthy, Says: "the relay can start"}
	start, err := checkpoint.Decide(f.Stored, f.slotState(), f.System, f.History)
	foreign := f.Slot.Exists && !f.Slot.Lost() && f.Slot.Problem(f.Database) != nil
	switch {
	case foreign:
		d.Case, d.Needed, d.Says = CaseForeign, true, f.Slot.Problem(f.Database).Error()
	case err != nil:
		d.Case, d.Needed, d.Says = f.caseOf(), true, err.Error()
	case start.Doubtful:
		d.Case, d.Says = CaseDoubtful, start.Why
	}
	f.chooseScope(&d)
	f.chooseMethod(&d)
	return d
}

// caseOf names why a start is refused.
func (f *Facts) caseOf() Case {
	switch {
	case f.Stored == nil && !f.Slot.Exists:
		return CaseNoRow
	case !f.Slot.Exists:
		return f.elsewhere(CaseNoSlot)
	case f.Slot.Lost():
		return f.elsewhere(CaseLost)
	case f.Stored.Slot != f.Slot.Name:
		return f.elsewhere(CaseOtherSlot)
	}
	return f.elsewhere(CaseMoved)
}

// elsewhere: that the row is not of this database goes before what became of the slot.
func (f *Facts) elsewhere(otherwise Case) Case {
	switch {
	case f.Stored == nil:
		return otherwise
	case f.Stored.SystemID != f.System.ID:
		return CaseOtherSystem
	case !f.sharesHistory():
		return CaseOtherHistory
	}
	return otherwise
}

// sharesHistory says that the row's position lies in the history of this server.
func (f *Facts) sharesHistory() bool {
	probe := *f.Stored
	probe.Snapshot = "3:3:" // only the position is asked for
	_, err := probe.TickedOff(f.System, f.WALEnd, f.History)
	return err == nil
}

func (f *Facts) chooseScope(d *Diagnosis) {
	d.Scope = AllRows
	if f.Stored == nil {
		d.ScopeWhy = "nothing is stored that would say which rows are published"
		return
	}
	if _, err := f.Stored.TickedOff(f.System, f.WALEnd, f.History); err != nil {
		d.ScopeWhy = err.Error()
		return
	}
	d.Scope = Uncovered
	d.ScopeWhy = fmt.Sprintf("all rows that snapshot %s sees are published or parked", shortSnapshot(f.Stored.Snapshot))
}

func (f *Facts) chooseMethod(d *Diagnosis) {
	d.Method = NewSlot
	switch {
	case !f.Slot.Exists:
		d.MethodWhy = "there is no slot"
	case f.Slot.Lost():
		d.MethodWhy = "PostgreSQL has removed WAL that the slot needs"
	case d.Case == CaseForeign:
		d.MethodWhy = "a relay cannot use the slot"
	case f.Stored == nil:
		d.Method, d.MethodWhy = KeepSlot, "the slot can be used"
	case f.Stored.SystemID != f.System.ID:
		// A slot that is older than the loading of the data would stream all of it again.
		d.MethodWhy = "the rows were loaded here, and may stand on the stream of a slot that is older than that"
	default:
		d.Method, d.MethodWhy = KeepSlot, "the slot can be used, and its WAL may hold events whose rows are deleted"
	}
}

// shortSnapshot leaves out the list of running transactions, which may be long.
func shortSnapshot(s string) string {
	snapshot, err := checkpoint.ParseSnapshot(s)
	if err != nil {
		return s
	}
	return fmt.Sprintf("%d:%d (%d running)", snapshot.Xmin, snapshot.Xmax, len(snapshot.Running))
}
