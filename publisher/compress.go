package publisher

import (
	"fmt"
	"io"
)

// compressionMask is the part of a batch's attributes that names the codec.
const compressionMask = 0x07

// compressBatch replaces the records by their compressed form. It runs on the
// sender's side, never on the goroutine that appends. What does not get smaller
// stays as it is.
func (b *batch) compressBatch(c Compression) error {
	codec := c.Codec()
	if codec == nil || b.compressed {
		return nil
	}
	out := buffer{pool: recordChunks}
	w := codec.NewWriter(&out)
	if _, err := b.records.writeTo(w); err != nil {
		_ = w.Close()
		out.reset()
		return fmt.Errorf("compress batch with %s: %w", c, err)
	}
	if err := w.Close(); err != nil {
		out.reset()
		return fmt.Errorf("compress batch with %s: %w", c, err)
	}
	b.compressed = true
	if out.size >= b.records.size {
		out.reset()
		return nil
	}
	b.records.reset()
	b.records = out
	b.attributes = b.attributes&^compressionMask | int16(codec.Code())
	return nil
}

// plainRecords is a copy of the uncompressed records where they are
// compressed, else the records themselves; owned says which.
func (b *batch) plainRecords() (buf *buffer, owned bool, err error) {
	codec := Compression(b.attributes & compressionMask).Codec()
	if codec == nil {
		return &b.records, false, nil
	}
	r := codec.NewReader(&cursor{buf: &b.records})
	defer func() { _ = r.Close() }()
	out := &buffer{pool: recordChunks}
	if _, err := io.Copy(out, r); err != nil {
		out.reset()
		return nil, false, fmt.Errorf("decompress own batch: %w", err)
	}
	return out, true, nil
}
