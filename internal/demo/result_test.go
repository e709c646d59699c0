package demo

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/oracle"
)

// exitCode is what the command line makes of a result.
func exitCode(r *Result) int {
	if err := r.Err(); err != nil {
		return operr.ClassOf(err).ExitCode()
	}
	return 0
}

func printed(t *testing.T, r *Result) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.Print(&b))
	return b.String()
}

// run is three events of one key that were committed in this order.
func run() (*oracle.Oracle, counts) {
	o := oracle.New(oracle.Config{})
	for i, id := range []string{"a", "b", "c"} {
		o.Committed(oracle.Order{Commit: event.LSN(100 + 10*i)}, happened(id))
	}
	return o, counts{Transactions: 3, Committed: 3}
}

func happened(id string) oracle.Event {
	return oracle.Event{
		ID: id, Topic: "t", Key: []byte("k"), Value: []byte("value of " + id),
		Headers: []event.Header{{Name: "id", Value: []byte(id)}},
	}
}

func deliver(o *oracle.Oracle, offset int64, id string) {
	e := happened(id)
	o.Delivered(oracle.Record{Topic: "t", Offset: offset, Key: e.Key, Value: e.Value, Headers: e.Headers})
}

func sampleOf(confirmed event.LSN, end int64) oracle.Sample {
	return oracle.Sample{Confirmed: confirmed, Ends: map[oracle.Partition]int64{{Topic: "t"}: end}}
}

func TestPromiseHeldGivesExitCodeZero(t *testing.T) {
	t.Parallel()
	o, c := run()
	for i, id := range []string{"a", "b", "a", "b", "c"} { // a rewind, as after a kill
		deliver(o, int64(i), id)
	}
	o.Sample(sampleOf(200, 5))
	r := newResult(o.Verdict(), c, nil)
	require.True(t, r.Kept)
	require.Equal(t, 2, r.Duplicates)
	require.Equal(t, 0, exitCode(r))
	require.Contains(t, printed(t, r), "The promise held.")
}

// Each fault, planted, gives exit code 1 and is named.
func TestPlantedFaultGivesExitCodeOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		plant func(*oracle.Oracle)
		named string
	}{
		{"lost", func(o *oracle.Oracle) {
			deliver(o, 0, "a")
			deliver(o, 1, "c")
		}, "lost 1"},
		{"out of order", func(o *oracle.Oracle) {
			deliver(o, 0, "a")
			deliver(o, 1, "c")
			deliver(o, 2, "b")
		}, "out of order 1"},
		{"phantom", func(o *oracle.Oracle) {
			deliverAll(o)
			o.RolledBack("ghost")
			deliver(o, 3, "ghost")
		}, "phantom 1"},
		{"wrong bytes", func(o *oracle.Oracle) {
			deliverAll(o)
			e := happened("a")
			o.Delivered(oracle.Record{Topic: "t", Offset: 3, Key: e.Key, Value: []byte("other"), Headers: e.Headers})
		}, "wrong bytes 1"},
		{"unsafe confirmation", func(o *oracle.Oracle) {
			o.Sample(sampleOf(115, 1)) // past a and b, when only a was there
			deliverAll(o)
		}, "unsafe confirmations 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o, counts := run()
			c.plant(o)
			o.Sample(sampleOf(200, 5))
			r := newResult(o.Verdict(), counts, nil)
			require.False(t, r.Kept)
			require.ErrorContains(t, r.Err(), c.named)
			require.Equal(t, 1, exitCode(r))
			require.Equal(t, c.name, r.Findings[0].Kind)
			require.Contains(t, printed(t, r), "!!")
			require.Contains(t, printed(t, r), "NOT hold")
		})
	}
}

func deliverAll(o *oracle.Oracle) {
	for i, id := range []string{"a", "b", "c"} {
		deliver(o, int64(i), id)
	}
}

// A run without faults that proves nothing does not pass.
func TestDoubtGivesExitCodeOne(t *testing.T) {
	t.Parallel()
	good := oracle.Verdict{Committed: 3, Delivered: 3, Samples: 9}
	for _, c := range []struct {
		name   string
		v      oracle.Verdict
		shop   int
		doubts []string
		named  string
	}{
		{"nothing was committed", oracle.Verdict{Samples: 9}, 0, nil, "nothing was committed"},
		{"the witness saw less than the shop", good, 4, nil, "the log holds 3 events, the shop has committed 4"},
		{"no sample", oracle.Verdict{Committed: 3, Delivered: 3}, 3, nil, "confirmations were not checked"},
		{"relay did not end in order", good, 3, []string{"the relay did not end in order"}, "did not end in order"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newResult(c.v, counts{Committed: c.shop}, c.doubts)
			require.ErrorContains(t, r.Err(), c.named)
			require.Equal(t, 1, exitCode(r))
		})
	}
}
