package shadow

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/postrider/postrider/event"
)

const (
	// roomFor is how many bytes of events may wait for their records, and of records for their events.
	roomFor = 32 << 20
	// overhead is about what one of them takes besides its bytes.
	overhead = 400
	// mostKeys are watched for their order.
	mostKeys = 1_000_000
	// mostGiven missing events are known again when they come late.
	mostGiven = 100_000
	// settleAfter is how long a row may be visible, and published, before the stream shows it: a commit that does not wait for its
	// WAL to be written (synchronous_commit = off) comes up to three rounds of the WAL writer later.
	settleAfter = 2 * time.Second
)

// record is one of the other publisher's, whole.
type record struct {
	topic     string
	partition int32
	offset    int64
	key       []byte
	value     []byte
	headers   []event.Header
}

// expected is an event of the stream that no record was found for yet.
type expected struct {
	record // as we would publish it; the offset is of no meaning
	number int64
	since  time.Time
}

// early is a record whose event has not come on the stream yet.
type early struct {
	record
	since time.Time
}

// mark is the last event of a key, and the last record.
type mark struct {
	number    int64
	partition int32
	offset    int64
}

// book keeps what waits for its other half. It is pure: the caller reads, and says what time it is.
type book struct {
	patience time.Duration
	samples  int
	payload  bool
	ignored  []string // patterns of headers

	number  int64 // of events so far
	bytes   int   // of events that wait
	held    int   // bytes of records that wait
	waiting map[string]*expected
	early   map[string]*early
	matched map[string]time.Time // for a time, to know copies
	given   map[string]struct{}  // missing ones
	order   map[string]mark      // by topic and key
	dropped bool                 // order is not watched any more: too many keys
	closed  bool                 // the stream is not read any more: records without an event are nobody's business

	// strangers are records of events that did not come on the stream: of before, or of nobody. Which of them is for the caller to
	// find out.
	strangers []Sample

	report *Report
}

func newBook(o Options, report *Report) *book {
	return &book{
		patience: o.Patience, samples: o.Samples, payload: o.Payload, ignored: o.IgnoreHeaders, report: report, waiting: map[string]*expected{},
		early: map[string]*early{}, matched: map[string]time.Time{}, given: map[string]struct{}{},
		order: map[string]mark{},
	}
}

// crowded says that the stream should not be read on.
func (b *book) crowded() bool { return b.bytes >= roomFor }

// full says that the topics should not be read on.
func (b *book) full() bool { return b.held >= roomFor }

// expect takes an event of the stream. It keeps r.
func (b *book) expect(id string, r record, now time.Time) {
	b.report.Streamed++
	b.number++
	e := &expected{record: r, number: b.number, since: now}
	if got, ok := b.early[id]; ok {
		delete(b.early, id)
		b.held -= size(&got.record)
		b.compare(id, e, &got.record)
		b.matched[id] = now
		return
	}
	if old, ok := b.waiting[id]; ok { // two rows with one id: a consumer would take the second for a copy
		b.bytes -= size(&old.record)
		b.report.SharedIDs++
	}
	b.waiting[id] = e
	b.bytes += size(&e.record)
}

// arrive takes a record of the topics. It keeps r where its event is not known yet.
func (b *book) arrive(id string, r record, now time.Time) {
	b.report.Records++
	if e, ok := b.waiting[id]; ok {
		delete(b.waiting, id)
		b.bytes -= size(&e.record)
		b.compare(id, e, &r)
		b.matched[id] = now
		return
	}
	if _, ok := b.matched[id]; ok {
		b.report.Duplicates++
		return
	}
	if _, ok := b.given[id]; ok {
		delete(b.given, id)
		b.matched[id] = now
		b.report.Late++
		return
	}
	if _, ok := b.early[id]; ok {
		b.report.Duplicates++
		return
	}
	if b.closed {
		return
	}
	b.early[id] = &early{record: r, since: now}
	b.held += size(&r)
}

