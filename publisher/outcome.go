package publisher

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// prepare makes a taken lane's batch ready to send: it answers an open question
// (rule 15), compresses, judges the size, and writes the header. It gives nil where
// the lane is not to be sent now; the lane has then been dealt with. What asks the
// network happens only on a flight of its own (alone).
func (s *sender) prepare(ctx context.Context, l *lane, alone bool) *flight {
	if l.producer.question != 0 {
		if !alone {
			l.putBack(true)
			return nil
		}
		if err := s.p.answerQuestion(ctx, l, s.id); err != nil {
			s.questionFailed(l, err)
			return nil
		}
	}
	if l.topic.holding.Load() && !l.flight.headed && !s.sift(l) {
		return nil
	}
	for !l.flight.headed {
		s.compress(l)
		if done := s.judgeSize(ctx, l, alone); done {
			return nil
		}
		if l.flight.headed || !l.flight.fits(l.topic) {
			continue
		}
		if l.producer.identity.producerID < 0 {
			id, epoch, err := s.p.session.ensure(ctx, s.p)
			if err != nil {
				l.putBack(false)
				return nil
			}
			l.producer.identity = identity{producerID: id, epoch: epoch}
		}
		l.flight.head(l.producer.identity)
	}
	return &flight{lane: l, batch: l.flight}
}

// questionFailed: acknowledged data is lost, or the end offset is not to be had now.
func (s *sender) questionFailed(l *lane, err error) {
	var lost *AcknowledgedLostError
	if errors.As(err, &lost) {
		s.p.fail(err)
		l.stop()
		return
	}
	j := judgeError(err)
	if j.verdict == refused || j.verdict == acked {
		j.verdict = alarming // the question has no record that could be refused
	}
	s.again(&flight{lane: l, batch: l.flight}, j, err)
}

// compress replaces the records by their compressed form, once.
func (s *sender) compress(l *lane) {
	b := l.flight
	if b.compressed || s.p.cfg.Compression == NoCompression {
		return
	}
	if err := b.compressBatch(s.p.cfg.Compression); err != nil {
		b.compressed = true // it goes as it is
		s.p.logLane(s.p.log.Error(), l).Err(err).Msg("batch is sent uncompressed")
	}
	s.p.reserveAgain(b)
}

// fits says that the broker will not refuse the batch for its size, as far as is
// known. Where the limit could not be read, the broker judges a single record.
func (b *batch) fits(t *topic) bool {
	size := b.wireSize()
	return size <= int(t.limit.Load()) || b.count == 1 && !t.exact.Load() && size <= maxRequestBytes
}

// judgeSize splits a batch that the topic does not take, and refuses a record
// that it does not take alone. The limit is read again before: it may have been
// raised. done says that the lane is not to be sent now.
func (s *sender) judgeSize(ctx context.Context, l *lane, alone bool) (done bool) {
	b, t := l.flight, l.topic
	switch {
	case b.fits(t):
		return false
	case b.count > 1:
		return !s.split(l, b.count/2)
	case !alone:
		l.putBack(true)
		return true
	}
	if err := s.p.readLimits(ctx, []*topic{t}); err != nil {
		s.again(&flight{lane: l, batch: b}, judgement{verdict: retry}, err)
		return true
	}
	if b.fits(t) {
		return false
	}
	s.refuse(l, event.ReasonTooLarge, fmt.Sprintf("a batch of %d bytes with this record alone is above max.message.bytes %d", b.wireSize(), t.limit.Load()))
	return true
}

// split replaces the flight by two parts. It says no where it cannot, which
// would be a fault of our own.
func (s *sender) split(l *lane, at int32) bool {
	b := l.flight
	first, rest, err := b.split(at)
	if err != nil {
		s.p.fail(&operr.Error{Class: operr.Internal, Op: "split batch for", Subject: "topic " + l.topic.name, Err: err})
		l.stop()
		return false
	}
	s.p.window.adjust(int64(first.reserved + rest.reserved - b.reserved))
	l.replace(first, rest)
	b.recycle()
	return true
}

// refusedBatch looks for the record that makes the broker refuse the batch.
func (s *sender) refusedBatch(f *flight, j judgement, code kafka.Error, guilty []int32) {
	l, b := f.lane, f.batch
	if b.uncertain {
		// The check that failed comes before the check for duplicates (rule 14).
		l.producer.question, l.producer.sizeDoubt = code, true
		s.again(f, j, code)
		return
	}
	if b.count == 1 {
		s.refuse(l, j.reason, code.Error())
		return
	}
	if s.split(l, splitPoint(b.count, guilty)) {
		l.putBack(false)
	}
}

// acknowledge ends a batch that all in-sync replicas have.
func (s *sender) acknowledge(l *lane, b *batch, base int64, slow bool) {
	p, count := s.p, int64(b.count)
	before := l.producer.ackedEnd
	reset := l.producer.acknowledge(base, b.count)
	if b.uncertain && before >= 0 && base > before {
		// Records stand between the last acknowledged one and this repeat: another writer's, or an
		// earlier attempt that a broker without producer state did not recognise (rule 15).
		p.possibleDuplicates(b)
	}
	p.cfg.OnAck(b.runs)
	if p.cfg.OnDelivered != nil {
		p.cfg.OnDelivered(l.deliver(b, base))
	}
	l.topic.acked.Add(float64(count))
	p.metrics.batches.Inc()
	p.metrics.batchEvents.Observe(float64(count))
	p.metrics.batchBytes.Observe(float64(b.wireSize()))
	p.ackedEvents.Add(count)
	p.ackedBatches.Add(1)
	if l.failures > 0 {
		p.alarmed.clear(alarmAuthorization, l.topic.name)
		p.alarmed.clear(alarmUnlisted, l.topic.name)
		p.alarmed.clear(alarmUndecided, l.topic.name)
	}
	if reset {
		p.logReset(l, before-1, base)
	}
	if next := l.settle(slow); next != s {
		next.notify()
	}
	p.window.adjust(-int64(b.reserved))
	b.recycle()
	p.pending.Add(-count)
	if l.topic.barrier.Load() && l.topic.drained() {
		p.wantMetadata()
	}
	p.progressed()
}

// possibleDuplicates counts a batch that may be in the log twice.
func (p *Publisher) possibleDuplicates(b *batch) {
	p.duplicates.Add(int64(b.count))
	p.metrics.duplicates.Add(float64(b.count))
}

// logReset reports offsets that fell. What was acknowledged stays acknowledged;
// somebody has to decide about what the old log held.
func (p *Publisher) logReset(l *lane, last, base int64) {
	p.metrics.logResets.Inc()
	p.alarmed.raise(alarmLogReset, l.topic.name)
	p.fail(&operr.Error{
		Class: operr.Kafka, Op: "publish to", Subject: "topic " + l.topic.name,
		Hint: "restart, then publish what the old topic held again with `postrider replay`",
		Err:  &LogResetError{Topic: l.topic.name, Partition: l.partition, Acknowledged: last, Base: base},
	})
}

func fatalError(l *lane, code kafka.Error) error {
	e := &operr.Error{
		Class: operr.Kafka, Op: "publish to", Subject: fmt.Sprintf("topic %s partition %d", l.topic.name, l.partition), Err: code,
		Hint: "look for another instance that publishes with the same identity",
	}
	if code == kafka.UnsupportedCompressionType || code == kafka.UnsupportedForMessageFormat {
		e.Hint = "choose another compression, or raise the cluster's message format"
	}
	return e
}
