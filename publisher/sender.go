package publisher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

const (
	// slowAnswer: a partition whose answer took longer travels alone next time.
	slowAnswer = time.Second
	acksAll    = -1
)

// sender sends to one broker. It has MaxInFlight workers with a connection
// each, since a broker works off the requests of one connection strictly one after
// the other. A worker takes all lanes that are ready into one request; slow ones
// go alone, and always leave a worker to the rest (rule 14).
type sender struct {
	p  *Publisher
	id int32

	// wake holds a token for each worker that may find something to do.
	wake chan struct{}
	// dialing is held by the one worker that tries to connect while the broker is down.
	dialing sync.Mutex

	// mu covers the rest. It is the innermost lock.
	mu          sync.Mutex
	addr        string
	ready       []*lane
	alone       []*lane
	aloneFlying int
	notBefore   time.Time // throttled, or down
	failures    int       // in a row, of the connection
	limit       int       // bytes of a request; shrinks while shared requests kill connections
	suspect     time.Time // connections made before are replaced: the broker closes idle ones
	auth        grace
}

func newSender(p *Publisher, id int32, addr string) *sender {
	return &sender{
		p: p, id: id, addr: addr, limit: p.cfg.MaxRequestBytes,
		wake: make(chan struct{}, p.cfg.MaxInFlight),
	}
}

func (s *sender) start(ctx context.Context) {
	for range s.p.cfg.MaxInFlight {
		s.p.workers.Add(1)
		go func() {
			defer s.p.workers.Done()
			s.work(ctx)
		}()
	}
}

// push queues a lane; its mu is held. notify follows when all are queued.
func (s *sender) push(l *lane, alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if alone {
		s.alone = append(s.alone, l)
	} else {
		s.ready = append(s.ready, l)
	}
}

// notify wakes a worker, if any sleeps. A nil sender has none.
func (s *sender) notify() {
	if s == nil {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sender) setAddr(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr = addr
}

func (s *sender) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// worker is one connection to the broker.
type worker struct {
	s    *sender
	conn *conn
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

// pending says whether a worker would find something.
func (s *sender) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ready) > 0 || s.mayFlyAlone()
}

// mayFlyAlone: slow lanes never take the last worker. mu is held.
func (s *sender) mayFlyAlone() bool {
	most := max(1, s.p.cfg.MaxInFlight-1)
	return len(s.alone) > 0 && s.aloneFlying < most
}

// pause waits until the broker may be asked again.
func (s *sender) pause(ctx context.Context) bool {
	s.mu.Lock()
	d := time.Until(s.notBefore)
	s.mu.Unlock()
	return ctx.Err() == nil && (d <= 0 || sleep(ctx, d))
}

// connect makes sure of a connection. While the broker is down one worker tries
// and the others wait for its result; lanes stay queued and lose no attempt.
func (w *worker) connect(ctx context.Context) bool {
	if w.conn != nil && w.conn.stale(time.Now(), w.s.suspectTime()) {
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
	conn, err := s.p.transport.dial(ctx, addr)
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
		w.conn.close()
		w.conn = nil
	}
}

// down notes that the broker cannot be reached: back-off, and a look whether
// the partitions have moved.
func (s *sender) down(err error) {
	s.mu.Lock()
	s.failures++
	failures := s.failures
	s.notBefore = time.Now().Add(backoff(failures, s.p.cfg.RetryBackoff, s.p.cfg.RetryBackoffMax))
	s.mu.Unlock()
	s.p.wantMetadata()
	j := judgeError(err)
	s.p.metrics.retries.WithLabelValues(j.verdict.String()).Inc()
	s.p.alarmed.raise(alarmBroker, fmt.Sprint(s.id))
	if s.p.brokerLog.allow() {
		s.p.log.Warn().Err(err).Int32(keyBroker, s.id).Int(keyConsecutive, failures).Msg("broker cannot be used")
	}
	s.p.considerAuthorization(&s.auth, err, "publish")
}

// up notes an answer.
func (s *sender) up(throttle time.Duration) {
	s.mu.Lock()
	was := s.failures
	s.failures = 0
	if throttle > 0 {
		s.notBefore = time.Now().Add(throttle)
	}
	if s.limit < s.p.cfg.MaxRequestBytes {
		s.limit = min(2*s.limit+1, s.p.cfg.MaxRequestBytes)
	}
	s.mu.Unlock()
	if throttle > 0 {
		s.p.metrics.throttled.Add(throttle.Seconds())
	}
	if was > 0 {
		s.p.alarmed.clear(alarmBroker, fmt.Sprint(s.id))
	}
}

// identify makes sure of the producer id.
func (s *sender) identify(ctx context.Context) bool {
	if _, _, err := s.p.session.ensure(ctx, s.p); err != nil {
		if ctx.Err() == nil {
			s.down(err)
		}
		return false
	}
	return true
}

// collect takes lanes for one request: the slow one at the head of its queue, or
// all that are ready and fit. Each is prepared here, on the sender's side.
func (s *sender) collect(ctx context.Context) (flights []*flight, alone bool) {
	if l := s.popAlone(); l != nil {
		if l.take(s) {
			if f := s.prepare(ctx, l, true); f != nil {
				flights = append(flights, f)
			}
		}
		return flights, true
	}
	size := 0
	for {
		l := s.popReady(size)
		if l == nil {
			return flights, false
		}
		if !l.take(s) {
			continue
		}
		if f := s.prepare(ctx, l, false); f != nil {
			size += f.batch.wireSize()
			flights = append(flights, f)
		}
	}
}

func (s *sender) popAlone() *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mayFlyAlone() {
		return nil
	}
	l := s.alone[0]
	s.alone = s.alone[1:]
	s.aloneFlying++
	return l
}

// land ends what popAlone began.
func (s *sender) land(alone bool) {
	if !alone {
		return
	}
	s.mu.Lock()
	s.aloneFlying--
	more := s.mayFlyAlone() || len(s.ready) > 0
	s.mu.Unlock()
	if more {
		s.notify()
	}
}

// popReady takes the next ready lane if it fits into a request of size bytes so far.
func (s *sender) popReady(size int) *lane {
	s.mu.Lock()
	if len(s.ready) == 0 {
		s.mu.Unlock()
		return nil
	}
	l, limit := s.ready[0], s.limit
	s.mu.Unlock()
	// lane.mu comes before sender.mu. Another worker may take the lane meanwhile: then ask again.
	next := l.nextSize()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 || s.ready[0] != l && size > 0 {
		return nil
	}
	if size > 0 && size+next > limit {
		return nil
	}
	l = s.ready[0]
	s.ready = s.ready[1:]
	if len(s.ready) == 0 {
		s.ready = nil
	}
	return l
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
	msg, err := w.conn.roundTrip(now.Add(p.cfg.ProduceTimeout+p.cfg.RequestTimeout), s.request(flights))
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
		f.lane.putBack(isTimeout(err))
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
		l.stop()
		s.p.fail(fatalError(l, code))
	case unauthorized:
		s.p.alarmed.raise(alarmAuthorization, l.topic.name)
		if l.auth.exceeded(time.Now(), s.p.cfg.AuthorizationGrace) {
			l.stop()
			s.p.fail(s.p.authorizationError("publish to", "topic "+l.topic.name, code))
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
