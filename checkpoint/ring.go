package checkpoint

import "github.com/postrider/postrider/event"

// entry is one transaction with events of ours. It is kept small: maxTransactions of
// them may stand in the ring.
type entry struct {
	end        event.LSN // of the transaction; 0 while it is open
	commitTime int64     // microseconds since 1970
	events     uint64
	unresolved uint64
}

// ring is a queue of entries under consecutive numbers. It grows by doubling and
// does not shrink.
type ring struct {
	slots []entry // length 0 or a power of two
	head  uint64  // number of the oldest entry
	count uint64
}

func (r *ring) slot(number uint64) *entry { return &r.slots[number&uint64(len(r.slots)-1)] }
func (r *ring) next() uint64              { return r.head + r.count }
func (r *ring) oldest() *entry            { return r.slot(r.head) }
func (r *ring) newest() *entry            { return r.slot(r.next() - 1) }
func (r *ring) dropNewest()               { r.count-- }

func (r *ring) dropOldest() {
	r.head++
	r.count--
}

// at gives the entry of a number, nil where it is not in the ring.
func (r *ring) at(number uint64) *entry {
	if number < r.head || number >= r.next() {
		return nil
	}
	return r.slot(number)
}

func (r *ring) push(e entry) {
	if r.count == uint64(len(r.slots)) {
		r.grow()
	}
	r.count++
	*r.newest() = e
}

func (r *ring) grow() {
	old := *r
	r.slots = make([]entry, max(64, 2*len(old.slots)))
	for n := old.head; n < old.next(); n++ {
		*r.slot(n) = *old.slot(n)
	}
}
