// Package latency writes events at a rate and measures from the return of their commit to their arrival at a consumer.
package latency

import (
	"math"
	"slices"

	"github.com/postrider/postrider/bench/result"
)

// Summary takes latencies in nanoseconds; it sorts them. nil where there are none.
func Summary(nanos []int64) *result.Latency {
	if len(nanos) == 0 {
		return nil
	}
	slices.Sort(nanos)
	l := &result.Latency{
		Count: len(nanos), P50: at(nanos, 0.50), P95: at(nanos, 0.95), P99: at(nanos, 0.99), P999: at(nanos, 0.999),
		Max: at(nanos, 1),
	}
	for _, share := range shares() {
		l.Curve = append(l.Curve, result.Point{T: share, V: at(nanos, share)})
	}
	return l
}

// at is the latency, in ms, that a share of the sorted values does not exceed: the nearest rank.
func at(sorted []int64, share float64) float64 {
	rank := int(math.Ceil(share*float64(len(sorted)) - 1e-9))
	return float64(sorted[max(0, rank-1)]) / 1e6
}

// shares are where the curve has points: every 4 % to 80 %, then each stretch to 1 in ten steps a decade.
func shares() []float64 {
	var out []float64
	for i := 0; i <= 20; i++ {
		out = append(out, float64(4*i)/100)
	}
	for i := 7; i <= 40; i++ { // 1 − 10^(−0.7) is 80 %
		out = append(out, 1-math.Pow(10, -float64(i)/10))
	}
	return append(out, 1)
}
