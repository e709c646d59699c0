package topic

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
)

// Offsets holds an offset for each partition of a topic.
type Offsets []int64

// What ListOffsets takes instead of a timestamp.
const (
	latest   = -1
	earliest = -2
)

const (
	consumer        = -1 // the replica id of what is no broker
	readUncommitted = 0
	readCommitted   = 1
	anyEpoch        = -1
)

// Starts are the offsets of the first records that the topic still has.
func (r *Reader) Starts(ctx context.Context, topic string) (Offsets, error) {
	return r.offsets(ctx, topic, earliest, readCommitted)
}

// Ends are the offsets behind the last records that a consumer of committed records gets
// now: before the first open transaction, if there is one.
func (r *Reader) Ends(ctx context.Context, topic string) (Offsets, error) {
	return r.offsets(ctx, topic, latest, readCommitted)
}

// HighWatermarks are the offsets behind the last records that all in-sync replicas have,
// committed or not. They are beyond Ends where somebody has a transaction open.
func (r *Reader) HighWatermarks(ctx context.Context, topic string) (Offsets, error) {
	return r.offsets(ctx, topic, latest, readUncommitted)
}

// Offsets are those of the first records whose timestamp is at or after at, and the ends
// where there is none. All records with such a timestamp lie from there on; some before
// that follow may be older, where timestamps do not rise.
func (r *Reader) Offsets(ctx context.Context, topic string, at time.Time) (Offsets, error) {
	// The ends come first: what arrives in between is then behind them and found by time.
	ends, err := r.Ends(ctx, topic)
	if err != nil {
		return nil, err
	}
	found, err := r.offsets(ctx, topic, max(at.UnixMilli(), 0), readCommitted)
	if err != nil {
		return nil, err
	}
	for i := range found {
		if found[i] < 0 && i < len(ends) {
			found[i] = ends[i]
		}
	}
	return found, nil
}

func (r *Reader) offsets(ctx context.Context, topic string, timestamp int64, isolation int8) (list Offsets, err error) {
	err = r.retry(ctx, "list offsets of", topic, func() error {
		list, err = r.listOffsets(ctx, topic, timestamp, isolation)
		return err
	})
	return list, err
}

// listOffsets asks each leader once.
func (r *Reader) listOffsets(ctx context.Context, topic string, timestamp int64, isolation int8) (Offsets, error) {
	leaders, err := r.lookUp(ctx, topic)
	if err != nil {
		return nil, err
	}
	list := make(Offsets, len(leaders))
	for partition := range list {
		list[partition] = missing
	}
	byLeader := map[int32][]listoffsets.RequestPartition{}
	for partition, id := range leaders {
		byLeader[id] = append(byLeader[id], listoffsets.RequestPartition{
			Partition: int32(partition), CurrentLeaderEpoch: anyEpoch, Timestamp: timestamp,
		})
	}
	for id, partitions := range byLeader {
		msg, err := r.control.AskBroker(ctx, id, &listoffsets.Request{
			ReplicaID: consumer, IsolationLevel: isolation,
			Topics: []listoffsets.RequestTopic{{Topic: topic, Partitions: partitions}},
		})
		if err != nil {
			return nil, err
		}
		if err := list.fill(msg.(*listoffsets.Response), topic); err != nil {
			return nil, err
		}
	}
	for partition, offset := range list {
		if offset == missing {
			return nil, fmt.Errorf("partition %d: %w", partition, kafka.LeaderNotAvailable)
		}
	}
	return list, nil
}

// missing marks a partition that no answer named; -1 is an answer.
const missing = -2

func (o Offsets) fill(res *listoffsets.Response, topic string) error {
	for _, t := range res.Topics {
		for _, p := range t.Partitions {
			switch {
			case t.Topic != topic || p.Partition < 0 || int(p.Partition) >= len(o):
			case p.ErrorCode != 0:
				return fmt.Errorf("partition %d: %w", p.Partition, kafka.Error(p.ErrorCode))
			default:
				o[p.Partition] = p.Offset
			}
		}
	}
	return nil
}