// expire gives up what has waited for too long, by how far the two sides are read: up to what was on the stream at streamed, and in the
// topics at read. A side that is not read on lets nothing of the other go. It forgets what was found so long ago.
func (b *book) expire(streamed, read time.Time) {
	late := read.Add(-b.patience)
	for id, e := range b.waiting {
		if !e.since.After(late) {
			delete(b.waiting, id)
			b.bytes -= size(&e.record)
			b.report.Missing++
			b.sample(Sample{Event: id, Topic: e.topic, Field: FieldMissing, Ours: b.about(&e.record)})
			if len(b.given) < mostGiven {
				b.given[id] = struct{}{}
			}
		}
	}
	settled := streamed.Add(-settleAfter)
	for id, r := range b.early {
		if !r.since.After(settled) {
			delete(b.early, id)
			b.held -= size(&r.record)
			b.stranger(id, &r.record)
		}
	}
	for id, at := range b.matched {
		if !at.After(late) {
			delete(b.matched, id)
		}
	}
}

func (b *book) stranger(id string, r *record) {
	b.strangers = append(b.strangers, Sample{
		Event: id, Topic: r.topic, Partition: r.partition, Offset: r.offset, Field: FieldUnexpected, Theirs: b.about(r),
	})
}

// compare judges one event by its first record.
func (b *book) compare(id string, e *expected, got *record) {
	b.report.Compared++
	found := b.differences(id, e, got)
	for i := range found {
		b.report.DifferentBy[found[i].Field]++
		b.sample(found[i])
	}
	b.inOrder(id, e, got)
	if len(found) == 0 {
		b.report.Equal++
	} else {
		b.report.Different++
	}
}

// inOrder looks at first records only: copies are rewinds, and those are nobody's fault. It goes by offsets: a record that was
// there before its event is looked at when that comes.
func (b *book) inOrder(id string, e *expected, got *record) {
	if b.dropped || got.key == nil {
		return
	}
	unit := got.topic + "\x00" + string(got.key)
	last, known := b.order[unit]
	now := mark{e.number, got.partition, got.offset}
	switch {
	case known && last.leapfrogs(now):
		b.report.OutOfOrder++
		b.sample(Sample{
			Event: id, Topic: got.topic, Partition: got.partition, Offset: got.offset, Field: FieldOrder,
			Theirs: "not on the same side of another event of its key as on the stream",
		})
		last.number = max(last.number, now.number)
		now = last
	case known && now.number < last.number:
		return
	case !known && len(b.order) >= mostKeys:
		b.dropped, b.order = true, nil
		b.report.note("order was watched for the first 1,000,000 keys only")
		return
	}
	b.order[unit] = now
}

// leapfrogs says that two events of a key, and their records, do not follow each other in the same order. Partitions have no
// order between them: there it is the order in which they were found.
func (m mark) leapfrogs(now mark) bool {
	if m.partition != now.partition {
		return now.number < m.number
	}
	return (now.number < m.number) != (now.offset < m.offset)
}

func (b *book) differences(id string, e *expected, got *record) (list []Sample) {
	differs := func(field, ours, theirs string) {
		list = append(list, Sample{
			Event: id, Topic: got.topic, Partition: got.partition, Offset: got.offset, Field: field, Ours: ours, Theirs: theirs,
		})
	}
	if e.topic != got.topic {
		differs(FieldTopic, e.topic, got.topic)
	} else if e.partition >= 0 && e.partition != got.partition {
		differs(FieldPartition, fmt.Sprint(e.partition), fmt.Sprint(got.partition))
	}
	if !same(e.key, got.key) {
		differs(FieldKey, text(e.key), text(got.key))
	}
	if !same(e.value, got.value) {
		differs(FieldValue, b.valueText(e.value, got.value), b.valueText(got.value, e.value))
	}
	for i := range e.headers {
		b.header(&e.headers[i], e.headers, got.headers, differs)
	}
	for i := range got.headers {
		if h := &got.headers[i]; find(e.headers, h.Name) == nil && find(got.headers, h.Name) == h && !b.ignores(h.Name) {
			differs(FieldHeader+h.Name, "none", b.headerText(h.Value))
		}
	}
	return list
}

