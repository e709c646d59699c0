package check

import (
	"fmt"
	"testing"

	"github.com/postrider/postrider/bench/outbox"
	"github.com/postrider/postrider/bench/result"
)

// arrival is a record: event n with its own key and payload, but for what a test breaks.
type arrival struct {
	n         int64
	partition int32
	payload   string
}

func payload(n int64) string { return fmt.Sprintf(`{"n": %d, "total": 0.0600}`, n) }

// twoKeys expects events 1 to 6 of the keys "a" (odd) and "b".
func twoKeys(t *testing.T) *Expected {
	t.Helper()
	e := NewExpected(1, 6)
	for n := int64(1); n <= 6; n++ {
		if err := e.Add(n, []byte(keyOf(n)), []byte(payload(n))); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func keyOf(n int64) string { return string(rune('b' - n%2)) }

func judge(e *Expected, arrivals ...arrival) result.Check {
	j := NewJudge(e)
	for _, a := range arrivals {
		text := a.payload
		if text == "" {
			text = payload(a.n)
		}
		j.Record(a.partition, []byte(outbox.ID(a.n)), []byte(keyOf(a.n)), []byte(text))
	}
	return j.Verdict()
}

func TestJudge(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		arrivals []arrival
		want     result.Check
	}{
		{"all in order, keys interleaved", []arrival{{n: 2}, {n: 1}, {n: 3}, {n: 4}, {n: 5}, {n: 6}}, result.Check{}},
		{"one is missing", []arrival{{n: 1}, {n: 2}, {n: 3}, {n: 4}, {n: 5}}, result.Check{Missing: 1}},
		{"one overtook its elder", []arrival{{n: 3}, {n: 1}, {n: 2}, {n: 4}, {n: 5}, {n: 6}}, result.Check{OutOfOrder: 1}},
		{"a replay that rewinds", []arrival{{n: 1}, {n: 3}, {n: 1}, {n: 3}, {n: 5}, {n: 2}, {n: 4}, {n: 6}}, result.Check{Duplicates: 2}},
		{"a key in two partitions", []arrival{{n: 1}, {n: 3, partition: 1}, {n: 5, partition: 1}, {n: 2}, {n: 4}, {n: 6}}, result.Check{OutOfOrder: 1}},
		{"a number lost a digit", []arrival{{n: 1, payload: `{"n": 1, "total": 0.06}`}, {n: 2}, {n: 3}, {n: 4}, {n: 5}, {n: 6}}, result.Check{WrongBytes: 1}},
		{"an event that nobody wrote", []arrival{{n: 7}, {n: 1}, {n: 2}, {n: 3}, {n: 4}, {n: 5}, {n: 6}}, result.Check{WrongBytes: 1}},
		{"nothing came", nil, result.Check{Missing: 6}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.want.Checked = true
			if got := judge(twoKeys(t), test.arrivals...); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestRecordsWithoutAnID(t *testing.T) {
	t.Parallel()
	j := NewJudge(twoKeys(t))
	j.Record(0, nil, []byte("a"), []byte(payload(1)))
	if j.Foreign != 1 || j.Verdict().Missing != 6 {
		t.Errorf("got %d foreign and %+v", j.Foreign, j.Verdict())
	}
}

func TestATailOfTheEvents(t *testing.T) {
	t.Parallel()
	tail := twoKeys(t).From(5)
	if got := judge(tail, arrival{n: 5}, arrival{n: 6}); !got.OK() || got.Duplicates != 0 {
		t.Errorf("got %+v", got)
	}
	if got := judge(tail, arrival{n: 6}); got.Missing != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestAnEventOfTheTableTwice(t *testing.T) {
	t.Parallel()
	if err := twoKeys(t).Add(3, []byte("a"), []byte(payload(3))); err == nil {
		t.Error("the second was taken")
	}
}
