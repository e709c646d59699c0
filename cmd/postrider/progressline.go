package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progressLine shows how far long work is, on one line of a terminal. Where standard error
// is none, it says nothing: cron mails what is written there.
type progressLine struct {
	out   io.Writer
	on    bool
	phase string
	shown time.Time
}

func newProgressLine(out io.Writer) *progressLine {
	return &progressLine{out: out, on: isTerminal(out) && os.Getenv("TERM") != "dumb"}
}

// lineEvery is the least time between two drawings of a phase.
const lineEvery = 200 * time.Millisecond

// show draws the line, now and then; total is 0 where it is not known.
func (p *progressLine) show(phase string, done, total int64) {
	if !p.on || phase == p.phase && time.Since(p.shown) < lineEvery {
		return
	}
	p.phase, p.shown = phase, time.Now()
	text := phase
	switch {
	case total > 0:
		text += fmt.Sprintf("  %d of %d (%d%%)", done, total, min(100, 100*done/total))
	case done > 0:
		text += fmt.Sprintf("  %d", done)
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s", text)
}

// close removes the line.
func (p *progressLine) close() {
	if p.on && p.phase != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
