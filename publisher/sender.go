package publisher

import (
	"context"
	"fmt"
	"sync"
	"time"
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

// setAddr notes where the broker is. After a move the open connections lead to what was
// there before, which may live on and answer that it leads nothing.
func (s *sender) setAddr(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addr != addr {
		s.addr, s.suspect = addr, time.Now()
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
	s.mu.Lock()
	defer s.mu.Unlock()
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
