package publisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/event"
)

// DESIGN 6: the border of max.message.bytes is exact: a record of exactly the limit
// passes, one byte more is refused, with the next event of another partition flowing.
func TestSizeBorderIsExact(t *testing.T) {
	t.Parallel()
	const limit = 10_000
	c := newCluster(t)
	if err := c.CreateTopic("t", 2, map[string]string{"max.message.bytes": fmt.Sprint(limit)}); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, c.ListenAddrs(), nil)
	sized := func(n, size, partition int) event.Message {
		m := message("t", "k", n)
		m.Partition = int32(partition)
		m.Value = nil
		b := newBatch()
		defer b.recycle()
		for grow := size; ; grow-- {
			m.Value = make([]byte, grow)
			if got := b.sizeWith(&m); got == size {
				return m
			} else if got < size {
				t.Fatalf("no value gives a batch of %d bytes", size)
			}
		}
	}
	r.append(message("t", "small", 0), 1)
	for n := range 3 {
		r.append(sized(n, limit, 0), 1)
	}
	r.append(message("t", "small", 1), 1)
	r.drain()
	if got := r.refusalsSoFar(); len(got) != 0 {
		t.Fatalf("a batch of exactly the limit: %v", got[0])
	}
	r.append(sized(3, limit+1, 0), 2)
	r.append(sized(4, limit, 1), 3)
	var left *DrainError
	if err := r.tryDrain(patience); !errors.As(err, &left) || left.Stuck != 1 {
		t.Fatalf("drain: %v", err)
	}
	if got := r.refusalsSoFar(); len(got) != 1 || got[0].Reason != event.ReasonTooLarge || got[0].EventID != "k-000003" {
		t.Fatalf("one byte more: %v", got)
	}
	if r.ackedOf(3) != 1 {
		t.Fatal("the other partition does not flow")
	}
}

// A limit that was raised while the publisher runs is read again before a record is refused.
func TestRaisedLimitIsSeen(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	if err := c.CreateTopic("t", 1, map[string]string{"max.message.bytes": "1000"}); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, c.ListenAddrs(), nil)
	r.append(message("t", "k", 0), 1)
	r.drain()
	alterTopic(t, c, "t", "max.message.bytes", "100000")
	m := message("t", "k", 1)
	m.Value = make([]byte, 50_000)
	r.append(m, 1)
	r.drain()
}

// With compression the broker judges the compressed size, and so does the publisher.
func TestCompressedSizeIsJudged(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	if err := c.CreateTopic("t", 1, map[string]string{"max.message.bytes": "10000"}); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.Compression = Zstd })
	for n := range 20 {
		m := message("t", "k", n)
		m.Value = bytes.Repeat([]byte("abcdefgh"), 10_000) // 80,000 bytes that compress well
		r.append(m, 1)
	}
	r.drain()
	wantOrder(t, consume(t, c.ListenAddrs(), 20, "t"), "k", 20)
	// Batches whose compressed form is still too large are split before they are sent.
	for n := range 20 {
		m := message("t", "noise", n)
		m.Value = noise(n, 3000)
		r.append(m, 2)
	}
	r.drain()
	wantOrder(t, consume(t, c.ListenAddrs(), 40, "t"), "noise", 20)
	m := message("t", "noise", 20)
	m.Value = noise(20, 20_000)
	r.append(m, 3)
	var left *DrainError
	if err := r.tryDrain(patience); !errors.As(err, &left) || left.Stuck != 1 {
		t.Fatalf("drain: %v", err)
	}
	if got := r.refusalsSoFar(); len(got) != 1 || got[0].Reason != event.ReasonTooLarge {
		t.Fatalf("%v", got)
	}
}

func noise(seed, n int) []byte {
	b := make([]byte, n)
	x := uint64(seed)*2654435761 + 88172645463325252
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// rule 14: DescribeConfigs may be refused; then the broker has the last word on a
// single record's size.
func TestLimitMayNotBeReadable(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	if err := c.CreateTopic("t", 1, map[string]string{"max.message.bytes": "3000000"}); err != nil {
		t.Fatal(err)
	}
	c.ControlKey(int16(kmsg.DescribeConfigs), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.DescribeConfigsRequest)
		res := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, q := range req.Resources {
			a := kmsg.NewDescribeConfigsResponseResource()
			a.ResourceType, a.ResourceName, a.ErrorCode = q.ResourceType, q.ResourceName, kerr.TopicAuthorizationFailed.Code
			res.Resources = append(res.Resources, a)
		}
		return res, nil, true
	})
	r := newRig(t, c.ListenAddrs(), nil)
	for n := range 3 {
		m := message("t", "k", n)
		m.Value = make([]byte, 2_000_000)
		r.append(m, 1)
	}
	r.drain()
	m := message("t", "k", 3)
	m.Value = make([]byte, 4_000_000)
	r.append(m, 2)
	if err := r.tryDrain(patience); err == nil {
		t.Fatal("accepted")
	}
	if got := r.refusalsSoFar(); len(got) != 1 || got[0].Reason != event.ReasonTooLarge {
		t.Fatalf("%v", got)
	}
}

// all five codecs, read back by another client.
func TestCompressions(t *testing.T) {
	t.Parallel()
	for _, codec := range []Compression{NoCompression, Gzip, Snappy, Lz4, Zstd} {
		t.Run(codec.String(), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.SeedTopics(3, "t"))
			var used atomic.Int64
			c.ControlKey(produceKey, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				for _, rt := range kreq.(*kmsg.ProduceRequest).Topics {
					for _, rp := range rt.Partitions {
						var b kmsg.RecordBatch
						if err := b.ReadFrom(rp.Records); err == nil && int8(b.Attributes&7) == int8(codec) {
							used.Add(1)
						}
					}
				}
				return nil, nil, false
			})
			r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.Compression = codec })
			const each = 400
			want := map[string][]byte{}
			for n := range each {
				for k := range 3 {
					m := message("t", keyName(k), n)
					m.Value = bytes.Repeat([]byte(fmt.Sprintf(`{"n": %d, "ü": null} `, n)), n%40)
					want[string(m.EventID)] = slices.Clone(m.Value)
					r.append(m, 1)
				}
			}
			r.drain()
			records := consume(t, c.ListenAddrs(), 3*each, "t")
			for _, rec := range records {
				if !bytes.Equal(rec.Value, want[header(rec, "id")]) {
					t.Fatalf("%s differs", header(rec, "id"))
				}
			}
			for k := range 3 {
				wantOrder(t, records, keyName(k), each)
			}
			if used.Load() == 0 {
				t.Fatal("no batch names the codec")
			}
		})
	}
}

// alterTopic sets a topic's setting through another client.
func alterTopic(t *testing.T, c *kfake.Cluster, topic, name, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	cfg := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	cfg.Name, cfg.Value = name, &value
	res.Configs = append(res.Configs, cfg)
	req.Resources = append(req.Resources, res)
	answer, err := req.RequestWith(ctx, admin(t, c.ListenAddrs()))
	if err != nil {
		t.Fatal(err)
	}
	if code := answer.Resources[0].ErrorCode; code != 0 {
		t.Fatal(kerr.ErrorForCode(code))
	}
}
