package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/receipts"
	"github.com/postrider/postrider/topic"
)

// Now is what stands where a receipt points to.
type Now string

// What a receipt's place may hold.
const (
	// Found: the event's record.
	Found Now = "found"
	// Removed: nothing any more, since retention or compaction took it.
	Removed Now = "removed"
	// Another: a record of another event. The topic was made anew, or the database is a
	// copy that belongs to another cluster.
	Another Now = "another_event"
	// BeyondEnd: the log ends before it. Acknowledged data was lost, or the topic made anew.
	BeyondEnd Now = "beyond_end"
	// HeldBack: it is behind a transaction that somebody has open: consumers of committed
	// records do not get it yet.
	HeldBack Now = "held_back"
	// NoTopic: the topic, or the partition, does not exist any more.
	NoTopic Now = "no_topic"
	// NotLooked: there are more receipts than are followed.
	NotLooked Now = "not_looked"
)

// TracedReceipt is where and when the broker acknowledged the event.
type TracedReceipt struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	AckedAt   time.Time `json:"acknowledged_at"`
	// CommitLSN is where the commit of the event's transaction starts; null where the
	// event did not come from the stream.
	CommitLSN *string `json:"commit_lsn"`
	// Now is what the broker has there at present.
	Now Now `json:"now" doc:"what is there at present: found, removed, another_event, beyond_end, held_back, no_topic, not_looked"`
}

// mostReceipts of an event are looked at in the topics.
const mostReceipts = 20

// readReceipts: they are an aid. Where they cannot be read, the topics are searched.
func (t *trace) readReceipts(ctx context.Context) error {
	list, err := receipts.Find(ctx, t.reader.Conn(), t.cfg.Publisher, t.trail.EventID)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		t.searched("receipts: %v", err)
		return nil
	}
	for _, r := range list {
		tr := TracedReceipt{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, AckedAt: r.AckedAt.UTC(), Now: NotLooked}
		if r.Position != nil {
			lsn := r.Position.Commit.String()
			tr.CommitLSN = &lsn
		}
		t.trail.Receipts = append(t.trail.Receipts, tr)
	}
	return nil
}

// followReceipts fetches the records to which they point.
func (t *trace) followReceipts(ctx context.Context) (err error) {
	for i := range t.trail.Receipts {
		if i == mostReceipts {
			break
		}
		r := &t.trail.Receipts[i]
		if r.Now, err = t.follow(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// follow reads one record.
func (t *trace) follow(ctx context.Context, r *TracedReceipt) (now Now, err error) {
	defer func() {
		if err == nil {
			t.searched("%s: the receipt's record, %s", r.Place(), now.words())
		}
	}()
	ends, err := t.topics.HighWatermarks(ctx, r.Topic)
	switch {
	case errors.Is(err, topic.ErrNoTopic):
		return NoTopic, nil
	case err != nil:
		return NotLooked, err
	case int(r.Partition) >= len(ends):
		return NoTopic, nil
	case r.Offset >= ends[r.Partition]:
		return BeyondEnd, nil
	}
	if ends, err = t.topics.Ends(ctx, r.Topic); err != nil {
		return NotLooked, err
	}
	if r.Offset >= at(ends, int(r.Partition)) {
		return HeldBack, nil
	}
	from, to := make(topic.Offsets, len(ends)), make(topic.Offsets, len(ends))
	from[r.Partition], to[r.Partition] = r.Offset, r.Offset+1
	now = Removed
	err = t.topics.Scan(ctx, r.Topic, topic.Span{From: from, To: to, Partitions: []int32{r.Partition}}, func(rec *topic.Record) error {
		now = Another
		if t.isOurs(rec) {
			now = Found
			t.record(rec)
		}
		return nil
	})
	return now, err
}

// isOurs says that a record has the event's id.
func (t *trace) isOurs(rec *topic.Record) bool {
	for _, header := range t.idHeaders {
		if id, ok := rec.Header(header); ok && bytes.Equal(id, t.id) {
			return true
		}
	}
	return false
}

// receipted says that receipts tell where the event is, or was: its record is there, or
// went the way that all records of its topic go.
func (tr *Trail) receipted() bool {
	for i := range tr.Receipts {
		if now := tr.Receipts[i].Now; now == Found || now == Removed {
			return true
		}
	}
	return false
}

func (n Now) words() string {
	switch n {
	case Found:
		return "which is there"
	case Removed:
		return "which retention or compaction has removed"
	case Another:
		return "where another event stands: the topic was made anew, or belongs to another cluster"
	case BeyondEnd:
		return "behind the end of the log: it was lost, or the topic made anew"
	case HeldBack:
		return "behind a transaction that somebody has open"
	case NoTopic:
		return "of a topic or partition that does not exist any more"
	}
	return "not looked at"
}

// Words says in a line what stands where the receipt points to.
func (r *TracedReceipt) Words() string { return r.Now.words() }

// Place is topic, partition and offset.
func (r *TracedReceipt) Place() string {
	return fmt.Sprintf("%s, partition %d, offset %d", r.Topic, r.Partition, r.Offset)
}
