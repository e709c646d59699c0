package publisher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
	"github.com/segmentio/kafka-go/protocol/listoffsets"

	"github.com/postrider/postrider/internal/operr"
)

// session is what all lanes of one run share: the producer id, and the hooks
// that a transactional session will fill in (RULES 16). An idempotent session has
// no transactional id, no attributes and nothing to enlist.
type session struct {
	transactionalID string
	// enlist must succeed for every partition before its first batch of a
	// transaction is sent (AddPartitionsToTxn). nil outside transactions.
	enlist func(ctx context.Context, lanes []*lane) error

	mu         sync.Mutex // held while the id is asked for: one asks, the others wait
	producerID int64
	epoch      int16
	known      bool
}

const transactionalAttribute = 1 << 4

// attributes are those of each new batch, compression aside.
func (s *session) attributes() int16 {
	if s.transactionalID != "" {
		return transactionalAttribute
	}
	return 0
}

// ensure gives the producer id, asking for it the first time.
func (s *session) ensure(ctx context.Context, p *Publisher) (int64, int16, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known {
		return s.producerID, s.epoch, nil
	}
	id, epoch, err := p.initProducerID(ctx, s.transactionalID)
	if err != nil {
		return 0, 0, err
	}
	s.producerID, s.epoch, s.known = id, epoch, true
	return id, epoch, nil
}

// initProducerID asks any broker for a fresh id. On a young cluster the answer
// may be 14 or 15 for a while.
func (p *Publisher) initProducerID(ctx context.Context, transactionalID string) (int64, int16, error) {
	msg, err := p.control.Ask(ctx, &initproducerid.Request{
		TransactionalID: transactionalID, TransactionTimeoutMs: 60_000, ProducerID: -1, ProducerEpoch: -1,
	})
	if err != nil {
		return 0, 0, fmt.Errorf("ask for a producer id: %w", err)
	}
	res := msg.(*initproducerid.Response)
	if code := kafka.Error(res.ErrorCode); code != 0 {
		return 0, 0, &operr.Error{
			Class: operr.Kafka, Op: "ask for a producer id", Err: code,
			Hint:      "grant the user IDEMPOTENT_WRITE on the cluster, or WRITE on the topics with Kafka 2.8 and later",
			Transient: judgeCode(code).verdict != unauthorized,
		}
	}
	return res.ProducerID, res.ProducerEpoch, nil
}

// producerState is a lane's side of the broker's producer state (rule 15).
type producerState struct {
	// identity.sequence is that of the next batch; producerID -1: not assigned yet.
	identity identity
	// ackedEnd is the offset after the last acknowledged record, or a lower bound of it; -1: none yet.
	ackedEnd int64
	// question is the code that asks for the end offset before anything is sent again; 0: none.
	question kafka.Error
	// sizeDoubt: a refused batch may have been appended by an earlier attempt; the end offset tells.
	sizeDoubt bool
}

// advance moves the sequence past a batch. After 2^31-1 comes 0.
func (s *producerState) advance(count int32) {
	s.identity.sequence = int32((int64(s.identity.sequence) + int64(count)) & math.MaxInt32)
}

// acknowledge notes an acknowledged batch. It says whether the log was reset: a
// broker without state for the id accepts any sequence, so a base offset that does
// not rise is the only sign that the topic was recreated. base is -1 where the
// broker did not name it (46).
func (s *producerState) acknowledge(base int64, count int32) (reset bool) {
	s.advance(count)
	switch {
	case base < 0:
		if s.ackedEnd >= 0 {
			s.ackedEnd += int64(count)
		}
		return false
	case base < s.ackedEnd:
		reset = true
	}
	s.ackedEnd = base + int64(count)
	return reset
}

// AcknowledgedLostError says that the cluster lost records that it had
// acknowledged, as after an unclean leader election, or when the topic was deleted
// and made anew.
type AcknowledgedLostError struct {
	Topic     string
	Partition int32
	// Acknowledged is the last acknowledged offset, End the log's end now: offsets
	// from End to Acknowledged are gone.
	Acknowledged, End int64
}

func (e *AcknowledgedLostError) Error() string {
	return fmt.Sprintf("topic %s partition %d: acknowledged up to offset %d, but the log ends before offset %d: offsets %d to %d are lost",
		e.Topic, e.Partition, e.Acknowledged, e.End, e.End, e.Acknowledged)
}

