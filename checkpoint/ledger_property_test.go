package checkpoint_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
)

// case C22, case C25, trap 1, trap 2, trap 3, trap 5: over all interleavings of
// Begin, Insert, Commit, KeepAlive and Ack, with the stream cut at any point and sent
// again from any earlier transaction, with events that could not be handed over, and
// with restarts from a stored position, the ledger says what a simple model says:
// nothing is confirmed before it is resolved, and no event is added twice or lost.
func TestLedgerAgreesWithModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		t.Repeat(map[string]func(*rapid.T){
			"commit on the server": w.serverCommits,
			"message":              w.message,
			"several messages":     w.messages,
			"keepalive":            w.keepAlive,
			"ack":                  w.ack,
			"hand-over fails":      w.handOverFails,
			"cut":                  w.cut,
			"restart":              w.restart,
			"":                     w.check,
		})
		w.drain(t)
	})
}

// txn is a transaction as the server has it. LSNs are small numbers here: a commit
// record is 10 long.
type txn struct {
	commit, end event.LSN
	time        time.Time
	inserts     []insert
}

type insert struct {
	ours     bool
	added    int    // by the present ledger
	number   uint64 // under which it was added
	resolved bool   // to the present ledger
	acked    bool   // by the broker, ever
}

// world is a server, a stream, a ledger and the model of it.
type world struct {
	txns []*txn
	wal  event.LSN

	ledger *checkpoint.Ledger
	gate   *checkpoint.Gate
	skip   event.LSN // what the ledger began with
	stored event.LSN // the durable row: a position that the ledger once had
	// The stream stands before message `next` of txns[cursor]: 0 Begin, then the inserts, then Commit.
	cursor, next int
	// received: txns[:received] have been received whole; txns[received] has its first `half` inserts.
	received, half int
	begun          bool      // txns[received] has begun, in this stream or in one before
	free           event.LSN // model of Position.EventFree when quiet
	before         checkpoint.Position
}

func newWorld() *world {
	w := &world{wal: 100}
	w.begin(100)
	w.stored = 100
	return w
}

func (w *world) begin(skip event.LSN) {
	w.ledger = checkpoint.NewLedger(skip)
	w.gate = checkpoint.NewGate(w.ledger)
	w.skip, w.free, w.received, w.half, w.begun = skip, skip, 0, 0, false
	w.before = checkpoint.Position{}
	for w.received < len(w.txns) && w.txns[w.received].end <= skip {
		w.received++
	}
	for _, x := range w.txns {
		for i := range x.inserts {
			x.inserts[i].added, x.inserts[i].resolved = 0, false
		}
	}
}

func (w *world) serverCommits(t *rapid.T) {
	// A gap of 0 makes a commit record start where the last one ended (case C23).
	gap := event.LSN(rapid.SampledFrom([]int{0, 0, 1, 7, 1000}).Draw(t, "gap"))
	x := &txn{commit: w.wal + gap, end: w.wal + gap + 10, time: time.UnixMicro(int64(len(w.txns) + 1))}
	for range rapid.IntRange(0, 4).Draw(t, "inserts") {
		x.inserts = append(x.inserts, insert{ours: rapid.Bool().Draw(t, "ours")})
	}
	w.txns = append(w.txns, x)
	w.wal = x.end + event.LSN(rapid.IntRange(0, 3).Draw(t, "behind"))
}

func (w *world) messages(t *rapid.T) {
	for range rapid.IntRange(1, 20).Draw(t, "n") {
		w.step(t, true)
	}
}

func (w *world) message(t *rapid.T) { w.step(t, true) }

func (w *world) handOverFails(t *rapid.T) {
	if !w.step(t, false) {
		w.cut(t)
	}
}

