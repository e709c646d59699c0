package sizing

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/operr"
)

// arrivals is what a consumer has seen. Control records are left out by the client
// (rule 17).
type arrivals struct {
	// Delivered counts different events, Duplicates further copies of them.
	Delivered, Duplicates int
	// OutOfOrder events were overtaken by a later one of their key; WrongBytes have
	// another key, payload or header than was written.
	OutOfOrder, WrongBytes int

	records int
}

// keyState is what is known of one key.
type keyState struct {
	highest int64 // version; -1: none yet
	seen    []uint64
}

// reader checks each record of the topic as it arrives.
type reader struct {
	size     int
	schedule *schedule
	client   *kgo.Client
	topic    string

	mu   sync.Mutex // covers what follows
	now  arrivals
	keys map[string]*keyState
}

// read consumes the topic from its beginning until ctx ends.
func (r *reader) read(ctx context.Context) {
	for {
		fetches := r.client.PollFetches(ctx)
		if ctx.Err() != nil || fetches.IsClientClosed() {
			return
		}
		at := time.Now()
		r.mu.Lock()
		fetches.EachRecord(func(record *kgo.Record) { r.take(record, at) })
		r.mu.Unlock()
	}
}

func (r *reader) take(record *kgo.Record, at time.Time) {
	r.now.records++
	key := string(record.Key)
	version, err := strconv.ParseInt(header(record, versionHeader), 10, 64)
	if err != nil || version < 0 || version > maxRows || string(record.Value) != payload(key, version, r.size) || header(record, "event_type") != eventType {
		r.now.WrongBytes++
		return
	}
	if writer, n, ok := writerEvent(key, version); ok && r.schedule != nil {
		r.schedule.arrive(writer, n, at)
	}
	r.count(key, version)
}

func (r *reader) count(key string, version int64) {
	k := r.keys[key]
	if k == nil {
		k = &keyState{highest: -1}
		r.keys[key] = k
	}
	word, bit := int(version/64), uint64(1)<<(version%64)
	for len(k.seen) <= word {
		k.seen = append(k.seen, 0)
	}
	if k.seen[word]&bit != 0 {
		r.now.Duplicates++
		return
	}
	k.seen[word] |= bit
	r.now.Delivered++
	if version < k.highest {
		r.now.OutOfOrder++
	}
	k.highest = max(k.highest, version)
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func (r *reader) snapshot() arrivals {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// all waits until everything that the topic holds now was read.
func (r *reader) all(ctx context.Context, stall time.Duration, told func(rows int)) (arrivals, error) {
	asked, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	ends, err := endOffsets(asked, kadm.NewClient(r.client), r.topic)
	if err != nil {
		return arrivals{}, &operr.Error{Class: operr.Kafka, Op: "read back", Subject: "topic " + r.topic, Err: err}
	}
	var want int
	for _, end := range ends {
		want += int(end)
	}
	seen, moved := -1, time.Now()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		now := r.snapshot()
		told(now.records)
		if now.records >= want {
			tick.Stop()
			return now, nil
		}
		if now.records != seen {
			seen, moved = now.records, time.Now()
		}
		err := ctx.Err()
		if time.Since(moved) > stall {
			err = fmt.Errorf("%d of %d records came, and no more for %s", now.records, want, stall)
		}
		if err != nil {
			tick.Stop()
			return now, &operr.Error{Class: operr.Kafka, Op: "read back", Subject: "topic " + r.topic, Err: err}
		}
		<-tick.C
	}
}

// fetchBytes keeps what a consumer holds small: the process has the relay's memory limit.
const fetchBytes = 1 << 20

// startReader reads the topic in the background until stop is called.
func (w *workbench) startReader(ctx context.Context, s *schedule) (r *reader, stop func(), err error) {
	client, err := newClient(w.cfg.Kafka, kgo.ConsumeTopics(w.name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxBytes(fetchBytes), kgo.FetchMaxPartitionBytes(fetchBytes))
	if err != nil {
		return nil, nil, err
	}
	r = &reader{size: w.cfg.Payload, schedule: s, client: client, topic: w.name, keys: map[string]*keyState{}}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.read(ctx)
	}()
	return r, func() {
		cancel()
		<-done
		client.Close()
	}, nil
}

var errWrong = errors.New("what arrived is not what was committed")
