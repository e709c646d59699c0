package publisher

import (
	"context"
	"errors"

	"github.com/postrider/postrider/event"
)

// Stats is a snapshot for status pages and tests.
type Stats struct {
	// PendingEvents were appended and are neither acknowledged nor refused; StuckEvents of them stand
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

// Publisher publishes messages in order per partition.
type Publisher struct{ fatal chan error }

var errNotBuilt = errors.New("publisher: under construction")

// New checks the configuration. It does no I/O.
func New(cfg Config) (*Publisher, error) { return &Publisher{}, cfg.Validate() }

// Probe connects, authenticates and looks the topics up once, and says what is truly wrong.
func (p *Publisher) Probe(ctx context.Context, topics []string) error { return errNotBuilt }

// Start begins publishing in the background, until ctx ends or Close.
func (p *Publisher) Start(ctx context.Context) {}

// Append copies msg into its partition's open batch. One goroutine at a time calls it and Flush.
func (p *Publisher) Append(ctx context.Context, msg *event.Message, txn uint64) error {
	return errNotBuilt
}

// Flush is a hint that the input is used up for now: idle partitions send at once.
func (p *Publisher) Flush() {}

// Freeze lets no new request start, retries included, until Thaw (trap 20). Answers still count.
func (p *Publisher) Freeze() {}

// Thaw ends a Freeze.
func (p *Publisher) Thaw() {}

// Fatal delivers the one error after which nothing is sent any more.
func (p *Publisher) Fatal() <-chan error { return p.fatal }

// Drain returns when nothing is left that may still be sent, or with a *DrainError.
func (p *Publisher) Drain(ctx context.Context) error { return errNotBuilt }

// Close stops everything and waits for all goroutines.
func (p *Publisher) Close() error { return nil }

// Stats is a snapshot.
func (p *Publisher) Stats() Stats { return Stats{} }