// header compares one of ours by its name: the first of that name, and how many there are.
func (b *book) header(h *event.Header, ours, theirs []event.Header, differs func(field, ours, theirs string)) {
	if first := find(ours, h.Name); first != h || b.ignores(h.Name) {
		return
	}
	got := find(theirs, h.Name)
	switch {
	case got == nil:
		differs(FieldHeader+h.Name, b.headerText(h.Value), "none")
	case !same(h.Value, got.Value):
		differs(FieldHeader+h.Name, b.headerText(h.Value), b.headerText(got.Value))
	case count(ours, h.Name) != count(theirs, h.Name):
		differs(FieldHeader+h.Name, fmt.Sprintf("%d times", count(ours, h.Name)), fmt.Sprintf("%d times", count(theirs, h.Name)))
	}
}

func (b *book) ignores(name string) bool {
	return slices.ContainsFunc(b.ignored, func(pattern string) bool {
		ok, _ := path.Match(pattern, name) // Validate has refused what is no pattern
		return ok
	})
}

func find(headers []event.Header, name string) *event.Header {
	if i := slices.IndexFunc(headers, func(h event.Header) bool { return h.Name == name }); i >= 0 {
		return &headers[i]
	}
	return nil
}

func count(headers []event.Header, name string) (n int) {
	for i := range headers {
		if headers[i].Name == name {
			n++
		}
	}
	return n
}

// same tells null and empty apart.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func size(r *record) int {
	n := overhead + len(r.key) + len(r.value)
	for i := range r.headers {
		n += len(r.headers[i].Name) + len(r.headers[i].Value)
	}
	return n
}

func (b *book) sample(s Sample) {
	if kept := b.report.kept[s.Field]; kept < b.samples {
		b.report.kept[s.Field]++
		b.report.Samples = append(b.report.Samples, s)
	}
}

// mostText bounds what is shown of a value.
const mostText = 80

func text(v []byte) string {
	switch {
	case v == nil:
		return "null"
	case len(v) > mostText:
		return fmt.Sprintf("%q… (%d bytes)", v[:mostText], len(v))
	}
	return fmt.Sprintf("%q", v)
}

// valueText describes a value, which may be private, by its size and the place of the first difference; or shows it from there.
func (b *book) valueText(v, other []byte) string {
	if v == nil || other == nil {
		if b.payload {
			return text(v)
		}
		return about(v)
	}
	at := 0
	for at < len(v) && at < len(other) && v[at] == other[at] {
		at++
	}
	if !b.payload {
		return fmt.Sprintf("%d bytes, other from byte %d on", len(v), at)
	}
	from := max(0, at-8)
	return fmt.Sprintf("from byte %d: %s", from, text(v[from:]))
}

func (b *book) headerText(v []byte) string {
	if b.payload {
		return text(v)
	}
	return about(v)
}

func about(v []byte) string {
	if v == nil {
		return "null"
	}
	return fmt.Sprintf("%d bytes", len(v))
}

// about names a whole record.
func (b *book) about(r *record) string {
	return fmt.Sprintf("key %s, value %s", text(r.key), b.headerText(r.value))
}

// end closes the book: what waits still, and what nobody has asked for.
func (b *book) end() {
	for id, e := range b.waiting {
		b.report.Waiting++
		b.sample(Sample{Event: id, Topic: e.topic, Field: FieldMissing, Ours: b.about(&e.record), Theirs: "not there when the comparison ended"})
	}
	for id, r := range b.early {
		b.stranger(id, &r.record)
	}
	clear(b.waiting)
	clear(b.early)
	b.bytes, b.held = 0, 0
}
