package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/reissue"
)

// taskBar shows how far a task is: drawn over on a terminal, else a line now and then.
type taskBar struct {
	out      io.Writer
	terminal bool
	name     string
	shown    time.Time
	width    int // of what stands on the terminal's line
	ended    bool
}

const (
	barDrawnEvery = 200 * time.Millisecond
	barSaidEvery  = 10 * time.Second
)

// newTaskBar makes one; name is such as "replay 7".
func newTaskBar(out io.Writer, name string) *taskBar {
	return &taskBar{out: out, terminal: isTerminal(out) && os.Getenv("TERM") != "dumb", name: name, shown: time.Now()}
}

// show is for reissue.Config.Progress.
func (b *taskBar) show(p reissue.Progress) {
	every := barSaidEvery
	if b.terminal {
		every = barDrawnEvery
	}
	if b.ended || time.Since(b.shown) < every && p.Done < p.Total {
		return // the end is told once
	}
	b.shown, b.ended = time.Now(), p.Done >= p.Total
	if !b.terminal {
		fmt.Fprintf(b.out, "%s: %s\n", b.name, barText(p))
		return
	}
	const width = 24
	filled := 0
	if p.Total > 0 {
		filled = int(width * min(p.Done, p.Total) / p.Total)
	}
	line := fmt.Sprintf("%s  [%-*s] %s", b.name, width, strings.Repeat("#", filled), barText(p))
	fmt.Fprintf(b.out, "\r\x1b[K%s", line)
	b.width = len(line)
}

// close leaves the last state on a line of its own.
func (b *taskBar) close() {
	if b.width > 0 {
		fmt.Fprintln(b.out)
	}
}

func barText(p reissue.Progress) string {
	text := fmt.Sprintf("%d of %d events", p.Done, p.Total)
	if p.Refused > 0 {
		text += fmt.Sprintf(", %d not published", p.Refused)
	}
	switch seconds := p.Elapsed.Seconds(); {
	case len(p.AwaitedTopics) > 0:
		text += ", waits for topic " + strings.Join(p.AwaitedTopics, ", ")
	case p.Done >= p.Total:
		text += fmt.Sprintf(" in %s", p.Elapsed.Round(time.Second/10))
	case p.Published > 0 && seconds > 1:
		rate := float64(p.Published) / seconds
		left := time.Duration(float64(p.Total-p.Done)/rate) * time.Second
		text += fmt.Sprintf(", %.0f/s, %s left", rate, left.Round(time.Second))
	}
	return text
}
