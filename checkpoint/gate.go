package checkpoint

import (
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// ErrDiverged says that a re-streamed transaction is not what was received before.
// The ledger and what hangs on it cannot be continued: begin anew from the row.
var ErrDiverged = errors.New("the re-streamed transactions differ from those received before the reconnect")

// Verdict is what a ledger knows about a transaction that begins.
type Verdict int

const (
	// New was never received.
	New Verdict = iota + 1
	// Complete was received whole, or resolved by an earlier run: skip all of it.
	Complete
	// Half was being received when the stream was cut: skip what is known of it.
	Half
	// Diverged cannot be: it should have been preceded by the half-received one.
	Diverged
)

// Expect says what is known of the transaction whose commit record starts at
// commit, and of a half-received one how many of its inserts are known.
//
// Begin tells only where the commit record starts, not where it ends. "end LSN <=
// skip" is "commit LSN < skip" all the same, since positions are ends of records
// and none lies inside another; "commit LSN <= skip" would lose the transaction
// whose commit record starts where the last one ended (case C23). Gate.Commit
// checks the end when it comes.
func (l *Ledger) Expect(commit event.LSN) (v Verdict, known uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case commit <= l.last || commit < l.skip:
		return Complete, 0
	case !l.isOpen:
		return New, 0
	case commit == l.open.commit:
		return Half, l.open.received
	default:
		return Diverged, 0
	}
}

// Gate stands between one stream and the ledger: it lets pass what the ledger has
// not seen. Make a new one for each stream (after each START_REPLICATION on the
// same slot, system and timeline); the ledger stays. For the stream's goroutine only.
//
//	Begin:  txn, err := gate.Begin(commit, t)
//	Insert: if !gate.Insert(row.Position.Index) { return nil }
//	        ours: ledger.Add(), hand over with gate.Txn() (failed: ledger.Retract()); not ours: ledger.Pass()
//	Commit: gate.Commit(end)
//	KeepAlive: gate.KeepAlive(walEnd)
type Gate struct {
	ledger  *Ledger
	inside  bool // between Begin and Commit, skipped or not
	verdict Verdict
	txn     uint64
	commit  event.LSN
	known   uint64 // inserts of this transaction that the ledger has
	seen    uint64 // inserts of this transaction in this stream
}

// NewGate gives the gate for one stream.
func NewGate(l *Ledger) *Gate { return &Gate{ledger: l} }

// Begin opens the transaction in the ledger unless it is to be skipped, and gives
// its number (0 when skipped). The error is ErrDiverged.
func (g *Gate) Begin(commit event.LSN, t time.Time) (txn uint64, err error) {
	g.verdict, g.known = g.ledger.Expect(commit)
	g.commit, g.seen, g.txn, g.inside = commit, 0, 0, true
	switch g.verdict {
	case Complete:
		return 0, nil
	case Diverged:
		open, _, _ := g.ledger.OpenTxn()
		return 0, fmt.Errorf("%w: transaction %s comes where the rest of %s was due", ErrDiverged, commit, open)
	}
	g.txn = g.ledger.Begin(commit, t)
	return g.txn, nil
}

// Txn is the number of the transaction that Begin opened, 0 when it is skipped.
func (g *Gate) Txn() uint64 { return g.txn }

// Skipping says that the transaction is known whole.
func (g *Gate) Skipping() bool { return g.verdict == Complete }

// Inside says that a transaction has begun and not ended.
func (g *Gate) Inside() bool { return g.inside }

// Insert says whether the insert with this index in the open transaction (counting
// all inserts from 0) is new. If so the caller owes the ledger one Add or Pass.
func (g *Gate) Insert(index uint64) bool {
	g.seen = index + 1
	return g.verdict != Complete && index >= g.known
}

// Commit closes the transaction in the ledger unless it was skipped. It fails where
// the skip was wrong (the stored position lies inside the commit record: only an
// edited row can say so) or the transaction came back shorter (ErrDiverged).
func (g *Gate) Commit(end event.LSN) error {
	g.inside = false
	switch {
	case g.verdict == Complete:
		return g.ledger.checkSkipped(g.commit, end)
	case g.seen < g.known:
		return fmt.Errorf("%w: transaction %s has %d inserts, %d were received before", ErrDiverged, g.commit, g.seen, g.known)
	}
	g.ledger.Commit(end)
	return nil
}

// KeepAlive takes a keepalive's WAL end. Inside a transaction it does not count, in a
// skipped one neither, of which the ledger does not know (trap 3).
func (g *Gate) KeepAlive(walEnd event.LSN) {
	if !g.inside {
		g.ledger.KeepAlive(walEnd)
	}
}

// checkSkipped holds the exact rule, end <= skip, against what Expect could see.
func (l *Ledger) checkSkipped(commit, end event.LSN) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if commit <= l.last || end <= l.skip {
		return nil
	}
	return &operr.Error{
		Class:   operr.Slot,
		Op:      "skip transactions up to the stored position",
		Subject: l.skip.String(),
		Err:     fmt.Errorf("it lies inside the commit record of a transaction (%s to %s), so it was not written by a publisher", commit, end),
		Hint:    fmt.Sprintf("set confirmed_lsn in postrider.checkpoint to %s (the transaction is published again) or to %s (it counts as published)", commit, end),
	}
}
