package oracle_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/oracle"
)

// run is a short honest history that each test spoils in one way: keys a and b,
// events a1 b1 a2 b2 a3, committed at 100, 200 …, delivered to one partition.
type run struct {
	o       *oracle.Oracle
	events  []oracle.Event
	records []oracle.Record
}

func newRun() *run {
	r := &run{o: oracle.New(oracle.Config{})}
	for _, id := range []string{"a1", "b1", "a2", "b2", "a3"} {
		e := oracle.Event{
			ID: id, Topic: "t", Key: []byte(id[:1]), Value: []byte("payload of " + id),
			Headers: []event.Header{{Name: "id", Value: []byte(id)}, {Name: "note", Value: nil}},
		}
		r.events = append(r.events, e)
		r.records = append(r.records, recordOf(e))
	}
	return r
}

func recordOf(e oracle.Event) oracle.Record {
	return oracle.Record{Topic: "t", Key: e.Key, Value: e.Value, Headers: e.Headers}
}

func (r *run) commit() {
	for i, e := range r.events {
		r.o.Committed(oracle.Order{Commit: event.LSN(100 * (i + 1))}, e)
	}
}

// deliver numbers the records as they stand and reports them.
func (r *run) deliver() {
	for i, rec := range r.records {
		rec.Offset = int64(i)
		r.o.Delivered(rec)
	}
}

func (r *run) verdict() oracle.Verdict {
	r.commit()
	r.deliver()
	return r.o.Verdict()
}

func TestHonestRunHasNoFault(t *testing.T) {
	t.Parallel()
	v := newRun().verdict()
	require.NoError(t, v.Err())
	require.Equal(t, oracle.Verdict{Committed: 5, Delivered: 5, Records: 5}, v)
}

func TestDeliveryMayBeReportedBeforeCommit(t *testing.T) {
	t.Parallel()
	r := newRun()
	r.deliver()
	r.commit()
	require.NoError(t, r.o.Verdict().Err())
}

func TestRewindIsLegalAndCountsDuplicates(t *testing.T) {
	t.Parallel()
	r := newRun()
	r.records = append(r.records[:3], r.records[1:]...) // a1 b1 a2 | b1 a2 b2 a3
	v := r.verdict()
	require.NoError(t, v.Err())
	require.Equal(t, 2, v.Duplicates)
}

