package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/operr"
)

// The script in parts of the duration. The kill comes well after the broker is
// back, so that events flow when it hits.
const (
	cutAt   = 0.35
	cutFor  = 0.20
	killAt  = 0.75
	maxCut  = 5 * time.Second
	flowing = 1500 * time.Millisecond // at least, from the broker's return to the kill, and from there to the end
	restart = 300 * time.Millisecond  // between the kill and the new relay
)

// Patience at the end. Past it the verdict says what is missing.
const (
	drainPatience   = 30 * time.Second
	consumePatience = 5 * time.Second
)

// play is the story: write, cut the broker, kill the relay, drain.
func (d *demo) play(ctx context.Context, crew *crew, w *witness) error {
	shop, err := openShop(ctx, d.stack.dsn(), d.tally, w.Oracle.RolledBack)
	if err != nil {
		return err
	}
	day := shop.start(ctx, crew)
	defer day.end()
	began := time.Now()
	part := func(share float64) time.Time { return began.Add(time.Duration(share * float64(d.opts.Duration))) }
	d.say("the shop writes orders, each with its events in the same transaction")
	if err := d.until(ctx, part(cutAt)); err != nil {
		return err
	}
	if err := d.cutBroker(ctx, min(maxCut, time.Duration(cutFor*float64(d.opts.Duration)))); err != nil {
		return err
	}
	if err := d.until(ctx, later(part(killAt), time.Now().Add(flowing))); err != nil {
		return err
	}
	if err := d.killRelay(ctx); err != nil {
		return err
	}
	if err := d.until(ctx, later(part(1), time.Now().Add(flowing))); err != nil {
		return err
	}
	day.end()
	return d.drain(ctx)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// until lets time pass, and fails when the relay ends by itself meanwhile.
func (d *demo) until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-d.relay.ended():
		return d.relay.unexpected()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *demo) startRelay() error {
	if err := d.relay.start(); err != nil {
		return err
	}
	d.status.setRelay(fmt.Sprintf("runs, pid %d", d.relay.pid()))
	d.say("postrider run: pid %d", d.relay.pid())
	return nil
}

func (d *demo) cutBroker(ctx context.Context, length time.Duration) error {
	d.status.setBroker("CUT")
	d.say("the broker is CUT: events wait in PostgreSQL, the position stands still")
	if err := d.stack.broker.cut(); err != nil {
		return brokerError("stop", err)
	}
	if err := d.until(ctx, time.Now().Add(length)); err != nil {
		return err
	}
	if err := d.stack.broker.restore(ctx); err != nil {
		return brokerError("restart", err)
	}
	d.status.setBroker("runs")
	d.tally.brokerCut()
	d.say("the broker is back, %s events were waiting", number(d.tally.now().Waiting))
	return nil
}

func brokerError(op string, err error) error {
	return &operr.Error{Class: operr.Kafka, Op: op, Subject: "the broker", Err: err}
}

func (d *demo) killRelay(ctx context.Context) error {
	pid := d.relay.pid()
	d.relay.kill()
	d.tally.relayKilled()
	d.status.setRelay("KILLED")
	d.say("the relay is KILLED: kill -9 %d, in the middle of its work", pid)
	timer := time.NewTimer(restart)
	defer timer.Stop()
	select {
	case <-timer.C:
		return d.startRelay()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// drain waits until everything that is committed is confirmed, then until the
// consumer has seen it, and ends the relay as an operator would.
func (d *demo) drain(ctx context.Context) error {
	target, err := d.slot.end(ctx)
	if err != nil {
		return err
	}
	d.say("the shop has closed; what it committed has to be confirmed up to %s", target)
	late := time.Now().Add(drainPatience)
	confirmed, err := d.await(ctx, late, func() bool { return d.slot.now().Confirmed >= target })
	if err != nil {
		return err
	}
	if !confirmed {
		d.tally.doubt(fmt.Sprintf("not drained after %s: the slot stands at %s", drainPatience, d.slot.now().Confirmed))
	}
	if _, err := d.await(ctx, time.Now().Add(consumePatience), func() bool { return d.tally.now().Waiting == 0 }); err != nil {
		return err
	}
	if err := d.relay.stop(); err != nil {
		d.tally.doubt(err.Error())
		return nil
	}
	d.status.setRelay("ended in order")
	d.say("the relay has ended in order (SIGTERM)")
	return nil
}

// await polls a state of other processes. It gives false when it got too late.
func (d *demo) await(ctx context.Context, late time.Time, done func() bool) (bool, error) {
	for !done() {
		if time.Now().After(late) {
			return false, nil
		}
		if err := d.until(ctx, time.Now().Add(20*time.Millisecond)); err != nil {
			return false, err
		}
	}
	return true, nil
}
