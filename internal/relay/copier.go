package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/publisher"
)

const (
	// copyBatch events, and copyBatchBytes of values, are copied at once: what a crash repeats.
	copyBatch      = 100
	copyBatchBytes = 1 << 20
	// copyWindow is the copies' own, for each topic that has some to send.
	copyWindow = 2 << 20
	// copyPatience is after how long an unanswered copy counts as failed; it is waited for still.
	copyPatience = 10 * time.Second
	// copyGrace bounds how long the end of a run waits for copies.
	copyGrace = 2 * time.Second
)

// copier sends copies of parked events to one dead-letter topic, from the store, behind
// the rows' backs: they are durable already. It has a publisher of its own, so that a
// topic that is missing or forbidden holds up nothing but its copies.
type copier struct {
	link  *link
	gen   *generation
	topic string
	wake  <-chan struct{}

	// sending ends with the link, and copyGrace after stop.
	sending  context.Context
	cut      context.CancelFunc
	stopping chan struct{}
	done     chan struct{} // closed when run has returned
}

func newCopiers(l *link) (copiers []*copier) {
	for topic, wake := range l.gen.park.copies {
		c := &copier{link: l, gen: l.gen, topic: topic, wake: wake, stopping: make(chan struct{}), done: make(chan struct{})}
		c.sending, c.cut = context.WithCancel(l.ctx)
		copiers = append(copiers, c)
	}
	return copiers
}

// stopCopiers gives what is to be sent still a moment. Nothing depends on it: what is
// left is sent by the next run.
func (l *link) stopCopiers() {
	for _, c := range l.copiers {
		close(c.stopping)
		time.AfterFunc(copyGrace, c.cut)
	}
	for _, c := range l.copiers {
		<-c.done
	}
}

func (c *copier) run(ctx context.Context) error {
	defer close(c.done)
	defer c.cut()
	poll := time.NewTicker(c.gen.cfg.Timers.Watch)
	defer poll.Stop()
	pause := backoff{lo: c.gen.cfg.Timers.BackoffMin, hi: c.gen.cfg.Timers.BackoffMax}
	for failures := 0; ctx.Err() == nil; {
		err := c.copyAll()
		if c.sending.Err() != nil {
			return nil // what was not noted is sent again
		}
		if err != nil {
			if err := c.link.tolerateStore(ctx, err, &failures, "copies of parked events cannot be sent now"); err != nil {
				return err
			}
			_ = pause.wait(c.sending)
			continue
		}
		failures = 0
		pause.reset()
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-poll.C:
		case <-c.stopping:
			_ = c.copyAll() // the last look
			return nil
		}
	}
	return nil
}

// copyAll sends what is to be sent.
func (c *copier) copyAll() error {
	events, err := c.next()
	if err != nil || len(events) == 0 {
		return err
	}
	sender, err := c.newSender()
	if err != nil {
		return err
	}
	defer sender.publisher.Close() //nolint:errcheck // what is unanswered is sent again
	for err == nil && len(events) > 0 {
		sent, lost, failed := sender.send(c.sending, events)
		if err = c.note(sent, lost); err == nil {
			err = failed
		}
		if err == nil {
			events, err = c.next()
		}
	}
	return err
}

func (c *copier) next() (events []*parking.Event, err error) {
	if c.link.attend.paused.Load() {
		return nil, nil // looked for again when that is over
	}
	err = c.link.parking.do(c.sending, func(store *parking.Store) (err error) {
		events, err = store.Copies(c.sending, c.topic, copyBatch, copyBatchBytes)
		return err
	})
	return events, err
}

func (c *copier) note(sent []int64, lost []parking.LostCopy) error {
	if len(sent)+len(lost) == 0 {
		return nil
	}
	err := c.link.parking.do(c.link.ctx, func(store *parking.Store) error { return store.Copied(c.link.ctx, sent, lost) })
	if err != nil {
		return err
	}
	c.gen.metrics.deadLetters.WithLabelValues("sent").Add(float64(len(sent)))
	c.gen.metrics.deadLetters.WithLabelValues("given_up").Add(float64(len(lost)))
	for _, l := range lost {
		c.gen.log.Error().Int64("parked", l.ID).Str("topic", c.topic).Str("detail", l.Error).Msg("the copy of a parked event is given up")
	}
	return nil
}

// copySender is a publisher of copies and what became of them.
type copySender struct {
	copier    *copier
	publisher *publisher.Publisher

	mu      sync.Mutex
	acked   []int64
	refused map[int64]string
}

