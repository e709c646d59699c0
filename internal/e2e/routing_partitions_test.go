package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/router"
)

// javaPartitions are keys with murmur2 as Java computes it (case C16), and the partition
// of 12, 6 and 3 that follows.
var javaPartitions = []struct {
	key     string
	murmur2 int32
	of      map[int32]int32
}{
	{"order-1", 1221710326, map[int32]int32{12: 10, 6: 4, 3: 1}},
	{"order-2", -1055499005, map[int32]int32{12: 3, 6: 3, 3: 0}},
	{"42", 417700972, map[int32]int32{12: 4, 6: 4, 3: 1}},
	{"550e8400-e29b-41d4-a716-446655440000", 2143099391, map[int32]int32{12: 11, 6: 5, 3: 2}},
	{"ключ", 2122343024, map[int32]int32{12: 8, 6: 2, 3: 2}},
	{"", 275646681, map[int32]int32{12: 9, 6: 3, 3: 0}},
}

// murmur2 is Java's org.apache.kafka.common.utils.Utils.murmur2, written anew for these
// tests.
func murmur2(data []byte) int32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> 24
		k *= m
		h = h*m ^ k
	}
	for i := len(data) - 1; i >= 0; i-- {
		h ^= uint32(data[i]) << (8 * i)
	}
	if len(data) > 0 {
		h *= m
	}
	h ^= h >> 13
	h *= m
	return int32(h ^ h>>15)
}

func javaPartition(key []byte, n int32) int32 { return (murmur2(key) & 0x7fffffff) % n }

// TestPartitionsAsJava: the broker reports each record in the partition that a Java
// producer would have chosen (case C16, trap 18).
func TestPartitionsAsJava(t *testing.T) {
	t.Parallel()
	for _, c := range javaPartitions {
		for n, p := range c.of {
			if murmur2([]byte(c.key)) != c.murmur2 || javaPartition([]byte(c.key), n) != p {
				t.Fatalf("the test's own murmur2 of %q is wrong", c.key)
			}
		}
	}
	f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), textTable("text"))
	f.mapping().EmptyKey = router.EmptyKeyAllow
	counts := []int32{12, 6, 3, 1}
	var sql strings.Builder
	for _, n := range counts {
		f.createTopic(fmt.Sprintf("p%d", n), n, nil)
		for i, c := range javaPartitions {
			fmt.Fprintf(&sql, "INSERT INTO outbox VALUES ('%d-%d', 'p%d', %s, 'X', 'x');", n, i, n, literal(c.key))
		}
		// Every length modulo 4, bytes above 127, and many keys.
		fmt.Fprintf(&sql, "INSERT INTO outbox SELECT '%d-m' || i, 'p%d', left(repeat(chr(200 + i) || i, 9), i %% 13 + 1), 'X', 'x' FROM generate_series(1, 100) i;", n, n)
	}
	f.db.Exec(t, sql.String())
	f.mustDrain()
	for _, n := range counts {
		records := f.broker.ReadAll(t, f.topic(fmt.Sprintf("p%d", n)))
		if len(records) != len(javaPartitions)+100 {
			t.Errorf("%d records in the topic of %d partitions", len(records), n)
		}
		used := map[int32]bool{}
		for _, r := range records {
			used[r.Partition] = true
			if want := javaPartition(r.Key, n); r.Partition != want {
				t.Errorf("key %q is in partition %d of %d, want %d", r.Key, r.Partition, n, want)
			}
		}
		if len(used) != int(n) {
			t.Errorf("only %d of %d partitions are used", len(used), n)
		}
	}
}

// TestKeysOfOtherTypes: the key's bytes decide, whatever the column's type; two texts of
// one uuid are one key (case C16).
func TestKeysOfOtherTypes(t *testing.T) {
	t.Parallel()
	f := newFixtureOf(t, testkit.Postgres(t), `CREATE TABLE k_uuid(id serial, k uuid, p text DEFAULT 'x'); CREATE TABLE k_int(LIKE k_uuid INCLUDING ALL); CREATE TABLE k_bytea(LIKE k_uuid INCLUDING ALL);
		ALTER TABLE k_int ALTER k TYPE int USING 0; ALTER TABLE k_bytea ALTER k TYPE bytea USING ''; CREATE PUBLICATION %s FOR TABLE k_uuid, k_int, k_bytea`,
		func(f *fixture) (sources []router.Source) {
			for _, table := range []string{"k_uuid", "k_int", "k_bytea"} {
				sources = append(sources, router.Source{
					Schema: "public", Table: table, Mapping: router.Mapping{EventID: "id", Key: "k", Payload: "p"},
					Routes: []router.Route{{Topic: f.topic("all")}},
				})
			}
			return sources
		})
	f.createTopic("all", 12, nil)
	f.db.Exec(t, `INSERT INTO k_uuid(k) VALUES ('550E8400-E29B-41D4-A716-446655440000'), ('{550e8400e29b41d4a716446655440000}');
		INSERT INTO k_int(k) VALUES (42), (042); INSERT INTO k_bytea(k) VALUES ('order-1'), ('\x6f726465722d32')`)
	f.mustDrain()
	got := map[string]int{}
	for _, r := range f.broker.ReadAll(t, f.topic("all")) {
		got[fmt.Sprintf("%s %d", r.Key, r.Partition)]++
	}
	if len(got) != 4 || got["550e8400-e29b-41d4-a716-446655440000 11"] != 2 || got["42 4"] != 2 || got["order-1 10"] != 1 || got["order-2 3"] != 1 {
		t.Errorf("keys and partitions are %v", got)
	}
}

