package checkpoint_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
)

// rules 2 and 3, trap 10: verify finds something wrong exactly where a run would refuse to
// start, whatever row, slot and server are.
func TestExamineAgreesWithDecide(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lsn := func(name string) event.LSN { return event.LSN(rapid.Uint64Range(1, 6).Draw(t, name)) * 0x100 }
		st := checkpoint.State{
			Slot: checkpoint.SlotState{
				Name: "s", Exists: rapid.IntRange(0, 9).Draw(t, "exists") > 0, Confirmed: lsn("slot"),
				WALStatus: rapid.SampledFrom([]string{"reserved", "reserved", "extended", "lost"}).Draw(t, "wal status"),
				Failover:  rapid.Bool().Draw(t, "failover"),
			},
			System: checkpoint.System{ID: "77", Timeline: rapid.Int32Range(1, 3).Draw(t, "timeline")},
		}
		st.Slot.WALEnd = st.Slot.Confirmed + 0x100*event.LSN(rapid.IntRange(0, 3).Draw(t, "wal"))
		st.WALEnd = st.Slot.WALEnd
		if rapid.IntRange(0, 9).Draw(t, "row") > 0 {
			st.Row = &checkpoint.Row{
				Publisher: "p", Slot: rapid.SampledFrom([]string{"s", "s", "s", "t"}).Draw(t, "row's slot"),
				SystemID: rapid.SampledFrom([]string{"77", "77", "77", "78"}).Draw(t, "system"),
				Timeline: rapid.Int32Range(1, 3).Draw(t, "row's timeline"), Confirmed: lsn("row"), Idle: rapid.Bool().Draw(t, "idle"),
			}
			if rapid.Bool().Draw(t, "birth known") {
				st.Row.SlotBirth = lsn("birth")
			}
		}
		var history []checkpoint.TimelineSwitch
		for tli := int32(1); tli < st.System.Timeline; tli++ {
			if rapid.IntRange(0, 4).Draw(t, "in the history") > 0 {
				history = append(history, checkpoint.TimelineSwitch{Timeline: tli, End: lsn("fork")})
			}
		}
		_, refusal := checkpoint.Decide(st.Row, st.Slot, st.System, history)
		wrong := 0
		for _, c := range checkpoint.Examine(st, history) {
			if c.Detail == "" || (c.Verdict == checkpoint.VerdictWrong) != (c.Fix != "") {
				t.Fatalf("check %+v", c)
			}
			if c.Verdict == checkpoint.VerdictWrong {
				wrong++
			}
		}
		if (refusal != nil) != (wrong > 0) {
			t.Fatalf("%d are wrong, and a run would say: %v\n%+v\n%+v", wrong, refusal, st, st.Row)
		}
	})
}

// A slot whose WAL is about to be removed is told, though a run starts.
func TestExamineEndangeredSlot(t *testing.T) {
	t.Parallel()
	st := checkpoint.State{Slot: checkpoint.SlotState{Name: "s", Exists: true, Confirmed: 1, WALStatus: "unreserved"}, WALEnd: 1}
	if c := checkpoint.Examine(st, nil)[0]; c.Verdict != checkpoint.VerdictWrong || c.Fix == "" {
		t.Errorf("%+v", c)
	}
}
