package replication

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// frame is a server message.
func frame(kind byte, body []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(4+len(body)))
	return append(b, body...)
}

// chunks is a source that gives the stream in pieces, with time-outs between.
type chunks struct {
	left  []byte
	sizes func() int
	rest  bool
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.left) == 0 {
		return 0, io.EOF
	}
	if c.rest = !c.rest; c.rest {
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(p, c.left[:min(len(c.left), c.sizes())])
	c.left = c.left[n:]
	return n, nil
}

// rule 9: however the bytes arrive, and however often the deadline cuts a
// message in the middle, the messages come out whole and in order, and the
// buffer goes back to its size.
func TestReaderFrames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(0, 20_000), 1, 20).Draw(t, "sizes")
		var stream []byte
		for i, n := range sizes {
			stream = append(stream, frame(byte('a'+i), bytes.Repeat([]byte{byte(i)}, n))...)
		}
		step := rapid.IntRange(1, 9_000)
		r := newWireReader(&chunks{left: stream, sizes: func() int { return step.Draw(t, "step") }}, 4<<10, 10_000)
		for i, n := range sizes {
			checkMessage(t, r, byte('a'+i), byte(i), n)
		}
		if _, _, err := nextOf(r); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last message: %v", err)
		}
		if len(r.buf) != len(r.base) {
			t.Fatalf("the buffer stayed at %d bytes", len(r.buf))
		}
	})
}

// nextOf is Next behind time-outs.
func nextOf(r *wireReader) (kind byte, body []byte, err error) {
	err = os.ErrDeadlineExceeded
	for errors.Is(err, os.ErrDeadlineExceeded) {
		kind, body, err = r.Next()
	}
	return kind, body, err
}

func checkMessage(t *rapid.T, r *wireReader, kind, fill byte, size int) {
	got, body, err := nextOf(r)
	if got != kind {
		t.Fatalf("got message %q, want %q (%v)", got, kind, err)
	}
	if size <= r.max {
		if err != nil || !bytes.Equal(body, bytes.Repeat([]byte{fill}, size)) {
			t.Fatalf("message %q of %d bytes: got %d, %v", kind, size, len(body), err)
		}
		return
	}
	if !errors.Is(err, errTooLarge) {
		t.Fatalf("message of %d bytes: %v", size, err)
	}
	drop, err := r.Discard()
	for done := false; !done; {
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		done, err = drop.Step(r)
	}
	if len(r.buf) > r.max {
		t.Fatalf("dropping a message of %d bytes took a buffer of %d", size, len(r.buf))
	}
}

// As an io.Reader it never gives pgproto3 a byte of the next message, which
// would then be missing from the stream.
func TestReaderStopsAtTheMessage(t *testing.T) {
	t.Parallel()
	first := frame('W', []byte{0, 0, 0})
	r := newWireReader(bytes.NewReader(append(append([]byte(nil), first...), frame('d', []byte("first row"))...)), 4<<10, 1<<20)
	p := make([]byte, 8<<10)
	n, err := io.ReadAtLeast(r, p, 5)
	if err != nil || !bytes.Equal(p[:n], first) {
		t.Fatalf("got %q, %v; want %q", p[:n], err, first)
	}
	kind, body, err := r.Next()
	if err != nil || kind != 'd' || string(body) != "first row" {
		t.Fatalf("got %q %q, %v", kind, body, err)
	}
}

func TestReaderRefusesImpossibleLengths(t *testing.T) {
	t.Parallel()
	r := newWireReader(strings.NewReader("d\x00\x00\x00\x03"), 4<<10, 1<<20)
	if _, _, err := r.Next(); err == nil || !strings.Contains(err.Error(), "impossible length 3") {
		t.Fatal(err)
	}
}

// A read finds room for all that gathered, whatever rest of a message is before it: what it left in the kernel would be
// all that the next one waits for.
func TestReaderKeepsRoomForAllThatGathered(t *testing.T) {
	t.Parallel()
	const gathered = 40 << 10
	src := &roomy{stream: bytes.NewReader(bytes.Repeat(frame('a', make([]byte, 100)), 10_000)), most: gathered, least: gathered}
	r := newWireReader(src, 64<<10, 1<<20)
	for {
		if _, _, err := r.Next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if src.least < gathered {
		t.Fatalf("a read had room for %d bytes", src.least)
	}
}

// roomy gives at most so many bytes a read, and notes the least room it was given.
type roomy struct {
	stream      io.Reader
	most, least int
}

func (s *roomy) Read(p []byte) (int, error) {
	s.least = min(s.least, len(p))
	return s.stream.Read(p[:min(s.most, len(p))])
}
