package latency

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/bench/check"
	"github.com/postrider/postrider/bench/outbox"
)

// ConsumerOptions are those of a consumer that is told of every record at once.
func ConsumerOptions(topic string) []kgo.Opt {
	return []kgo.Opt{kgo.ConsumeTopics(topic), kgo.FetchMinBytes(1), kgo.FetchMaxWait(500 * time.Millisecond), kgo.MetadataMinAge(50 * time.Millisecond)}
}

// Arrivals notes when events come from a topic.
type Arrivals struct {
	base  time.Time
	first int64
	// at is the arrival of each event, in nanoseconds since base; 0 for none yet. A later copy of an event does not count.
	at    []atomic.Int64
	count atomic.Int64

	cancel context.CancelFunc
	done   sync.WaitGroup
	err    atomic.Pointer[error]
}

// Await starts to consume; the events are first to first+count-1.
func Await(ctx context.Context, client *kgo.Client, base time.Time, first int64, count int) *Arrivals {
	ctx, cancel := context.WithCancel(ctx)
	a := &Arrivals{base: base, first: first, at: make([]atomic.Int64, count), cancel: cancel}
	a.done.Go(func() {
		for ctx.Err() == nil {
			fetches := client.PollFetches(ctx)
			now := int64(time.Since(base))
			for _, e := range fetches.Errors() {
				if ctx.Err() == nil {
					a.err.Store(&e.Err)
					return
				}
			}
			fetches.EachRecord(func(r *kgo.Record) { a.note(r, now) })
		}
	})
	return a
}

func (a *Arrivals) note(r *kgo.Record, now int64) {
	n, ok := outbox.Number(check.Header(r))
	i := n - a.first
	if ok && i >= 0 && i < int64(len(a.at)) && a.at[i].CompareAndSwap(0, now) {
		a.count.Add(1)
	}
}

// Count is the number of events that have come.
func (a *Arrivals) Count() int { return int(a.count.Load()) }

// Wait waits until so many have come; progress has to be made within patience.
func (a *Arrivals) Wait(ctx context.Context, count int, patience time.Duration, died <-chan struct{}) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last, moved := -1, time.Now()
	for {
		n := a.Count()
		if n >= count {
			return nil
		}
		if err := a.err.Load(); err != nil {
			return *err
		}
		if n != last {
			last, moved = n, time.Now()
		}
		if time.Since(moved) > patience {
			return fmt.Errorf("%d of %d events have arrived, none in the last %s", n, count, patience)
		}
		select {
		case <-tick.C:
		case <-died:
			return fmt.Errorf("the contender ended after %d of %d events", n, count)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Since gives the latencies of the events that have come, of those from number first on whose commits are given, and
// how many came before the writer knew of their commit: those count as 0.
func (a *Arrivals) Since(first int64, commits []int64) (nanos []int64, early int) {
	for i, commit := range commits {
		at := a.at[first-a.first+int64(i)].Load()
		if at == 0 {
			continue
		}
		if at < commit {
			at = commit
			early++
		}
		nanos = append(nanos, at-commit)
	}
	return nanos, early
}

// Stop ends the consumer.
func (a *Arrivals) Stop() {
	a.cancel()
	a.done.Wait()
}
