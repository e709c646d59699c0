package replication

import "time"

const (
	// quickRead: data was waiting, or as good as. Events that come 5,000 a second are 200 µs apart.
	quickRead = 100 * time.Microsecond
	// busyAfter quick reads in a row the stream counts as busy.
	busyAfter = 64
	// thinRead: so few bytes after gathering do not pay for the wait.
	thinRead = 4 << 10
	// thinMost thin reads in a row end it.
	thinMost = 2
)

// pace decides when reads are to be coalesced. A walsender sends each change with a send of its own: a reader that
// is always ready is woken for each, and router, lanes and broker then work in crumbs. Letting bytes gather on
// a busy stream makes pieces of a size that is cheap for all of them; a quiet stream is read at once.
//
// It is pure: the caller measures and waits.
type pace struct {
	quick int // quick reads in a row, while it does not gather
	thin  int // thin reads in a row, while it does
	on    bool
}

// gathers says whether to let bytes gather before the next read.
func (p *pace) gathers() bool { return p.on }

// read notes a read of n bytes that waited for so long, after gathering or not.
func (p *pace) read(n int, waited time.Duration, gathered bool) {
	switch {
	case gathered && n >= thinRead:
		p.thin = 0
	case gathered:
		if p.thin++; p.thin >= thinMost {
			*p = pace{}
		}
	case waited >= quickRead:
		p.quick = 0
	default:
		if p.quick++; p.quick >= busyAfter {
			*p = pace{on: true}
		}
	}
}