// step delivers the stream's next message as the relay's handler would; false
// where an event could not be handed over.
func (w *world) step(t *rapid.T, handOver bool) bool {
	if w.cursor == len(w.txns) {
		return true
	}
	x := w.txns[w.cursor]
	at := w.next
	w.next++
	switch {
	case at == 0:
		w.beginTxn(t, x)
	case at <= len(x.inserts):
		return w.insert(t, x, uint64(at-1), handOver)
	default:
		if err := w.gate.Commit(x.end); err != nil {
			t.Fatalf("commit %s: %v", x.end, err)
		}
		if w.cursor == w.received {
			w.received, w.half, w.begun = w.received+1, 0, false
		}
		w.cursor, w.next = w.cursor+1, 0
	}
	return true
}

func (w *world) beginTxn(t *rapid.T, x *txn) {
	if _, err := w.gate.Begin(x.commit, x.time); err != nil {
		t.Fatalf("begin %s: %v", x.commit, err)
	}
	w.begun = w.begun || w.cursor == w.received
	if known := w.cursor < w.received; w.gate.Skipping() != known {
		t.Fatalf("transaction %s: skipped %t, received before %t", x.commit, w.gate.Skipping(), known)
	}
}

func (w *world) insert(t *rapid.T, x *txn, index uint64, handOver bool) bool {
	e := &x.inserts[index]
	isNew := w.gate.Insert(index)
	if want := w.cursor == w.received && int(index) >= w.half; isNew != want {
		t.Fatalf("transaction %s insert %d: new %t, want %t", x.commit, index, isNew, want)
	}
	switch {
	case !isNew:
		return true
	case !e.ours:
		w.ledger.Pass()
	case !handOver:
		w.ledger.Add()
		w.ledger.Retract()
		return false
	default:
		w.ledger.Add()
		e.added++
		e.number = w.gate.Txn()
	}
	w.half++
	return true
}

// keepAlive: between transactions the server names any position up to the next
// commit record. Inside a transaction it may name anything: it must not count.
func (w *world) keepAlive(t *rapid.T) {
	if w.next > 0 {
		w.gate.KeepAlive(w.wal + 100000)
		return
	}
	low, high := event.LSN(100), w.wal
	if w.cursor > 0 {
		low = w.txns[w.cursor-1].end
	}
	if w.cursor < len(w.txns) {
		high = w.txns[w.cursor].commit
	}
	end := event.LSN(rapid.Uint64Range(uint64(low), uint64(high)).Draw(t, "wal end"))
	if w.quiet() {
		w.free = max(w.free, end)
	}
	w.gate.KeepAlive(end)
}

func (w *world) ack(t *rapid.T) {
	var waiting []*insert
	for _, x := range w.txns {
		for i := range x.inserts {
			if e := &x.inserts[i]; e.added > 0 && !e.resolved {
				waiting = append(waiting, e)
			}
		}
	}
	if len(waiting) == 0 {
		return
	}
	// A run of one transaction, as a batch's answer has it, or a single event.
	first := waiting[rapid.IntRange(0, len(waiting)-1).Draw(t, "which")]
	n := 0
	limit := rapid.IntRange(1, 4).Draw(t, "run")
	for _, e := range waiting {
		if e.number == first.number && n < limit {
			e.resolved, e.acked = true, true
			n++
		}
	}
	w.ledger.Resolve(first.number, n)
}

func (w *world) cut(t *rapid.T) {
	w.cursor = rapid.IntRange(0, w.received).Draw(t, "from")
	w.next = 0
	w.gate = checkpoint.NewGate(w.ledger)
}

// restart: kill -9, then a new ledger from the row. The server sends from anywhere
// up to the row.
func (w *world) restart(t *rapid.T) {
	if rapid.Bool().Draw(t, "row written") {
		w.stored = max(w.stored, w.ledger.Position().EventFree)
	}
	w.begin(w.stored)
	w.cut(t)
}

