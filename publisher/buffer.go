package publisher

import (
	"encoding/binary"
	"io"
	"sync"
)

const (
	// recordChunk holds some twelve records of 200-byte payloads. 96 lanes with an open batch and one
	// in flight each take 96 x 2 x (4 + 1) KiB = 1 MiB.
	recordChunk = 4 << 10
	metaChunk   = 1 << 10
)

// chunk is a piece of memory of fixed capacity; len(b) is what is used of it.
type chunk struct{ b []byte }

// chunkPool recycles chunks of one size. It keeps no more than the garbage
// collector lets it: what is idle is given back.
type chunkPool struct {
	size int
	pool sync.Pool
}

func newChunkPool(size int) *chunkPool {
	p := &chunkPool{size: size}
	p.pool.New = func() any { return &chunk{b: make([]byte, 0, size)} }
	return p
}

func (p *chunkPool) get() *chunk  { return p.pool.Get().(*chunk) }
func (p *chunkPool) put(c *chunk) { c.b = c.b[:0]; p.pool.Put(c) }

var (
	recordChunks = newChunkPool(recordChunk)
	metaChunks   = newChunkPool(metaChunk)
)

// buffer is a growing sequence of bytes in chunks. The zero buffer needs a pool.
type buffer struct {
	pool   *chunkPool
	chunks []*chunk
	size   int
}

var _ io.Writer = (*buffer)(nil)

// capacity is the memory held, in bytes.
func (b *buffer) capacity() int { return len(b.chunks) * b.pool.size }

// tail is the chunk to write into, with at least one free byte.
func (b *buffer) tail() *chunk {
	if n := len(b.chunks); n > 0 {
		if c := b.chunks[n-1]; len(c.b) < cap(c.b) {
			return c
		}
	}
	c := b.pool.get()
	b.chunks = append(b.chunks, c)
	return c
}

// Write never fails.
func (b *buffer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		c := b.tail()
		k := min(len(p), cap(c.b)-len(c.b))
		c.b = append(c.b, p[:k]...)
		p = p[k:]
	}
	b.size += n
	return n, nil
}

func (b *buffer) writeString(s string) {
	b.size += len(s)
	for len(s) > 0 {
		c := b.tail()
		k := min(len(s), cap(c.b)-len(c.b))
		c.b = append(c.b, s[:k]...)
		s = s[k:]
	}
}

func (b *buffer) writeByte(v byte) {
	c := b.tail()
	c.b = append(c.b, v)
	b.size++
}

// writeVarint writes zig-zag, as records are written.
func (b *buffer) writeVarint(v int64) { b.writeUvarint(uint64(v<<1) ^ uint64(v>>63)) }

func (b *buffer) writeUvarint(u uint64) {
	c := b.tail()
	if cap(c.b)-len(c.b) >= binary.MaxVarintLen64 {
		n := len(c.b)
		c.b = binary.AppendUvarint(c.b, u)
		b.size += len(c.b) - n
		return
	}
	for ; u >= 0x80; u >>= 7 {
		b.writeByte(byte(u) | 0x80)
	}
	b.writeByte(byte(u))
}

// writeTo writes everything to w.
func (b *buffer) writeTo(w io.Writer) (int64, error) {
	var total int64
	for _, c := range b.chunks {
		n, err := w.Write(c.b)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// reset gives the chunks back to the pool.
func (b *buffer) reset() {
	for i, c := range b.chunks {
		b.pool.put(c)
		b.chunks[i] = nil
	}
	b.chunks = b.chunks[:0]
	b.size = 0
}

// cursor reads a buffer from its start.
type cursor struct {
	buf   *buffer
	chunk int
	off   int
}

var (
	_ io.Reader     = (*cursor)(nil)
	_ io.ByteReader = (*cursor)(nil)
)

func (c *cursor) Read(p []byte) (int, error) {
	for c.chunk < len(c.buf.chunks) {
		b := c.buf.chunks[c.chunk].b
		if c.off < len(b) {
			n := copy(p, b[c.off:])
			c.off += n
			return n, nil
		}
		c.chunk, c.off = c.chunk+1, 0
	}
	return 0, io.EOF
}

func (c *cursor) ReadByte() (byte, error) {
	var one [1]byte
	_, err := c.Read(one[:])
	return one[0], err
}

// next reads n bytes into memory of their own.
func (c *cursor) next(n int) ([]byte, error) {
	p := make([]byte, n)
	_, err := io.ReadFull(c, p)
	return p, err
}
