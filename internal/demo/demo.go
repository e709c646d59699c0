package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/postrider/postrider/internal/operr"
)

// Bounds of Options.Duration.
const (
	MinDuration     = 2 * time.Second
	MaxDuration     = 10 * time.Minute
	DefaultDuration = 12 * time.Second
)

// Options says what to show.
type Options struct {
	// Binary is the postrider program that is started as the relay.
	Binary string
	// Duration is how long orders are written; it is longer where the broker
	// takes its time to come back.
	Duration time.Duration
	// RealKafka takes Kafka's own jars instead of the embedded broker.
	RealKafka bool
	// Keep leaves the folder with data, configuration and log.
	Keep bool
	// Screen shows what happens: one live block on a terminal, else lines.
	Screen io.Writer
}

// Validate gives all problems at once.
func (o Options) Validate() error {
	if o.Duration < MinDuration || o.Duration > MaxDuration {
		return fmt.Errorf("--duration is %s; must be from %s to %s", o.Duration, MinDuration, MaxDuration)
	}
	return nil
}

// demo is one run.
type demo struct {
	opts    Options
	started time.Time
	screen  screen
	stack   *stack
	relay   *child
	tally   *tally
	slot    *slotWatch
	status  *statusLine
}

// Run plays the demo and judges it. An error means that there is no verdict;
// whether the promise held is for Result.Err to say. When Run returns, nothing
// of the demo runs any more, and nothing is left on disk unless Keep is set.
func Run(ctx context.Context, opts Options) (result *Result, err error) {
	d := &demo{opts: opts, started: time.Now(), tally: newTally(time.Now), screen: newScreen(opts.Screen), status: &statusLine{broker: "runs"}}
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil {
			result, err = nil, interrupted(cause)
		}
	}()
	d.say("starting PostgreSQL and a broker")
	if d.stack, err = startStack(ctx, opts); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.stack.stop()) }()
	d.say("%s and %s run", d.stack.postgresName(), d.stack.broker)
	d.say("configuration and log are in %s", d.stack.root)
	return d.run(ctx)
}

// interrupted is the error of a demo that was told to end before its verdict.
func interrupted(cause error) error {
	return &operr.Error{
		Class: operr.DrainIncomplete, Op: "demo", Subject: "was ended before its verdict", Err: cause,
		Hint: "postrider demo once more; --duration makes it shorter",
	}
}

// run does everything between the start of the servers and their end.
func (d *demo) run(ctx context.Context) (*Result, error) {
	w, err := d.prepare(ctx)
	if err != nil {
		return nil, err
	}
	defer w.stop()
	defer d.relay.kill()
	if err := d.show(ctx, w); err != nil {
		return nil, err
	}
	result, err := d.judge(ctx, w)
	if err != nil {
		return nil, err
	}
	result.Seconds = time.Since(d.started).Round(100 * time.Millisecond).Seconds()
	return result, nil
}

// prepare makes tables, topics, publication and slot, and puts the witness in place.
func (d *demo) prepare(ctx context.Context) (*witness, error) {
	if err := d.stack.createShop(ctx); err != nil {
		return nil, &operr.Error{Class: operr.Postgres, Op: "create", Subject: "the shop's tables", Err: err}
	}
	if err := d.stack.createTopics(ctx); err != nil {
		return nil, &operr.Error{Class: operr.Kafka, Op: "create", Subject: "the topics", Err: err}
	}
	config, err := d.stack.writeConfig()
	if err != nil {
		return nil, err
	}
	steps, err := setUp(ctx, d.opts.Binary, config)
	if err != nil {
		return nil, err
	}
	d.say("postrider setup: %s", steps)
	w, err := newWitness(ctx, d.stack)
	if err != nil {
		return nil, err
	}
	d.relay = newChild(d.opts.Binary, config, d.stack.root)
	d.slot = newSlotWatch(d.stack.dsn())
	return w, nil
}

// show runs the script while shop, consumer and screen are at work.
func (d *demo) show(ctx context.Context, w *witness) error {
	ctx, cancel := context.WithCancelCause(ctx)
	crew := &crew{fail: cancel}
	// The order at the end: nobody works any more, then the block is left as it stands.
	defer d.screen.close()
	defer crew.wait()
	defer cancel(nil)
	if err := d.startRelay(); err != nil {
		return err
	}
	crew.join(func() error { return consume(ctx, d.stack.broker, d.tally) })
	crew.join(func() error { return d.slot.run(ctx) })
	crew.join(func() error { return d.draw(ctx) })
	if err := d.play(ctx, crew, w); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return nil
}

// say puts a milestone on the screen.
func (d *demo) say(format string, args ...any) { d.screen.say(fmt.Sprintf(format, args...)) }
