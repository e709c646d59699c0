package oracle

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// Partition names a partition of a topic.
type Partition struct {
	Topic string
	ID    int32
}

// Sample is one look at the slot, and then at Kafka. The order matters: what is
// not below Ends had no acknowledgement when Confirmed was read.
type Sample struct {
	At        time.Time
	Confirmed event.LSN
	// Ends is the offset after the last acknowledged record (the high
	// watermark) of every partition; one that is missing is empty.
	Ends map[Partition]int64
}

// Sample records a look at the slot. Samples come in the order of time.
func (o *Oracle) Sample(s Sample) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sampled++
	// A position that has not moved covers no new event, and the first look at it
	// is the strictest; so a long run need not keep every sample.
	if n := len(o.samples); n > 0 && o.samples[n-1].Confirmed == s.Confirmed {
		return
	}
	o.samples = append(o.samples, s)
}

// unsafeAcks is O4. PostgreSQL sends a transaction again exactly when its commit
// LSN is at or above the confirmed position, so an event below it must stand in
// Kafka at that moment.
func (j *judgement) unsafeAcks(events []named) {
	unsafe := j.list()
	next := 0
	for _, s := range j.samples {
		for ; next < len(events) && events[next].order.Commit < s.Confirmed; next++ {
			e := events[next]
			if e.parked > 0 || j.stoodIn(s, e.first, e.copies) {
				continue
			}
			unsafe.add("%s of the transaction at %s was not in Kafka when the slot stood at %s (%s)",
				e.id, e.order.Commit, s.Confirmed, s.At.Format("15:04:05.000"))
		}
	}
	j.v.UnsafeAcks = j.report("unsafe ack", unsafe)
}

func (j *judgement) stoodIn(s Sample, first place, copies uint32) bool {
	if copies == 0 {
		return false
	}
	topic, partition := splitPlace(j.places.all[first.partition])
	return first.offset < s.Ends[Partition{topic, partition}]
}

// SlotSampler looks at a slot again and again.
type SlotSampler struct {
	// DSN is of any database of the server.
	DSN  string
	Slot string
	// Ends reads the high watermarks (KafkaEnds).
	Ends func(context.Context) (map[Partition]int64, error)
	// Every is the interval; 0 means 50 ms.
	Every time.Duration
}

// Run samples into o until ctx ends. A server or broker that does not answer
// costs samples, no more: the next one covers what was confirmed meanwhile.
func (s SlotSampler) Run(ctx context.Context, o *Oracle) {
	every := s.Every
	if every == 0 {
		every = 50 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	session := &slotSession{dsn: s.DSN}
	defer session.close()
	for ctx.Err() == nil {
		if confirmed, err := session.confirmed(ctx, s.Slot); err == nil {
			if ends, err := s.Ends(ctx); err == nil {
				o.Sample(Sample{At: time.Now(), Confirmed: confirmed, Ends: ends})
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// slotSession is an SQL session that is opened again after it broke.
type slotSession struct {
	dsn  string
	conn *pgx.Conn
}

func (s *slotSession) confirmed(ctx context.Context, slot string) (event.LSN, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if s.conn == nil || s.conn.IsClosed() {
		conn, err := pgx.Connect(ctx, s.dsn)
		if err != nil {
			return 0, err
		}
		s.conn = conn
	}
	var text *string
	err := s.conn.QueryRow(ctx, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", slot).Scan(&text)
	if err != nil {
		return 0, err
	}
	if text == nil {
		return 0, errors.New("the slot has no position yet")
	}
	return event.ParseLSN(*text)
}

func (s *slotSession) close() {
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.conn.Close(ctx)
	}
}
