package demo

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func someView() view {
	return view{
		counts:   counts{Transactions: 1200, Committed: 12345, Arrived: 12000, Waiting: 345, Oldest: 2300 * time.Millisecond},
		slotView: slotView{Confirmed: 0x1A42CC0, Lag: 300 << 10},
		Relay:    "runs, pid 42", Broker: "CUT",
		Samples: []arrival{{Key: "order-7", Type: "OrderPaid", Version: "2", Topic: "outbox.event.order", Partition: 3, Offset: 99, Latency: 4 * time.Millisecond}},
	}
}

// A file gets no control sequence, one state a second, and no event twice.
func TestPlainScreen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Second
	s := &plainScreen{out: &out, since: func() time.Duration { return now }}
	s.show(someView())
	require.Empty(t, out.String(), "nothing has happened yet")
	s.say("the broker is CUT")
	for range 4 {
		now += plainEvery / 2
		s.show(someView())
	}
	require.Equal(t, `  1.0s  the broker is CUT
  2.0s    committed 12,345, arrived 12,000, again 0; 345 waiting, the oldest for 2.3 s; position 0/1A42CC0, 300 KiB behind
  2.0s      order-7      OrderPaid        v2   outbox.event.order-3@99  4 ms
  3.0s    committed 12,345, arrived 12,000, again 0; 345 waiting, the oldest for 2.3 s; position 0/1A42CC0, 300 KiB behind
`, out.String())
}

// The block is drawn over itself, milestones stay above it.
func TestLiveScreen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &liveScreen{out: &out, width: func() int { return 40 }, since: func() time.Duration { return 0 }}
	s.show(someView())
	first := out.String()
	require.NotContains(t, first, "A\r", "there is nothing to go back over")
	lines := strings.Count(first, "\n")
	require.Len(t, s.block, lines)
	for _, line := range s.block {
		require.Less(t, utf8.RuneCountInString(line), 40, "a line that wraps would spoil the count")
	}

	out.Reset()
	s.say("the relay is KILLED")
	up := "\x1b[11A\r"
	require.Equal(t, 11, lines)
	require.True(t, strings.HasPrefix(out.String(), up+clearBelow+"  0.0s  the relay is KILLED\n"), "%q", out.String())
	require.Equal(t, 1+lines, strings.Count(out.String(), "\n"), "the block follows the milestone")

	out.Reset()
	s.close()
	s.say("afterwards")
	require.NotContains(t, out.String(), "\x1b[11A", "the last state stays")
}

func TestScreenFitsItsReader(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	require.IsType(t, &plainScreen{}, newScreen(w))
	require.IsType(t, &plainScreen{}, newScreen(&bytes.Buffer{}))
}

func TestNumbersForPeople(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"0", "999", "1,000", "1,234,567", "-123"},
		[]string{number(0), number(999), number(1000), number(1234567), number(-123)})
	require.Equal(t, []string{"1023 B", "1 KiB", "1.5 MiB"}, []string{size(1023), size(1024), size(3 << 19)})
	require.Equal(t, []string{"999 ms", "1.0 s"}, []string{short(999 * time.Millisecond), short(time.Second)})
	require.Equal(t, []string{"never", "once", "2 times"}, []string{times(0), times(1), times(2)})
}
