package relay

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

// broken is a generation without a link, whose row stands at 100.
func broken() *generation {
	g := &generation{relay: &Relay{linked: true}, ledger: checkpoint.NewLedger(100), halts: make(chan *event.Refusal, 1)}
	g.setRow(checkpoint.Row{Confirmed: 100})
	return g
}

// oneEvent puts a committed transaction with one event into the ledger.
func (g *generation) oneEvent(resolved bool) {
	txn := g.ledger.Begin(200, time.Now())
	g.ledger.Add()
	g.ledger.Commit(210)
	if resolved {
		g.ledger.Resolve(txn, 1)
	}
}

// trap 24: a stop while the link is down does not end with 0 where events are
// unacknowledged, acknowledged but not stored, or refused.
func TestStopWithoutALink(t *testing.T) {
	t.Parallel()
	stopped, stop := context.WithCancel(context.Background())
	stop()
	outage := fmt.Errorf("gone: %w", replication.ErrServerShutdown)
	for name, tt := range map[string]struct {
		prepare func(g *generation)
		link    error
		want    operr.Class // 0: all well
	}{
		"nothing received": {func(*generation) {}, outage, 0},
		"unacknowledged":   {func(g *generation) { g.oneEvent(false) }, outage, operr.DrainIncomplete},
		"not stored":       {func(g *generation) { g.oneEvent(true) }, outage, operr.DrainIncomplete},
		"stored": {func(g *generation) {
			g.oneEvent(true)
			g.setRow(checkpoint.Row{Confirmed: 210})
		}, outage, 0},
		"refused":        {func(g *generation) { g.halts <- &event.Refusal{Reason: event.ReasonNoRoute} }, outage, operr.Halted},
		"beginning anew": {func(g *generation) { g.oneEvent(false) }, fmt.Errorf("%w: x", checkpoint.ErrDiverged), operr.DrainIncomplete},
	} {
		g := broken()
		tt.prepare(g)
		done, err := g.verdict(stopped, tt.link)
		if !done || (err == nil) != (tt.want == 0) || err != nil && operr.ClassOf(err) != tt.want {
			t.Errorf("%s: done %t, %v", name, done, err)
		}
		if errors.Is(err, errAnew) && !ended(err) {
			t.Errorf("%s: the run would go on: %v", name, err)
		}
	}
}

// What a generation that was thrown away left behind is said by the next one, which
// was stopped before it had a position.
func TestStopBetweenGenerations(t *testing.T) {
	t.Parallel()
	g := broken()
	g.oneEvent(false)
	if done, err := g.verdict(context.Background(), fmt.Errorf("%w: the row was changed", errAnew)); !done || !errors.Is(err, errAnew) || ended(err) {
		t.Fatalf("done %t, %v", done, err)
	}
	next := &generation{relay: g.relay, halts: make(chan *event.Refusal, 1)}
	if err := next.leftBehind(nil); operr.ClassOf(err) != operr.DrainIncomplete || !ended(err) {
		t.Fatal(err)
	}
}

// A halt, or a drain, is the end of the run whatever broke the link meanwhile.
func TestOutcomeIsFinal(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{replication.ErrServerShutdown, checkpoint.ErrFenced, checkpoint.ErrDiverged, errAnew} {
		for _, end := range []error{haltError(&event.Refusal{Reason: event.ReasonTooLarge}, 100, cause), drainError(0, 100, cause)} {
			done, err := broken().verdict(context.Background(), end)
			if !done || !errors.Is(err, end) || !ended(err) {
				t.Errorf("%v: done %t, %v", end, done, err)
			}
		}
	}
}

// A question of the stream's own that a shutdown or a lost connection cuts off is no
// fault of the program: the link comes back.
func TestQueriesHealWithTheLink(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		done bool
	}{
		{&pgconn.PgError{Code: "57P01"}, false},
		{&pgconn.PgError{Code: "57014"}, false},
		{errors.New("unexpected EOF"), false},
		{&pgconn.PgError{Code: "42501"}, true},
	} {
		g := broken()
		if done, err := g.verdict(context.Background(), sqlError("ask for", "x", tt.err)); done != tt.done {
			t.Errorf("%v: done %t, %v", tt.err, done, err)
		}
	}
}
