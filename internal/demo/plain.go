package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// plainEvery is the pause between two lines of the state.
const plainEvery = time.Second

// plainScreen is for files and pipes: milestones, and each second the state and
// one event.
type plainScreen struct {
	since func() time.Duration

	mu   sync.Mutex
	out  io.Writer
	next time.Duration
	last arrival // that was shown
}

var _ screen = (*plainScreen)(nil)

func (p *plainScreen) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write(milestone(p.since(), text))
}

func (p *plainScreen) show(v view) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.since()
	if p.next == 0 { // nothing has happened yet
		p.next = now + plainEvery
	}
	if now < p.next {
		return
	}
	p.next = now + plainEvery
	line := fmt.Sprintf("  committed %s, arrived %s, again %s; %s; position %s, %s behind",
		number(v.Committed), number(v.Arrived), number(v.Again), waitingText(v.counts), v.Confirmed, size(v.Lag))
	p.write(milestone(now, line))
	if n := len(v.Samples); n > 0 && v.Samples[n-1] != p.last {
		p.last = v.Samples[n-1]
		p.write(milestone(now, "    "+sampleLine(p.last)))
	}
}

func (p *plainScreen) close() {}

func (p *plainScreen) write(text string) { _, _ = io.WriteString(p.out, text) } // nobody reads: nobody to tell
