package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/segmentio/kafka-go"

	"github.com/postrider/postrider/internal/brokers"
	"github.com/postrider/postrider/internal/operr"
)

var errClosed = errors.New("publisher is closed")

const (
	// unflushedMost is how long events may sit in open batches where Flush is
	// forgotten: wakes are hints, so a ticker stands behind them.
	unflushedMost = 50 * time.Millisecond
	logEvery      = 10 * time.Second
)

// Publisher publishes messages in order per partition. Append and Flush belong
// to one goroutine; everything else may be called from any.
type Publisher struct {
	cfg       Config
	log       zerolog.Logger
	metrics   *metrics
	alarmed   *alarms
	transport *brokers.Transport
	control   *brokers.Control
	session   session
	window    *window
	gate      gate
	// endOffset is readEndOffset; tests of lanes without a network put a log of their own there.
	endOffset func(ctx context.Context, l *lane, leader int32) (int64, error)

	// Owned by the goroutine that appends.
	byName map[string]*topic
	last   *topic
	credit int64 // bytes of the window reserved and not used yet
	dirty  []*lane

	topicsMu sync.Mutex
	topics   []*topic

	sendersMu sync.RWMutex
	senders   map[int32]*sender

	pending, stuck, lanes, stopped                  atomic.Int64
	requests, ackedEvents, ackedBatches, duplicates atomic.Int64

	metadataWanted chan struct{}
	unflushed      chan struct{}
	progress       chan struct{}
	fatal          chan error
	failed         atomic.Bool
	controlAuth    grace // owned by the metadata loop

	laneLog, brokerLog, metadataLog logPace

	lifeMu  sync.Mutex
	ctx     context.Context
	cancel  context.CancelFunc
	started bool
	closed  bool
	workers sync.WaitGroup
}