// LogResetError says that a topic was recreated while it was being written to.
type LogResetError struct {
	Topic     string
	Partition int32
	// Acknowledged is the last offset acknowledged before, Base the offset of the batch after it; both
	// -1 where the partition count fell.
	Acknowledged, Base int64
	// Partitions is the count now, where it fell from Before.
	Before, Partitions int32
}

func (e *LogResetError) Error() string {
	if e.Before > 0 {
		return fmt.Sprintf("topic %s was recreated: it has %d partitions, had %d", e.Topic, e.Partitions, e.Before)
	}
	return fmt.Sprintf("topic %s was recreated: partition %d acknowledged offset %d after offset %d",
		e.Topic, e.Partition, e.Base, e.Acknowledged)
}

// answerQuestion settles an identity error by rule 15: never simply a new id.
// The partition's end offset tells whether acknowledged data is gone. If not, the
// epoch rises on our side, for this lane only, under the same id: late copies of
// the old epoch are then refused, where under a new id they could land after newer
// records.
func (p *Publisher) answerQuestion(ctx context.Context, l *lane, via int32) error {
	end, err := p.endOffset(ctx, l, via)
	if err != nil {
		return err
	}
	s := &l.producer
	if s.sizeDoubt {
		return p.answerDoubt(l, end)
	}
	if s.ackedEnd >= 0 && end < s.ackedEnd {
		return &operr.Error{
			Class: operr.Kafka, Op: "publish to", Subject: fmt.Sprintf("topic %s partition %d", l.topic.name, l.partition),
			Hint: "publish the lost events again with `postrider replay`; set unclean.leader.election.enable=false; was the topic recreated?",
			Err:  &AcknowledgedLostError{Topic: l.topic.name, Partition: l.partition, Acknowledged: s.ackedEnd - 1, End: end},
		}
	}
	if s.identity.epoch == math.MaxInt16 {
		id, epoch, err := p.initProducerID(ctx, p.session.transactionalID)
		if err != nil {
			return err
		}
		s.identity = identity{producerID: id, epoch: epoch}
	} else {
		s.identity.epoch++
		s.identity.sequence = 0
	}
	p.metrics.epochBumps.Inc()
	b := l.flight
	if b.uncertain {
		p.possibleDuplicates(b)
	}
	p.logLane(p.log.Warn(), l).Int("code", int(s.question)).Int64("end_offset", end).Int64("acknowledged_end", s.ackedEnd).
		Bool("possible_duplicate", b.uncertain).Msg("broker lost the producer's state: epoch raised")
	b.headed, b.uncertain = false, false
	s.question = 0
	return nil
}

// answerDoubt settles a batch that was refused after an unanswered attempt: where
// the log ends at the last acknowledged record, nothing of it was appended.
func (p *Publisher) answerDoubt(l *lane, end int64) error {
	s := &l.producer
	s.sizeDoubt, s.question = false, 0
	if s.ackedEnd >= 0 && end == s.ackedEnd {
		l.flight.uncertain = false
		return nil
	}
	// It may be in the log: the same bytes again, until the limit is raised or somebody looks.
	p.alarmed.raise(alarmUndecided, l.topic.name)
	if p.laneLog.allow() {
		p.logLane(p.log.Error(), l).Int64("end_offset", end).Int64("acknowledged_end", s.ackedEnd).
			Msg("a refused batch may have been appended by an unanswered attempt: not split, sent again unchanged")
	}
	return nil
}

// readEndOffset is the end of the lane's partition, by its leader.
func (p *Publisher) readEndOffset(ctx context.Context, l *lane, leader int32) (int64, error) {
	const latest, consumer = -1, -1
	msg, err := p.control.AskBroker(ctx, leader, &listoffsets.Request{
		ReplicaID: consumer,
		Topics: []listoffsets.RequestTopic{{Topic: l.topic.name, Partitions: []listoffsets.RequestPartition{{
			Partition: l.partition, CurrentLeaderEpoch: -1, Timestamp: latest,
		}}}},
	})
	if err != nil {
		return 0, fmt.Errorf("read end offset: %w", err)
	}
	for _, t := range msg.(*listoffsets.Response).Topics {
		for _, r := range t.Partitions {
			if t.Topic != l.topic.name || r.Partition != l.partition {
				continue
			}
			if r.ErrorCode != 0 {
				return 0, fmt.Errorf("read end offset: %w", kafka.Error(r.ErrorCode))
			}
			return r.Offset, nil
		}
	}
	return 0, errors.New("read end offset: the answer lacks the partition")
}
