package publisher

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/postrider/postrider/event"
)

// wire is a batch as it goes into a request, without the length before it.
func wire(t testing.TB, b *batch) []byte {
	t.Helper()
	raw, err := io.ReadAll(b.reader())
	if err != nil {
		t.Fatal(err)
	}
	if n := int(binary.BigEndian.Uint32(raw)); n != len(raw)-lengthPrefix || n != b.wireSize() {
		t.Fatalf("length prefix %d, record set %d, wireSize %d", n, len(raw)-lengthPrefix, b.wireSize())
	}
	return raw[lengthPrefix:]
}

// decode reads a batch with another implementation.
func decode(t testing.TB, raw []byte) (kmsg.RecordBatch, []kmsg.Record) {
	t.Helper()
	var b kmsg.RecordBatch
	if err := b.ReadFrom(raw); err != nil {
		t.Fatalf("decode batch: %v", err)
	}
	if want := crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)); uint32(b.CRC) != want {
		t.Fatalf("CRC %x, want %x", uint32(b.CRC), want)
	}
	if int(b.Length) != len(raw)-12 || b.LastOffsetDelta != b.NumRecords-1 || b.Magic != 2 {
		t.Fatalf("header: %+v of %d bytes", b, len(raw))
	}
	return b, parseRecords(t, b.Records, int(b.NumRecords))
}

func parseRecords(t testing.TB, raw []byte, n int) []kmsg.Record {
	t.Helper()
	list := make([]kmsg.Record, n)
	for i := range list {
		length, k := binary.Varint(raw)
		if err := list[i].ReadFrom(raw[:k+int(length)]); err != nil {
			t.Fatalf("decode record %d: %v", i, err)
		}
		raw = raw[k+int(length):]
	}
	if len(raw) != 0 {
		t.Fatalf("%d bytes behind the last record", len(raw))
	}
	return list
}

func nullable(t *rapid.T, name string, most int) []byte {
	if rapid.Bool().Draw(t, name+" is null") {
		return nil
	}
	b := rapid.SliceOfN(rapid.Byte(), 0, most).Draw(t, name)
	return append([]byte{}, b...)
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// Whatever the message, another implementation reads the same bytes back, nil
// and empty apart (case C13), across chunk borders, and the size is known before.
func TestBatchRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := newBatch()
		defer b.recycle()
		n := rapid.IntRange(1, 12).Draw(rt, "records")
		var messages []event.Message
		for i := range n {
			m := event.Message{
				Key: nullable(rt, "key", 40), Value: nullable(rt, "value", 40), EventID: nullable(rt, "id", 40),
				TimestampMillis: rapid.Int64Range(0, 1<<42).Draw(rt, "ts"),
				Position:        event.Position{Commit: event.LSN(i), Index: uint64(i)},
			}
			if rapid.IntRange(0, 5).Draw(rt, "large") == 0 {
				m.Value = bytes.Repeat([]byte{byte(i)}, rapid.IntRange(0, 3*recordChunk).Draw(rt, "size"))
			}
			for range rapid.IntRange(0, 3).Draw(rt, "headers") {
				m.Headers = append(m.Headers, event.Header{Name: rapid.String().Draw(rt, "name"), Value: nullable(rt, "hv", 20)})
			}
			want := b.sizeWith(&m)
			b.add(&m, uint64(i/3))
			if b.wireSize() != want {
				rt.Fatalf("sizeWith said %d, is %d", want, b.wireSize())
			}
			messages = append(messages, m)
		}
		b.head(identity{producerID: 7, epoch: 3, sequence: 99})
		head, records := decode(t, wire(t, b))
		if head.ProducerID != 7 || head.ProducerEpoch != 3 || head.FirstSequence != 99 {
			rt.Fatalf("identity: %+v", head)
		}
		maxTS := messages[0].TimestampMillis
		for i, r := range records {
			m := messages[i]
			maxTS = max(maxTS, m.TimestampMillis)
			if !same(r.Key, m.Key) || !same(r.Value, m.Value) || int(r.OffsetDelta) != i || head.FirstTimestamp+r.TimestampDelta64 != m.TimestampMillis {
				rt.Fatalf("record %d differs", i)
			}
			for j, h := range r.Headers {
				if h.Key != m.Headers[j].Name || !same(h.Value, m.Headers[j].Value) {
					rt.Fatalf("record %d header %d differs", i, j)
				}
			}
		}
		if head.MaxTimestamp != maxTS {
			rt.Fatalf("max timestamp %d, want %d", head.MaxTimestamp, maxTS)
		}
		splitAnywhere(t, rt, b, messages)
	})
}

