package publisher

import (
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/postrider/postrider/internal/brokers"
)

// unanswered: the request may have been executed in full, in part or not at all.
// All its lanes send the same bytes again, together.
func (s *sender) unanswered(flights []*flight, err error, idleEnd bool) {
	if s.p.closing() {
		return
	}
	s.mu.Lock()
	if idleEnd {
		s.suspect = time.Now()
	} else if len(flights) > 1 {
		// A request that the broker does not even read (socket.request.max.bytes) must get smaller.
		s.limit /= 2
	}
	s.mu.Unlock()
	if idleEnd {
		s.p.metrics.retries.WithLabelValues("idle_connection").Inc()
	} else {
		s.down(fmt.Errorf("produce: %w", err))
	}
	for _, f := range flights {
		f.batch.uncertain = true
		f.lane.failures++
		f.lane.putBack(brokers.IsTimeout(err))
	}
}

// settle reads every partition's code. A partition that the answer does not
// name is unanswered.
func (s *sender) settle(flights []*flight, res *produce.Response, slow bool) {
	type key struct {
		topic     string
		partition int32
	}
	index := make(map[key]*flight, len(flights))
	for _, f := range flights {
		index[key{f.lane.topic.name, f.lane.partition}] = f
	}
	for i := range res.Topics {
		t := &res.Topics[i]
		for j := range t.Partitions {
			pt := &t.Partitions[j]
			if f := index[key{t.Topic, pt.Partition}]; f != nil && !f.found {
				f.found = true
				s.answer(f, pt, slow && len(flights) == 1)
			}
		}
	}
	for _, f := range flights {
		if !f.found {
			f.batch.uncertain = true
			s.again(f, judgement{verdict: alarming, appended: true}, errNotNamed)
		}
	}
}

var errNotNamed = errors.New("the answer does not name the partition")

// answer acts on one partition's code.
func (s *sender) answer(f *flight, pt *produce.ResponsePartition, slow bool) {
	l, b, code := f.lane, f.batch, kafka.Error(pt.ErrorCode)
	j := judgeCode(code)
	if j.appended {
		b.uncertain = true
	}
	switch j.verdict {
	case acked:
		base := pt.BaseOffset
		if code != 0 {
			base = -1
		}
		s.acknowledge(l, b, base, slow)
	case identityLost:
		l.producer.question = code
		s.again(f, j, code)
	case refused:
		s.refusedBatch(f, j, code, guiltyRecords(pt.RecordErrors))
	case fatal:
		s.p.fail(fatalError(l, code))
		l.stop()
	case unauthorized:
		s.p.alarmed.raise(alarmAuthorization, l.topic.name)
		if l.auth.exceeded(time.Now(), s.p.cfg.AuthorizationGrace) {
			s.p.fail(s.p.authorizationError("publish to", "topic "+l.topic.name, code))
			l.stop()
			return
		}
		s.again(f, j, code)
	case retry, retryLeader, alarming:
		s.again(f, j, code)
	}
}

func guiltyRecords(errs []produce.ResponseError) []int32 {
	var list []int32
	for _, e := range errs {
		list = append(list, e.BatchIndex)
	}
	return list
}

// again sends the same bytes once more after a pause.
func (s *sender) again(f *flight, j judgement, err error) {
	l := f.lane
	l.failures++
	s.p.metrics.retries.WithLabelValues(j.verdict.String()).Inc()
	onLeader := j.verdict == retryLeader
	if onLeader {
		s.p.wantMetadata()
	}
	if j.verdict == alarming {
		s.p.alarmed.raise(alarmUnlisted, l.topic.name)
	}
	if s.p.laneLog.allow() {
		s.p.logLane(s.p.log.Warn(), l).Err(err).Int(keyConsecutive, l.failures).Int("attempts", f.batch.attempts).
			Msg("batch not acknowledged: sent again unchanged")
	}
	alone := j.slow || j.verdict == identityLost || l.producer.question != 0
	l.wait(backoff(l.failures, s.p.cfg.RetryBackoff, s.p.cfg.RetryBackoffMax), s.id, onLeader, alone)
}
