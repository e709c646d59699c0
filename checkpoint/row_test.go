package checkpoint_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
)

// rule 3: the states of the idle latch, one after the other.
func TestIdleLatch(t *testing.T) {
	t.Parallel()
	row := checkpoint.Row{Publisher: "p", Confirmed: 100, Events: 7}
	step := func(name string, pos checkpoint.Position, wantSave bool, wantLSN event.LSN, wantIdle bool, wantConfirm event.LSN) {
		t.Helper()
		next, save := row.Next(pos, 7)
		if save != wantSave {
			t.Fatalf("%s: row written: %t, want %t", name, save, wantSave)
		}
		if before := row.MayConfirm(pos); before > max(row.Confirmed, pos.EventFree) || !row.Idle && before != row.Confirmed {
			t.Fatalf("%s: %s may be confirmed before the row is written", name, before)
		}
		row = next
		if row.Confirmed != wantLSN || row.Idle != wantIdle {
			t.Fatalf("%s: row %s idle %t, want %s %t", name, row.Confirmed, row.Idle, wantLSN, wantIdle)
		}
		if got := row.MayConfirm(pos); got != wantConfirm {
			t.Fatalf("%s: %s may be confirmed, want %s", name, got, wantConfirm)
		}
	}
	pos := func(confirmed, free event.LSN, quiet bool) checkpoint.Position {
		return checkpoint.Position{Confirmed: confirmed, EventFree: free, Quiet: quiet, Events: 3}
	}
	step("nothing new", pos(100, 100, true), false, 100, false, 100)
	step("event received, unresolved", pos(100, 100, false), false, 100, false, 100)
	step("events resolved, more behind", pos(200, 210, false), true, 210, false, 210)
	step("events resolved, all quiet", pos(300, 350, true), true, 350, false, 350)
	step("busy, foreign WAL in front", pos(300, 400, false), false, 350, false, 350)
	step("quiet: the latch is written once", pos(300, 400, true), true, 400, true, 400)
	step("quiet: no more rows, the slot moves", pos(300, 500, true), false, 400, true, 500)
	step("event received: up to what precedes it", pos(300, 550, false), false, 400, true, 550)
	step("event resolved: the latch is cleared first", pos(600, 600, true), true, 600, false, 600)
	step("nothing new after it", pos(600, 600, true), false, 600, false, 600)
	step("quiet again", pos(600, 700, true), true, 700, true, 700)
	if row.Events != 10 {
		t.Errorf("%d events, want 7 of earlier runs and 3 of this one", row.Events)
	}
}

// rule 3: whatever comes in whatever order, a slot past the row is covered by the
// latch, the slot never passes an event that the row does not hold, and a quiet
// stretch costs one row.
func TestIdleLatchProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := checkpoint.NewLedger(100)
		row := checkpoint.Row{Confirmed: 100}
		slot, wal, lastEvent := event.LSN(100), event.LSN(100), event.LSN(100)
		var waiting []uint64
		quietRows := 0
		t.Repeat(map[string]func(*rapid.T){
			"transaction": func(t *rapid.T) {
				n := rapid.IntRange(0, 2).Draw(t, "events")
				txn := l.Begin(wal, noon)
				for range n {
					l.Add()
					waiting = append(waiting, txn)
				}
				wal += 10
				l.Commit(wal)
				if n > 0 {
					quietRows = 0
				}
			},
			"ack": func(t *rapid.T) {
				if len(waiting) > 0 {
					i := rapid.IntRange(0, len(waiting)-1).Draw(t, "which")
					l.Resolve(waiting[i], 1)
					quietRows = 0
					waiting = append(waiting[:i:i], waiting[i+1:]...)
				}
			},
			"keepalive": func(*rapid.T) { wal += 5; l.KeepAlive(wal) },
			"tick": func(t *rapid.T) {
				pos := l.Position()
				lastEvent = pos.Confirmed
				if next, save := row.Next(pos, 0); save && rapid.Bool().Draw(t, "database answers") {
					if next.Confirmed < row.Confirmed {
						t.Fatalf("row falls from %s to %s", row.Confirmed, next.Confirmed)
					}
					row = next
					quietRows++
				}
				slot = max(slot, row.MayConfirm(pos))
			},
			"": func(t *rapid.T) {
				if slot > row.Confirmed && !row.Idle {
					t.Fatalf("slot %s is past the row %s without the latch", slot, row.Confirmed)
				}
				if slot > row.Confirmed && lastEvent > row.Confirmed && slot >= lastEvent {
					t.Fatalf("slot %s holds an event at %s that the row %s does not", slot, lastEvent, row.Confirmed)
				}
				if quietRows > 2 {
					t.Fatalf("%d rows since the last event was resolved", quietRows)
				}
			},
		})
	})
}
