package publisher

import (
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Log keys, each with one spelling.
const (
	keyTopic       = "topic"
	keyPartition   = "partition"
	keyBroker      = "broker"
	keyEventID     = "event_id"
	keyConsecutive = "consecutive_errors"
)

// alarmKind is the label of the alarm metric.
type alarmKind string

const (
	alarmAuthorization alarmKind = "authorization"
	alarmBroker        alarmKind = "broker"
	alarmMetadata      alarmKind = "metadata"
	alarmUnlisted      alarmKind = "unlisted_error"
	alarmUndecided     alarmKind = "undecided_batch"
	alarmPartitions    alarmKind = "partition_count"
	alarmTopicCreation alarmKind = "topic_creation"
	alarmLogReset      alarmKind = "log_reset"
	alarmRefusal       alarmKind = "refusal"
	alarmFatal         alarmKind = "fatal"
)

// alarms are what needs somebody's attention now, by kind and subject.
type alarms struct {
	metrics *metrics
	mu      sync.Mutex
	raised  map[alarmKind]map[string]struct{}
}

// raise says whether it is new.
func (a *alarms) raise(kind alarmKind, subject string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.raised[kind][subject]; ok {
		return false
	}
	if a.raised[kind] == nil {
		a.raised[kind] = map[string]struct{}{}
	}
	a.raised[kind][subject] = struct{}{}
	a.metrics.alarm.WithLabelValues(string(kind)).Set(1)
	return true
}

func (a *alarms) clear(kind alarmKind, subject string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.raised[kind][subject]; !ok {
		return
	}
	delete(a.raised[kind], subject)
	if len(a.raised[kind]) == 0 {
		a.metrics.alarm.WithLabelValues(string(kind)).Set(0)
	}
}

// logPace lets the first message of a kind through, then one in each interval.
type logPace struct {
	every time.Duration
	mu    sync.Mutex
	last  time.Time
}

func (l *logPace) allow() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.last.IsZero() && now.Sub(l.last) < l.every {
		return false
	}
	l.last = now
	return true
}

func (p *Publisher) logLane(e *zerolog.Event, l *lane) *zerolog.Event {
	return e.Str(keyTopic, l.topic.name).Int32(keyPartition, l.partition)
}
