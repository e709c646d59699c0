package topic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/postrider/postrider/internal/brokers"
)

// emptyEnd is how many answers in a row may hold nothing, though the log goes on, before
// the rest of the span counts as removed by compaction.
const emptyEnd = 10

// progress is where a partition's reading stands.
type progress struct {
	partition int32
	pos, to   int64
	// failures and empties are in a row; since is when something was read last.
	failures, empties int
	since             time.Time
}

// partition hands on all pages of one.
func (f *fetcher) partition(ctx context.Context, partition int32) error {
	at := progress{partition: partition, pos: offsetAt(f.span.From, partition), to: offsetAt(f.span.To, partition), since: time.Now()}
	for at.pos < at.to {
		var buf []byte
		select {
		case buf = <-f.free:
		case <-ctx.Done():
			return ctx.Err()
		}
		res, used, err := f.fetch(ctx, &at, buf)
		if err == nil && res.code == 0 {
			handed, err := f.take(ctx, &at, res, used)
			if err != nil {
				return err
			}
			if handed {
				continue
			}
		}
		f.free <- used
		if err := f.overcome(ctx, &at, res, err); err != nil {
			return err
		}
	}
	return nil
}

// take hands the answer on, if there is something in it.
func (f *fetcher) take(ctx context.Context, at *progress, res *fetchResponse, buf []byte) (handed bool, err error) {
	end, err := endOf(res.batches)
	if err != nil || end <= at.pos {
		return false, err
	}
	// What lies behind the last stable offset is not sent; the check costs nothing.
	end = min(end, at.to)
	p := page{partition: at.partition, from: at.pos, end: end, res: res, buf: buf}
	at.pos, at.failures, at.empties, at.since = end, 0, 0, time.Now()
	if !f.hand(ctx, p) {
		return false, ctx.Err()
	}
	return true, throttle(ctx, res)
}

// endOf is the offset behind the last whole batch, 0 where there is none.
func endOf(batches []byte) (end int64, err error) {
	for len(batches) > 0 {
		b, rest, err := nextBatch(batches)
		if errors.Is(err, errIncomplete) {
			break
		}
		if err != nil {
			return 0, err
		}
		end, batches = b.last+1, rest
	}
	return end, nil
}

// throttle honours the broker's wish for a pause: kafka-go does not (rule 12).
func throttle(ctx context.Context, res *fetchResponse) error {
	if res.throttleMillis <= 0 {
		return nil
	}
	return sleep(ctx, time.Duration(res.throttleMillis)*time.Millisecond)
}

// fetch asks the partition's leader once. It gives the buffer back, or the one that took its place.
func (f *fetcher) fetch(ctx context.Context, at *progress, buf []byte) (*fetchResponse, []byte, error) {
	leader := f.leaders[at.partition]
	if err := f.connect(ctx, leader); err != nil {
		return nil, buf, err
	}
	stop := context.AfterFunc(ctx, f.conn.Interrupt)
	defer stop()
	req := newFetch(f.r.clientID, f.topic, at.partition, at.pos, buf)
	msg, err := f.conn.RoundTrip(time.Now().Add(f.r.timeout+fetchWait*time.Millisecond), req)
	if err != nil {
		f.hangUp()
		return nil, req.buf, f.r.transport.RequestError(f.r.control.Brokers()[leader], req, f.r.timeout, err)
	}
	return msg.(*fetchResponse), req.buf, nil
}

func (f *fetcher) connect(ctx context.Context, leader int32) error {
	if f.conn != nil && f.on == leader && !f.conn.Stale(time.Now(), time.Time{}) {
		return nil
	}
	f.hangUp()
	addr := f.r.control.Brokers()[leader]
	if addr == "" {
		return kafka.LeaderNotAvailable
	}
	conn, err := f.r.transport.Dial(ctx, addr)
	if err != nil {
		return err
	}
	f.conn, f.on = conn, leader
	return nil
}

// overcome deals with an answer that brought nothing, and says why it cannot go on.
func (f *fetcher) overcome(ctx context.Context, at *progress, res *fetchResponse, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	if err == nil {
		err = res.code
		if res.code == 0 {
			return f.empty(ctx, at, res)
		}
	}
	switch {
	case errors.Is(err, kafka.OffsetOutOfRange):
		return f.outOfRange(ctx, at)
	case errors.Is(err, brokers.ErrClosed), !worthRetrying(err), time.Since(at.since) > patience:
		return err
	}
	if err := pause(ctx, at.failures); err != nil {
		return err
	}
	at.failures++
	leaders, err := f.r.lookUp(ctx, f.topic)
	switch {
	case err == nil && len(leaders) >= len(f.leaders):
		f.leaders = leaders
	case err != nil && !worthRetrying(err):
		return err
	}
	return nil
}

// empty: the broker had nothing to send though the span goes on.
func (f *fetcher) empty(ctx context.Context, at *progress, res *fetchResponse) error {
	if res.throttleMillis > 0 {
		// A broker over its quota answers at once, with nothing in it.
		at.since = time.Now()
		return throttle(ctx, res)
	}
	at.empties++
	switch {
	case res.stable >= at.to && at.empties >= emptyEnd:
		at.pos = at.to
		return nil
	case time.Since(at.since) < patience:
		return pause(ctx, 0)
	case res.stable < at.to && res.highWatermark >= at.to:
		return fmt.Errorf("a transaction that is still open holds back the records from offset %d on", res.stable)
	}
	return fmt.Errorf("the log ends at offset %d, before %d where it was seen to end: it was cut off or the topic made anew", res.highWatermark, at.to)
}

// outOfRange: retention has removed the offset, or the log has been cut off.
func (f *fetcher) outOfRange(ctx context.Context, at *progress) error {
	starts, err := f.r.Starts(ctx, f.topic)
	if err != nil {
		return err
	}
	if start := offsetAt(starts, at.partition); start > at.pos {
		at.pos = start
		return nil
	}
	return fmt.Errorf("offset %d is behind the log's end: it was cut off or the topic made anew", at.pos)
}

func offsetAt(o Offsets, partition int32) int64 {
	if int(partition) < len(o) {
		return o[partition]
	}
	return 0
}
