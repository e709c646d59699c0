package publisher

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/event"
)

// deliveries notes what OnDelivered says, by place: "topic/partition/offset".
type deliveries struct {
	t  *testing.T
	mu sync.Mutex
	// ids by place.
	ids       map[string]string
	positions map[string]event.Position
	unplaced  int
}

func (d *deliveries) take(got *Delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if got.At.IsZero() || got.Size() == 0 {
		d.t.Errorf("delivery %+v", got)
	}
	if got.Base < 0 {
		d.unplaced += got.Count
	} else if err := got.Each(func(offset int64, o Origin) error {
		place := fmt.Sprintf("%s/%d/%d", got.Topic, got.Partition, offset)
		if d.ids[place] != "" {
			d.t.Errorf("%s was acknowledged twice", place)
		}
		d.ids[place], d.positions[string(o.EventID)] = string(o.EventID), o.Position
		return nil
	}); err != nil {
		d.t.Error(err)
	}
	got.Release()
}

func newDeliveries(t *testing.T) *deliveries {
	return &deliveries{t: t, ids: map[string]string{}, positions: map[string]event.Position{}}
}

// agree holds what was said against the log.
func (d *deliveries) agree(records []*kgo.Record, n int) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.ids) != n {
		d.t.Errorf("%d events were delivered, want %d", len(d.ids), n)
	}
	for _, r := range records {
		place := fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset)
		if id := d.ids[place]; id != header(r, "id") {
			d.t.Fatalf("%s holds %.40q, the delivery says %.40q", place, header(r, "id"), id)
		}
	}
}

// Each delivery names its events, in any codec, across pieces of memory and over a split.
func TestDeliveryNamesEachOffset(t *testing.T) {
	t.Parallel()
	for _, codec := range []Compression{NoCompression, Lz4} {
		t.Run(codec.String(), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.SeedTopics(6, "t"), kfake.SeedTopics(2, "u"))
			d := newDeliveries(t)
			r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.OnDelivered, cfg.Compression, cfg.BatchBytes = d.take, codec, 16<<10 })
			const n = 600
			for i := range n {
				m := message([]string{"t", "u"}[i%5/4], fmt.Sprintf("k%d", i%40), i)
				m.EventID = bytes.Repeat(m.EventID, 1+i%7*i%50) // up to 450 bytes: some lie across two chunks
				m.Headers[0].Value = m.EventID
				m.AggregateType, m.DeadLetter = []byte("order"), strings.Repeat("d", i%3)
				r.append(m, uint64(i))
				if i%100 == 99 {
					r.p.Flush()
				}
			}
			r.drain()
			d.agree(consume(t, c.ListenAddrs(), n, "t", "u"), n)
			for id, at := range d.positions {
				if at.Commit != event.LSN(0x1000+at.Index) || !strings.Contains(id, fmt.Sprintf("-%06d", at.Index)) {
					t.Errorf("%.40s is at %+v", id, at)
				}
			}
		})
	}
}

// A batch whose answer was lost is delivered once, with the offset that its first attempt got.
func TestDeliveryOfARepeatedBatch(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	d := newDeliveries(t)
	var l line
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.OnDelivered, cfg.Dial = d.take, l.dial })
	r.append(message("t", "k", 0), 0)
	r.drain()
	cut := func() bool { return true }
	l.cut.Store(&cut)
	r.append(message("t", "k", 1), 1)
	r.p.Flush()
	until(t, "a lost answer", func() bool { return observeRetries(r.p) > 0 })
	l.cut.Store(nil)
	r.append(message("t", "k", 2), 2)
	r.drain()
	records := consume(t, c.ListenAddrs(), 3, "t")
	if len(records) != 3 {
		t.Errorf("%d records", len(records))
	}
	d.agree(records, 3-d.unplaced)
}

// A damaged delivery is an error, not a wrong name.
func TestDeliveryOfTornMemory(t *testing.T) {
	t.Parallel()
	b := newBatch()
	m := message("t", "k", 1)
	b.add(&m, 1)
	b.count++
	d := (&lane{topic: &topic{name: "t"}}).deliver(b, 7)
	defer d.Release()
	n := 0
	if err := d.Each(func(int64, Origin) error { n++; return nil }); err == nil || n != 1 {
		t.Errorf("%v after %d", err, n)
	}
	stop := errors.New("stop")
	if err := d.Each(func(int64, Origin) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}