// New checks the configuration and registers the metrics. It does no I/O.
func New(cfg Config) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, &operr.Error{Class: operr.Config, Op: "configure", Subject: "kafka", Err: err}
	}
	cfg = cfg.withDefaults()
	p := &Publisher{
		cfg: cfg, log: cfg.Log,
		window: newWindow(cfg.Window),
		byName: map[string]*topic{}, senders: map[int32]*sender{},
		metadataWanted: make(chan struct{}, 1), unflushed: make(chan struct{}, 1),
		progress: make(chan struct{}, 1), fatal: make(chan error, 1),
		laneLog: logPace{every: logEvery}, brokerLog: logPace{every: logEvery}, metadataLog: logPace{every: logEvery},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.metrics = newMetrics(p)
	p.alarmed = &alarms{metrics: p.metrics, raised: map[alarmKind]map[string]struct{}{}}
	connection, err := cfg.Connection()
	if err != nil {
		return nil, err
	}
	connection.OnConnections = func(change int) { p.metrics.connections.Add(float64(change)) }
	p.transport = brokers.NewTransport(connection)
	p.control = brokers.NewControl(p.transport)
	p.endOffset = p.readEndOffset
	if err := p.metrics.register(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return p, nil
}

// Probe connects, authenticates, looks the topics up and asks for a producer id,
// once, and says what is truly wrong. A topic that does not exist is no error: its
// events will wait for it.
func (p *Publisher) Probe(ctx context.Context, topics []string) error {
	res, err := p.fetchMetadata(ctx, topics)
	if err != nil {
		return err
	}
	var problems []error
	for _, t := range res.Topics {
		switch code := kafka.Error(t.ErrorCode); judgeCode(code).verdict {
		case unauthorized, refused:
			problems = append(problems, &operr.Error{
				Class: operr.Kafka, Op: "look up", Subject: "topic " + t.Name, Err: code,
				Hint: "grant the user WRITE and DESCRIBE on the topic",
			})
		}
	}
	if err := p.probeBrokers(ctx); err != nil {
		problems = append(problems, err)
	} else if err := p.probeProducerID(ctx); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// probeBrokers: the addresses that brokers advertise may differ from the bootstrap ones.
func (p *Publisher) probeBrokers(ctx context.Context) error {
	var problems []error
	for _, addr := range p.control.Brokers() {
		conn, err := p.transport.Dial(ctx, addr)
		if err == nil {
			conn.Close()
			return nil
		}
		problems = append(problems, err)
	}
	return &operr.Error{
		Class: operr.Kafka, Op: "reach", Subject: "any broker at its advertised address", Transient: true,
		Hint: "check advertised.listeners of the brokers", Err: errors.Join(problems...),
	}
}

// probeProducerID waits out a coordinator that is still loading.
func (p *Publisher) probeProducerID(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.RequestTimeout)
	defer cancel()
	for n := 1; ; n++ {
		_, _, err := p.session.ensure(ctx, p)
		if err == nil || judgeError(err).verdict == unauthorized {
			return err
		}
		if !sleep(ctx, backoff(n, p.cfg.RetryBackoff, p.cfg.RetryBackoffMax)) {
			return err
		}
	}
}

// Start begins publishing in the background, until ctx ends or Close.
func (p *Publisher) Start(ctx context.Context) {
	p.lifeMu.Lock()
	defer p.lifeMu.Unlock()
	if p.started || p.closed {
		return
	}
	p.started = true
	run := p.ctx
	stop := context.AfterFunc(ctx, p.cancel)
	p.workers.Add(3)
	go func() {
		defer p.workers.Done()
		<-run.Done()
		stop()
		p.transport.CloseAll()
	}()
	go func() {
		defer p.workers.Done()
		p.metadataLoop(run)
	}()
	go func() {
		defer p.workers.Done()
		p.flushLoop(run)
	}()
}

// Close stops everything, whatever is unacknowledged, and waits for all
// goroutines. It may be called twice and without Start.
func (p *Publisher) Close() error {
	p.lifeMu.Lock()
	defer p.lifeMu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.cancel()
	p.transport.CloseAll()
	for _, t := range p.topicList() {
		for _, l := range t.laneList() {
			l.halt()
		}
	}
	p.workers.Wait()
	if r := p.cfg.Registerer; r != nil {
		for _, c := range p.metrics.collectors() {
			r.Unregister(c)
		}
	}
	return nil
}

func (p *Publisher) closing() bool { return p.ctx.Err() != nil }

// Fatal delivers the one error that no retry can heal: rights or credentials
// refused beyond the grace time, acknowledged data lost, a topic recreated, an
// identity that is not ours. The partition concerned has stopped; the others go on,
// so that the caller can drain what may go.
func (p *Publisher) Fatal() <-chan error { return p.fatal }

// fail delivers the first fatal error.
func (p *Publisher) fail(err error) {
	if p.closing() || p.failed.Swap(true) {
		return
	}
	p.alarmed.raise(alarmFatal, "")
	p.log.Error().Err(err).Msg("publishing cannot go on")
	p.fatal <- err
	p.progressed()
}

// progressed wakes Drain; a hint.
func (p *Publisher) progressed() {
	select {
	case p.progress <- struct{}{}:
	default:
	}
}

// topicList is a snapshot.
func (p *Publisher) topicList() []*topic {
	p.topicsMu.Lock()
	defer p.topicsMu.Unlock()
	return p.topics[:len(p.topics):len(p.topics)]
}

// Stats is a snapshot for status pages and tests.
type Stats struct {
	// PendingEvents were appended and are not acknowledged; StuckEvents of them are refused or stand
	// behind a refused record, in a partition that has stopped.
	PendingEvents, StuckEvents int64
	// WindowBytes is the capacity of the buffers in use, of Window.
	WindowBytes, Window int64
	// Lanes is the number of known partitions, StoppedLanes those that stand at a refused record.
	Lanes, StoppedLanes int
	// AwaitedTopics do not exist (yet); their events wait.
	AwaitedTopics []string
	// AckedEvents, AckedBatches, Requests count since Start; AckedEvents/AckedBatches is the mean batch.
	AckedEvents, AckedBatches, Requests int64
	// PossibleDuplicates were sent again after the broker had lost the producer's state.
	PossibleDuplicates int64
}

// Stats is a snapshot.
func (p *Publisher) Stats() Stats {
	s := Stats{
		PendingEvents: p.pending.Load(), StuckEvents: p.stuck.Load(),
		WindowBytes: p.window.inUse(), Window: p.window.size,
		Lanes: int(p.lanes.Load()), StoppedLanes: int(p.stopped.Load()),
		AckedEvents: p.ackedEvents.Load(), AckedBatches: p.ackedBatches.Load(), Requests: p.requests.Load(),
		PossibleDuplicates: p.duplicates.Load(),
	}
	for _, t := range p.topicList() {
		if t.awaited.Load() {
			s.AwaitedTopics = append(s.AwaitedTopics, t.name)
		}
	}
	return s
}
