package publisher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/postrider/postrider/internal/operr"
)

const (
	// metadataPace is the least time between two refreshes, whoever asks.
	metadataPace = 20 * time.Millisecond
	// Something is awaited (a topic, a leader): ask again after awaitFirst, doubling up to awaitMost.
	awaitFirst = 50 * time.Millisecond
	awaitMost  = 2 * time.Second
	// shrinkProof is how many refreshes in a row must show fewer partitions before
	// the topic counts as recreated: a broker that lags behind shows an old count.
	shrinkProof = 5
	noLeader    = -1
)

// wantMetadata asks for a refresh now. It never blocks.
func (p *Publisher) wantMetadata() {
	select {
	case p.metadataWanted <- struct{}{}:
	default:
	}
}

// metadataLoop refreshes at once when asked (a leader error, a new topic), often
// while something is awaited, and by age otherwise (rule 13).
func (p *Publisher) metadataLoop(ctx context.Context) {
	pause, waits := time.Duration(0), 0
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		aged := false
		select {
		case <-ctx.Done():
			return
		case <-p.metadataWanted:
		case <-timer.C:
			aged = waits == 0
		}
		awaiting, err := p.refresh(ctx, aged)
		switch {
		case err != nil || awaiting:
			waits++
			pause = backoff(waits, awaitFirst, awaitMost)
		default:
			waits, pause = 0, p.cfg.MetadataMaxAge
		}
		p.noteMetadata(err, waits)
		if !timer.Stop() {
			select {
			case <-timer.C:
			default:
			}
		}
		timer.Reset(pause)
		if !sleep(ctx, metadataPace) {
			return
		}
	}
}

// sleep waits and says false where ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *Publisher) noteMetadata(err error, failures int) {
	if err == nil {
		p.metrics.metadata.WithLabelValues("ok").Inc()
		p.controlAuth.clear()
		p.alarmed.clear(alarmMetadata, "")
		return
	}
	p.metrics.metadata.WithLabelValues("error").Inc()
	p.alarmed.raise(alarmMetadata, "")
	if p.metadataLog.allow() {
		p.log.Warn().Err(err).Int(keyConsecutive, failures).Msg("metadata cannot be read")
	}
	p.considerAuthorization(&p.controlAuth, err, "read metadata")
}

// considerAuthorization turns a refusal of rights that outlasts the grace time into the fatal error.
func (p *Publisher) considerAuthorization(g *grace, err error, op string) {
	if judgeError(err).verdict != unauthorized {
		return
	}
	p.alarmed.raise(alarmAuthorization, "")
	if g.exceeded(time.Now(), p.cfg.AuthorizationGrace) {
		p.fail(p.authorizationError(op, "", err))
	}
}

func (p *Publisher) authorizationError(op, subject string, err error) error {
	return &operr.Error{
		Class: operr.Kafka, Op: op, Subject: subject,
		Hint: "grant the user WRITE and DESCRIBE on the topic (and check its password)",
		Err:  fmt.Errorf("not authorised for longer than %s: %w", p.cfg.AuthorizationGrace, err),
	}
}

