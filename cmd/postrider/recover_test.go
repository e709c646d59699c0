package main

import (
	"math"
	"testing"
)

// --rate 0 with --resume lifts the limit that the recovery was begun with; without it that one holds.
func TestResumedRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		given bool
		rate  float64
		want  float64
	}{{false, 0, 0}, {true, 0, math.Inf(1)}, {true, 5, 5}} {
		o := recoverOptions{resume: true, rateGiven: c.given}
		o.PerSecond, o.LockTimeout = c.rate, defaultLockTimeout
		if err := o.validate(); err != nil || o.PerSecond != c.want {
			t.Errorf("%+v: %v, %v", c, o.PerSecond, err)
		}
	}
}
