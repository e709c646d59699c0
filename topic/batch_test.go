package topic

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"
	"time"
)

// raw is a batch as a broker stores it.
type raw struct {
	base, lastDelta int64
	attributes      int16
	baseTime, max   int64
	producer        int64
	records         []rawRecord
}

type rawRecord struct {
	time, offset int64
	key, value   []byte
}

func (r raw) bytes() []byte {
	var body []byte
	for _, rec := range r.records {
		b := []byte{0}
		b = binary.AppendVarint(b, rec.time)
		b = binary.AppendVarint(b, rec.offset)
		for _, field := range [][]byte{rec.key, rec.value} {
			if field == nil {
				b = binary.AppendVarint(b, -1)
				continue
			}
			b = append(binary.AppendVarint(b, int64(len(field))), field...)
		}
		b = binary.AppendVarint(b, 0)
		body = append(binary.AppendVarint(body, int64(len(b))), b...)
	}
	var tail []byte
	tail = binary.BigEndian.AppendUint16(tail, uint16(r.attributes))
	tail = binary.BigEndian.AppendUint32(tail, uint32(r.lastDelta))
	tail = binary.BigEndian.AppendUint64(tail, uint64(r.baseTime))
	tail = binary.BigEndian.AppendUint64(tail, uint64(r.max))
	tail = binary.BigEndian.AppendUint64(tail, uint64(r.producer))
	tail = binary.BigEndian.AppendUint16(tail, 0)
	tail = binary.BigEndian.AppendUint32(tail, 0)
	tail = binary.BigEndian.AppendUint32(tail, uint32(len(r.records)))
	tail = append(tail, body...)
	var out []byte
	out = binary.BigEndian.AppendUint64(out, uint64(r.base))
	out = binary.BigEndian.AppendUint32(out, uint32(4+1+4+len(tail)))
	out = binary.BigEndian.AppendUint32(out, 0)
	out = append(out, 2)
	out = binary.BigEndian.AppendUint32(out, crc32.Checksum(tail, crc32.MakeTable(crc32.Castagnoli)))
	return append(out, tail...)
}

func offsetsOf(t *testing.T, p page) (list []int64) {
	t.Helper()
	if err := p.each(context.Background(), "t", &decoder{}, func(r *Record) error {
		list = append(list, r.Offset)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

// Compaction leaves batches whose last records are gone, and empty ones; a reader that goes
// by the records it sees asks for the same batch again, for ever.
func TestEndIsTheBatchsAndNotItsLastRecords(t *testing.T) {
	t.Parallel()
	thinned := raw{base: 10, lastDelta: 9, producer: -1, records: []rawRecord{{offset: 1}, {offset: 4}}}.bytes()
	empty := raw{base: 20, lastDelta: 99, producer: -1}.bytes()
	data := append(append([]byte{}, thinned...), empty...)
	if end, err := endOf(data); end != 120 || err != nil {
		t.Errorf("end %d, %v, want 120", end, err)
	}
	got := offsetsOf(t, page{from: 12, end: 120, res: &fetchResponse{batches: data}})
	if len(got) != 1 || got[0] != 14 {
		t.Errorf("offsets %v, want 14 alone", got)
	}
}

// the last batch of an answer may be cut off anywhere.
func TestCutOffBatchWaitsForTheNextAnswer(t *testing.T) {
	t.Parallel()
	first := raw{base: 0, lastDelta: 1, producer: -1, records: []rawRecord{{}, {offset: 1}}}.bytes()
	second := raw{base: 2, producer: -1, records: []rawRecord{{}}}.bytes()
	for cut := range len(second) {
		data := append(append([]byte{}, first...), second[:cut]...)
		if end, err := endOf(data); end != 2 || err != nil {
			t.Fatalf("cut at %d: end %d, %v", cut, end, err)
		}
		if got := offsetsOf(t, page{end: 2, res: &fetchResponse{batches: data}}); len(got) != 2 {
			t.Fatalf("cut at %d: offsets %v", cut, got)
		}
	}
}

// rule 17: an abort counts from its first offset to its marker, for its producer.
func TestAbortedRangeEndsWithItsMarker(t *testing.T) {
	t.Parallel()
	one := []rawRecord{{}}
	var data []byte
	for _, b := range []raw{
		{base: 0, producer: 7, attributes: transactional, records: one},           // committed before
		{base: 1, producer: 7, attributes: transactional | control, records: one}, // its marker
		{base: 2, producer: 7, attributes: transactional, records: one},           // aborted
		{base: 3, producer: 8, attributes: transactional, records: one},           // another's
		{base: 4, producer: 7, records: one},                                      // not transactional
		{base: 5, producer: 7, attributes: transactional | control, records: one}, // the abort
		{base: 6, producer: 7, attributes: transactional, records: one},           // committed after
		{base: 7, producer: 8, attributes: transactional, records: one},           // aborted after
	} {
		data = append(data, b.bytes()...)
	}
	got := offsetsOf(t, page{end: 99, res: &fetchResponse{batches: data, aborted: []abortedTransaction{{7, 2}, {8, 7}}}})
	if want := []int64{0, 3, 4, 6}; !equal(got, want) {
		t.Errorf("offsets %v, want %v", got, want)
	}
}

func equal(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestRecordTimeIsTheBrokersWhereItSays(t *testing.T) {
	t.Parallel()
	for attributes, want := range map[int16]int64{0: 1005, logAppendTime: 9000} {
		data := raw{producer: -1, attributes: attributes, baseTime: 1000, max: 9000, records: []rawRecord{{time: 5}}}.bytes()
		err := (&page{end: 1, res: &fetchResponse{batches: data}}).each(context.Background(), "t", &decoder{}, func(r *Record) error {
			if !r.Time.Equal(time.UnixMilli(want)) {
				t.Errorf("attributes %d: time %s, want %d ms", attributes, r.Time, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// what is damaged is an error, never fewer records.
func TestDamagedBatchIsAnError(t *testing.T) {
	t.Parallel()
	good := raw{base: 3, lastDelta: 1, producer: -1, records: []rawRecord{{value: []byte("abc")}, {offset: 1, value: []byte("def")}}}.bytes()
	old := bytes.Clone(good)
	old[atMagic] = 1
	if _, err := endOf(old); err == nil {
		t.Error("the old message format gave no error")
	}
	for i := atAttributes; i < len(good); i++ {
		bad := bytes.Clone(good)
		bad[i] ^= 0x40
		p := page{end: 99, res: &fetchResponse{batches: bad}}
		n := 0
		err := p.each(context.Background(), "t", &decoder{}, func(*Record) error { n++; return nil })
		if err == nil {
			t.Errorf("byte %d changed: %d records and no error", i, n)
		}
	}
}

// FuzzBatch: whatever the bytes, no panic, and no record beyond what they hold.
func FuzzBatch(f *testing.F) {
	f.Add(raw{base: 1, producer: -1, records: []rawRecord{{key: []byte("k"), value: []byte("v")}}}.bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		b, _, err := nextBatch(data)
		if err != nil {
			return
		}
		// The checksum would keep nearly everything out.
		b.checksum = crc32.Checksum(b.checked, castagnoli)
		n := 0
		err = (&decoder{}).each(&b, 0, &Record{}, func(*Record) error { n++; return nil })
		if err == nil && n > len(data) {
			t.Errorf("%d records out of %d bytes", n, len(data))
		}
		if _, err := parseFetch(data, 11); err != nil && !errors.Is(err, errShort) {
			t.Error(err)
		}
	})
}
