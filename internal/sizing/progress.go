package sizing

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress shows how far a run is: one line a phase, drawn over on a terminal. Its
// methods may be called from any goroutine, and often.
type progress struct {
	out      io.Writer
	terminal bool

	mu    sync.Mutex // covers what follows
	name  string
	total int
	most  int
	began time.Time
	shown time.Time
}

// How often a phase shows itself.
const (
	drawnEvery = 200 * time.Millisecond
	saidEvery  = 5 * time.Second
)

// phase begins one; total is 0 where there is nothing to count.
func (p *progress) phase(total int, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finish()
	p.name, p.total, p.most = fmt.Sprintf(format, args...), total, 0
	p.began, p.shown = time.Now(), time.Now()
	if p.terminal {
		fmt.Fprintf(p.out, "%s", p.name)
		return
	}
	fmt.Fprintln(p.out, p.name)
}

// reached shows a number of rows, now and then.
func (p *progress) reached(rows int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	every := saidEvery
	if p.terminal {
		every = drawnEvery
	}
	p.most = max(p.most, rows)
	if p.total == 0 || time.Since(p.shown) < every {
		return
	}
	p.shown = time.Now()
	share := float64(p.most) / float64(p.total)
	if !p.terminal {
		fmt.Fprintf(p.out, "  %s of %s\n", number(p.most), number(p.total))
		return
	}
	const width = 24
	filled := min(width, int(share*width))
	fmt.Fprintf(p.out, "\r\x1b[K%s  [%-*s] %s", p.name, width, "########################"[:filled], percent(share))
}

// close ends the last phase.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finish()
	p.name = ""
}

func (p *progress) finish() {
	if p.terminal && p.name != "" {
		fmt.Fprintf(p.out, "\r\x1b[K%s  (%.1f s)\n", p.name, time.Since(p.began).Seconds())
	}
}
