package relay

import (
	"context"
	"errors"
	"testing"
	"time"
)

var errCut = errors.New("cut")

// tap is an intake, and the stream's goroutine in front of it.
type tap struct {
	*intake
	t   *testing.T
	cut context.CancelCauseFunc
}

func newTap(t *testing.T, inside bool) *tap {
	ctx, cancel := context.WithCancelCause(context.Background())
	t.Cleanup(func() { cancel(errCut) })
	return &tap{intake: newIntake(ctx, inside), t: t, cut: cancel}
}

// waits calls fn as the stream would and gives its end; it must not have ended yet.
func (x *tap) waits(fn func() error) <-chan error {
	x.t.Helper()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		x.t.Fatalf("it did not wait: %v", err)
	case <-time.After(20 * time.Millisecond): // as long as it takes to be wrong
	}
	return done
}

func (x *tap) passes(fn func() error) {
	x.t.Helper()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	x.ends(done, nil)
}

func (x *tap) ends(done <-chan error, want error) {
	x.t.Helper()
	select {
	case err := <-done:
		if !errors.Is(err, want) {
			x.t.Fatalf("ended with %v, want %v", err, want)
		}
	case <-time.After(5 * time.Second):
		x.t.Fatal("it waits")
	}
}

// A pause lets the transaction at hand come to its end and holds the next one at its
// first event; what holds no event of ours passes. A release lets it go on.
func TestIntakeHoldsBetweenTransactions(t *testing.T) {
	t.Parallel()
	x := newTap(t, false)
	x.passes(x.enter)
	x.hold(holdBetween)
	if x.still() {
		t.Error("still inside a transaction")
	}
	x.passes(x.pass)
	x.end()
	if !x.still() {
		t.Error("not still between two transactions")
	}
	x.passes(x.pass)
	next := x.waits(x.enter)
	x.hold(flowing)
	x.ends(next, nil)
	x.passes(x.pass)
}

// Held inside a transaction, rows wait, and a stop does not wait for the transaction's end.
func TestIntakeHoldsInside(t *testing.T) {
	t.Parallel()
	x := newTap(t, true)
	x.hold(holdBetween)
	x.hold(holdNow)
	if !x.still() {
		t.Error("not still")
	}
	row := x.waits(x.pass)
	select {
	case <-x.stop():
	default:
		t.Error("a stop waits for a transaction that is held")
	}
	x.hold(flowing)
	x.ends(row, nil)
	x.end()
	x.cut(errCut)
}

// A hold that comes while a stop waits for the end of a transaction ends that wait.
func TestIntakeHoldEndsAStopsWait(t *testing.T) {
	t.Parallel()
	x := newTap(t, true)
	between := x.stop()
	x.hold(holdNow)
	select {
	case <-between:
	default:
		t.Error("the stop still waits")
	}
	x.hold(flowing)
	x.end()
}

// What shuts the tap for good outlives a release, and the link's end ends every wait.
func TestIntakeShutForGood(t *testing.T) {
	t.Parallel()
	for name, shut := range map[string]func(*tap){
		"stopped": func(x *tap) { x.stop() },
		"closed":  func(x *tap) { x.close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newTap(t, false)
			x.hold(holdBetween)
			waiting := x.waits(x.enter)
			shut(x)
			x.hold(flowing)
			select {
			case err := <-waiting:
				t.Fatalf("released: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			x.cut(errCut)
			x.ends(waiting, errCut)
		})
	}
}
