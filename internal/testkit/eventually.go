package testkit

import (
	"errors"
	"testing"
	"time"
)

// Eventually polls a state outside this process, for which there is no signal,
// until check returns nil; it fails the test with check's last error when that
// takes longer than within.
func Eventually(t testing.TB, within time.Duration, check func() error) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %v", within, err)
		}
	}
}

// EventuallyTrue is Eventually for a plain condition; what names it.
func EventuallyTrue(t testing.TB, within time.Duration, what string, check func() bool) {
	t.Helper()
	Eventually(t, within, func() error {
		if check() {
			return nil
		}
		return errors.New(what)
	})
}
