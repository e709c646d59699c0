package checkpoint_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// give sends one whole transaction of n events through the ledger. Transactions are
// 100 apart and their commit records 10 long.
func give(l *checkpoint.Ledger, i, n int) (txn uint64) {
	txn = l.Begin(event.LSN(i*100), noon.Add(time.Duration(i)*time.Second))
	for range n {
		l.Add()
	}
	l.Commit(event.LSN(i*100 + 10))
	return txn
}

// case C25: T1 to partition 0, T2 and T3 to others; the broker holds T1's answer.
func TestNewestAcknowledgedFirstConfirmsNothing(t *testing.T) {
	t.Parallel()
	l := checkpoint.NewLedger(50)
	t1, t2, t3 := give(l, 1, 1), give(l, 2, 1), give(l, 3, 1)
	l.Resolve(t2, 1)
	l.Resolve(t3, 1)
	if p := l.Position(); p.Confirmed != 50 || p.EventFree != 50 || p.Quiet {
		t.Fatalf("position %+v with the first transaction pending", p)
	}
	l.Resolve(t1, 1)
	p := l.Position()
	if p.Confirmed != 310 || p.EventFree != 310 || p.Events != 3 || !p.Quiet || !p.CommitTime.Equal(noon.Add(3*time.Second)) {
		t.Fatalf("position %+v with all resolved", p)
	}
}

// case C25: a batch ends inside a transaction: only transaction ends are confirmed.
func TestPartOfATransactionConfirmsNothing(t *testing.T) {
	t.Parallel()
	l := checkpoint.NewLedger(50)
	txn := give(l, 1, 30)
	l.Resolve(txn, 20)
	if p := l.Position(); p.Confirmed != 50 || l.Unresolved() != 10 {
		t.Fatalf("position %+v, %d unresolved", p, l.Unresolved())
	}
	if when, ok := l.Oldest(); !ok || !when.Equal(noon.Add(time.Second)) {
		t.Fatalf("oldest %s %t", when, ok)
	}
}

// case C27: WAL of others is confirmed while the outbox is quiet.
func TestKeepAliveMovesAQuietLedger(t *testing.T) {
	t.Parallel()
	l := checkpoint.NewLedger(50)
	l.KeepAlive(1000)
	l.KeepAlive(900)
	if p := l.Position(); p.Confirmed != 50 || p.EventFree != 1000 || !p.Quiet {
		t.Fatalf("position %+v", p)
	}
}

// The ring grows while acknowledgements are away and answers in any order.
func TestManyTransactionsInAnyOrder(t *testing.T) {
	t.Parallel()
	const n = 5000
	rng := rand.New(rand.NewPCG(1, 2))
	l := checkpoint.NewLedger(50)
	for i := 1; i <= 100; i++ { // so that the ring has wrapped when it grows
		l.Resolve(give(l, i, 1), 1)
	}
	numbers := make([]uint64, n)
	for i := range numbers {
		numbers[i] = give(l, 101+i, 1)
	}
	done := make([]bool, n)
	prefix := 0
	for _, i := range rng.Perm(n) {
		l.Resolve(numbers[i], 1)
		done[i] = true
		for prefix < n && done[prefix] {
			prefix++
		}
		if got, want := l.Position().Confirmed, event.LSN((100+prefix)*100+10); got != want {
			t.Fatalf("confirmed %d, want %d", got, want)
		}
	}
}

// A stream of other people's transactions behind one that waits for a broker takes
// no memory and no allocation, and neither does an event.
func TestLedgerDoesNotAllocate(t *testing.T) {
	l := checkpoint.NewLedger(50)
	i := 1
	give(l, i, 1)
	foreign := testing.AllocsPerRun(10000, func() {
		i++
		give(l, i, 0)
	})
	ours := testing.AllocsPerRun(10000, func() {
		i++
		l.Resolve(give(l, i, 3), 3)
		l.Position()
	})
	if foreign != 0 {
		t.Errorf("%v allocations for a transaction of others", foreign)
	}
	// The first one still waits, so the ring doubles now and then: less than one in a thousand.
	if ours != 0 {
		t.Errorf("%v allocations for a transaction of ours", ours)
	}
}

// A caller that breaks the protocol is stopped before it can confirm too much.
func TestLedgerRefusesBrokenProtocol(t *testing.T) {
	t.Parallel()
	tests := map[string]func(l *checkpoint.Ledger){
		"add outside":           func(l *checkpoint.Ledger) { l.Add() },
		"pass outside":          func(l *checkpoint.Ledger) { l.Pass() },
		"commit outside":        func(l *checkpoint.Ledger) { l.Commit(100) },
		"retract outside":       func(l *checkpoint.Ledger) { l.Retract() },
		"commit without an end": func(l *checkpoint.Ledger) { l.Begin(100, noon); l.Commit(0) },
		"commit twice":          func(l *checkpoint.Ledger) { give(l, 1, 1); l.Commit(110) },
		"begin inside":          func(l *checkpoint.Ledger) { l.Begin(100, noon); l.Begin(200, noon) },
		"retract nothing":       func(l *checkpoint.Ledger) { l.Begin(100, noon); l.Retract() },
		"retract what is resolved": func(l *checkpoint.Ledger) {
			txn := l.Begin(100, noon)
			l.Add()
			l.Resolve(txn, 1)
			l.Retract()
		},
		"resolve too many":    func(l *checkpoint.Ledger) { l.Resolve(give(l, 1, 2), 3) },
		"resolve less than 0": func(l *checkpoint.Ledger) { l.Resolve(give(l, 1, 2), -1) },
		"resolve twice":       func(l *checkpoint.Ledger) { txn := give(l, 1, 1); l.Resolve(txn, 1); l.Resolve(txn, 1) },
		"resolve the unknown": func(l *checkpoint.Ledger) { l.Resolve(7, 1) },
	}
	for name, breakIt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if what := recover(); what == nil || !strings.HasPrefix(what.(string), "checkpoint: ") {
					t.Errorf("no panic of ours: %v", what)
				}
			}()
			breakIt(checkpoint.NewLedger(50))
		})
	}
}