func (c *copier) newSender() (*copySender, error) {
	s := &copySender{copier: c, refused: map[int64]string{}}
	cfg := c.gen.cfg.Kafka
	cfg.Log, cfg.Registerer, cfg.Window = c.gen.log, nil, copyWindow
	cfg.OnAck, cfg.OnRefused = s.acknowledged, s.refuse
	var err error
	if s.publisher, err = publisher.New(cfg); err != nil {
		return nil, configError(err)
	}
	s.publisher.Start(c.sending)
	return s, nil
}

func (s *copySender) acknowledged(runs []publisher.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range runs {
		s.acked = append(s.acked, int64(r.Txn&^publisher.Injected))
	}
}

func (s *copySender) refuse(r *publisher.Refused) publisher.Disposal {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[int64(r.Txn&^publisher.Injected)] = fmt.Sprintf("%s: %s", r.Refusal.Reason, r.Refusal.Detail)
	return publisher.Taken
}

// send copies events, those that are refused once more without their values. An error
// says that some have no answer.
func (s *copySender) send(ctx context.Context, events []*parking.Event) (sent []int64, lost []parking.LostCopy, err error) {
	err = s.pass(ctx, events, false)
	sent, refused := s.take()
	if err != nil {
		return sent, nil, err // what was refused is tried again with the rest
	}
	var again []*parking.Event
	for _, e := range events {
		if detail, ok := refused[e.ID]; ok && e.Message.Value == nil {
			lost = append(lost, parking.LostCopy{ID: e.ID, Error: detail})
		} else if ok {
			again = append(again, e)
		}
	}
	err = s.pass(ctx, again, true)
	more, refused := s.take()
	for id, detail := range refused {
		lost = append(lost, parking.LostCopy{ID: id, Error: detail})
	}
	return append(sent, more...), lost, err
}

// take gives what was answered since it was asked last.
func (s *copySender) take() (acked []int64, refused map[int64]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	acked, refused = s.acked, s.refused
	s.acked, s.refused = nil, map[int64]string{}
	return acked, refused
}

// pass hands copies over and waits for the last answer.
func (s *copySender) pass(ctx context.Context, events []*parking.Event, bare bool) error {
	for _, e := range events {
		msg := copyOf(e, s.copier.topic, bare)
		if err := s.inject(ctx, msg, publisher.Injected|uint64(e.ID)); err != nil {
			return err
		}
	}
	return s.await(ctx, s.publisher.Drain)
}

func (s *copySender) inject(ctx context.Context, msg *event.Message, txn uint64) error {
	return s.await(ctx, func(ctx context.Context) error { return s.publisher.Inject(ctx, msg, txn) })
}

// await repeats a step until it is done, and says and counts it where that takes long.
func (s *copySender) await(ctx context.Context, step func(context.Context) error) error {
	for {
		slice, cancel := context.WithTimeout(ctx, copyPatience)
		err := step(slice)
		late := slice.Err() != nil
		cancel()
		if err == nil {
			return nil
		}
		select {
		case fatal := <-s.publisher.Fatal():
			s.failed(fatal)
			return fatal
		default:
		}
		if ctx.Err() != nil || !late {
			return errors.Join(context.Cause(ctx), err)
		}
		s.failed(err)
	}
}

func (s *copySender) failed(err error) {
	s.copier.gen.metrics.deadLetters.WithLabelValues("failed").Inc()
	s.copier.gen.log.Warn().Err(err).Str("topic", s.copier.topic).Msg("copies of parked events wait; the events themselves are safe in postrider.parked")
}

// The headers of a copy, before those of the event.
const (
	headerReason       = "postrider-reason"
	headerTopic        = "postrider-original-topic"
	headerPosition     = "postrider-position"
	headerValueOmitted = "postrider-value-omitted"
)

// copyOf is the copy of a parked event. What the router refused has no record yet: its
// value is not known. The time is the present one: the event's own may be what was refused.
func copyOf(e *parking.Event, topic string, bare bool) *event.Message {
	msg := e.Message
	add := func(name, value string) {
		msg.Headers = append(msg.Headers, event.Header{Name: name, Value: []byte(value)})
	}
	msg.Headers = nil
	add(headerReason, string(e.Reason))
	if e.Message.Topic != "" {
		add(headerTopic, e.Message.Topic)
	}
	add(headerPosition, fmt.Sprintf("%s/%d", e.Message.Position.Commit, e.Message.Position.Index))
	if bare || e.Row != nil {
		msg.Value = nil
		add(headerValueOmitted, "true")
	}
	msg.Headers = append(msg.Headers, e.Message.Headers...)
	msg.Topic, msg.Partition, msg.TimestampMillis = topic, event.NoPartition, time.Now().UnixMilli()
	return &msg
}