func (w *world) check(t *rapid.T) {
	confirmed, commitTime, events, free, oldest := w.model()
	got := w.ledger.Position()
	if got.Confirmed != confirmed || !got.CommitTime.Equal(commitTime) || got.Events != events || got.Quiet != w.quiet() {
		t.Fatalf("position %+v, want confirmed %s at %s, %d events, quiet %t", got, confirmed, commitTime, events, w.quiet())
	}
	if got.EventFree < got.Confirmed || got.EventFree > free || (w.nothingListed() && got.EventFree != free) {
		t.Fatalf("event-free up to %s, model %s", got.EventFree, free)
	}
	if got.Confirmed < w.before.Confirmed || got.EventFree < w.before.EventFree {
		t.Fatalf("position fell from %+v to %+v", w.before, got)
	}
	w.before = got
	w.checkSafe(t, got)
	w.checkCounts(t, oldest)
}

// checkSafe is oracle O4: never past the commit record of a transaction that has an
// event which no broker acknowledged.
func (w *world) checkSafe(t *rapid.T, got checkpoint.Position) {
	for _, x := range w.txns {
		for i, e := range x.inserts {
			if e.ours && !e.acked && got.EventFree > x.commit {
				t.Fatalf("%s may be confirmed, but event %d of transaction %s is not published", got.EventFree, i, x.commit)
			}
			if e.added > 1 {
				t.Fatalf("event %d of transaction %s was added %d times", i, x.commit, e.added)
			}
		}
	}
}

func (w *world) checkCounts(t *rapid.T, oldest *txn) {
	unresolved := 0
	for _, x := range w.txns {
		for _, e := range x.inserts {
			if e.added > 0 && !e.resolved {
				unresolved++
			}
		}
	}
	if n := w.ledger.Unresolved(); n != unresolved {
		t.Fatalf("%d unresolved, want %d", n, unresolved)
	}
	when, ok := w.ledger.Oldest()
	if ok != (oldest != nil) || ok && !when.Equal(oldest.time) {
		t.Fatalf("oldest %s %t, want %+v", when, ok, oldest)
	}
	commit, n, open := w.ledger.OpenTxn()
	if open != w.begun || open && (commit != w.txns[w.received].commit || n != uint64(w.half)) {
		t.Fatalf("open %t at %s with %d inserts, want %t with %d", open, commit, n, w.begun, w.half)
	}
}

// model walks the received transactions: the position is the end of the longest
// resolved prefix.
func (w *world) model() (confirmed event.LSN, commitTime time.Time, events uint64, free event.LSN, oldest *txn) {
	confirmed, commitTime, free = w.skip, time.Time{}, w.free
	for i, x := range w.txns {
		if x.end <= w.skip {
			continue
		}
		whole, ours, resolved := i < w.received, uint64(0), true
		for _, e := range x.inserts {
			if e.added > 0 {
				ours++
				resolved = resolved && e.resolved
			}
		}
		if ours > 0 && !(whole && resolved) {
			return confirmed, commitTime, events, free, x
		}
		if !whole {
			break
		}
		free = max(free, x.end)
		if ours > 0 {
			confirmed, commitTime, events = x.end, x.time, events+ours
		}
	}
	w.free = free
	return confirmed, commitTime, events, free, nil
}

func (w *world) quiet() bool { return !w.begun && w.nothingListed() }

func (w *world) nothingListed() bool {
	_, _, _, _, oldest := w.model()
	return oldest == nil
}

// drain: the stream goes on to its end, everything is acknowledged: nothing is lost
// and the position arrives at the end.
func (w *world) drain(t *rapid.T) {
	w.cut(t)
	for w.cursor < len(w.txns) {
		w.step(t, true)
		w.check(t)
	}
	for _, x := range w.txns {
		for i := range x.inserts {
			e := &x.inserts[i]
			if e.added == 1 && !e.resolved {
				w.ledger.Resolve(e.number, 1)
				e.resolved, e.acked = true, true
			}
			if e.ours && !e.acked {
				t.Fatalf("event %d of transaction %s is lost", i, x.commit)
			}
		}
	}
	w.check(t)
	if len(w.txns) > 0 && w.ledger.Position().EventFree < w.txns[len(w.txns)-1].end {
		t.Fatalf("everything is resolved, but the position is %+v", w.ledger.Position())
	}
}
