package checkpoint

import (
	"fmt"
	"sync"
	"time"

	"github.com/postrider/postrider/event"
)

// Position is how far a Ledger has come.
type Position struct {
	// Confirmed is the end LSN of the last transaction with events of ours such
	// that it and all before it are resolved. The slot may be confirmed up to it
	// once the row holds it. It never falls.
	Confirmed event.LSN
	// CommitTime is when that transaction committed, by the server's clock; zero
	// before the first.
	CommitTime time.Time
	// Events counts the resolved events of ours up to Confirmed since the ledger began.
	Events uint64
	// EventFree is the end of the WAL that is known to hold nothing unresolved. It
	// is never below Confirmed, and what lies between the two holds no event of
	// ours. It never falls.
	EventFree event.LSN
	// Quiet says that no transaction is open and nothing is unresolved.
	Quiet bool
}

// Ledger holds the received transactions in commit order with the number of their
// unresolved events. An event is resolved by the broker's acknowledgement, by a
// durable parked record, or by being skipped by rule; the ledger does not tell
// these apart.
//
// Begin, Add, Pass, Retract and Commit are called by the one goroutine that reads
// the stream; Resolve and the readers by anybody. Breaking the protocol (Add
// outside a transaction, more resolved than added) panics: going on could confirm
// what was never published.
//
// A transaction without events of ours takes no room: its end is kept in one field
// until the transactions before it are resolved, or until a later transaction of
// ours covers it.
type Ledger struct {
	// mu covers everything below. Nothing else is locked while it is held.
	mu sync.Mutex

	ring    ring
	open    openTxn
	isOpen  bool
	skip    event.LSN // transactions whose commit record starts below it were resolved by an earlier run
	last    event.LSN // commit LSN of the last completely received transaction
	tail    event.LSN // end of the last event-free transaction behind the ring's last entry
	pos     Position  // Quiet is computed when asked
	pending uint64    // unresolved events in all
}

// openTxn is the transaction that is still arriving. Its entry joins the ring with
// the first event of ours.
type openTxn struct {
	commit   event.LSN
	time     time.Time
	received uint64 // inserts received, ours or not
	listed   bool
}

// NewLedger begins after confirmed: the position up to which an earlier run has
// resolved everything (Start.Skip).
func NewLedger(confirmed event.LSN) *Ledger {
	return &Ledger{
		ring: ring{head: 1},
		skip: confirmed,
		pos:  Position{Confirmed: confirmed, EventFree: confirmed},
	}
}

// Begin opens a transaction whose commit record starts at commit and gives its
// number: 1, 2, 3… A number is given again where the transaction that had it turned
// out to hold no event of ours. If the very transaction is still open, because the
// stream was cut in the middle of it, it is taken up again under its old number.
func (l *Ledger) Begin(commit event.LSN, t time.Time) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOpen {
		l.must(l.open.commit == commit, "begin of another transaction inside an open one")
	} else {
		l.open, l.isOpen = openTxn{commit: commit, time: t}, true
	}
	return l.openNumber()
}

// Add counts one received insert that is an event of ours and unresolved from now
// on. It comes before the event is handed over, since the acknowledgement may be
// faster than the next line.
func (l *Ledger) Add() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.must(l.isOpen, "add outside a transaction")
	if !l.open.listed {
		l.ring.push(entry{commitTime: l.open.time.UnixMicro()})
		l.open.listed = true
	}
	e := l.ring.newest()
	e.events++
	e.unresolved++
	l.open.received++
	l.pending++
}

// Pass counts one received insert that is none of ours.
func (l *Ledger) Pass() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.must(l.isOpen, "pass outside a transaction")
	l.open.received++
}

// Retract takes the last Add back: the event could not be handed over, and will be
// received again after a reconnect.
func (l *Ledger) Retract() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.must(l.isOpen && l.open.listed && l.ring.newest().unresolved > 0, "retract without an unresolved event")
	e := l.ring.newest()
	e.events--
	e.unresolved--
	l.open.received--
	l.pending--
	if e.events == 0 {
		l.ring.dropNewest()
		l.open.listed = false
		l.settle()
	}
}

// Commit closes the open transaction; end is the Commit message's end LSN, exactly
// (trap 1).
func (l *Ledger) Commit(end event.LSN) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.must(l.isOpen && end > l.open.commit, "commit outside a transaction, or one that ends before it begins")
	if l.open.listed {
		l.ring.newest().end = end
	} else {
		l.tail = max(l.tail, end)
	}
	l.last = l.open.commit
	l.isOpen = false
	l.settle()
}

// Resolve says that n events of transaction txn are resolved. The transaction may
// still be open.
func (l *Ledger) Resolve(txn uint64, n int) {
	if n == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.ring.at(txn)
	l.must(e != nil && n > 0 && uint64(n) <= e.unresolved, "resolved more events than were added")
	e.unresolved -= uint64(n)
	l.pending -= uint64(n)
	l.settle()
}

// KeepAlive takes a keepalive's WAL end (nothing else's: rule 10). It counts only
// when no transaction is open and nothing is unresolved (trap 3).
func (l *Ledger) KeepAlive(walEnd event.LSN) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.quiet() {
		l.pos.EventFree = max(l.pos.EventFree, walEnd)
	}
}

// Position is the ledger's state at this moment.
func (l *Ledger) Position() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pos
	p.Quiet = l.quiet()
	return p
}

// Oldest is the commit time of the oldest transaction that keeps the position from
// moving on; ok is false where there is none.
func (l *Ledger) Oldest() (commitTime time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ring.count == 0 {
		return time.Time{}, false
	}
	return time.UnixMicro(l.ring.oldest().commitTime), true
}

// Unresolved counts the events that were added and not resolved.
func (l *Ledger) Unresolved() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.pending)
}

// maxTransactions bounds the ledger to 32 MiB. Transactions leave it in order: while
// one waits (a topic that does not exist, a partition without a leader) those after it
// are acknowledged, which frees the window, and stay.
const maxTransactions = 1 << 20

// Crowded says that the ledger holds as many transactions as it should: let no other
// begin until the oldest are resolved.
func (l *Ledger) Crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ring.count >= maxTransactions
}

// LastCommit is the commit LSN of the last completely received transaction; 0
// before the first.
func (l *Ledger) LastCommit() event.LSN {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// OpenTxn is the transaction that is still arriving, or that was when the stream
// was cut: the LSN of its commit record and the number of its inserts received,
// ours or not.
func (l *Ledger) OpenTxn() (commit event.LSN, received uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open.commit, l.open.received, l.isOpen
}

// settle moves the position over the resolved prefix.
func (l *Ledger) settle() {
	for l.ring.count > 0 {
		e := l.ring.oldest()
		if e.end == 0 || e.unresolved > 0 {
			return
		}
		l.pos.Confirmed = max(l.pos.Confirmed, e.end)
		l.pos.CommitTime = time.UnixMicro(e.commitTime)
		l.pos.Events += e.events
		l.pos.EventFree = max(l.pos.EventFree, e.end)
		l.ring.dropOldest()
	}
	l.pos.EventFree = max(l.pos.EventFree, l.tail)
}

func (l *Ledger) quiet() bool { return !l.isOpen && l.ring.count == 0 }

func (l *Ledger) openNumber() uint64 {
	if l.open.listed {
		return l.ring.next() - 1
	}
	return l.ring.next()
}

func (l *Ledger) must(ok bool, broken string) {
	if !ok {
		panic(fmt.Sprintf("checkpoint: %s (open %t at %s, unresolved %d)", broken, l.isOpen, l.open.commit, l.pending))
	}
}