// TestPartitionColumn: a partition that the row names counts, NULL leaves it to the key,
// and one that the topic does not have is refused, not folded.
func TestPartitionColumn(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), textTable("text")+"; ALTER TABLE outbox ADD part bigint")
	f.mapping().Partition = "part"
	f.createTopic("order", 12, nil)
	f.db.Exec(t, "INSERT INTO outbox VALUES ('1', 'order', 'order-1', 'X', 'x', 0), ('2', 'order', 'order-1', 'X', 'x', 11), ('3', 'order', 'order-1', 'X', 'x', NULL)")
	f.mustDrain()
	got := map[string]int32{}
	for _, r := range f.broker.ReadAll(t, f.topic("order")) {
		id, _ := r.Header("id")
		got[string(id)] = r.Partition
	}
	if len(got) != 3 || got["1"] != 0 || got["2"] != 11 || got["3"] != 10 {
		t.Errorf("partitions are %v", got)
	}
	for _, bad := range []string{"12", "-1", "2147483648", "9223372036854775807"} {
		t.Run(bad, func(t *testing.T) {
			f.db.Exec(t, "INSERT INTO outbox VALUES ('bad', 'order', 'order-1', 'X', 'x', "+bad+")")
			requireRefusal(t, f.drain(), event.ReasonPartition, "bad")
			f.skipAll()
			f.db.Exec(t, "DELETE FROM outbox")
		})
	}
}

// TestMorePartitionsWhileRunning: events flow while a topic goes from 6 to 12 partitions.
// Nothing is lost or doubled, the order of each key holds before and after, and where a
// key went is decided by one count at a time: the new one with follow, the old one with
// pin (case C16, rule 18, trap 18).
func TestMorePartitionsWhileRunning(t *testing.T) {
	t.Parallel()
	for change, action := range map[publisher.PartitionChange]string{publisher.FollowPartitions: "adopted", publisher.PinPartitions: "pinned"} {
		t.Run(string(change), func(t *testing.T) {
			t.Parallel()
			f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), textTable("text"))
			f.cfg.Kafka.PartitionChange = change
			f.cfg.Kafka.MetadataMaxAge = 200 * time.Millisecond
			f.createTopic("order", 6, nil)
			r := f.start()
			const keys = 20
			written := 0
			write := func() {
				f.db.Exec(t, fmt.Sprintf("INSERT INTO outbox SELECT i::text, 'order', 'k' || i %% %d, 'X', i::text FROM generate_series(%d, %d) i", keys, written, written+99))
				written += 100
			}
			write()
			f.awaitRecords(f.topic("order"), written)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			res, err := kadm.NewClient(f.broker.Client(t)).UpdatePartitions(ctx, 12, f.topic("order"))
			must(t, err)
			must(t, res.Error())
			changes := fmt.Sprintf("postrider_publisher_partition_changes_total{action=%q,topic=%q}", action, f.topic("order"))
			testkit.EventuallyTrue(t, patience, "the change is not noticed", func() bool {
				write()
				return r.metric(changes) > 0
			})
			noticed := written
			write()
			f.awaitRecords(f.topic("order"), written)
			r.mustStop()
			f.requireOneCountAtATime(written, keys, noticed, change == publisher.FollowPartitions)
		})
	}
}

// requireOneCountAtATime judges the records of write: of each key, those with the count
// of 6 come first, and after noticed none of them.
func (f *fixture) requireOneCountAtATime(written, keys, noticed int, follow bool) {
	f.t.Helper()
	records := f.broker.ReadAll(f.t, f.topic("order"))
	if len(records) != written {
		f.t.Fatalf("%d records, want %d", len(records), written)
	}
	at := make([]int32, written)
	last := map[string]int{}
	for _, r := range records {
		var n int
		if _, err := fmt.Sscan(string(r.Value), &n); err != nil {
			f.t.Fatal(err)
		}
		at[n] = r.Partition
		in := fmt.Sprintf("%s in %d", r.Key, r.Partition)
		if before, seen := last[in]; seen && before >= n {
			f.t.Errorf("key %s: %d comes after %d", in, n, before)
		}
		last[in] = n
	}
	moved := 0
	for k := range keys {
		key := []byte(fmt.Sprintf("k%d", k))
		old, now := javaPartition(key, 6), javaPartition(key, 12)
		if !follow {
			now = old
		}
		changed := false
		for n := k; n < written; n += keys {
			switch p := at[n]; {
			case p == now && (now != old || n >= noticed):
				changed = true
			case p == old && !changed && n < noticed:
			case p != now:
				f.t.Errorf("event %d of key %s is in partition %d; %d with 6 partitions, %d now, noticed at %d", n, key, p, old, now, noticed)
			}
		}
		if now != old {
			moved++
		}
	}
	if follow && moved == 0 {
		f.t.Fatal("no key moves: the test shows nothing")
	}
}
