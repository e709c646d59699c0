package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Control sequences of every terminal in use: up n lines, clear to the line's end
// and to the screen's.
const (
	cursorUp   = "\x1b[%dA"
	clearLine  = "\x1b[K"
	clearBelow = "\x1b[J"
)

// liveScreen keeps one block at the bottom, below the milestones.
type liveScreen struct {
	// width is asked at each drawing: a line that wraps would spoil the count.
	width func() int
	since func() time.Duration

	mu    sync.Mutex
	out   io.Writer
	block []string // as it stands on the terminal
}

var _ screen = (*liveScreen)(nil)

func (l *liveScreen) say(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.redraw(milestone(l.since(), text), l.block)
}

func (l *liveScreen) show(v view) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.redraw("", l.fit(blockOf(v)))
}

func (l *liveScreen) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.block = nil // it stays; the next line goes below it
}

// redraw goes back over the block, writes what stays, and the block again; in
// one write, so that nothing flickers.
func (l *liveScreen) redraw(stays string, block []string) {
	var b strings.Builder
	if n := len(l.block); n > 0 {
		fmt.Fprintf(&b, cursorUp, n)
	}
	b.WriteString("\r")
	if stays != "" {
		b.WriteString(clearBelow + stays)
	}
	for _, line := range block {
		b.WriteString(line + clearLine + "\n")
	}
	b.WriteString(clearBelow)
	l.block = block
	_, _ = io.WriteString(l.out, b.String()) // nobody looks: nobody to tell
}

// fit cuts lines to the terminal's width.
func (l *liveScreen) fit(lines []string) []string {
	width := l.width()
	for i, line := range lines {
		if utf8.RuneCountInString(line) >= width {
			lines[i] = string([]rune(line)[:width-1])
		}
	}
	return lines
}

// blockOf always has the same number of lines.
func blockOf(v view) []string {
	lines := []string{
		"",
		fmt.Sprintf("  shop      %s events in %s transactions; rolled back: %s transactions, %s savepoints",
			number(v.Committed), number(v.Transactions), number(v.RolledBack), number(v.Savepoints)),
		fmt.Sprintf("  consumer  %s arrived, %s again; %s", number(v.Arrived), number(v.Again), waitingText(v.counts)),
		fmt.Sprintf("  position  %s, %s behind", v.Confirmed, size(v.Lag)),
		fmt.Sprintf("  broker    %-8s  relay  %s", v.Broker, v.Relay),
		"",
	}
	for i := range samplesKept {
		line := ""
		if i < len(v.Samples) {
			line = "    " + sampleLine(v.Samples[i])
		}
		lines = append(lines, line)
	}
	return lines
}

// narrow is for a terminal that does not tell its width.
const narrow = 80

func terminalWidth(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col < 2 {
		return narrow
	}
	return int(size.Col)
}