// fetchMetadata asks for brokers and topics. It never creates a topic.
func (p *Publisher) fetchMetadata(ctx context.Context, names []string) (*metadata.Response, error) {
	if names == nil {
		names = []string{} // null would mean all topics
	}
	msg, err := p.control.Ask(ctx, &metadata.Request{TopicNames: names, AllowAutoTopicCreation: false})
	if err != nil {
		return nil, err
	}
	res := msg.(*metadata.Response)
	brokers := make(map[int32]string, len(res.Brokers))
	for _, b := range res.Brokers {
		brokers[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	if len(brokers) == 0 {
		return nil, errors.New("metadata name no broker")
	}
	p.control.Update(brokers, res.ControllerID)
	return res, nil
}

// refresh brings leaders, topics and (by age) their limits up to date. awaiting
// says that something that events wait for is not there yet.
func (p *Publisher) refresh(ctx context.Context, aged bool) (awaiting bool, err error) {
	topics := p.topicList()
	names := make([]string, len(topics))
	byName := make(map[string]*topic, len(topics))
	for i, t := range topics {
		names[i] = t.name
		byName[t.name] = t
	}
	res, err := p.fetchMetadata(ctx, names)
	if err != nil {
		return true, err
	}
	p.updateSenders(ctx, res)
	var fresh, missing []*topic
	leaders := map[*topic][]int32{}
	for i := range res.Topics {
		rt := &res.Topics[i]
		t := byName[rt.Name]
		if t == nil {
			continue
		}
		switch p.judgeTopic(t, rt) {
		case topicPresent:
			list, complete := p.leadersOf(rt)
			leaders[t] = list
			awaiting = awaiting || !complete
			if aged || t.laneCount() == 0 {
				fresh = append(fresh, t)
			}
		case topicMissing:
			missing = append(missing, t)
			awaiting = true
		case topicUnclear:
			awaiting = true
		}
	}
	if err := p.readLimits(ctx, fresh); err != nil {
		p.log.Debug().Err(err).Msg("topic limits are not readable: the broker's word on sizes decides")
	}
	for t, list := range leaders {
		awaiting = p.updateTopic(t, list) || awaiting
	}
	return awaiting, p.createTopics(ctx, missing)
}

type topicPresence uint8

const (
	topicPresent topicPresence = iota
	topicMissing
	topicUnclear
)

// judgeTopic reads the topic's error code in metadata.
func (p *Publisher) judgeTopic(t *topic, rt *metadata.ResponseTopic) topicPresence {
	code := kafka.Error(rt.ErrorCode)
	t.setAwaited(code == kafka.UnknownTopicOrPartition)
	switch j := judgeCode(code); {
	case code == 0, code == kafka.LeaderNotAvailable && len(rt.Partitions) > 0:
		t.auth.clear()
		p.alarmed.clear(alarmAuthorization, t.name)
		return topicPresent
	case code == kafka.UnknownTopicOrPartition:
		return topicMissing
	case j.verdict == unauthorized:
		p.alarmed.raise(alarmAuthorization, t.name)
		if t.auth.exceeded(time.Now(), p.cfg.AuthorizationGrace) {
			p.fail(p.authorizationError("read metadata of", "topic "+t.name, code))
			t.stop()
		}
		return topicUnclear
	case j.verdict == refused:
		// Without a message that waits there is nothing to refuse yet.
		p.refuseTopic(t, code)
	}
	return topicUnclear
}

// leadersOf lists the leaders by partition, those only that are named as brokers
// too. It is complete when all partitions have one.
func (p *Publisher) leadersOf(rt *metadata.ResponseTopic) (leaders []int32, complete bool) {
	leaders = make([]int32, len(rt.Partitions))
	for i := range leaders {
		leaders[i] = noLeader
	}
	for _, pt := range rt.Partitions {
		if i := int(pt.PartitionIndex); i >= 0 && i < len(leaders) && p.sender(pt.LeaderID) != nil {
			leaders[i] = pt.LeaderID
		}
	}
	complete = true
	for _, id := range leaders {
		complete = complete && id >= 0
	}
	return leaders, complete
}

// updateTopic applies leaders, and a changed partition count by rule 18. It says
// whether it wants to look again soon.
func (p *Publisher) updateTopic(t *topic, leaders []int32) (again bool) {
	known := t.laneCount()
	for i, l := range t.laneList() {
		if i < len(leaders) {
			l.setLeader(leaders[i])
		}
	}
	switch {
	case known == 0 && len(leaders) > 0:
		t.open(leaders)
	case len(leaders) > known:
		t.shrunk = 0
		p.morePartitions(t, leaders)
	case len(leaders) < known:
		return p.fewerPartitions(t, leaders)
	default:
		t.shrunk = 0
	}
	return false
}

// morePartitions adopts a larger count at a drained barrier, or pins the old one.
func (p *Publisher) morePartitions(t *topic, leaders []int32) {
	if p.cfg.PartitionChange == PinPartitions {
		if p.alarmed.raise(alarmPartitions, t.name) {
			p.metrics.partitions.WithLabelValues(t.name, "pinned").Inc()
			p.log.Warn().Str(keyTopic, t.name).Int("partitions", len(leaders)).Int("pinned", t.laneCount()).
				Msg("topic has more partitions; the old count stays (partition_change: pin)")
		}
		return
	}
	t.raiseBarrier(int32(len(leaders)))
	if !t.drained() {
		return // the acknowledgement that drains it asks for metadata again
	}
	p.log.Warn().Str(keyTopic, t.name).Int("before", t.laneCount()).Int("partitions", len(leaders)).
		Msg("topic has more partitions: adopted at a drained barrier; keys may have moved")
	p.metrics.partitions.WithLabelValues(t.name, "adopted").Inc()
	t.open(leaders)
}

// fewerPartitions means that the topic was recreated, once it is certain.
func (p *Publisher) fewerPartitions(t *topic, leaders []int32) (again bool) {
	t.shrunk++
	if t.shrunk < shrinkProof {
		return true
	}
	p.metrics.logResets.Inc()
	p.fail(&operr.Error{
		Class: operr.Kafka, Op: "publish to", Subject: "topic " + t.name,
		Hint: "restart, then publish what the old topic held again with `postrider replay`",
		Err:  &LogResetError{Topic: t.name, Partition: -1, Acknowledged: -1, Base: -1, Before: int32(t.laneCount()), Partitions: int32(len(leaders))},
	})
	return false
}

func (t *topic) laneCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.lanes)
}

// laneList is a snapshot; lanes are only ever added.
func (t *topic) laneList() []*lane {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lanes[:len(t.lanes):len(t.lanes)]
}

// updateSenders makes a sender for each broker and notes moved addresses.
func (p *Publisher) updateSenders(ctx context.Context, res *metadata.Response) {
	p.sendersMu.Lock()
	defer p.sendersMu.Unlock()
	for _, b := range res.Brokers {
		addr := net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
		if s := p.senders[b.NodeID]; s != nil {
			s.setAddr(addr)
			continue
		}
		s := newSender(p, b.NodeID, addr)
		p.senders[b.NodeID] = s
		s.start(ctx)
	}
}

// sender is the sender of a broker, nil where it is not known.
func (p *Publisher) sender(id int32) *sender {
	p.sendersMu.RLock()
	defer p.sendersMu.RUnlock()
	return p.senders[id]
}
