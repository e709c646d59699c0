package latency

import (
	"slices"
	"testing"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	var nanos []int64
	for i := range 1000 {
		nanos = append(nanos, int64(1000-i)*1e6) // 1 to 1,000 ms, backwards
	}
	l := Summary(nanos)
	for _, v := range []struct {
		name      string
		got, want float64
	}{{"p50", l.P50, 500}, {"p95", l.P95, 950}, {"p99", l.P99, 990}, {"p99.9", l.P999, 999}, {"max", l.Max, 1000}} {
		if v.got != v.want {
			t.Errorf("%s is %v, want %v", v.name, v.got, v.want)
		}
	}
	if l.Count != 1000 || l.Curve[0].V != 1 || l.Curve[len(l.Curve)-1].V != 1000 {
		t.Errorf("got %+v", l)
	}
}

func TestSummaryOfFew(t *testing.T) {
	t.Parallel()
	if Summary(nil) != nil {
		t.Error("nothing has a summary")
	}
	if l := Summary([]int64{7e6}); l.P50 != 7 || l.P999 != 7 || l.Max != 7 {
		t.Errorf("got %+v", l)
	}
}

func TestTheCurveRisesToOne(t *testing.T) {
	t.Parallel()
	s := shares()
	if !slices.IsSorted(s) || s[0] != 0 || s[len(s)-1] != 1 || len(s) > 70 {
		t.Errorf("%d points: %v", len(s), s)
	}
}
