package replication

import "time"

const (
	// quickRead: data was waiting, or as good as.
	quickRead = 500 * time.Microsecond
	// busyAfter quick reads in a row the stream counts as busy.
	busyAfter = 16
	// thinRead: so few bytes after a pause do not pay for it.
	thinRead = 1 << 10
	// gatherFor is the pause before a read on a busy stream.
	gatherFor = 2 * time.Millisecond
)

// pace decides when to let bytes gather before the next read. A walsender sends each
// change with a send of its own: a reader that is always ready is woken for each, and
// router, lanes and broker then work in crumbs. A short pause on a busy stream makes
// pieces of a size that is cheap for all of them; a quiet stream is read at once.
//
// It is pure: the caller measures and sleeps.
type pace struct {
	quick int // quick reads in a row
	rest  bool
}

// read notes a read of n bytes, of full at most, that waited for so long.
func (p *pace) read(waited time.Duration, n, full int) {
	paused := p.rest
	switch {
	case waited >= quickRead, paused && n < thinRead:
		p.quick = 0
	case p.quick < busyAfter:
		p.quick++
	}
	// A read that filled its buffer left more behind: no pause is needed to find it.
	p.rest = p.quick >= busyAfter && n < full
}

// pause is what to wait before the next read.
func (p *pace) pause() time.Duration {
	if p.rest {
		return gatherFor
	}
	return 0
}