// Acknowledgements come from other goroutines while the stream goes on.
func TestLedgerUnderConcurrency(t *testing.T) {
	t.Parallel()
	const n = 2000
	l := checkpoint.NewLedger(50)
	acks := make(chan uint64, 100)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for txn := range acks {
				l.Resolve(txn, 1)
				l.Position()
				l.Oldest()
			}
		})
	}
	for i := 1; i <= n; i++ {
		txn := l.Begin(event.LSN(i*100), noon)
		for range 3 {
			l.Add()
			acks <- txn
		}
		l.Commit(event.LSN(i*100 + 10))
		l.KeepAlive(event.LSN(i*100 + 20))
	}
	close(acks)
	wg.Wait()
	if p := l.Position(); p.Confirmed != n*100+10 || p.Events != 3*n || !p.Quiet || l.Unresolved() != 0 {
		t.Fatalf("position %+v, %d unresolved", p, l.Unresolved())
	}
}

// case C23: T1's commit record starts where T2's ends (T2 committed first); the
// position is T2's end. T1 is new, T2 is not.
func TestCommitRecordThatStartsAtThePositionIsNew(t *testing.T) {
	t.Parallel()
	const t2Commit, t2End, t1Commit, t1End = 0x1617470, 0x16174A0, 0x16174A0, 0x16174D0
	gate := checkpoint.NewGate(checkpoint.NewLedger(t2End))
	if _, err := gate.Begin(t2Commit, noon); err != nil || !gate.Skipping() || gate.Insert(0) {
		t.Fatalf("T2 is not skipped (%v)", err)
	}
	if err := gate.Commit(t2End); err != nil {
		t.Fatal(err)
	}
	if txn, err := gate.Begin(t1Commit, noon); err != nil || gate.Skipping() || txn != 1 || gate.Txn() != 1 || !gate.Insert(0) {
		t.Fatalf("T1 is skipped (%v)", err)
	}
	if err := gate.Commit(t1End); err != nil {
		t.Fatal(err)
	}
}

// case C23: end LSN <= position is the rule, also for a position that no publisher
// wrote: one inside a commit record does not swallow the transaction.
func TestPositionInsideACommitRecordIsRefused(t *testing.T) {
	t.Parallel()
	gate := checkpoint.NewGate(checkpoint.NewLedger(105))
	if _, err := gate.Begin(100, noon); err != nil {
		t.Fatal(err)
	}
	err := gate.Commit(110)
	if operr.ClassOf(err) != operr.Slot || !strings.Contains(operr.HintOf(err), "0/64") {
		t.Fatalf("error %v, hint %q", err, operr.HintOf(err))
	}
}

// What comes after a reconnect is what came before it, or the ledger is given up.
func TestDivergedStream(t *testing.T) {
	t.Parallel()
	half := func() *checkpoint.Gate {
		l := checkpoint.NewLedger(50)
		gate := checkpoint.NewGate(l)
		if _, err := gate.Begin(100, noon); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(3) {
			gate.Insert(i)
			l.Add()
		}
		return checkpoint.NewGate(l)
	}
	t.Run("half-received transaction is gone", func(t *testing.T) {
		t.Parallel()
		if _, err := half().Begin(200, noon); !errors.Is(err, checkpoint.ErrDiverged) {
			t.Fatalf("error %v", err)
		}
	})
	t.Run("another comes before it", func(t *testing.T) {
		t.Parallel()
		if _, err := half().Begin(90, noon); !errors.Is(err, checkpoint.ErrDiverged) {
			t.Fatalf("error %v", err)
		}
	})
	t.Run("it is shorter", func(t *testing.T) {
		t.Parallel()
		gate := half()
		if _, err := gate.Begin(100, noon); err != nil {
			t.Fatal(err)
		}
		gate.Insert(0)
		if err := gate.Commit(110); !errors.Is(err, checkpoint.ErrDiverged) {
			t.Fatalf("error %v", err)
		}
	})
}

func BenchmarkLedgerEvent(b *testing.B) {
	l := checkpoint.NewLedger(50)
	gate := checkpoint.NewGate(l)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		txn, _ := gate.Begin(event.LSN(i*100), noon)
		gate.Insert(0)
		l.Add()
		_ = gate.Commit(event.LSN(i*100 + 10))
		l.Resolve(txn, 1)
	}
}

// Promise 6: behind one transaction that waits (its topic does not exist) others are
// acknowledged and free the window; the ledger says when it has enough of them.
func TestCrowdedBehindOneTransaction(t *testing.T) {
	t.Parallel()
	l := checkpoint.NewLedger(50)
	waits := give(l, 1, 1)
	i := 2
	for ; !l.Crowded(); i++ {
		if i > 1<<21 {
			t.Fatal("no bound")
		}
		l.Resolve(give(l, i, 1), 1)
	}
	l.Resolve(waits, 1)
	if l.Crowded() {
		t.Fatal("still crowded when all is resolved")
	}
	if p := l.Position(); p.Events != uint64(i-1) || !p.Quiet {
		t.Fatalf("%+v after %d transactions", p, i-1)
	}
}
