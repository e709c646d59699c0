package publisher

import (
	"bytes"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

func TestPublishesInOrderPerKey(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(12, "orders"))
	r := newRig(t, c.ListenAddrs(), nil)
	const keys, each = 20, 100
	for n := range each {
		for k := range keys {
			r.append(message("orders", keyName(k), n), uint64(n+1))
		}
		r.p.Flush()
	}
	r.drain()
	records := consume(t, c.ListenAddrs(), keys*each, "orders")
	if len(records) != keys*each {
		t.Fatalf("%d records, want %d", len(records), keys*each)
	}
	for k := range keys {
		wantOrder(t, records, keyName(k), each)
	}
	for n := range each {
		if got := r.ackedOf(uint64(n + 1)); got != keys {
			t.Fatalf("transaction %d: %d acknowledged, want %d", n+1, got, keys)
		}
	}
	if s := r.p.Stats(); s.WindowBytes != 0 || s.PendingEvents != 0 || s.AckedEvents != keys*each {
		t.Fatalf("after the drain: %+v", s)
	}
}

func keyName(k int) string { return "order-" + string(rune('a'+k)) }

// case C13: null and empty stay apart on the wire, for keys, values and headers.
func TestNullAndEmpty(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "t"))
	r := newRig(t, c.ListenAddrs(), nil)
	shapes := []struct{ key, value, header []byte }{
		{nil, nil, nil},
		{[]byte{}, []byte{}, []byte{}},
		{[]byte("k"), []byte("null"), []byte("h")},
	}
	for i, s := range shapes {
		m := message("t", "k", i)
		m.Key, m.Value = s.key, s.value
		m.Headers[0].Value = s.header
		r.append(m, 1)
	}
	r.drain()
	for i, rec := range consume(t, c.ListenAddrs(), len(shapes), "t") {
		want := shapes[i]
		for _, pair := range [][2][]byte{{rec.Key, want.key}, {rec.Value, want.value}, {rec.Headers[0].Value, want.header}} {
			if (pair[0] == nil) != (pair[1] == nil) || !bytes.Equal(pair[0], pair[1]) {
				t.Errorf("record %d: got %#v, want %#v", i, pair[0], pair[1])
			}
		}
	}
}