// Every kind of fault is planted once, alone, and found as that kind alone.
func TestEachPlantedFaultIsFound(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(*run)
		want  oracle.Verdict // the faults only
		says  string
	}{
		{"O1 an event is lost", func(r *run) {
			r.records = append(r.records[:1], r.records[2:]...)
		}, oracle.Verdict{Lost: 1}, "b1"},
		{"O1 an event stands in the parked store twice", func(r *run) {
			r.records = r.records[:4]
			r.o.Parked("a3")
			r.o.Parked("a3")
		}, oracle.Verdict{ParkedTwice: 1}, "a3"},
		{"O2 an event overtakes one of its key", func(r *run) {
			r.records[0], r.records[2] = r.records[2], r.records[0] // a2 b1 a1
		}, oracle.Verdict{OutOfOrder: 1}, "a2"},
		{"O2 a leapfrog that a later copy hides", func(r *run) {
			a1, a2, a3 := r.records[0], r.records[2], r.records[4]
			r.records = []oracle.Record{a1, a3, a2, a3, r.records[1], r.records[3]}
		}, oracle.Verdict{OutOfOrder: 1}, "a3"},
		{"O2 a key changes its partition", func(r *run) {
			r.records[4].Partition = 1
		}, oracle.Verdict{OutOfOrder: 1}, "t-1"},
		{"O3 rolled-back work is seen", func(r *run) {
			r.o.RolledBack("x")
			r.records = append(r.records, recordOf(oracle.Event{Headers: []event.Header{{Name: "id", Value: []byte("x")}}}))
		}, oracle.Verdict{Phantom: 1}, "rolled back"},
		{"O3 an event that nobody committed", func(r *run) {
			r.records = append(r.records, recordOf(oracle.Event{Headers: []event.Header{{Name: "id", Value: []byte("y")}}}))
		}, oracle.Verdict{Phantom: 1}, "never committed"},
		{"O3 a record without an id", func(r *run) {
			r.records = append(r.records, oracle.Record{Topic: "t"})
		}, oracle.Verdict{Phantom: 1}, "without an id"},
		{"O5 one byte of the value", func(r *run) {
			r.records[1].Value = []byte("payload of B1")
		}, oracle.Verdict{WrongBytes: 1}, "value"},
		{"O5 JSON that is equal and not the same", func(r *run) {
			r.events[1].Value = []byte(`{"a": 1}`)
			r.records[1].Value = []byte(`{"a":1}`)
		}, oracle.Verdict{WrongBytes: 1}, "value of 7 bytes, want 8 bytes"},
		{"O5 an empty value for a null one", func(r *run) {
			r.events[1].Value = nil
			r.records[1].Value = []byte{}
		}, oracle.Verdict{WrongBytes: 1}, "value of 0 bytes, want null"},
		{"O5 the key", func(r *run) {
			r.records[4].Key = []byte("A")
		}, oracle.Verdict{WrongBytes: 1}, "key"},
		{"O5 an empty header for a null one", func(r *run) {
			r.records[4].Headers = []event.Header{{Name: "id", Value: []byte("a3")}, {Name: "note", Value: []byte{}}}
		}, oracle.Verdict{WrongBytes: 1}, "headers"},
		{"O5 the headers' order", func(r *run) {
			r.records[4].Headers = []event.Header{{Name: "note"}, {Name: "id", Value: []byte("a3")}}
		}, oracle.Verdict{WrongBytes: 1}, "headers"},
		{"O5 a copy that differs from the first", func(r *run) {
			again := r.records[4]
			again.Value = []byte("changed")
			r.records = append(r.records, again)
		}, oracle.Verdict{WrongBytes: 1}, "further copies"},
		{"O5 the topic", func(r *run) {
			for i := range r.records { // a whole key moves, so that its order stays
				if r.records[i].Key[0] == 'b' {
					r.records[i].Topic = "u"
				}
			}
		}, oracle.Verdict{WrongBytes: 2}, "topic u"},
		{"a writer that uses an id twice", func(r *run) {
			r.o.Committed(oracle.Order{Commit: 50}, r.events[0])
		}, oracle.Verdict{CommittedTwice: 1}, "a1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRun()
			tt.spoil(r)
			v := r.verdict()
			require.Error(t, v.Err())
			require.Contains(t, v.Err().Error(), tt.says)
			got := oracle.Verdict{
				Lost: v.Lost, ParkedTwice: v.ParkedTwice, OutOfOrder: v.OutOfOrder, Phantom: v.Phantom,
				UnsafeAcks: v.UnsafeAcks, WrongBytes: v.WrongBytes, CommittedTwice: v.CommittedTwice,
			}
			require.Equal(t, tt.want, got, v.Details)
		})
	}
}

func ends(n int64) map[oracle.Partition]int64 {
	return map[oracle.Partition]int64{{Topic: "t", ID: 0}: n}
}

// O4: the events stand at offsets 0 to 4 and were committed at 100 to 500.
func TestUnsafeAcknowledgementIsFound(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		samples []oracle.Sample
		want    int
	}{
		{"never ahead", []oracle.Sample{{Confirmed: 150, Ends: ends(1)}, {Confirmed: 350, Ends: ends(4)}, {Confirmed: 900, Ends: ends(5)}}, 0},
		{"at the commit record itself is not past it", []oracle.Sample{{Confirmed: 100, Ends: ends(0)}}, 0},
		{"one byte past it", []oracle.Sample{{Confirmed: 101, Ends: ends(0)}}, 1},
		{"two events behind, once, and healed later", []oracle.Sample{{Confirmed: 350, Ends: ends(1)}, {Confirmed: 350, Ends: ends(5)}}, 2},
		{"a partition that is not there is empty", []oracle.Sample{{Confirmed: 101}}, 1},
		{"nothing pending: the position runs ahead with the WAL (case C27)", []oracle.Sample{{Confirmed: 10_000, Ends: ends(5)}}, 0},
		{"a position that falls back after a crash covers nothing new", []oracle.Sample{{Confirmed: 350, Ends: ends(3)}, {Confirmed: 150, Ends: ends(3)}, {Confirmed: 350, Ends: ends(3)}}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRun()
			for _, s := range tt.samples {
				r.o.Sample(s)
			}
			v := r.verdict()
			require.Equal(t, tt.want, v.UnsafeAcks, v.Details)
			require.Equal(t, tt.want, v.Faults(), "and nothing else")
			require.Equal(t, len(tt.samples), v.Samples)
		})
	}
}

