package publisher

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/postrider/postrider/event"
)

// javaVectors are case C16's table.
var javaVectors = []struct {
	key         string
	hash        int32
	n12, n6, n3 int32
}{
	{"order-1", 1221710326, 10, 4, 1},
	{"order-2", -1055499005, 3, 3, 0},
	{"42", 417700972, 4, 4, 1},
	{"550e8400-e29b-41d4-a716-446655440000", 2143099391, 11, 5, 2},
	{"ключ", 2122343024, 8, 2, 2},
	{"", 275646681, 9, 3, 0},
}

// case C16, trap 18
func TestMurmur2IsJavas(t *testing.T) {
	t.Parallel()
	for _, v := range javaVectors {
		if got := int32(murmur2([]byte(v.key))); got != v.hash {
			t.Errorf("murmur2(%q) = %d, want %d", v.key, got, v.hash)
		}
		for n, want := range map[int]int32{12: v.n12, 6: v.n6, 3: v.n3} {
			if got := partitionOf([]byte(v.key), n); got != want {
				t.Errorf("%q of %d partitions: %d, want %d", v.key, n, got, want)
			}
		}
	}
	// The vectors of Kafka's own UtilsTest.
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}

// case C16: the partition that the broker reports.
func TestRecordsLandWhereJavaPutsThem(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(12, "twelve"), kfake.SeedTopics(3, "three"))
	r := newRig(t, c.ListenAddrs(), nil)
	for i, v := range javaVectors {
		for _, topic := range []string{"twelve", "three"} {
			m := message(topic, "k", i)
			m.Key = []byte(v.key)
			r.append(m, 1)
		}
	}
	explicit := message("twelve", "k", 99)
	explicit.Partition = 7
	r.append(explicit, 2)
	r.drain()
	for _, rec := range consume(t, c.ListenAddrs(), 2*len(javaVectors)+1, "twelve", "three") {
		if header(rec, "id") == "k-000099" {
			if rec.Partition != 7 {
				t.Errorf("explicit partition 7: %d", rec.Partition)
			}
			continue
		}
		for _, v := range javaVectors {
			want := map[string]int32{"twelve": v.n12, "three": v.n3}[rec.Topic]
			if string(rec.Key) == v.key && rec.Partition != want {
				t.Errorf("%q in %s: partition %d, want %d", v.key, rec.Topic, rec.Partition, want)
			}
		}
	}
}

// An explicit partition that the topic has not is a refusal of that event alone.
func TestExplicitPartitionOutOfRange(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(3, "t"))
	r := newRig(t, c.ListenAddrs(), nil)
	m := message("t", "k", 1)
	m.Partition = 3
	r.append(m, 5)
	until(t, "the refusal", func() bool { return len(r.refusalsSoFar()) == 1 })
	if got := r.refusalsSoFar()[0]; got.Reason != event.ReasonPartition || got.EventID != "k-000001" {
		t.Fatalf("%v", got)
	}
}