// splitAnywhere: the parts of a batch hold the same records, compressed or not.
func splitAnywhere(t *testing.T, rt *rapid.T, b *batch, messages []event.Message) {
	if b.count < 2 {
		return
	}
	codec := Compression(rapid.IntRange(int(NoCompression), int(Zstd)).Draw(rt, "codec"))
	if err := b.compressBatch(codec); err != nil {
		rt.Fatal(err)
	}
	at := rapid.Int32Range(1, b.count-1).Draw(rt, "at")
	first, rest, err := b.split(at)
	if err != nil {
		rt.Fatal(err)
	}
	i := 0
	for _, part := range []*batch{first, rest} {
		part.head(identity{})
		head, records := decode(t, wire(t, part))
		meta := cursor{buf: &part.meta}
		events := 0
		for _, run := range part.runs {
			events += run.Count
		}
		if events != len(records) {
			rt.Fatalf("runs hold %d events, batch %d", events, len(records))
		}
		for _, r := range records {
			m := messages[i]
			origin, err := readMeta(&meta)
			if err != nil || !bytes.Equal(origin.id, m.EventID) || origin.index != uint64(i) || origin.txn != uint64(i/3) || origin.commit != event.LSN(i) {
				rt.Fatalf("record %d: origin %+v, %v", i, origin, err)
			}
			if !same(r.Key, m.Key) || !same(r.Value, m.Value) || head.FirstTimestamp+r.TimestampDelta64 != m.TimestampMillis {
				rt.Fatalf("record %d differs after the split at %d", i, at)
			}
			i++
		}
		part.recycle()
	}
}

// The steady path allocates nothing: copy into the lane, close a full batch, hand its
// origins on where somebody wants them, give it back after its acknowledgement.
func TestAppendAllocatesNothing(t *testing.T) {
	t.Run("nobody asks for deliveries", func(t *testing.T) { steady(t, func(*lane, *batch) {}) })
	t.Run("deliveries", func(t *testing.T) {
		read := 0
		steady(t, func(l *lane, b *batch) {
			d := l.deliver(b, 0)
			if err := d.Each(func(_ int64, o Origin) error { read += len(o.EventID); return nil }); err != nil || read == 0 {
				t.Fatal(read, err)
			}
			d.Release()
		})
	})
}

func steady(t *testing.T, acknowledged func(*lane, *batch)) {
	p, err := New(Config{Brokers: []string{"127.0.0.1:1"}, Window: 4 << 20, BatchBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	leaders := []int32{0, 0, 0, 0, 0, 0}
	p.topic("t").open(leaders)
	lanes := p.topicList()[0].lanes
	for _, l := range lanes {
		l.state = laneSending // nobody takes the batches but the loop below
	}
	value := bytes.Repeat([]byte("x"), 200)
	m := message("t", "k", 1)
	m.Value = value
	keys := [][]byte{[]byte("a"), []byte("b"), []byte("c"), []byte("d"), []byte("e"), []byte("f"), []byte("g")}
	ctx := context.Background()
	n := 0
	step := func() {
		for range 1000 {
			n++
			m.Key = keys[n%len(keys)]
			m.Position.Index = uint64(n)
			if err := p.Append(ctx, &m, uint64(n)); err != nil {
				t.Fatal(err)
			}
		}
		p.Flush()
		for _, l := range lanes {
			for len(l.queue) > 0 {
				b := l.pop()
				l.events -= int64(b.count)
				p.pending.Add(-int64(b.count))
				acknowledged(l, b)
				p.window.adjust(-int64(b.reserved))
				b.recycle()
			}
		}
	}
	for range 20 {
		step()
	}
	allocs := testing.AllocsPerRun(50, step)
	t.Logf("%.2f allocations for 1,000 events", allocs)
	if allocs >= 20 && !raceEnabled {
		t.Fatalf("%.0f allocations for 1,000 events, want none (a garbage collection may empty the pools)", allocs)
	}
}

func BenchmarkAppend(b *testing.B) {
	m := message("t", "k", 1)
	m.Value = bytes.Repeat([]byte("x"), 200)
	bt := newBatch()
	b.ReportAllocs()
	for b.Loop() {
		if bt.full(&m, 512<<10) {
			bt.recycle()
			bt = newBatch()
		}
		bt.add(&m, 1)
	}
}