func TestParkedEventsCountAsSafe(t *testing.T) {
	t.Parallel()
	r := newRun()
	r.records = r.records[:4]
	r.o.Parked("a3")
	r.o.Sample(oracle.Sample{Confirmed: 900, Ends: ends(4)})
	v := r.verdict()
	require.NoError(t, v.Err())
	require.Equal(t, 1, v.Parked)
}

// Events parked alone keep the order among themselves, and the others of the key theirs.
func TestEventsParkedAloneAreJudgedByThemselves(t *testing.T) {
	t.Parallel()
	for want, order := range map[int][]int{0: {1, 3, 4, 0, 2}, 1: {1, 3, 4, 2, 0}} { // a3 passes a1 and a2
		r := newRun()
		all := r.records
		r.records = nil
		for _, i := range order {
			r.records = append(r.records, all[i])
		}
		r.o.ParkedAlone("a1")
		r.o.ParkedAlone("a2")
		v := r.verdict()
		require.Equal(t, want, v.OutOfOrder, v.Details)
		require.Equal(t, 2, v.Parked)
		require.Equal(t, want, v.Faults())
	}
	r := newRun()
	r.o.ParkedAlone("b1")
	r.records[0], r.records[2] = r.records[2], r.records[0]
	require.Equal(t, 1, r.verdict().OutOfOrder, "a2 before a1, neither of them parked")
}

func TestNullKeysHaveNoOrder(t *testing.T) {
	t.Parallel()
	r := newRun()
	for i := range r.events {
		r.events[i].Key, r.records[i].Key = nil, nil
		r.records[i].Partition = int32(i % 2)
	}
	r.records[0], r.records[4] = r.records[4], r.records[0]
	require.NoError(t, r.verdict().Err())
}

func TestOrderInsideATransaction(t *testing.T) {
	t.Parallel()
	o := oracle.New(oracle.Config{})
	for i, id := range []string{"first", "second"} {
		e := oracle.Event{ID: id, Key: []byte("k"), Headers: []event.Header{{Name: "id", Value: []byte(id)}}}
		o.Committed(oracle.Order{Commit: 100, Index: uint64(i)}, e)
		rec := recordOf(e)
		rec.Offset = int64(1 - i)
		o.Delivered(rec)
	}
	require.Equal(t, 1, o.Verdict().OutOfOrder)
}

func TestDetailsAreFewWhateverTheCount(t *testing.T) {
	t.Parallel()
	o := oracle.New(oracle.Config{Details: 3})
	for i := range 1000 {
		o.Committed(oracle.Order{Commit: event.LSN(i)}, oracle.Event{ID: fmt.Sprint(i)})
		o.Delivered(oracle.Record{Topic: "t", Offset: int64(i)})
	}
	v := o.Verdict()
	require.Equal(t, 1000, v.Lost)
	require.Equal(t, 1000, v.Phantom)
	require.LessOrEqual(t, len(v.Details), 8)
	require.Contains(t, strings.Join(v.Details, "\n"), "lost: 997 more")
}

func TestMarkedHeadersCanBeLeftOut(t *testing.T) {
	t.Parallel()
	o := oracle.New(oracle.Config{IgnoreHeader: func(name string) bool { return strings.HasPrefix(name, "postrider-") }})
	id := event.Header{Name: "id", Value: []byte("1")}
	o.Committed(oracle.Order{Commit: 1}, oracle.Event{ID: "1", Headers: []event.Header{id}})
	o.Delivered(oracle.Record{Topic: "t", Headers: []event.Header{id, {Name: "postrider-replayed", Value: []byte("1")}}})
	require.NoError(t, o.Verdict().Err())
}

func BenchmarkVerdict(b *testing.B) {
	o := oracle.New(oracle.Config{})
	const events = 100_000
	for i := range events {
		id := fmt.Sprintf("%036d", i)
		e := oracle.Event{ID: id, Key: fmt.Appendf(nil, "k%d", i%10_000), Value: make([]byte, 300), Headers: []event.Header{{Name: "id", Value: []byte(id)}}}
		o.Committed(oracle.Order{Commit: event.LSN(i)}, e)
		r := recordOf(e)
		r.Offset = int64(i)
		o.Delivered(r)
	}
	for b.Loop() {
		if err := o.Verdict().Err(); err != nil {
			b.Fatal(err)
		}
	}
}
