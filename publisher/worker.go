package publisher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"

	"github.com/postrider/postrider/internal/brokers"
)

// worker is one connection to the broker.
type worker struct {
	s    *sender
	conn *brokers.Conn
	// fresh: the connection was made for the request that follows. An older one may have been closed
	// by the broker for being idle, which is no sign of trouble.
	fresh bool
}

// flight is a lane's batch in a request.
type flight struct {
	lane  *lane
	batch *batch
	found bool // the answer names it
}

// work is a worker's life.
func (s *sender) work(ctx context.Context) {
	w := &worker{s: s}
	defer w.hangUp()
	for {
		if !s.await(ctx) {
			return
		}
		for s.pending() && s.p.gate.open() {
			if !s.pause(ctx) {
				return
			}
			if !w.connect(ctx) {
				continue
			}
			// Connecting takes its time: the broker may have asked for a pause meanwhile.
			if !s.pause(ctx) {
				return
			}
			// The producer id and the gate come last: what follows is sent.
			if !s.identify(ctx) {
				continue
			}
			flights, alone := s.collect(ctx)
			if s.pending() {
				s.notify() // more than fits one request: for another worker
			}
			if s.enlist(ctx, flights) {
				w.exchange(flights)
			}
			s.land(alone)
		}
	}
}

// await waits for a token while nothing is ready, or while sending is frozen.
func (s *sender) await(ctx context.Context) bool {
	if thawed := s.p.gate.closed(); thawed != nil {
		select {
		case <-thawed:
			return true
		case <-ctx.Done():
			return false
		}
	}
	select {
	case <-s.wake:
		return true
	case <-ctx.Done():
		return false
	}
}

// connect makes sure of a connection. While the broker is down one worker tries
// and the others wait for its result; lanes stay queued and lose no attempt.
func (w *worker) connect(ctx context.Context) bool {
	if w.conn != nil && w.conn.Stale(time.Now(), w.s.suspectTime()) {
		w.hangUp()
	}
	if w.fresh = w.conn == nil; !w.fresh {
		return true
	}
	s := w.s
	s.dialing.Lock()
	defer s.dialing.Unlock()
	s.mu.Lock()
	early := time.Now().Before(s.notBefore)
	addr := s.addr
	s.mu.Unlock()
	if early {
		return false
	}
	conn, err := s.p.transport.Dial(ctx, addr)
	if err != nil {
		if ctx.Err() == nil {
			s.down(err)
		}
		return false
	}
	w.conn = conn
	s.mu.Lock()
	s.auth.clear()
	s.mu.Unlock()
	return true
}

func (s *sender) suspectTime() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspect
}

func (w *worker) hangUp() {
	if w.conn != nil {
		w.conn.Close()
		w.conn = nil
	}
}

// enlist adds the partitions to the transaction where there is one (RULES 16),
// and says whether there is something to send.
func (s *sender) enlist(ctx context.Context, flights []*flight) bool {
	add := s.p.session.enlist
	if add == nil || len(flights) == 0 {
		return len(flights) > 0
	}
	lanes := make([]*lane, len(flights))
	for i, f := range flights {
		lanes[i] = f.lane
	}
	err := add(ctx, lanes)
	if err != nil {
		s.down(fmt.Errorf("add partitions to the transaction: %w", err))
		for _, f := range flights {
			f.lane.putBack(false)
		}
	}
	return err == nil
}

// exchange sends one request and deals with its answer, partition by partition.
func (w *worker) exchange(flights []*flight) {
	s, p := w.s, w.s.p
	if !p.gate.open() {
		for _, f := range flights {
			f.lane.putBack(false)
		}
		return
	}
	now := time.Now()
	for _, f := range flights {
		if f.batch.attempts++; f.batch.attempts == 1 {
			f.batch.firstTry = now
		}
	}
	p.requests.Add(1)
	p.metrics.requests.Inc()
	msg, err := w.conn.RoundTrip(now.Add(p.cfg.ProduceTimeout+p.cfg.RequestTimeout), s.request(flights))
	took := time.Since(now)
	if err != nil {
		w.hangUp()
		s.unanswered(flights, err, !w.fresh && hungUp(err))
		return
	}
	p.metrics.requestSeconds.Observe(took.Seconds())
	res := msg.(*produce.Response)
	s.up(time.Duration(res.ThrottleTimeMs) * time.Millisecond)
	s.settle(flights, res, took > slowAnswer)
}

// hungUp: an idle connection that the broker had closed says so at the next request.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// request puts the flights into one Produce request, each with a reader of its own.
func (s *sender) request(flights []*flight) *rawproduce.Request {
	req := &rawproduce.Request{
		TransactionalID: s.p.session.transactionalID,
		Acks:            acksAll,
		Timeout:         int32(s.p.cfg.ProduceTimeout.Milliseconds()),
	}
	index := make(map[*topic]int, 1)
	for _, f := range flights {
		t := f.lane.topic
		i, ok := index[t]
		if !ok {
			i = len(req.Topics)
			index[t] = i
			req.Topics = append(req.Topics, rawproduce.RequestTopic{Topic: t.name})
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rawproduce.RequestPartition{
			Partition: f.lane.partition,
			RecordSet: protocol.RawRecordSet{Reader: f.batch.reader()},
		})
	}
	return req
}
