package publisher

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

func TestWindowReserve(t *testing.T) {
	t.Parallel()
	w := newWindow(100)
	if !w.reserve(60, 0) || w.reserve(50, 0) || !w.reserve(40, 0) {
		t.Fatal("it takes what fits and nothing else")
	}
	w.adjust(-100)
	if !w.reserve(1000, 0) {
		t.Fatal("an event larger than the window passes when it is empty")
	}
	if w.reserve(1, 0) {
		t.Fatal("and then nothing does")
	}
	if !w.reserve(10, 1000) {
		t.Fatal("the caller's own reservation does not count as use")
	}
}

// trap 19, case C46: with the broker down Append blocks at the window and gives way to its context.
func TestAppendBlocksAtTheWindow(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(3, "t"))
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.Window = 1 << 20 })
	r.append(message("t", "k", 0), 1)
	r.drain()
	r.p.Freeze()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	n := 1
	var err error
	for ; err == nil; n++ {
		m := message("t", "k", n)
		err = r.p.Append(ctx, &m, 1)
		if used := r.p.Stats().WindowBytes; used > 1<<20 {
			t.Fatalf("window holds %d bytes", used)
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if n < 1000 {
		t.Fatalf("only %d small events fit into 1 MiB", n)
	}
	r.p.Thaw()
	r.append(message("t", "k", n-1), 1)
	r.drain()
	wantOrder(t, consume(t, c.ListenAddrs(), n, "t"), "k", n)
}

// An event larger than the whole window passes, alone.
func TestEventLargerThanTheWindow(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	if err := c.CreateTopic("t", 1, map[string]string{"max.message.bytes": "5000000"}); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, c.ListenAddrs(), func(cfg *Config) { cfg.Window = minWindow })
	for n := range 5 {
		m := message("t", "k", n)
		m.Value = make([]byte, 2<<20)
		r.append(m, uint64(n))
	}
	r.drain()
	wantOrder(t, consume(t, c.ListenAddrs(), 5, "t"), "k", 5)
}

// 96 lanes with one open batch each take a small part of the window.
func TestNinetySixLanesFit(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(96, "t"))
	r := newRig(t, c.ListenAddrs(), nil)
	r.append(message("t", "k", 0), 1)
	r.drain()
	r.p.Freeze()
	for p := range int32(96) {
		m := message("t", "k", 1)
		m.Partition = p
		r.append(m, 1)
	}
	r.p.Flush()
	if used := r.p.Stats().WindowBytes; used > 3<<20 {
		t.Fatalf("96 open batches take %d bytes", used)
	}
	r.p.Thaw()
	r.drain()
}
