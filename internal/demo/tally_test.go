package demo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTallyKnowsWhatIsWaiting(t *testing.T) {
	t.Parallel()
	began := time.Now()
	now := began
	tally := newTally(func() time.Time { return now })
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }

	tally.committed([]string{"a", "b"}, 1, at(0))
	tally.committed([]string{"c"}, 0, at(10))
	tally.rolledBack(2, 1)
	now = at(100)
	c := tally.now()
	require.Equal(t, counts{
		Transactions: 2, Committed: 3, RolledBack: 1, Phantoms: 4, Savepoints: 1, Waiting: 3, Oldest: 100 * time.Millisecond,
	}, c)

	tally.arrived(arrival{ID: "b", At: at(30)})
	require.Equal(t, 100*time.Millisecond, tally.now().Oldest, "a still waits")
	tally.arrived(arrival{ID: "a", At: at(40)})
	tally.arrived(arrival{ID: "a", At: at(50)})
	c = tally.now()
	require.Equal(t, 2, c.Arrived)
	require.Equal(t, 1, c.Again)
	require.Equal(t, 1, c.Waiting)
	require.Equal(t, 90*time.Millisecond, c.Oldest, "c waits since its commit at 10 ms")

	samples := tally.samples()
	require.Len(t, samples, 3)
	require.Equal(t, 40*time.Millisecond, samples[1].Latency)
	require.True(t, samples[2].Again)
}

// An event may reach the consumer before the shop has the answer to its commit.
func TestTallyTakesAnArrivalBeforeItsCommit(t *testing.T) {
	t.Parallel()
	tally := newTally(time.Now)
	tally.arrived(arrival{ID: "early"})
	tally.committed([]string{"early"}, 0, time.Now())
	c := tally.now()
	require.Zero(t, c.Waiting)
	require.Zero(t, c.Oldest)
	require.Equal(t, 1, c.Arrived)
}

func TestTallyKeepsTheLatestSamples(t *testing.T) {
	t.Parallel()
	tally := newTally(time.Now)
	for i := range 2 * samplesKept {
		tally.arrived(arrival{ID: string(rune('a' + i)), Offset: int64(i)})
	}
	samples := tally.samples()
	require.Len(t, samples, samplesKept)
	require.EqualValues(t, 2*samplesKept-1, samples[samplesKept-1].Offset)
}
