package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
)

// screen shows a run. Its methods may be called from any goroutine.
type screen interface {
	// say puts down a milestone, which stays.
	say(text string)
	// show gives the state of things; it replaces the one before.
	show(v view)
	// close leaves the last state as it stands. What is said afterwards follows it.
	close()
}

// view is the state of things.
type view struct {
	counts
	slotView
	Relay, Broker string
	Samples       []arrival
}

// drawEvery is how often the view is renewed.
const drawEvery = 150 * time.Millisecond

// draw renews the view until ctx ends, and once more then.
func (d *demo) draw(ctx context.Context) error {
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	for {
		d.screen.show(d.view())
		select {
		case <-ctx.Done():
			d.screen.show(d.view())
			return nil
		case <-tick.C:
		}
	}
}

func (d *demo) view() view {
	relay, broker := d.status.get()
	return view{counts: d.tally.now(), slotView: d.slot.now(), Relay: relay, Broker: broker, Samples: d.tally.samples()}
}

// statusLine is what the script knows of relay and broker.
type statusLine struct {
	mu            sync.Mutex
	relay, broker string
}

func (s *statusLine) setRelay(state string) {
	s.mu.Lock()
	s.relay = state
	s.mu.Unlock()
}

func (s *statusLine) setBroker(state string) {
	s.mu.Lock()
	s.broker = state
	s.mu.Unlock()
}

func (s *statusLine) get() (relay, broker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.relay, s.broker
}

// newScreen takes the kind that fits.
func newScreen(w io.Writer) screen {
	if f, ok := w.(*os.File); ok && isatty.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb" {
		return &liveScreen{out: w, width: func() int { return terminalWidth(f) }, since: stopwatch()}
	}
	return &plainScreen{out: w, since: stopwatch()}
}

// stopwatch gives the time since it was made, for the beginning of a milestone.
func stopwatch() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}

func milestone(since time.Duration, text string) string {
	return fmt.Sprintf("%5.1fs  %s\n", since.Seconds(), text)
}

// sampleLine is an event at the consumer.
func sampleLine(a arrival) string {
	line := fmt.Sprintf("%-12s %-16s v%-3s %s-%d@%d", a.Key, a.Type, a.Version, a.Topic, a.Partition, a.Offset)
	switch {
	case a.Again:
		return line + "  again"
	case a.Latency == 0:
		return line + "  at once" // faster than the answer to the commit
	}
	return line + "  " + short(a.Latency)
}

// waitingText is what is committed and has not arrived.
func waitingText(c counts) string {
	if c.Waiting == 0 {
		return "none waiting"
	}
	return fmt.Sprintf("%s waiting, the oldest for %s", number(c.Waiting), short(c.Oldest))
}

// number groups digits: 12,345.
func number(n int) string {
	digits := strconv.Itoa(n)
	var b strings.Builder
	for i, c := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// size is bytes for people.
func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// short is a time for people: 4 ms, 2.3 s.
func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func times(n int) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	}
	return number(n) + " times"
}
