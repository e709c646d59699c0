package demo

import (
	"slices"
	"sync"
	"time"
)

// samplesKept is how many of the latest arrivals the screen can show.
const samplesKept = 5

// tally counts what the shop says it did and what the consumer says it saw. It
// is for the screen; the verdict has its own sources. Its methods may be called
// from any goroutine.
type tally struct {
	clock func() time.Time

	mu     sync.Mutex
	counts counts
	// waiting are committed events that have not arrived, with the time just
	// before their commit.
	waiting map[string]time.Time
	// queue has them in the order of their commits, and some that have arrived:
	// those are taken off the front.
	queue  []string
	seen   map[string]bool
	latest []arrival
	doubts []string
}

// counts is a snapshot of a tally.
type counts struct {
	Transactions int // committed
	Committed    int // events
	RolledBack   int // transactions
	Phantoms     int // events that must never be seen
	Savepoints   int // that were rolled back in committed transactions
	Arrived      int // different events
	Again        int // further copies
	Waiting      int // committed and not arrived
	// Oldest is how long the oldest of them has been waiting.
	Oldest     time.Duration
	BrokerCuts int
	RelayKills int
}

// arrival is an event at the consumer.
type arrival struct {
	At        time.Time
	ID        string
	Key       string
	Type      string
	Version   string
	Topic     string
	Partition int32
	Offset    int64
	// Latency is from before the commit; zero where the commit is not known yet.
	Latency time.Duration
	Again   bool
}

func newTally(clock func() time.Time) *tally {
	return &tally{clock: clock, waiting: map[string]time.Time{}, seen: map[string]bool{}}
}

// committed takes the events of one transaction.
func (t *tally) committed(ids []string, undone int, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Transactions++
	t.counts.Committed += len(ids)
	t.counts.Phantoms += undone
	if undone > 0 {
		t.counts.Savepoints++
	}
	for _, id := range ids {
		if !t.seen[id] { // an event may arrive before the commit's answer does
			t.waiting[id] = at
			t.queue = append(t.queue, id)
		}
	}
}

// rolledBack counts one transaction.
func (t *tally) rolledBack(events, undone int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.RolledBack++
	t.counts.Phantoms += events + undone
}

// arrived takes what the consumer saw.
func (t *tally) arrived(a arrival) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.Again = t.seen[a.ID]; a.Again {
		t.counts.Again++
	} else {
		t.seen[a.ID] = true
		t.counts.Arrived++
	}
	if at, ok := t.waiting[a.ID]; ok {
		a.Latency = a.At.Sub(at)
		delete(t.waiting, a.ID)
	}
	t.latest = append(t.latest, a)
	if len(t.latest) > samplesKept {
		t.latest = slices.Delete(t.latest, 0, len(t.latest)-samplesKept)
	}
	for len(t.queue) > 0 && t.seen[t.queue[0]] {
		t.queue = t.queue[1:]
	}
}

func (t *tally) brokerCut() {
	t.mu.Lock()
	t.counts.BrokerCuts++
	t.mu.Unlock()
}

func (t *tally) relayKilled() {
	t.mu.Lock()
	t.counts.RelayKills++
	t.mu.Unlock()
}

// doubt says why a verdict without faults would still prove less than it seems.
func (t *tally) doubt(why string) {
	t.mu.Lock()
	t.doubts = append(t.doubts, why)
	t.mu.Unlock()
}

func (t *tally) allDoubts() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.doubts)
}

func (t *tally) now() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts
	c.Waiting = len(t.waiting)
	if len(t.queue) > 0 {
		c.Oldest = t.clock().Sub(t.waiting[t.queue[0]])
	}
	return c
}

func (t *tally) samples() []arrival {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.latest)
}
